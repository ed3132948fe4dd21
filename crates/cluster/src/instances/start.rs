//! Places and starts instances: new requests of users, and instances that this node owns again.

use std::sync::Arc;

use gguf::Directory;
use placement::Plan;
use protocol::{Nodes, Secret};
use store::ModelFile;
use tracing::{info, warn};

use super::host::Host;
use super::owned::Owned;
use super::place::{self, Candidate, Placed, plan_somehow, plan_with_kept};
use super::running::Instances;
use super::{idle, replicas, status};
use crate::context::{Context, HeaderOf, News, Placeable, Prepared, Reply};
use crate::desired::{Entry, Service};
use crate::files::sources;
use crate::instance::Fixed;
use crate::members::{MODEL_NAME_CHARS_MAX, is_model_name};
use crate::peers::conn_to_owner;
use crate::wire::{KeptRank, WorkerId};
use crate::{Error, InstanceSpec, InstanceState, NodeId, Result};

/// The plan for a model.
pub(crate) fn plan(
    instances: &Instances,
    host: &Host,
    spec: &InstanceSpec,
    model: &Placeable,
) -> Result<Plan> {
    let all = instances.pool.asked(host, &instances.table, spec);
    let mut spec = spec.clone();
    replicas::check(&mut spec, all.len()).map_err(Error::Unusable)?;
    let (spec, all) = (&spec, replicas::share_of_new(&spec, all));
    let mut placed = plan_asked(instances, host, (spec, model), all)?;
    let why = &mut placed.plan.why;
    why.extend(instances.pool.partition.in_words(&host.ctx));
    why.extend(instances.pool.absent(host));
    why.extend(model.remarks.iter().cloned());
    Ok(placed.plan)
}

/// A plan that follows the request.
fn plan_asked(
    instances: &Instances,
    host: &Host,
    (spec, model): (&InstanceSpec, &Placeable),
    all: Vec<Candidate>,
) -> Result<Placed> {
    let unusable = |why| Error::Unusable(instances.pool.with_absent(host, why));
    let candidates = place::named(all, spec).map_err(unusable)?;
    let plan = place::plan(model, &candidates, spec, false)
        .map_err(|why| unusable(with_leader(why, (spec, model), &candidates)))?;
    Ok(Placed { plan, candidates, is_as_asked: true })
}

/// Places a model and starts its workers.
pub(crate) fn serve(
    instances: &mut Instances,
    host: &mut Host,
    mut prepared: Prepared,
) -> Result<String> {
    let model = match &prepared.spec.name {
        None => prepared.found.name.clone(),
        Some(name) if is_model_name(name) => name.clone(),
        Some(name) => {
            let text =
                format!("{name:?} is no name: give 1 to {MODEL_NAME_CHARS_MAX} visible letters");
            return Err(Error::Unusable(text));
        }
    };
    if host.ctx.desired.is_drained(host.ctx.me) {
        let name = &host.ctx.config.name;
        return Err(Error::Unusable(format!(
            "node {name} is to be empty and serves nothing new. Serve the model from another \
             node, or type: sinew undrain {name}"
        )));
    }
    clear_name(instances, host, &model)?;
    if !prepared.spec.on_request {
        idle::unload_for(instances, host, &prepared);
    }
    let mut all = instances.pool.asked(host, &instances.table, &prepared.spec);
    instances.pool.partition.try_again();
    if prepared.spec.on_request {
        // The memory at the first request counts, not the present one.
        idle::count_as_empty(&host.ctx, &mut all);
    }
    replicas::check(&mut prepared.spec, all.len()).map_err(Error::Unusable)?;
    let all = replicas::share_of_new(&prepared.spec, all);
    let placed = plan_asked(instances, host, (&prepared.spec, &prepared.model), all)?;
    let checked = placed.plan.check_wire(prepared.spec.options.wire_type);
    checked.map_err(|why| Error::Unusable(why.to_string()))?;
    // Requests that fit now must still fit after a later placement.
    prepared.spec = place::of_size(&prepared.spec, &placed.plan.split);

    let id = format!("i-{:08x}", host.ctx.random_u32());
    let ModelFile { digest, bytes, path, .. } = prepared.found.clone();
    let wanted = Service {
        id: id.clone(),
        spec: prepared.spec.clone().into(),
        digest,
        bytes,
        created_unix_s: prepared.created_unix_s,
    };
    wanted.check().map_err(Error::Unusable)?;
    let entry = host.ctx.desired.serve(&model, wanted);
    if host.ctx.desired.find(&model).is_none_or(|(_, wanted)| wanted.id != id) {
        let text = format!("{model} is one more than the cluster keeps. Stop another: sinew stop");
        return Err(Error::Unusable(text));
    }
    host.files.places.located(&mut host.ctx, digest, Some(path));
    // Replicated before the workers are ordered, so that their nodes know the claim of the order.
    host.ctx.replicate(vec![entry.clone()], None);
    if entry.unloaded {
        instances.table.slot(&id).unloaded = Some(prepared.into());
    } else {
        own(instances, host, &id, entry, prepared, Ok(placed));
    }
    Ok(id)
}

/// Starts an instance after a restart or a takeover: as requested if possible, else on any nodes;
/// without enough nodes it waits for them.
pub(super) fn own_again(
    instances: &mut Instances,
    host: &mut Host,
    id: &str,
    entry: Entry,
    prepared: Prepared,
) {
    let transport = prepared.spec.options.transport;
    let all = instances.pool.together(host, &instances.table, None, transport);
    let all = replicas::share(host, &instances.table, id, all);
    let kept = kept_ranks(&host.ctx, id, &all);
    let placed = match plan_with_kept(&prepared.model, &prepared.spec, &all, &kept) {
        Some(placed) => Ok(placed),
        None => plan_somehow(&prepared.model, all, &prepared.spec),
    };
    own(instances, host, id, entry, prepared, placed);
}

fn own(
    instances: &mut Instances,
    host: &mut Host,
    id: &str,
    entry: Entry,
    prepared: Prepared,
    placed: std::result::Result<Placed, String>,
) {
    match &placed {
        Ok(Placed { plan, .. }) => {
            info!(instance = id, ranks = plan.ranks.len(), why = ?plan.why, "placed");
        }
        Err(why) => warn!(instance = id, why, "cannot be placed"),
    }
    let fixed = fixed(id, entry, &prepared, instances.table.number(&mut host.ctx));
    let (owned, effects) = Owned::new(fixed, prepared.into(), placed, host.ctx.now());
    instances.table.slot(id).current = Some(owned);
    // So that the first epoch uses the fastest paths, too.
    let routes = host.paths.routes(&host.ctx);
    instances.route(&routes);
    host.ctx.changed();
    // Members send requests to a new owner as soon as they see it running the model.
    host.ctx.post(News::Heartbeats);
    instances.run(host, id, effects);
}

/// A name belongs to one instance; a failed one gives way.
fn clear_name(instances: &mut Instances, host: &mut Host, model: &str) -> Result<()> {
    if host.ctx.desired.presets.has(model) {
        return Err(Error::Unusable(format!(
            "{model} is the name of a preset. Serve the model under another one (--name NAME), or \
             remove the preset: sinew preset rm {model}"
        )));
    }
    let statuses = status::all(instances, host);
    let Some(existing) = statuses.into_iter().find(|status| status.model == model) else {
        return Ok(());
    };
    if matches!(existing.state, InstanceState::Failed { .. }) {
        instances.release(host, &existing.id, "it is served anew");
        return Ok(());
    }
    Err(Error::AlreadyServed { model: existing.model, instance: existing.id })
}

/// Stops an instance; its owner ends it when it receives the change.
pub(crate) fn stop(instances: &mut Instances, host: &mut Host, name: &str) -> Result<()> {
    let Some((entry, wanted)) = host.ctx.desired.find(name) else {
        return Err(status::not_served(instances, host, name));
    };
    let (model, id) = (entry.name.clone(), wanted.id.clone());
    info!(instance = id, model, "stopped");
    let entry = host.ctx.desired.stop(&model);
    host.ctx.replicate(vec![entry], None);
    match host.ctx.desired.find(&model) {
        None => Ok(()),
        Some(_) => Err(Error::Unusable(format!("{model} could not be stopped, and is served on"))),
    }
}

/// Reads a model's header: from memory, this node's disk, or the node that owns the model.
pub(crate) fn header(
    instances: &Instances,
    host: &mut Host,
    name: &str,
    reply: Reply<Arc<Directory>>,
) {
    let replica = replicas::nearest(host, &instances.table, name);
    let name = replica.as_deref().unwrap_or(name);
    let found = host.ctx.desired.find(name);
    let unloaded = found.and_then(|(_, wanted)| instances.table.unloaded(&wanted.id));
    let owned = instances.table.find(name).and_then(|id| instances.table.get(id));
    // The caller may have stopped waiting.
    if let Some(prepared) = owned.map(|owned| &owned.prepared).or(unloaded) {
        return drop(reply.send(Ok(prepared.file.directory().clone())));
    }
    let Some((entry, wanted)) = found else {
        return drop(reply.send(Err(status::not_served(instances, host, name))));
    };
    let (model, node) = (entry.name.clone(), entry.owner());
    let (digest, bytes) = (wanted.digest, wanted.bytes);
    if let Some(path) = host.files.places.here(&digest).cloned() {
        let of = HeaderOf { model, owner: host.ctx.config.name.clone() };
        return host.ctx.outside.read_header(path, of, reply);
    }
    if conn_to_owner(&host.ctx, entry, wanted).is_none() {
        let reason = status::why_nowhere(instances, host, &wanted.id);
        return drop(reply.send(Err(Error::Away { model, reason })));
    }
    let from = sources(&host.ctx, Some(node), digest, bytes);
    let of = HeaderOf { model, owner: host.ctx.name_of(node) };
    host.ctx.outside.fetch_header(from, of, reply);
}

/// Adds to the reason of a failed placement a node that could lead the model, given a copy of the
/// file.
fn with_leader(
    why: String,
    (spec, model): (&InstanceSpec, &Placeable),
    all: &[Candidate],
) -> String {
    let (Some((me, others)), None | Some(Nodes::Count(_))) = (all.split_first(), &spec.nodes)
    else {
        return why;
    };
    let leads = |other: &&Candidate| {
        let rest = others.iter().filter(|one| one.node != other.node);
        let order: Vec<Candidate> = std::iter::once(*other).chain(rest).cloned().collect();
        place::plan(model, &order, spec, false).is_ok()
    };
    let mut largest: Vec<&Candidate> = others.iter().collect();
    largest.sort_by_key(|other| std::cmp::Reverse(other.memory_free_bytes));
    match largest.into_iter().find(leads) {
        None => why,
        Some(leader) => {
            let (here, there, model) = (&me.name, &leader.name, &model.name);
            format!(
                "{why}. Node {here} has the file, so it leads and holds a part. Node {there} can \
                 lead without it, with a copy of the file; there: sinew pull {model} && sinew \
                 serve {model}"
            )
        }
    }
}

/// The constants of an instance.
pub(super) fn fixed(
    id: &str,
    entry: Entry,
    prepared: &Prepared,
    (secret, first_worker): (Secret, WorkerId),
) -> Fixed {
    Fixed {
        id: id.to_owned(),
        model: entry.name,
        claim: entry.claim,
        digest: prepared.found.digest,
        model_bytes: prepared.found.bytes,
        spec: prepared.spec.clone(),
        secret,
        first_worker,
    }
}

/// The ranks of an instance that other nodes have kept without an owner.
fn kept_ranks(ctx: &Context, id: &str, all: &[Candidate]) -> Vec<(NodeId, KeptRank)> {
    let kept = |candidate: &Candidate| {
        let heartbeat = ctx.heartbeat_of(candidate.node)?;
        let kept = heartbeat.kept.iter().find(|kept| kept.instance == id)?;
        Some((candidate.node, kept.clone()))
    };
    all.iter().filter_map(kept).collect()
}
