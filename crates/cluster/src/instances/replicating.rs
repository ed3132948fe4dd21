//! Starts and ends replicas, and decides how many there are of a model with `--replicas auto`.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::{InstanceSpec, KeepAlive};
use tracing::info;

use super::crowd::{Load, Verdict};
use super::host::Host;
use super::owned::Owned;
use super::place::{Candidate, plan, relaxed};
use super::replicas::{count_wanted, next_owner, nodes_of, parts, rests, share, status};
use super::running::Instances;
use crate::desired::{Entry, Held, Service};
use crate::{InstanceState, InstanceStatus};

/// In ticks, between two looks at a model with as many replicas as pay: a second.
const LOOK_EVERY: u64 = 4;
/// Predictions and the measurements behind them are off by some per cent.
const GAIN_MIN: f64 = 1.1;

/// Records the nodes of each replica of models with several.
pub(crate) fn note_held(instances: &Instances, host: &mut Host) {
    let further = || host.ctx.desired.wanted().filter(|(_, one)| one.is_further());
    let firsts: BTreeSet<&str> =
        further().filter_map(|(_, one)| one.spec.replica_of.as_deref()).collect();
    let mut held = Held::new();
    for (entry, wanted) in firsts.iter().flat_map(|first| host.ctx.desired.replicas(first)) {
        let nodes = nodes_of(host, &instances.table, entry, wanted);
        held.extend(nodes.into_iter().map(|node| (node, wanted.id.clone())));
    }
    host.ctx.desired.note_held(held);
}

/// Starts missing replicas that fall to this node, and ends those that are not wanted any more.
pub(crate) fn keep_replicas(instances: &Instances, host: &mut Host) {
    end_unwanted(instances, host);
    for first in due(instances, host) {
        let name = host.ctx.desired.free_replica_name(&first.0);
        let Some((_, wanted)) = host.ctx.desired.find(&first.1) else { continue };
        let mut spec = InstanceSpec::clone(&wanted.spec);
        (spec.replicas, spec.replica_of) = (None, Some(wanted.id.clone()));
        (spec.name, spec.on_request) = (Some(name.clone()), false);
        let wanted = Service { spec: spec.into(), ..wanted.clone() };
        let id = format!("i-{:08x}", host.ctx.random_u32());
        info!(instance = id, name, "this node starts a further replica");
        let entry = host.ctx.desired.serve(&name, Service { id, ..wanted });
        host.ctx.replicate(vec![entry], None);
        host.ctx.changed();
    }
}

/// The models of which this node should start a further replica: name and id.
fn due(instances: &Instances, host: &Host) -> Vec<(String, String)> {
    let ctx = &host.ctx;
    let firsts = ctx
        .desired
        .wanted()
        .filter(|(entry, one)| one.spec.replicas.is_some() && !one.is_further() && !entry.unloaded);
    let is_due = |(entry, first): &(&Entry, &Service)| {
        let all = ctx.desired.replicas(&first.id);
        let is_placed =
            |one: &(&Entry, &Service)| !nodes_of(host, &instances.table, one.0, one.1).is_empty();
        all.len() < count_wanted(host, &instances.table, &all)
            && is_placed(&(*entry, *first))
            && next_owner(host, &instances.table, &all) == Some(ctx.me)
    };
    firsts.filter(is_due).map(|(entry, one)| (entry.name.clone(), one.id.clone())).collect()
}

/// Ends this node's further replicas whose first one was stopped, or that are too many.
fn end_unwanted(instances: &Instances, host: &mut Host) {
    let ctx = &host.ctx;
    let mine =
        ctx.desired.wanted().filter(|(entry, one)| one.is_further() && entry.owner() == ctx.me);
    let is_over = |(_, one): &(&Entry, &Service)| {
        let all = ctx.desired.replicas(&one.id);
        let at = all.iter().position(|(_, other)| other.id == one.id);
        at.is_none_or(|at| at >= count_wanted(host, &instances.table, &all))
    };
    let over = mine.filter(is_over).map(|(entry, _)| entry.name.clone());
    for name in over.collect::<Vec<_>>() {
        info!(name, "a further replica ends");
        let entry = host.ctx.desired.stop(&name);
        host.ctx.replicate(vec![entry], None);
        host.ctx.changed();
    }
}

/// Ends the instances that rest.
pub(crate) fn let_rest(instances: &mut Instances, host: &mut Host) {
    let ids = instances.table.ids();
    let rest = |id: &&String| {
        let found = host.ctx.desired.find(id);
        found.is_some_and(|(_, wanted)| rests(host, &instances.table, wanted))
    };
    for id in ids.iter().filter(rest).cloned().collect::<Vec<_>>() {
        let why = format!("node {} is to be empty; its other replicas go on", host.ctx.config.name);
        instances.release(host, &id, &why);
    }
}

/// Looks at the models of this node once a second.
pub(crate) fn count_replicas(instances: &mut Instances, host: &mut Host, ticks: u64) {
    if !ticks.is_multiple_of(LOOK_EVERY) {
        return;
    }
    for id in instances.table.ids() {
        let Some((_, first)) = host.ctx.desired.find(&id) else { continue };
        if first.is_further() || first.replicas_asked().is_some() {
            continue;
        }
        let keep = first.spec.keep_alive.unwrap_or(KeepAlive::MINUTES_5);
        let keep = keep.limit().unwrap_or(Duration::MAX);
        let load = load_of(instances, host, &id);
        let now = host.ctx.now();
        let Some(owned) = instances.table.get_mut(&id) else { continue };
        // A new owner takes over those that there are.
        let wanted = if owned.replicas_wanted == 0 { load.replicas } else { owned.replicas_wanted };
        let verdict = owned.crowd.judge(load, wanted, keep, now);
        let wanted = match verdict {
            Verdict::Grow if pays(instances, host, &id) => wanted + 1,
            Verdict::Shrink => (wanted - 1).max(1),
            Verdict::Grow | Verdict::Stay => wanted,
        };
        set(instances, host, &id, wanted, now);
    }
}

fn set(instances: &mut Instances, host: &mut Host, id: &str, wanted: usize, now: Duration) {
    let Some(owned) = instances.table.get_mut(id) else { return };
    let before = owned.replicas_wanted;
    if before == wanted {
        return;
    }
    owned.replicas_wanted = wanted;
    owned.crowd.changed(wanted > before.max(1), now);
    info!(instance = id, before, wanted, "the number of replicas changes");
    host.ctx.changed();
}

fn load_of(instances: &Instances, host: &Host, id: &str) -> Load {
    let all = host.ctx.desired.replicas(id);
    let status =
        |(entry, wanted): &(&Entry, &Service)| status(host, &instances.table, entry, wanted);
    let all: Vec<InstanceStatus> = all.iter().map(status).collect();
    let failed = |one: &InstanceStatus| matches!(one.state, InstanceState::Failed { .. });
    Load {
        requests: all.iter().map(|one| one.requests_running + one.requests_waiting).sum(),
        working: all.iter().filter(|one| one.has_generated).count(),
        replicas: all.len().max(1),
        has_failed: all.iter().skip(1).any(failed),
    }
}

/// Whether two replicas on the nodes of this one are predicted to give more tokens in all.
fn pays(instances: &Instances, host: &Host, id: &str) -> bool {
    let Some(owned) = instances.table.get(id) else { return false };
    let transport = owned.machine.fixed().spec.options.transport;
    let all = instances.pool.together(host, &instances.table, Some(id), transport);
    let all = share(host, &instances.table, id, all);
    let Some(held) = owned.prediction.as_ref().map(|found| found.total_tokens_per_sec) else {
        return false;
    };
    if all.len() < 2 {
        return false;
    }
    let rates: Option<Vec<f64>> =
        parts(all, 1, &[]).iter().map(|part| total_rate(owned, part)).collect();
    rates.is_some_and(|rates| rates.iter().sum::<f64>() >= GAIN_MIN * held)
}

/// The predicted rate of all answers together of a replica on these nodes.
fn total_rate(owned: &Owned, part: &[Candidate]) -> Option<f64> {
    let spec = relaxed(&owned.machine.fixed().spec);
    let plan = plan(&owned.prepared.model, part, &spec, false).ok()?;
    Some(plan.prediction?.total_tokens_per_sec)
}
