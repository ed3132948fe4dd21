//! Unloads instances that are idle for longer than their `keep_alive`, and loads them again with
//! the first request.
//!
//! The document has the flag for an unloaded instance, beside its owner, and only the owner changes
//! it. So it survives restarts and losses, and no two nodes load the instance. An ended worker's
//! memory is free once its process is gone: `workers` delays new ones until then.

use std::time::Duration;

use protocol::KeepAlive;
use tracing::info;

use super::host::Host;
use super::place::{Candidate, plan_somehow};
use super::running::Instances;
use super::table::{Starting, Table};
use crate::context::{Context, News, Prepared};

/// How often an instance that waits for memory checks whether there is enough.
pub(super) const ROOM_LOOK: Duration = Duration::from_secs(1);
/// How long it waits for others to be unloaded: a process exits within a second or is killed after
/// five, and other nodes report theirs twice a second.
const ROOM_MAX: Duration = Duration::from_secs(10);

/// Records since when instances are idle; returns those whose time is over.
fn note_idle(table: &mut Table, ctx: &mut Context) -> Vec<String> {
    let (now, unix_s) = (ctx.now(), ctx.outside.unix_ms() / 1000);
    let mut due = Vec::new();
    for (id, owned) in table.current_mut() {
        if !owned.is_idle() {
            ctx.changed_if(owned.rest.idle_since.take().is_some());
            continue;
        }
        if owned.rest.idle_since.is_none() {
            owned.rest.idle_since = Some((now, unix_s));
            ctx.changed();
        }
        let limit = owned.keep_alive().and_then(KeepAlive::limit);
        let idle = owned.rest.idle_since.map(|(since, _)| now.saturating_sub(since));
        if idle.zip(limit).is_some_and(|(idle, limit)| idle >= limit) {
            due.push(id.clone());
        }
    }
    due
}

fn longest_idle(table: &Table) -> Option<String> {
    let idle = table.current().filter(|(_, owned)| owned.keep_alive().is_some() && owned.is_idle());
    let since = idle.filter_map(|(id, owned)| Some((owned.rest.idle_since?.0, id)));
    since.min().map(|(_, id)| id.clone())
}

pub(super) fn waits_for_room(table: &Table, id: &str) -> bool {
    matches!(table.start(id), Some(Starting::Waiting { .. }))
}

/// Unloads instances whose idle time is over.
pub(crate) fn unload_idle(instances: &mut Instances, host: &mut Host) {
    for id in note_idle(&mut instances.table, &mut host.ctx) {
        unload(instances, host, &id, "it was idle for longer than its keep-alive");
    }
}

/// Ends an instance of this node until a request comes for it; whether it was loaded here.
fn unload(instances: &mut Instances, host: &mut Host, id: &str, why: &str) -> bool {
    let Some(owned) = instances.table.get(id) else { return false };
    let prepared = owned.prepared.clone();
    let Some(entry) = host.ctx.desired.set_unloaded(id, true) else { return false };
    instances.table.slot(id).unloaded = Some(prepared);
    host.ctx.replicate(vec![entry], None);
    instances.release(host, id, why);
    true
}

/// Loads an unloaded instance for a request.
pub(crate) fn load(
    instances: &mut Instances,
    ctx: &mut Context,
    id: &str,
    keep_alive: Option<KeepAlive>,
) {
    let Some(entry) = ctx.desired.set_unloaded(id, false) else { return };
    info!(instance = id, model = entry.name, ?keep_alive, "loaded for a request");
    instances.table.take_unloaded(id);
    ctx.replicate(vec![entry], None);
    ctx.post(News::Reconcile);
}

/// Drops the headers of instances that are loaded, stopped, or another node's now.
pub(super) fn forget(table: &mut Table, ctx: &Context) {
    let is_unloaded = |id: &str| {
        ctx.desired.find(id).is_some_and(|(entry, _)| entry.unloaded && entry.owner() == ctx.me)
    };
    let over = table.slots().filter(|(id, slot)| slot.unloaded.is_some() && !is_unloaded(id));
    for id in over.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
        table.take_unloaded(&id);
    }
}

/// Whether an instance without room should wait until others have ended. Unloads idle instances
/// that may be unloaded, starting with the one that has been idle longest.
pub(super) fn must_wait_for_room(
    instances: &mut Instances,
    host: &mut Host,
    prepared: &Prepared,
    since: Duration,
) -> bool {
    let (fits, unloaded) = unload_for(instances, host, prepared);
    let leaves = unloaded || host.workers.is_any_ending();
    let waited = host.ctx.now().saturating_sub(since);
    !fits && (leaves || waited > Duration::ZERO) && waited < ROOM_MAX
}

/// Unloads instances until a model fits. Returns whether it fits, and whether any was unloaded.
pub(super) fn unload_for(
    instances: &mut Instances,
    host: &mut Host,
    prepared: &Prepared,
) -> (bool, bool) {
    let fits = |instances: &Instances, host: &Host| {
        let transport = prepared.spec.options.transport;
        let all = instances.pool.candidates(host, &instances.table, None, transport);
        plan_somehow(&prepared.model, all, &prepared.spec).is_ok()
    };
    let mut unloaded = false;
    while !fits(instances, host) {
        let Some(id) = longest_idle(&instances.table) else { return (false, unloaded) };
        if !unload(instances, host, &id, "another model needs its memory") {
            return (false, unloaded);
        }
        unloaded = true;
    }
    (true, unloaded)
}

/// Counts the memory of all served instances as free.
pub(super) fn count_as_empty(ctx: &Context, candidates: &mut [Candidate]) {
    for one in candidates {
        let heartbeat = ctx.heartbeat_of(one.node);
        one.memory_free_bytes =
            heartbeat.map_or(ctx.config.memory_bytes, |heartbeat| heartbeat.memory_bytes);
    }
}
