//! Follows the document: starts the instances that this node owns, ends the others, and prepares to
//! own those that it should inherit.

use std::time::Duration;

use tracing::{info, warn};

use super::host::Host;
use super::idle;
use super::moving::load_beside;
use super::owned::Owned;
use super::place::plan_somehow;
use super::replicas;
use super::running::Instances;
use super::start::{fixed, own_again};
use super::table::Starting;
use crate::context::Prepared;
use crate::desired::{Entry, Service};
use crate::files::seen;

/// Interval of attempts to open the file of an instance that could not be started.
const LOOK_AGAIN: Duration = crate::files::LOOK_AGAIN;

/// Ends stopped instances, and those that another node owns now.
pub(crate) fn end_superseded(instances: &mut Instances, host: &mut Host) {
    let owned = instances.table.current().map(|(id, owned)| (id, owned.machine.fixed().claim));
    let over: Vec<String> = owned
        .filter(|(id, claim)| !host.ctx.is_current(id, *claim))
        .map(|(id, _)| id.clone())
        .collect();
    abandon_superseded(instances, host);
    for id in over {
        let reason = match host.ctx.desired.find(&id) {
            Some((entry, _)) => {
                format!("node {} has taken it over", host.ctx.name_of(entry.owner()))
            }
            None => "it was stopped".to_owned(),
        };
        instances.release(host, &id, &reason);
    }
    idle::forget(&mut instances.table, &host.ctx);
    let due = to_inherit(host);
    instances
        .table
        .retain_starts(|id| host.ctx.is_mine(id) || due.iter().any(|(_, wanted)| wanted.id == id));
    instances.table.prune();
}

/// Ends successors of instances that are no longer this node's.
pub(super) fn abandon_superseded(instances: &mut Instances, host: &mut Host) {
    let claim = |owned: &Owned| owned.machine.fixed().claim;
    let due = to_inherit(host);
    let is_over = |(id, next): &(&String, &Owned)| match instances.table.get(id) {
        Some(owned) => claim(owned) != claim(next),
        None => !due.iter().any(|(entry, wanted)| wanted.id == **id && entry.claim < claim(next)),
    };
    let over: Vec<String> =
        instances.table.successors().filter(is_over).map(|(id, _)| id.clone()).collect();
    over.iter().for_each(|id| instances.abandon(host, id, "it is not needed any more"));
}

/// Opens the files of owned instances that do not run yet. An unloaded instance needs its header.
pub(crate) fn start_owned(instances: &mut Instances, host: &mut Host) {
    let (me, now) = (host.ctx.me, host.ctx.now());
    let mine = host.ctx.desired.wanted().filter(|(entry, wanted)| {
        entry.owner() == me && !replicas::rests(host, &instances.table, wanted)
    });
    let is_due = |id: &str| match instances.table.start(id) {
        None => instances.table.get(id).is_none() && instances.table.unloaded(id).is_none(),
        Some(Starting::Opening) => false,
        Some(Starting::Waiting { looked, .. }) => now.saturating_sub(*looked) >= idle::ROOM_LOOK,
        Some(Starting::Failed(_, since)) => now.saturating_sub(*since) >= LOOK_AGAIN,
    };
    let due: Vec<Service> =
        mine.map(|(_, wanted)| wanted.clone()).filter(|wanted| is_due(&wanted.id)).collect();
    due.into_iter().for_each(|wanted| open(instances, host, wanted));
}

/// Reads the files of an instance from disk; [`opened`] receives the result.
fn open(instances: &mut Instances, host: &mut Host, wanted: Service) {
    // An instance that waits for memory continues to wait while its file is read again.
    match instances.table.start_mut(&wanted.id) {
        Some(Starting::Waiting { looked, .. }) => *looked = host.ctx.now(),
        _ => instances.table.slot(&wanted.id).start = Some(Starting::Opening),
    }
    host.ctx.outside.open(wanted);
}

/// Starts an instance whose file is open now, unless another node has taken it over.
pub(crate) fn opened(
    instances: &mut Instances,
    host: &mut Host,
    id: &str,
    opened: std::result::Result<Box<Prepared>, String>,
) {
    host.ctx.changed();
    let waiting = instances.table.take_start(id);
    let Some((entry, _)) = host.ctx.desired.find(id) else { return };
    let entry = entry.clone();
    if instances.table.get(id).is_some() || instances.table.successor(id).is_some() {
        return;
    }
    let now = host.ctx.now();
    match opened {
        Ok(prepared) if entry.owner() != host.ctx.me => {
            prepare_to_own(instances, host, id, entry, *prepared);
        }
        Ok(prepared) if entry.unloaded => {
            instances.table.slot(id).unloaded = Some(prepared.into());
        }
        Ok(prepared) => {
            let since = match waiting {
                Some(Starting::Waiting { since, .. }) => since,
                _ => now,
            };
            if idle::must_wait_for_room(instances, host, &prepared, since) {
                instances.table.slot(id).start = Some(Starting::Waiting { since, looked: now });
            } else {
                own_again(instances, host, id, entry, *prepared);
            }
        }
        Err(why) => {
            warn!(instance = id, why, "an instance cannot be started");
            instances.table.slot(id).start = Some(Starting::Failed(why, now));
            // Another node may have the file.
            let digest = host.ctx.desired.find(id).map(|(_, wanted)| wanted.digest);
            if let Some(digest) = digest {
                host.files.places.located(&mut host.ctx, digest, None);
            }
        }
    }
}

/// Prepares to own the instances that this node should inherit.
pub(crate) fn inherit(instances: &mut Instances, host: &mut Host) {
    let now = host.ctx.now();
    for (entry, wanted) in to_inherit(host) {
        let id = &wanted.id;
        if entry.unloaded {
            // There is nothing to load first.
            instances.abandon(host, id, "the model is unloaded");
            let claim = host.ctx.desired.claim(&entry.name);
            host.ctx.replicate(claim.into_iter().collect::<Vec<_>>(), None);
            continue;
        }
        let is_starting = match instances.table.start(id) {
            None => false,
            Some(Starting::Failed(_, since)) => now.saturating_sub(*since) < LOOK_AGAIN,
            Some(Starting::Opening | Starting::Waiting { .. }) => true,
        };
        let begun = is_starting || instances.table.successor(id).is_some();
        if !begun && instances.pool.growth.may_move(id, true, now) {
            info!(name = entry.name, "this node gets ready to take over a model");
            open(instances, host, wanted);
        }
    }
}

/// Loads an instance that this node should inherit, beside the running ones if there is room, else
/// in place of its present ranks.
pub(super) fn prepare_to_own(
    instances: &mut Instances,
    host: &mut Host,
    id: &str,
    entry: Entry,
    prepared: Prepared,
) {
    if !to_inherit(host).iter().any(|(due, _)| due.name == entry.name) {
        return;
    }
    instances.pool.growth.moved(id, host.ctx.now());
    let spec = &prepared.spec;
    let plan_for = |leaving| {
        let all = instances.pool.together(host, &instances.table, leaving, spec.options.transport);
        plan_somehow(&prepared.model, replicas::share(host, &instances.table, id, all), spec)
    };
    let (beside, instead) = match plan_for(None) {
        Ok(placed) => (Some(placed), Ok(())),
        Err(_) => (None, plan_for(Some(id)).map(drop)),
    };
    let claim = host.ctx.desired.next_version();
    match (beside, instead) {
        (Some(placed), _) => {
            let numbers = instances.table.number(&mut host.ctx);
            let fixed = fixed(id, Entry { claim, ..entry }, &prepared, numbers);
            load_beside(instances, host, fixed, prepared.into(), placed);
        }
        (None, Ok(())) => {
            let Some(entry) = host.ctx.desired.claim_as(id, claim) else { return };
            host.ctx.replicate(vec![entry.clone()], None);
            host.workers.leave_former_owners(&mut host.ctx);
            own_again(instances, host, id, entry, prepared);
        }
        (None, Err(why)) => warn!(instance = id, why, "it cannot be inherited"),
    }
}

/// The instances that this node should inherit: of drained nodes, and of nodes that it precedes in
/// the user's list.
fn to_inherit(host: &Host) -> Vec<(Entry, Service)> {
    host.ctx.desired.to_inherit(&host.files.places.holdings(), &seen(&host.ctx))
}
