//! Moves instances to better places, when nodes have come (back) or memory is free, and off nodes
//! that are drained. `growth` decides whether a move pays.
//!
//! Where memory suffices for both, the new ranks load beside the old ones, as a *successor* that
//! takes over once it has generated a token: answers pause while their texts are computed again.
//! Where it does not, an instance that need not move does so once it is idle.
//!
//! What a drained node owns, another one inherits: it loads the model beside what runs, under a
//! claim that it makes once the model works.

use std::time::Duration;

use protocol::Nodes;
use tracing::{info, warn};

use super::growth::{self, Terms};
use super::machine::{Effect, Fixed, Input};
use super::place::{Candidate, Placed, fits_beside, plan_as_is, plan_somehow};
use super::table::Owned;
use super::{Host, Instances, fixed};
use crate::core::{News, Prepared};
use crate::desired::{Entry, Wanted};
use crate::files::seen;
use crate::{InstanceState, InstanceStatus, NodeId, RankStatus};

/// In ticks, between two reviews: a second.
const REVIEW_EVERY: u64 = 4;
/// A move that interrupts answers while the model loads begins after this idle time.
const IDLE_MIN: Duration = Duration::from_secs(2);

/// The outcome of the last review of a placement.
#[derive(Debug, Default)]
pub(crate) struct Review {
    /// The candidates for which there was nothing better.
    nothing_better: Vec<Candidate>,
    /// Why the instance does not move although it must.
    stuck: Option<String>,
    idle_since: Option<Duration>,
}

impl Instances {
    /// Reviews each placement once a second.
    pub(crate) fn review(&mut self, host: &mut Host, ticks: u64) {
        if !ticks.is_multiple_of(REVIEW_EVERY) {
            return;
        }
        self.pool.growth.retain(|id| host.ctx.desired.find(id).is_some());
        for id in self.table.ids() {
            self.review_one(host, &id);
        }
    }

    fn review_one(&mut self, host: &mut Host, id: &str) {
        let now = host.ctx.now();
        let Some(owned) = self.table.get_mut(id) else { return };
        let machine = &owned.machine;
        owned.review.idle_since = machine.is_idle().then(|| owned.review.idle_since.unwrap_or(now));
        let lacks_nodes = machine.lacks_nodes();
        let works = machine.state() == InstanceState::Ready && machine.has_generated();
        if self.table.successor(id).is_some() || !(works || lacks_nodes) {
            return;
        }
        let Some(owned) = self.table.get(id) else { return };
        let must_leave = must_leave(host, owned);
        let candidates = self.pool.future(host, &self.table, (id, owned), must_leave.is_some());
        let may_move = lacks_nodes || self.pool.growth.may_move(id, must_leave.is_some(), now);
        if owned.review.nothing_better == candidates || !may_move {
            return;
        }
        match better(owned, &candidates, must_leave.as_deref()) {
            Ok(Some((placed, _))) if lacks_nodes => self.revive(host, id, placed),
            Ok(Some((placed, why))) => {
                self.begin_move(host, id, placed, &why, must_leave.is_some());
            }
            nothing => {
                let Some(owned) = self.table.get_mut(id) else { return };
                owned.review.nothing_better = candidates;
                let stuck = must_leave.zip(nothing.err());
                owned.review.stuck = stuck.map(|(must, why)| format!("{must}, but {why}"));
                host.ctx.changed();
            }
        }
    }

    /// Places what had no nodes.
    fn revive(&mut self, host: &mut Host, id: &str, placed: Placed) {
        let now = host.ctx.now();
        let Some(owned) = self.table.get_mut(id) else { return };
        info!(instance = id, ranks = placed.plan.ranks.len(), why = ?placed.plan.why, "placed again");
        host.ctx.changed();
        let effects =
            owned.place(placed, |machine, ranks, split| machine.replace(ranks, split, now));
        self.run(host, id, effects);
    }

    /// Moves an instance, or waits until it may.
    fn begin_move(&mut self, host: &mut Host, id: &str, placed: Placed, why: &str, must: bool) {
        let now = host.ctx.now();
        let beside = self.fits_beside(host, id, &placed);
        let Some(owned) = self.table.get_mut(id) else { return };
        let is_idle = |since| now.saturating_sub(since) >= IDLE_MIN;
        if !beside && !must && !owned.review.idle_since.is_some_and(is_idle) {
            return;
        }
        self.pool.growth.moved(id, now);
        host.ctx.changed();
        owned.review.stuck = None;
        let names = placed.names();
        info!(instance = id, why, names, beside, "moves");
        if beside {
            let (fixed, prepared) = (owned.machine.fixed().clone(), owned.prepared.clone());
            self.load_beside(host, fixed, prepared, placed);
        } else {
            let why = format!("it moves to {names}: {why}");
            let effects = owned
                .place(placed, |machine, ranks, split| machine.move_to(ranks, split, &why, now));
            self.run(host, id, effects);
        }
    }

    /// Whether a plan fits beside what runs now.
    fn fits_beside(&self, host: &Host, id: &str, placed: &Placed) -> bool {
        let Some(owned) = self.table.get(id) else { return false };
        let transport = owned.machine.fixed().spec.options.transport;
        let now = self.pool.candidates(host, &self.table, None, transport);
        fits_beside(placed, &now) && owned.prepared.draft_bytes == 0
    }

    /// Starts a successor.
    fn load_beside(
        &mut self,
        host: &mut Host,
        like: Fixed,
        prepared: std::sync::Arc<Prepared>,
        placed: Placed,
    ) {
        let (secret, first_worker) = self.table.number(&mut host.ctx);
        let fixed = Fixed { secret, first_worker, ..like };
        let id = fixed.id.clone();
        let (successor, effects) = Owned::new(fixed, prepared, Ok(placed), host.ctx.now());
        self.table.slot(&id).successor = Some(successor);
        self.run(host, &id, effects);
    }

    /// Gets ready to own the instances of drained nodes.
    pub(crate) fn inherit(&mut self, host: &mut Host) {
        let now = host.ctx.now();
        for (entry, wanted) in to_inherit(host) {
            let id = &wanted.id;
            if entry.unloaded {
                // There is nothing to load first.
                self.abandon(host, id, "the model is unloaded");
                let claim = host.ctx.desired.claim(&entry.name);
                host.ctx.replicate(claim.into_iter().collect::<Vec<_>>(), None);
                continue;
            }
            let begun = self.table.successor(id).is_some() || self.table.start(id).is_some();
            if !begun && self.pool.growth.may_move(id, true, now) {
                info!(name = entry.name, "this node gets ready to own a drained node's model");
                self.open(host, wanted);
            }
        }
    }

    /// Loads an instance that this node is to inherit, beside what runs if there is room, else in
    /// its place.
    pub(super) fn prepare_to_own(
        &mut self,
        host: &mut Host,
        id: &str,
        entry: Entry,
        prepared: Prepared,
    ) {
        if !to_inherit(host).iter().any(|(due, _)| due.name == entry.name) {
            return;
        }
        self.pool.growth.moved(id, host.ctx.now());
        let spec = &prepared.spec;
        let plan_for = |leaving| {
            let all = self.pool.together(host, &self.table, leaving, spec.options.transport);
            plan_somehow(&prepared, all, spec)
        };
        let (beside, instead) = match plan_for(None) {
            Ok(placed) => (Some(placed), Ok(())),
            Err(_) => (None, plan_for(Some(id)).map(drop)),
        };
        let claim = host.ctx.desired.next_version();
        match (beside, instead) {
            (Some(placed), _) => {
                let numbers = self.table.number(&mut host.ctx);
                let fixed = fixed(id, Entry { claim, ..entry }, &prepared, numbers);
                self.load_beside(host, fixed, prepared.into(), placed);
            }
            (None, Ok(())) => {
                let Some(entry) = host.ctx.desired.claim_as(id, claim) else { return };
                host.ctx.replicate(vec![entry.clone()], None);
                host.workers.leave_former_owners(&mut host.ctx);
                self.own_again(host, id, entry, prepared);
            }
            (None, Err(why)) => warn!(instance = id, why, "it cannot be inherited"),
        }
    }

    /// Hands an event to a successor, which takes over once it works.
    pub(super) fn step_successor(&mut self, host: &mut Host, id: &str, event: Input) {
        let now = host.ctx.now();
        let Some(next) = self.table.successor_mut(id) else { return };
        let mut effects = next.machine.step(event, now);
        // A successor is only there to be better: any trouble ends it.
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
        host.ctx.changed();
        self.pool.partition.note(&host.ctx, apart);
        self.run(host, id, effects);
        if fails {
            self.pool.growth.moved(id, now);
            self.abandon(host, id, &format!("it came to nothing: {state:?}"));
        } else if works {
            self.switch(host, id);
        }
    }

    /// A successor takes the place of the current instance, whose answers go on with it.
    fn switch(&mut self, host: &mut Host, id: &str) {
        let Some(next) = self.table.successor(id) else { return };
        let claim = next.machine.fixed().claim;
        let names = next.machine.status().ranks.into_iter().map(|rank| rank.node_name);
        let names = names.collect::<Vec<_>>().join(", ");
        let claims = host.ctx.desired.claim_as(id, claim);
        if !host.ctx.is_current(id, claim) {
            return self.abandon(host, id, "it was claimed anew meanwhile");
        }
        host.ctx.replicate(claims.into_iter().collect::<Vec<_>>(), None);
        let Some(next) = self.table.take_successor(id) else { return };
        self.release(host, id, &format!("it continues on {names}"));
        self.table.take_unloaded(id);
        self.table.slot(id).current = Some(next);
        // From now on the workers of its former owner do not obey that one.
        host.workers.leave_former_owners(&mut host.ctx);
        host.ctx.changed();
        // Members send requests to the new owner as soon as they see it running the model.
        host.ctx.post(News::Heartbeats);
        host.ctx.post(News::Resume);
    }

    /// Ends a successor.
    pub(super) fn abandon(&mut self, host: &mut Host, id: &str, why: &str) {
        let Some(mut next) = self.table.take_successor(id) else { return };
        warn!(instance = id, why, "a move is given up");
        let effects = next.machine.stop(why);
        host.ctx.changed();
        self.run(host, id, effects);
    }

    /// Ends successors of what is no longer this node's.
    pub(super) fn abandon_superseded(&mut self, host: &mut Host) {
        let claim = |owned: &Owned| owned.machine.fixed().claim;
        let due = to_inherit(host);
        let is_over = |(id, next): &(&String, &Owned)| match self.table.get(id) {
            Some(owned) => claim(owned) != claim(next),
            None => {
                !due.iter().any(|(entry, wanted)| wanted.id == **id && entry.claim < claim(next))
            }
        };
        let over: Vec<String> =
            self.table.successors().filter(is_over).map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| self.abandon(host, id, "what it was to replace has ended"));
    }

    /// For a person: where an instance is about to move.
    pub(super) fn move_note(&self, id: &str) -> Option<String> {
        let Some(next) = self.table.successor(id) else {
            return self.table.get(id)?.review.stuck.clone();
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

/// What this node is to inherit from drained nodes.
fn to_inherit(host: &Host) -> Vec<(Entry, Wanted)> {
    host.ctx.desired.to_inherit(&host.files.holdings(), &seen(&host.ctx))
}

/// Why an instance must move, if it must. An owner has a rank of it until another node inherits it.
fn must_leave(host: &Host, owned: &Owned) -> Option<String> {
    let ctx = &host.ctx;
    let is_drained = |on: &NodeId| *on != ctx.me && ctx.desired.is_drained(*on);
    let leaves = owned.machine.nodes().find(is_drained)?;
    Some(format!("node {} is to be empty", ctx.name_of(leaves)))
}

/// For a person: the nodes of an instance that were not asked for by name.
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

/// A placement that pays the move, and why.
///
/// # Errors
/// There is no placement at all, and why.
fn better(
    owned: &Owned,
    candidates: &[Candidate],
    must_leave: Option<&str>,
) -> Result<Option<(Placed, String)>, String> {
    let (machine, prepared) = (&owned.machine, &owned.prepared);
    let placed = plan_somehow(prepared, candidates.to_vec(), &machine.fixed().spec)?;
    let why = match must_leave {
        _ if machine.lacks_nodes() => Some(String::new()),
        Some(why) => Some(why.to_owned()),
        None => gain(owned, &placed),
    };
    Ok(why.map(|why| (placed, why)))
}

fn gain(owned: &Owned, offered: &Placed) -> Option<String> {
    let (machine, wanted) = (&owned.machine, &owned.machine.fixed().spec);
    let (split, Placed { plan, candidates, is_as_asked }) = (machine.split(), offered);
    let on = plan.ranks.iter().map(|rank| candidates[rank.node].node);
    let is_same = on.eq(machine.nodes());
    if is_same && plan.split == *split {
        return None;
    }
    let held = machine.nodes().map(|on| candidates.iter().find(|one| one.node == on).cloned());
    let held: Vec<Candidate> = held.collect::<Option<_>>()?;
    let as_is = plan_as_is(&owned.prepared, wanted, split, &held);
    let by_name = matches!(wanted.nodes, Some(Nodes::Named(_)));
    let held = Terms {
        nodes: held.len(),
        is_as_asked: growth::is_as_asked(wanted, split) && (is_same || !by_name || !is_as_asked),
        tokens_per_sec: as_is.as_ref().and_then(rate),
    };
    let (nodes, tokens_per_sec) = (plan.ranks.len(), rate(plan));
    held.gain(&Terms { nodes, is_as_asked: *is_as_asked, tokens_per_sec })
}

/// The predicted rate of all answers together.
fn rate(plan: &placement::Plan) -> Option<f64> {
    Some(plan.prediction.as_ref()?.total_tokens_per_sec)
}
