//! Moves models that work to where they are better off, when nodes have come (back) or memory is
//! free, and off nodes that are to be empty. What decides is `growth`; here is what it is asked,
//! and what follows.
//!
//! Where memory suffices for both, the new ranks load beside the old ones, as a *successor* that
//! takes over once it has generated a token: answers pause for as long as their texts take to be
//! computed again. Where it does not, a model that need not move does so once nobody asks it for
//! anything.
//!
//! What a node owns that is to be empty, another one inherits: it loads the model beside what runs,
//! under a claim that it makes once the model works.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use placement::{Plan, Prediction};
use protocol::{InstanceSpec, Nodes, Secret, SplitOptions, Strategy};
use tracing::{info, warn};

use super::owning::{WORKERS_BITS, fixed};
use super::placing::{Candidate, plan, plan_somehow, ranks};
use super::{Daemon, Owned, Prepared};
use crate::desired::{Entry, Wanted};
use crate::growth::{self, Terms};
use crate::instance::{Effect, Fixed, Input, Instance};
use crate::{InstanceState, InstanceStatus, NodeId, RankStatus};

/// Ticks between two looks: a second.
const LOOK_EVERY_TICKS: u64 = 4;
/// A model whose move interrupts answers for as long as loading takes moves once it was idle for
/// so long.
const IDLE_MIN: Duration = Duration::from_secs(2);

/// What a look at an instance's placement has found.
#[derive(Debug, Default)]
pub(super) struct Reviewed {
    /// The nodes as they were when there was nothing better.
    nothing_better: Vec<Candidate>,
    /// Why it does not move although it must.
    stuck: Option<String>,
    idle_since: Option<Duration>,
}

impl Owned {
    pub(super) fn new(
        machine: Instance,
        prepared: Arc<Prepared>,
        why: Vec<String>,
        prediction: Option<Prediction>,
    ) -> Self {
        let (sinks, reviewed) = (BTreeMap::new(), Reviewed::default());
        let (links, rest) = (BTreeMap::new(), super::resting::Rest::default());
        Self { machine, prepared, sinks, why, prediction, reviewed, links, rest }
    }
}

impl Daemon {
    /// Looks at each placement again, each second.
    pub(super) fn review_placements(&mut self) {
        if !self.ticks.is_multiple_of(LOOK_EVERY_TICKS) {
            return;
        }
        self.growth.retain(|id| self.desired.find(id).is_some());
        for id in self.owned.keys().cloned().collect::<Vec<_>>() {
            self.review(&id);
        }
    }

    fn review(&mut self, id: &str) {
        let now = self.now();
        let Some(owned) = self.owned.get_mut(id) else { return };
        let machine = &owned.machine;
        owned.reviewed.idle_since =
            machine.is_idle().then(|| owned.reviewed.idle_since.unwrap_or(now));
        let lacks_nodes = machine.lacks_nodes();
        let works = machine.state() == InstanceState::Ready && machine.has_generated();
        if self.successors.contains_key(id) || !(works || lacks_nodes) {
            return;
        }
        let must_leave = self.must_leave(id);
        let candidates = self.future_candidates(id, must_leave.is_some());
        let Some(owned) = self.owned.get(id) else { return };
        let may_move = lacks_nodes || self.growth.may_move(id, must_leave.is_some(), now);
        if owned.reviewed.nothing_better == candidates || !may_move {
            return;
        }
        match better(owned, &candidates, must_leave.as_deref()) {
            Ok(Some(better)) if lacks_nodes => self.revive(id, better),
            Ok(Some(better)) => self.begin_move(id, better, must_leave.is_some()),
            nothing => {
                let Some(owned) = self.owned.get_mut(id) else { return };
                owned.reviewed.nothing_better = candidates;
                let stuck = must_leave.zip(nothing.err());
                owned.reviewed.stuck = stuck.map(|(must, why)| format!("{must}, but {why}"));
                self.dirty = true;
            }
        }
    }

    /// Why an instance must move, if it must. What a node owns has a rank there until another one
    /// inherits it.
    fn must_leave(&self, id: &str) -> Option<String> {
        let mut nodes = self.owned.get(id)?.machine.nodes();
        let leaves = nodes.find(|on| *on != self.me && self.desired.is_drained(*on))?;
        Some(format!("node {} is to be empty", self.node_name(leaves)))
    }

    /// The nodes that an instance could be on, its own memory counted as free: those that it is on,
    /// and those that have stayed for long enough, which is no matter if it must move.
    fn future_candidates(&self, id: &str, must: bool) -> Vec<Candidate> {
        let Some(owned) = self.owned.get(id) else { return Vec::new() };
        let now = self.now();
        let mut candidates =
            self.candidates_together(Some(id), owned.machine.fixed().spec.options.transport);
        let is_on = |node: NodeId| owned.machine.nodes().any(|on| on == node);
        let stays = |node| must || is_on(node) || self.growth.is_steady(node, now);
        candidates.retain(|one| one.node == self.me || stays(one.node));
        candidates
    }

    /// Places what had no nodes.
    fn revive(&mut self, id: &str, Better { plan, candidates, .. }: Better) {
        let now = self.now();
        let Some(owned) = self.owned.get_mut(id) else { return };
        info!(instance = id, ranks = plan.ranks.len(), why = ?plan.why, "placed again");
        self.dirty = true;
        let ranks = ranks(&plan, &candidates);
        owned.prediction = plan.prediction;
        owned.why = plan.why;
        let effects = owned.machine.replace(ranks, plan.split, now);
        self.run_effects(id, effects);
    }

    /// Moves an instance, or waits until it may.
    fn begin_move(&mut self, id: &str, better: Better, must: bool) {
        let Better { plan, candidates, why } = better;
        let (candidates, now) = (&candidates[..], self.now());
        let beside = self.beside(id, candidates, &plan);
        let Some(owned) = self.owned.get_mut(id) else { return };
        let is_idle = |since| now.saturating_sub(since) >= IDLE_MIN;
        if !beside && !must && !owned.reviewed.idle_since.is_some_and(is_idle) {
            return;
        }
        self.growth.moved(id, now);
        self.dirty = true;
        owned.reviewed.stuck = None;
        let names = names(&plan, candidates);
        info!(instance = id, why, names, beside, "moves");
        let ranks = ranks(&plan, candidates);
        if beside {
            let (fixed, prepared) = (owned.machine.fixed().clone(), owned.prepared.clone());
            self.load_beside(fixed, prepared, plan, candidates);
        } else {
            owned.prediction = plan.prediction;
            owned.why = plan.why;
            let why = format!("it moves to {names}: {why}");
            let effects = owned.machine.move_to(ranks, plan.split, &why, now);
            self.run_effects(id, effects);
        }
    }

    /// Starts a successor.
    fn load_beside(
        &mut self,
        like: Fixed,
        prepared: Arc<Prepared>,
        plan: Plan,
        candidates: &[Candidate],
    ) {
        self.instances_made += 1;
        let fixed = Fixed {
            secret: Secret(self.outside.random()),
            first_worker: self.instances_made << WORKERS_BITS,
            ..like
        };
        let id = fixed.id.clone();
        let mut machine = Instance::new(fixed, ranks(&plan, candidates), plan.split, self.now());
        let effects = machine.take_effects();
        self.successors
            .insert(id.clone(), Owned::new(machine, prepared, plan.why, plan.prediction));
        self.run_effects(&id, effects);
    }

    /// Gets ready to own what nodes own that are to be empty.
    pub(super) fn inherit(&mut self) {
        let now = self.now();
        for (entry, wanted) in self.desired.to_inherit(&self.files(), &self.seen()) {
            let id = &wanted.id;
            if entry.unloaded {
                // There is nothing to load first.
                self.abandon(id, "the model is unloaded");
                let claim = self.desired.claim(&entry.name);
                self.desired_changed(claim.into_iter().collect::<Vec<_>>(), None);
                continue;
            }
            let begun = self.successors.contains_key(id) || self.is_opening(id);
            if !begun && self.growth.may_move(id, true, now) {
                info!(
                    name = entry.name,
                    "its owner is to be empty; this node gets ready to own it"
                );
                self.open(wanted);
            }
        }
    }

    /// Loads an instance that this node is to inherit, beside what runs if there is room, else in
    /// its place.
    pub(super) fn prepare_to_own(&mut self, id: &str, entry: Entry, prepared: Prepared) {
        let due = self.desired.to_inherit(&self.files(), &self.seen());
        if !due.iter().any(|(due, _)| due.name == entry.name) {
            return;
        }
        self.growth.moved(id, self.now());
        let spec = prepared.spec.clone();
        let candidates = self.candidates_together(None, spec.options.transport);
        let plan_for = |candidates| plan_somehow(&prepared, candidates, &spec);
        let claim = self.desired.next_version();
        match plan_for(candidates) {
            Ok((plan, candidates, _)) => {
                let secret = Secret(self.outside.random());
                let fixed = fixed(id, Entry { claim, ..entry }, &prepared, secret);
                self.load_beside(fixed, prepared.into(), plan, &candidates);
            }
            Err(_) => match plan_for(self.candidates_together(Some(id), spec.options.transport)) {
                Ok(_) => {
                    let Some(entry) = self.desired.claim_as(id, claim) else { return };
                    self.desired_changed(vec![entry.clone()], None);
                    self.leave_former_owners();
                    self.own_again(id, entry, prepared);
                }
                Err(why) => warn!(instance = id, why, "it cannot be inherited"),
            },
        }
    }

    /// Whether the same plan fits beside what runs now.
    fn beside(&self, id: &str, candidates: &[Candidate], wanted: &Plan) -> bool {
        let Some(owned) = self.owned.get(id) else { return false };
        let spec = &owned.machine.fixed().spec;
        let all = self.candidates(None, spec.options.transport);
        let mut free = candidates.to_vec();
        free.retain_mut(|one| match all.iter().find(|now| now.node == one.node) {
            Some(now) => {
                *one = now.clone();
                true
            }
            None => false,
        });
        let fits = |(on, rank): (&Candidate, &placement::PlannedRank)| {
            on.node == candidates[rank.node].node && rank.memory_bytes <= on.memory_free_bytes
        };
        let on = wanted.ranks.iter().filter_map(|rank| free.get(rank.node));
        free.len() == candidates.len()
            && on.zip(&wanted.ranks).all(fits)
            && owned.prepared.draft_bytes == 0
    }

    /// Tells a successor something, and lets it take over once it works.
    pub(super) fn step_successor(&mut self, id: &str, event: Input) {
        let now = self.now();
        let Some(next) = self.successors.get_mut(id) else { return };
        let mut effects = next.machine.step(event, now);
        // It is only there to be better: what goes wrong with it ends it.
        let asks = |effect: &Effect| {
            matches!(effect, Effect::Reorder(_) | Effect::Replan | Effect::Part(_))
        };
        let state = next.machine.state();
        let fails = effects.iter().any(asks)
            || matches!(state, InstanceState::Failed { .. } | InstanceState::Recovering { .. });
        let works = next.machine.has_generated();
        let apart = effects.iter_mut().filter_map(|effect| match effect {
            Effect::Part(pairs) => Some(std::mem::take(pairs)),
            _ => None,
        });
        let apart: Vec<_> = apart.flatten().collect();
        effects.retain(|effect| !asks(effect));
        self.dirty = true;
        self.note_apart(apart);
        self.run_effects(id, effects);
        if fails {
            self.growth.moved(id, now);
            self.abandon(id, &format!("it came to nothing: {state:?}"));
        } else if works {
            self.switch(id);
        }
    }

    /// A successor takes the place of what ran until now, whose answers go on with it.
    fn switch(&mut self, id: &str) {
        let Some(next) = self.successors.get(id) else { return };
        let claim = next.machine.fixed().claim;
        let names = next.machine.status().ranks.into_iter().map(|rank| rank.node_name);
        let names = names.collect::<Vec<_>>().join(", ");
        let claims = self.desired.claim_as(id, claim);
        if !self.is_current(id, claim) {
            return self.abandon(id, "it was claimed anew meanwhile");
        }
        self.desired_changed(claims.into_iter().collect::<Vec<_>>(), None);
        let Some(next) = self.successors.remove(id) else { return };
        self.release(id, &format!("it continues on {names}"));
        self.unloaded.remove(id);
        self.owned.insert(id.to_owned(), next);
        // Its former owner's workers obey it no more, from now on.
        self.leave_former_owners();
        self.dirty = true;
        // Whoever was told that it is this node's now asks it once it is seen to run it.
        self.send_heartbeats();
        self.resume_streams();
    }

    /// Ends a successor.
    pub(super) fn abandon(&mut self, id: &str, why: &str) {
        let Some(mut next) = self.successors.remove(id) else { return };
        warn!(instance = id, why, "a move is given up");
        let effects = next.machine.stop(why);
        self.dirty = true;
        self.run_effects(id, effects);
    }

    /// Ends successors of what is no longer this node's.
    pub(super) fn abandon_superseded(&mut self) {
        let claim = |owned: &Owned| owned.machine.fixed().claim;
        let due = self.desired.to_inherit(&self.files(), &self.seen());
        let is_over = |(id, next): &(&String, &Owned)| match self.owned.get(*id) {
            Some(owned) => claim(owned) != claim(next),
            None => {
                !due.iter().any(|(entry, wanted)| wanted.id == **id && entry.claim < claim(next))
            }
        };
        let over: Vec<String> =
            self.successors.iter().filter(is_over).map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| self.abandon(id, "what it was to replace has ended"));
    }

    /// Where an instance is about to move, for a person.
    pub(super) fn move_note(&self, id: &str) -> Option<String> {
        let Some(next) = self.successors.get(id) else {
            return self.owned.get(id)?.reviewed.stuck.clone();
        };
        let ranks = next.machine.status().ranks;
        // Numbers of other nodes may be of any size.
        let total: u128 = ranks.iter().map(|rank| u128::from(rank.total_bytes)).sum();
        let done: u128 = ranks.iter().map(|rank| u128::from(rank.loaded_bytes)).sum();
        let names: Vec<String> = ranks.into_iter().map(|rank| rank.node_name).collect();
        let percent = (done * 100).checked_div(total).unwrap_or(0);
        Some(format!("moves to {}: {percent} % loaded", names.join(", ")))
    }
}

/// That an instance is on nodes that were not asked for by name, for a person.
pub(super) fn borrowed(wanted: &Wanted, status: &InstanceStatus) -> Option<String> {
    let Some(nodes @ Nodes::Named(asked)) = &wanted.spec.nodes else { return None };
    let is_named = |rank: &RankStatus| nodes.place_of(&rank.node_name, &rank.node.to_string());
    let borrowed = status.ranks.iter().filter(|rank| is_named(rank).is_none());
    let borrowed: Vec<&str> = borrowed.map(|rank| rank.node_name.as_str()).collect();
    (!borrowed.is_empty()).then(|| {
        format!(
            "it was asked for on {}, and borrows {} until these suffice without",
            asked.join(", "),
            borrowed.join(", ")
        )
    })
}

/// A plan by which an instance is so much better off that moving pays.
struct Better {
    plan: Plan,
    /// By whose places the plan names its nodes.
    candidates: Vec<Candidate>,
    why: String,
}

/// # Errors
/// There is no plan at all, and why.
fn better(
    owned: &Owned,
    candidates: &[Candidate],
    must_leave: Option<&str>,
) -> Result<Option<Better>, String> {
    let (machine, prepared) = (&owned.machine, &owned.prepared);
    let wanted = &machine.fixed().spec;
    let (plan, candidates, is_as_asked) = plan_somehow(prepared, candidates.to_vec(), wanted)?;
    let why = match must_leave {
        _ if machine.lacks_nodes() => Some(String::new()),
        Some(why) => Some(why.to_owned()),
        None => gain(owned, &candidates, &plan, is_as_asked),
    };
    Ok(why.map(|why| Better { plan, candidates, why }))
}

fn gain(
    owned: &Owned,
    candidates: &[Candidate],
    offered: &Plan,
    is_as_asked: bool,
) -> Option<String> {
    let (machine, wanted) = (&owned.machine, &owned.machine.fixed().spec);
    let split = machine.split();
    let on = offered.ranks.iter().map(|rank| candidates[rank.node].node);
    let is_same = on.eq(machine.nodes());
    if is_same && offered.split == *split {
        return None;
    }
    let held = machine.nodes().map(|on| candidates.iter().find(|one| one.node == on).cloned());
    let held: Vec<Candidate> = held.collect::<Option<_>>()?;
    let tokens_per_sec = rate(&plan_as_is(owned, &held));
    let by_name = matches!(wanted.nodes, Some(Nodes::Named(_)));
    let held = Terms {
        nodes: held.len(),
        is_as_asked: growth::is_as_asked(wanted, split) && (is_same || !by_name || !is_as_asked),
        tokens_per_sec,
    };
    let (nodes, tokens_per_sec) = (offered.ranks.len(), rate(&Some(offered)));
    held.gain(&Terms { nodes, is_as_asked, tokens_per_sec })
}

/// The plan that would place an instance as it is placed.
fn plan_as_is(owned: &Owned, held: &[Candidate]) -> Option<Plan> {
    let (wanted, split) = (&owned.machine.fixed().spec, owned.machine.split());
    let stages = Some(&split.stages).filter(|stages| !stages.is_empty());
    let options = SplitOptions {
        strategy: if stages.is_none() && held.len() > 1 {
            Strategy::Tensor
        } else {
            Strategy::Auto
        },
        shares: Some(split.shares.clone()),
        stages: stages.map(|stages| stages.iter().map(|stage| stage.ranks).collect()),
        stage_layers: stages.map(|stages| stages.iter().map(|stage| stage.layers).collect()),
        ..wanted.options.clone()
    };
    let nodes = Some(Nodes::Count(held.len()));
    let spec = InstanceSpec { nodes, options, ..wanted.clone() };
    plan(&owned.prepared, held, &spec, false).ok()
}

/// What a plan is predicted to give those who ask.
fn rate(plan: &Option<impl Borrow<Plan>>) -> Option<f64> {
    let prediction = plan.as_ref()?.borrow().prediction.as_ref()?;
    Some(prediction.total_tokens_per_sec)
}

/// The nodes of a plan, for a person.
fn names(plan: &Plan, candidates: &[Candidate]) -> String {
    let name = |rank: &placement::PlannedRank| candidates[rank.node].name.as_str();
    plan.ranks.iter().map(name).collect::<Vec<_>>().join(", ")
}
