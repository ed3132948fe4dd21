//! On which nodes an instance is placed: at first, again when some are lost, and in another order
//! when some cannot link.

use std::net::IpAddr;

use protocol::{InstanceSpec, Nodes, Split, SplitOptions, Strategy, Transport};
use tracing::warn;

use super::{Daemon, Owned, Prepared};
use crate::device::{class_of, kind_of, own_memory};
use crate::instance::{Effect, Path, Rank};
use crate::members::Member;
use crate::wire::VERSION;
use crate::{NodeId, NodeState};

/// A node that was lost and came back so often within a minute, without being started anew, is on
/// a way that does not hold.
const RETURNS_MAX: usize = 3;

/// A node that could take a rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    pub(super) node: NodeId,
    pub(super) name: String,
    path: Path,
    pub(super) memory_free_bytes: u64,
    threads: usize,
    speed: Option<placement::Speed>,
    device: layout::Device,
    class: String,
    own_memory: Option<String>,
    link: Option<placement::LinkSpeed>,
}

impl Candidate {
    fn place_among(&self, nodes: &Nodes) -> Option<usize> {
        nodes.place_of(&self.name, &self.node.to_string())
    }
}

impl Daemon {
    /// Places an instance again on the nodes that are left. What was asked for about their number
    /// gives way: a model on fewer nodes is better than none.
    pub(super) fn replan(&mut self, id: &str) -> Vec<Effect> {
        self.dirty = true;
        let now = self.now();
        let Some(owned) = self.owned.get(id) else { return Vec::new() };
        let transport = owned.machine.fixed().spec.options.transport;
        let candidates = self.candidates_together(Some(id), transport);
        let Some(owned) = self.owned.get_mut(id) else { return Vec::new() };
        let wanted = &owned.machine.fixed().spec;
        match plan_in_need(&owned.prepared, candidates, wanted) {
            Ok((plan, candidates)) => {
                warn!(instance = id, ranks = plan.ranks.len(), why = ?plan.why, "placed again");
                let ranks = ranks(&plan, &candidates);
                (owned.why, owned.prediction) = (plan.why, plan.prediction);
                owned.machine.replace(ranks, plan.split, now)
            }
            Err(why) => {
                warn!(instance = id, why, "cannot be placed again");
                owned.machine.give_up(&why, now)
            }
        }
    }

    /// Places an instance again on the same nodes in another order, each with the share it has.
    /// Nothing happens if one of them has just gone, which the instance will hear of.
    pub(super) fn reorder(&mut self, id: &str, order: &[(NodeId, u32)]) -> Vec<Effect> {
        self.dirty = true;
        let now = self.now();
        let Some(owned) = self.owned.get(id) else { return Vec::new() };
        let all = self.candidates(Some(id), owned.machine.fixed().spec.options.transport);
        let Some(owned) = self.owned.get_mut(id) else { return Vec::new() };
        let place = |candidate: &Candidate| order.iter().position(|at| at.0 == candidate.node);
        let mut candidates: Vec<_> = all.into_iter().filter(|c| place(c).is_some()).collect();
        if candidates.len() < order.len() {
            return Vec::new();
        }
        candidates.sort_by_key(place);
        let (wanted, split) = (&owned.machine.fixed().spec, owned.machine.split());
        let (asked, stages) = (&wanted.options, &split.stages);
        // A ring over all serves tensors and a pipeline alike, so the faster one is chosen anew.
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
        match plan(&owned.prepared, &candidates, &spec, true) {
            Ok(plan) => {
                warn!(instance = id, why = ?plan.why, "placed in the order of a ring");
                let ranks = ranks(&plan, &candidates);
                (owned.why, owned.prediction) = (plan.why, plan.prediction);
                owned.machine.reorder(ranks, plan.split, now)
            }
            Err(why) => {
                warn!(instance = id, why, "cannot be placed in the order of a ring");
                owned.machine.give_up(&format!("in the order of the only ring, {why}"), now)
            }
        }
    }

    /// The nodes that could take a rank now, this one first: those that are not to be empty, but
    /// for this one, which has a rank of whatever it owns. The memory of `leaving` counts as free.
    pub(super) fn candidates(&self, leaving: Option<&str>, transport: Transport) -> Vec<Candidate> {
        let me = Candidate {
            node: self.me,
            name: self.config.name.clone(),
            path: Path::LOOPBACK,
            memory_free_bytes: self.config.memory_bytes,
            threads: self.config.threads,
            speed: self.speed,
            device: kind_of(self.config.device.told().as_ref()),
            class: class_of(self.config.device.told().as_ref()),
            own_memory: own_memory(self.config.device.told().as_ref()),
            link: None,
        };
        let live = self.membership.members().filter(|member| {
            self.membership.state(member.id) == NodeState::Live
                && !self.desired.is_drained(member.id)
        });
        let peers = live.filter_map(|member| {
            let heartbeat = self.views.get(&member.id)?.heartbeat.as_ref()?;
            if heartbeat.numerics != self.versions.numerics || self.flaps(member.id) {
                return None;
            }
            // Its rank would call the first one.
            if self.uncalled_by(member.id).contains(&self.me) {
                return None;
            }
            let path = self.conn(member.id)?.path;
            Some(Candidate {
                node: member.id,
                name: member.name.clone(),
                path,
                memory_free_bytes: heartbeat.memory_bytes,
                threads: heartbeat.threads,
                speed: heartbeat.speed,
                device: kind_of(heartbeat.device.as_ref()),
                class: class_of(heartbeat.device.as_ref()),
                own_memory: own_memory(heartbeat.device.as_ref()),
                link: self.way_to(member.id, path, transport),
            })
        });
        let mut candidates: Vec<Candidate> = std::iter::once(me).chain(peers).collect();
        for candidate in &mut candidates {
            let used = self.memory_used_on(candidate.node, leaving);
            candidate.memory_free_bytes = candidate.memory_free_bytes.saturating_sub(used);
        }
        candidates
    }

    /// The members that are no candidates although they are there, in words.
    pub(super) fn absent(&self) -> Vec<String> {
        let others = self.other_versions().into_iter();
        others.chain(self.flapping()).chain(self.one_way()).collect()
    }

    /// Why something cannot be placed, with those members.
    pub(super) fn with_absent(&self, why: String) -> String {
        self.absent().into_iter().fold(why, |why, absent| format!("{why}. {absent}"))
    }

    fn flaps(&self, node: NodeId) -> bool {
        self.growth.returns(node, self.now()) >= RETURNS_MAX
    }

    /// The members on which nothing is placed because the way to them breaks again and again, in
    /// words.
    pub(super) fn flapping(&self) -> Vec<String> {
        let words = |member: &Member| {
            let returns = self.growth.returns(member.id, self.now());
            (returns >= RETURNS_MAX).then(|| {
                format!(
                    "The way to {} broke {returns} times in the last minute, so no model is placed \
                     on it until it holds for a minute. Look at the cable, the Wi-Fi or the VPN \
                     between the two: sinew nodes -v",
                    member.name
                )
            })
        };
        self.membership.members().filter_map(words).collect()
    }

    /// The members that cannot share an instance with this node because they compute in another
    /// version, in words.
    pub(super) fn other_versions(&self) -> Option<String> {
        let others = self.membership.members().filter_map(|member| {
            let heartbeat = self.views.get(&member.id)?.heartbeat.as_ref()?;
            self.membership.conn(member.id)?;
            let differs = heartbeat.numerics != self.versions.numerics;
            differs.then(|| format!("{} (sinew {})", member.name, heartbeat.version))
        });
        let others: Vec<String> = others.collect();
        (!others.is_empty()).then(|| {
            format!(
                "Models of this node (sinew {VERSION}) wait for {}: they compute in another version, \
                 and a model runs on nodes of one. Update the older ones",
                others.join(", ")
            )
        })
    }

    /// What is taken on a node: as it says itself, but no less than this node has placed there.
    fn memory_used_on(&self, node: NodeId, leaving: Option<&str>) -> u64 {
        let planned = |owned: &Owned| owned.machine.memory_bytes_on(node);
        let mine: u64 = self.owned.values().chain(self.successors.values()).map(planned).sum();
        let leaving = leaving.map_or(0, |id| match self.owned.get(id) {
            Some(owned) => planned(owned),
            None => self.memory_told(id, node),
        });
        let told = if node == self.me {
            self.memory_used_bytes()
        } else {
            let heartbeat = self.views.get(&node).and_then(|view| view.heartbeat.as_ref());
            heartbeat.map_or(0, |heartbeat| heartbeat.memory_used_bytes)
        };
        told.max(mine).saturating_sub(leaving)
    }

    /// What the ranks of another node's instance take on a node, as its owner tells.
    fn memory_told(&self, id: &str, node: NodeId) -> u64 {
        let Some((entry, wanted)) = self.desired.find(id) else { return 0 };
        let ranks = self.status_of(entry, wanted).ranks;
        ranks
            .iter()
            .filter(|rank| rank.node == node)
            .map(|rank| rank.memory_bytes)
            .fold(0, u64::saturating_add)
    }
}

/// The candidates that were asked for by name, in that order; all of them if none was.
///
/// # Errors
/// A name is nobody's, or two nodes'; or this node, which leads, is not the first.
pub(super) fn named(
    candidates: Vec<Candidate>,
    wanted: &InstanceSpec,
) -> std::result::Result<Vec<Candidate>, String> {
    let Some(Nodes::Named(names)) = &wanted.nodes else { return Ok(candidates) };
    let mut left: Vec<Option<Candidate>> = candidates.into_iter().map(Some).collect();
    let is_called = |candidate: &Option<Candidate>, name: &str| {
        let by_id = |id: NodeId| name.len() >= 4 && id.to_string().starts_with(name);
        candidate.as_ref().is_some_and(|known| known.name == name || by_id(known.node))
    };
    let mut chosen = Vec::new();
    for name in names {
        let mut found = (0..left.len()).filter(|at| is_called(&left[*at], name));
        match (found.next(), found.next()) {
            (Some(0), _) if !chosen.is_empty() => {
                return Err(format!("node {name}, where it is asked for, leads: name it first"));
            }
            (Some(at), None) => chosen.extend(left[at].take()),
            (Some(_), Some(_)) => {
                return Err(format!("two nodes are called {name}: give the ID, of sinew nodes"));
            }
            (None, _) => {
                let known = left.iter().flatten().map(|known| known.name.as_str());
                let known: Vec<&str> = known.collect();
                return Err(format!(
                    "no live node is called {name}; the others are: {}",
                    known.join(", ")
                ));
            }
        }
    }
    match left.first() {
        Some(Some(here)) => Err(format!(
            "node {}, where it is asked for, leads: name it first, or ask on one of those nodes",
            here.name
        )),
        _ => Ok(chosen),
    }
}

/// The same without what was asked for about nodes and their number.
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

/// What is wanted of an instance, with the size that it has.
pub(super) fn of_size(wanted: &InstanceSpec, split: &Split) -> InstanceSpec {
    InstanceSpec { context_tokens: Some(split.context_tokens), ..wanted.clone() }
}

pub(super) fn plan(
    prepared: &Prepared,
    candidates: &[Candidate],
    spec: &InstanceSpec,
    ring: bool,
) -> std::result::Result<placement::Plan, String> {
    plan_for(&prepared.model, prepared.draft_bytes, candidates, spec, ring)
}

/// A plan as it was asked for, or if that cannot be, for whatever nodes there are; with the nodes
/// by whose places it names them, and whether it is as it was asked for.
pub(super) fn plan_somehow(
    prepared: &Prepared,
    candidates: Vec<Candidate>,
    wanted: &InstanceSpec,
) -> std::result::Result<(placement::Plan, Vec<Candidate>, bool), String> {
    let as_asked = named(candidates.clone(), wanted).and_then(|candidates| {
        let plan = plan(prepared, &candidates, wanted, false)?;
        Ok((plan, candidates, true))
    });
    as_asked.or_else(|_| {
        let (plan, candidates) = plan_in_need(prepared, candidates, wanted)?;
        Ok((plan, candidates, false))
    })
}

/// A plan for whatever nodes there are: of those that were named, if these suffice with the first
/// one, which leads; else others are borrowed.
pub(super) fn plan_in_need(
    prepared: &Prepared,
    candidates: Vec<Candidate>,
    wanted: &InstanceSpec,
) -> std::result::Result<(placement::Plan, Vec<Candidate>), String> {
    let relaxed = relaxed(wanted);
    if let Some(nodes @ Nodes::Named(_)) = &wanted.nodes {
        let mut own = candidates.clone();
        let first = own.first().map(|first| first.node);
        own.retain(|one| Some(one.node) == first || one.place_among(nodes).is_some());
        if let Ok(plan) = plan(prepared, &own, &relaxed, false) {
            return Ok((plan, own));
        }
    }
    let plan = plan(prepared, &candidates, &relaxed, false)?;
    Ok((plan, candidates))
}

/// [`plan`] for a model of which only that is known; `draft_bytes`: what its draft takes on the
/// first node.
pub(super) fn plan_for(
    model: &layout::Outline,
    draft_bytes: u64,
    candidates: &[Candidate],
    spec: &InstanceSpec,
    ring: bool,
) -> std::result::Result<placement::Plan, String> {
    let mut nodes = nodes(candidates);
    if let Some(first) = nodes.first_mut() {
        first.memory_free_bytes = first.memory_free_bytes.saturating_sub(draft_bytes);
    }
    let options = placement::Options { spec, ring, load: None };
    placement::plan(model, &nodes, &options).map_err(|error| error.to_string())
}

fn nodes(candidates: &[Candidate]) -> Vec<placement::Node> {
    let mut machines: Vec<(IpAddr, Option<String>)> = Vec::new();
    let mut machine = |Candidate { path, own_memory, .. }: &Candidate| {
        // Nodes of one address are on one machine; those of this one have the address of both ends.
        let address = if path.ours == path.theirs { Path::LOOPBACK.theirs } else { path.theirs };
        let place = (address, own_memory.clone());
        let known = machines.iter().position(|known| *known == place);
        known.unwrap_or_else(|| {
            machines.push(place);
            machines.len() - 1
        })
    };
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
    };
    candidates.iter().enumerate().map(node).collect()
}

pub(super) fn ranks(plan: &placement::Plan, candidates: &[Candidate]) -> Vec<Rank> {
    let rank = |planned: &placement::PlannedRank| {
        let Candidate { node, name, path, .. } = &candidates[planned.node];
        Rank::new(*node, name.clone(), planned.memory_bytes, *path)
    };
    plan.ranks.iter().map(rank).collect()
}
