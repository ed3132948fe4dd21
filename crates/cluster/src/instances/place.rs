//! Places an instance: its nodes, their order, and their shares. Pure: candidates and spec are
//! arguments.

use std::net::IpAddr;

use protocol::{InstanceSpec, Nodes, Split, SplitOptions, Strategy};

use crate::context::Placeable;
use crate::instance::{Path, Rank};
use crate::wire::KeptRank;
use crate::{NodeId, find_node};

/// A node that could take a rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    pub node: NodeId,
    pub name: String,
    pub path: Path,
    pub memory_free_bytes: u64,
    pub threads: usize,
    pub speed: Option<placement::Speed>,
    pub device: layout::Device,
    pub class: String,
    pub own_memory: Option<String>,
    pub link: Option<placement::LinkSpeed>,
    /// The nodes that it cannot call, although they may call it.
    pub uncalled: Vec<NodeId>,
}

impl Candidate {
    fn place_among(&self, nodes: &Nodes) -> Option<usize> {
        nodes.place_of(&self.name, &self.node.to_string())
    }
}

/// A plan with the nodes that its numbers refer to.
pub(crate) struct Placed {
    pub plan: placement::Plan,
    pub candidates: Vec<Candidate>,
    /// Whether nodes, shares and stages follow the request.
    pub is_as_asked: bool,
}

impl Placed {
    pub(super) fn ranks(&self) -> Vec<Rank> {
        ranks(&self.plan, &self.candidates)
    }

    /// The names of its nodes, for the user.
    pub(super) fn names(&self) -> String {
        let name = |rank: &placement::PlannedRank| self.candidates[rank.node].name.as_str();
        self.plan.ranks.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

/// The requested candidates in the requested order; all of them if the request names none.
///
/// # Errors
/// A name matches no node or two nodes; or this node, which leads, is not the first.
pub(super) fn named(
    candidates: Vec<Candidate>,
    wanted: &InstanceSpec,
) -> Result<Vec<Candidate>, String> {
    let Some(Nodes::Named(names)) = &wanted.nodes else { return Ok(candidates) };
    let mut left = candidates;
    let here = left.first().map(|here| here.node);
    let mut chosen: Vec<Candidate> = Vec::new();
    for name in names {
        let nodes = left.iter().map(|one| (one.node, one.name.as_str()));
        let found = find_node(name, nodes).map_err(|error| error.to_string())?;
        if Some(found) == here && !chosen.is_empty() {
            return Err(format!("node {name}, where it is asked for, leads: name it first"));
        }
        chosen.extend(left.extract_if(.., |one| one.node == found));
    }
    match left.first().filter(|first| Some(first.node) == here) {
        Some(here) => Err(format!(
            "node {}, where it is asked for, leads: name it first, or ask on one of those nodes",
            here.name
        )),
        None => Ok(chosen),
    }
}

/// The spec without its demands on nodes and their number.
pub(super) fn relaxed(wanted: &InstanceSpec) -> InstanceSpec {
    let strategy = match wanted.options.strategy {
        // There may be too few nodes for groups.
        Strategy::Hybrid => Strategy::Auto,
        other => other,
    };
    let options = SplitOptions {
        shares: None,
        strategy,
        stages: None,
        stage_layers: None,
        ..wanted.options.clone()
    };
    InstanceSpec { nodes: None, options, ..wanted.clone() }
}

/// The spec of an instance, with its present context size.
pub(super) fn of_size(wanted: &InstanceSpec, split: &Split) -> InstanceSpec {
    InstanceSpec { context_tokens: Some(split.context_tokens), ..wanted.clone() }
}

pub(super) fn plan(
    model: &Placeable,
    candidates: &[Candidate],
    spec: &InstanceSpec,
    ring: bool,
) -> Result<placement::Plan, String> {
    plan_for(&model.outline, model.beside, candidates, spec, ring)
}

/// A plan that follows the request, or if there is none, a plan for any nodes.
pub(super) fn plan_somehow(
    model: &Placeable,
    candidates: Vec<Candidate>,
    wanted: &InstanceSpec,
) -> Result<Placed, String> {
    let as_asked = named(candidates.clone(), wanted).and_then(|candidates| {
        let plan = plan(model, &candidates, wanted, false)?;
        Ok(Placed { plan, candidates, is_as_asked: true })
    });
    as_asked.or_else(|_| plan_in_need(model, candidates, wanted))
}

/// A plan for any nodes: for the named ones, if these suffice together with the first one, which
/// leads; else with further nodes.
fn plan_in_need(
    model: &Placeable,
    candidates: Vec<Candidate>,
    wanted: &InstanceSpec,
) -> Result<Placed, String> {
    let relaxed = relaxed(wanted);
    let is_as_asked = false;
    if let Some(nodes @ Nodes::Named(_)) = &wanted.nodes {
        let mut own = candidates.clone();
        let first = own.first().map(|first| first.node);
        own.retain(|one| Some(one.node) == first || one.place_among(nodes).is_some());
        if let Ok(plan) = plan(model, &own, &relaxed, false) {
            return Ok(Placed { plan, candidates: own, is_as_asked });
        }
    }
    let plan = plan(model, &candidates, &relaxed, false)?;
    Ok(Placed { plan, candidates, is_as_asked })
}

/// A plan in which all ranks except this node's are kept ones; `None` if some are missing.
pub(super) fn plan_with_kept(
    model: &Placeable,
    wanted: &InstanceSpec,
    candidates: &[Candidate],
    kept: &[(NodeId, KeptRank)],
) -> Option<Placed> {
    kept.iter().find_map(|(_, one)| {
        let split = &one.split;
        let candidate = |id: NodeId| candidates.iter().find(|one| one.node == id).cloned();
        let holder = |rank| {
            let mut holders = kept.iter().filter(|(_, kept)| kept.split == *split);
            holders.find(|(_, kept)| kept.rank == rank).and_then(|(node, _)| candidate(*node))
        };
        let first = candidates.first().cloned();
        let others = (1..split.shares.len()).map(holder);
        let candidates: Vec<Candidate> =
            std::iter::once(first).chain(others).collect::<Option<_>>()?;
        let plan = plan(model, &candidates, &spec_of(wanted, split), false).ok()?;
        let in_order = plan.ranks.iter().enumerate().all(|(at, rank)| rank.node == at);
        let is_it = in_order && plan.split == *split;
        is_it.then_some(Placed { plan, candidates, is_as_asked: false })
    })
}

/// The spec that gives exactly this split.
fn spec_of(wanted: &InstanceSpec, split: &Split) -> InstanceSpec {
    let stages = Some(&split.stages).filter(|stages| !stages.is_empty());
    let options = SplitOptions {
        shares: Some(split.shares.clone()),
        strategy: match (stages, split.shares.len()) {
            (None, 2..) => Strategy::Tensor,
            _ => Strategy::Auto,
        },
        stages: stages.map(|stages| stages.iter().map(|stage| stage.ranks).collect()),
        stage_layers: stages.map(|stages| stages.iter().map(|stage| stage.layers).collect()),
        ..wanted.options.clone()
    };
    InstanceSpec {
        nodes: Some(split.shares.len().into()),
        options,
        context_tokens: Some(split.context_tokens),
        sequences_max: Some(split.sequences_max),
        cache_tokens: Some(split.cache_tokens),
        ..wanted.clone()
    }
}

/// The plan of an instance's present placement, on these nodes.
pub(super) fn plan_as_is(
    model: &Placeable,
    wanted: &InstanceSpec,
    split: &Split,
    held: &[Candidate],
) -> Option<placement::Plan> {
    let as_is = spec_of(wanted, split);
    let spec = InstanceSpec {
        context_tokens: wanted.context_tokens,
        sequences_max: wanted.sequences_max,
        cache_tokens: wanted.cache_tokens,
        ..as_is
    };
    // Its ranks have linked, whatever can be called today.
    let held: Vec<_> =
        held.iter().map(|one| Candidate { uncalled: Vec::new(), ..one.clone() }).collect();
    plan(model, &held, &spec, false).ok()
}

/// A plan for a ring: the same nodes in another order, each with its present share. `None` if one
/// of them is no longer a candidate.
pub(super) fn plan_ring(
    model: &Placeable,
    mut candidates: Vec<Candidate>,
    wanted: &InstanceSpec,
    split: &Split,
    order: &[(NodeId, u32)],
) -> Option<Result<Placed, String>> {
    let place = |candidate: &Candidate| order.iter().position(|at| at.0 == candidate.node);
    candidates.retain(|candidate| place(candidate).is_some());
    if candidates.len() < order.len() {
        return None;
    }
    candidates.sort_by_key(place);
    // The order was chosen by the links that neighbours have.
    candidates.iter_mut().for_each(|one| one.uncalled.clear());
    let (asked, stages) = (&wanted.options, &split.stages);
    // A ring over all nodes serves tensor parallelism and a pipeline alike, so the faster one is
    // chosen anew.
    let is_free = asked.strategy == Strategy::Auto
        && asked.stages.is_none()
        && asked.stage_layers.is_none()
        && stages.iter().all(|stage| stage.ranks == 1);
    let kept = Some(stages).filter(|stages| !is_free && !stages.is_empty());
    let options = SplitOptions {
        shares: asked.shares.is_some().then(|| order.iter().map(|at| at.1).collect()),
        strategy: if is_free || kept.is_some() { Strategy::Auto } else { Strategy::Tensor },
        stages: kept.map(|stages| stages.iter().map(|stage| stage.ranks).collect()),
        ..asked.clone()
    };
    let spec = InstanceSpec { nodes: Some(order.len().into()), options, ..wanted.clone() };
    let plan = plan(model, &candidates, &spec, true);
    Some(plan.map(|plan| Placed { plan, candidates, is_as_asked: false }))
}

/// Whether a plan fits beside the running instances: into the free memory of its nodes.
pub(super) fn fits_beside(placed: &Placed, now: &[Candidate]) -> bool {
    let free = |id: NodeId| now.iter().find(|one| one.node == id).map(|one| one.memory_free_bytes);
    let all_here = placed.candidates.iter().all(|one| free(one.node).is_some());
    let fits = |rank: &placement::PlannedRank| {
        free(placed.candidates[rank.node].node).is_some_and(|free| rank.memory_bytes <= free)
    };
    all_here && placed.plan.ranks.iter().all(fits)
}

/// [`plan`] for a model given only by its outline, and what runs beside it on the first node.
pub(super) fn plan_for(
    model: &layout::Outline,
    beside: placement::Beside,
    candidates: &[Candidate],
    spec: &InstanceSpec,
    ring: bool,
) -> Result<placement::Plan, String> {
    let options = placement::Options { ring, ..placement::Options::new(spec) };
    let plan = placement::plan_beside(model, &nodes(candidates), &options, beside);
    plan.map_err(|error| error.to_string())
}

fn nodes(candidates: &[Candidate]) -> Vec<placement::Node> {
    let mut machines: Vec<(IpAddr, Option<String>)> = Vec::new();
    let mut machine = |Candidate { path, own_memory, .. }: &Candidate| {
        // Nodes with one address are on one machine. On this machine, both ends of the path have
        // the same address.
        let address = if path.ours == path.theirs { Path::LOOPBACK.theirs } else { path.theirs };
        let place = (address, own_memory.clone());
        let known = machines.iter().position(|known| *known == place);
        known.unwrap_or_else(|| {
            machines.push(place);
            machines.len() - 1
        })
    };
    let place = |node: NodeId| candidates.iter().position(|one| one.node == node);
    let node = |(id, candidate): (usize, &Candidate)| placement::Node {
        id,
        name: candidate.name.clone(),
        device: candidate.device,
        class: candidate.class.clone(),
        memory_free_bytes: candidate.memory_free_bytes,
        threads: candidate.threads,
        speed: candidate.speed,
        machine: Some(machine(candidate)),
        links: if id == 0 { Vec::new() } else { vec![candidate.link] },
        uncalled: candidate.uncalled.iter().copied().filter_map(place).collect(),
    };
    candidates.iter().enumerate().map(node).collect()
}

pub(super) fn ranks(plan: &placement::Plan, candidates: &[Candidate]) -> Vec<Rank> {
    let rank = |planned: &placement::PlannedRank| {
        let Candidate { node, name, path, .. } = &candidates[planned.node];
        let rank = Rank::new(*node, name.clone(), planned.memory_bytes, *path);
        rank.with_weights(planned.footprint.weight_bytes)
    };
    plan.ranks.iter().map(rank).collect()
}
