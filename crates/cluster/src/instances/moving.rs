//! Moves instances to better places after new nodes or free memory, and off drained nodes. `growth`
//! decides whether a move pays.
//!
//! With memory for both, the new ranks load beside the old ones, as a *successor* that takes over
//! once it has generated a token; answers pause while their texts are computed again. Without it,
//! an instance that need not move does so once it is idle.

use std::sync::Arc;
use std::time::Duration;

use protocol::Nodes;
use tracing::info;

use super::growth::{self, Terms};
use super::host::Host;
use super::owned::Owned;
use super::place::{self, Candidate, Placed, plan_as_is, plan_somehow};
use super::replicas;
use super::running::Instances;
use super::table::Table;
use crate::InstanceState;
use crate::context::Prepared;
use crate::instance::Fixed;

/// In ticks, between two reviews: a second.
const REVIEW_EVERY: u64 = 4;
/// A move that interrupts answers while the model loads begins after this idle time.
const IDLE_MIN: Duration = Duration::from_secs(2);

/// Reviews each placement once a second.
pub(crate) fn review(instances: &mut Instances, host: &mut Host, ticks: u64) {
    if !ticks.is_multiple_of(REVIEW_EVERY) {
        return;
    }
    let ctx = &host.ctx;
    let is_node = |node| node == ctx.me || ctx.membership.is_member(node);
    instances.pool.growth.retain(|id| ctx.desired.find(id).is_some(), is_node);
    for id in instances.table.ids() {
        review_one(instances, host, &id);
    }
}

fn review_one(instances: &mut Instances, host: &mut Host, id: &str) {
    let now = host.ctx.now();
    let Some(owned) = instances.table.get_mut(id) else { return };
    let is_renamed = owned.machine.name_nodes(|node| host.ctx.name_of(node));
    host.ctx.changed_if(is_renamed);
    let machine = &owned.machine;
    owned.review.idle_since = machine.is_idle().then(|| owned.review.idle_since.unwrap_or(now));
    let lacks_nodes = machine.lacks_nodes();
    let works = machine.state() == InstanceState::Ready && machine.has_generated();
    if instances.table.successor(id).is_some() || !(works || lacks_nodes) {
        return;
    }
    let Some(owned) = instances.table.get(id) else { return };
    let must_leave = must_leave(host, &instances.table, (id, owned));
    let candidates =
        instances.pool.future(host, &instances.table, (id, owned), must_leave.is_some());
    let may_move = lacks_nodes || instances.pool.growth.may_move(id, must_leave.is_some(), now);
    if owned.review.nothing_better == candidates || !may_move {
        return;
    }
    match better(owned, &candidates, must_leave.as_deref()) {
        Ok(Some((placed, _))) if lacks_nodes => revive(instances, host, id, placed),
        Ok(Some((placed, why))) => {
            begin_move(instances, host, id, placed, &why, must_leave.is_some());
        }
        nothing => {
            let Some(owned) = instances.table.get_mut(id) else { return };
            owned.review.nothing_better = candidates;
            let stuck = must_leave.zip(nothing.err());
            owned.review.stuck = stuck.map(|(must, why)| format!("{must}, but {why}"));
            host.ctx.changed();
        }
    }
}

/// Places an instance that had no nodes.
fn revive(instances: &mut Instances, host: &mut Host, id: &str, placed: Placed) {
    let now = host.ctx.now();
    let Some(owned) = instances.table.get_mut(id) else { return };
    info!(instance = id, ranks = placed.plan.ranks.len(), why = ?placed.plan.why, "placed again");
    host.ctx.changed();
    let effects = owned.place(placed, |machine, ranks, split| machine.replace(ranks, split, now));
    instances.run(host, id, effects);
}

/// Moves an instance, or waits for a suitable moment.
fn begin_move(
    instances: &mut Instances,
    host: &mut Host,
    id: &str,
    placed: Placed,
    why: &str,
    must: bool,
) {
    let now = host.ctx.now();
    let beside = fits_beside(instances, host, id, &placed);
    let Some(owned) = instances.table.get_mut(id) else { return };
    let is_idle = |since| now.saturating_sub(since) >= IDLE_MIN;
    if !beside && !must && !owned.review.idle_since.is_some_and(is_idle) {
        return;
    }
    instances.pool.growth.moved(id, now);
    host.ctx.changed();
    owned.review.stuck = None;
    let names = placed.names();
    info!(instance = id, why, names, beside, "moves");
    if beside {
        let (like, prepared) = (owned.machine.fixed().clone(), owned.prepared.clone());
        let (secret, first_worker) = instances.table.number(&mut host.ctx);
        let fixed = Fixed { secret, first_worker, ..like };
        load_beside(instances, host, fixed, prepared, placed);
    } else {
        let why = format!("{}{names}: {why}", InstanceState::MOVES);
        let effects =
            owned.place(placed, |machine, ranks, split| machine.move_to(ranks, split, &why, now));
        instances.run(host, id, effects);
    }
}

/// Whether a plan fits beside the running instances.
fn fits_beside(instances: &Instances, host: &Host, id: &str, placed: &Placed) -> bool {
    let Some(owned) = instances.table.get(id) else { return false };
    let transport = owned.machine.fixed().spec.options.transport;
    let now = instances.pool.candidates(host, &instances.table, None, transport);
    place::fits_beside(placed, &now)
}

/// Starts a successor.
pub(super) fn load_beside(
    instances: &mut Instances,
    host: &mut Host,
    fixed: Fixed,
    prepared: Arc<Prepared>,
    placed: Placed,
) {
    let id = fixed.id.clone();
    let (mut successor, effects) = Owned::new(fixed, prepared, Ok(placed), host.ctx.now());
    // So that its first epoch uses the fastest paths, too.
    successor.machine.set_routes(host.paths.routes(&host.ctx));
    instances.table.slot(&id).successor = Some(successor);
    instances.run(host, &id, effects);
}

/// Why an instance must move, if it must. An owner keeps its rank until another node inherits the
/// instance.
fn must_leave(host: &Host, table: &Table, (id, owned): (&str, &Owned)) -> Option<String> {
    let ctx = &host.ctx;
    let others = || owned.machine.nodes().filter(|on| *on != ctx.me);
    if let Some(leaves) = others().find(|on| ctx.desired.is_drained(*on)) {
        return Some(format!("node {} is to be empty", ctx.name_of(leaves)));
    }
    let taken = replicas::nodes_of_others(host, table, id);
    let leaves = others().find(|on| taken.contains(on))?;
    Some(format!("node {} has another replica of it", ctx.name_of(leaves)))
}

/// A placement that is worth the move, and the reason.
///
/// # Errors
/// The reason why no placement is possible.
fn better(
    owned: &Owned,
    candidates: &[Candidate],
    must_leave: Option<&str>,
) -> Result<Option<(Placed, String)>, String> {
    let (machine, prepared) = (&owned.machine, &owned.prepared);
    let placed = plan_somehow(&prepared.model, candidates.to_vec(), &machine.fixed().spec)?;
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
    let as_is = plan_as_is(&owned.prepared.model, wanted, split, &held);
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
