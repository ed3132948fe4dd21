//! The instances of this node: placed, driven, replaced, ended.
//!
//! [`machine`] is the state machine of one instance. [`table`] has a slot for each, [`place`] finds
//! the nodes for one among those of the [`pool`]. `Instances` feeds the machines and does what they
//! ask for.

mod drain;
mod growth;
mod host;
mod idle;
pub(crate) mod machine;
mod moving;
mod partition;
mod place;
mod pool;
mod sinks;
mod slow_links;
pub(crate) mod status;
mod table;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gguf::Directory;
use placement::Plan;
use protocol::{Nodes, RequestId, Secret, WorkerEvent};
use store::{Digest, ModelFile};
use tracing::{info, warn};

use crate::core::{Context, HeaderOf, Prepared, Reply};
use crate::desired::{Entry, Wanted};
use crate::members::{MODEL_NAME_CHARS_MAX, is_model_name};
use crate::membership::ConnId;
use crate::model_file::ServedFile;
use crate::peers::conn_to_owner;
use crate::relay::Source;
use crate::wire::WorkerId;
use crate::{Error, GenerateRequest, InstanceState, NodeId, Result};
pub(crate) use drain::{Models, check_drain};
pub(crate) use host::Host;
pub(crate) use idle::{load, unload_idle};
use machine::{Effect, Fixed, Input, Path, Routes};
use place::{Candidate, Placed, plan_in_need, plan_ring, plan_somehow, plan_with_kept};
use pool::Pool;
pub(crate) use sinks::Sink;
#[cfg(test)]
pub(crate) use table::WORKERS_BITS;
use table::{Owned, Starting, Table};

/// How often the file of an instance that could not be started is opened again.
const LOOK_AGAIN: Duration = crate::files::LOOK_AGAIN;

#[derive(Default)]
pub(crate) struct Instances {
    pub(crate) table: Table,
    pub(crate) pool: Pool,
}

impl Instances {
    /// How a model would be placed.
    pub(crate) fn plan(&self, host: &Host, prepared: &Prepared) -> Result<Plan> {
        let all = self.pool.asked(host, &self.table, &prepared.spec);
        let mut placed = self.plan_asked(host, prepared, all)?;
        let why = &mut placed.plan.why;
        why.extend(self.pool.partition.in_words(&host.ctx));
        why.extend(self.pool.absent(host));
        why.extend(prepared.remarks.iter().cloned());
        Ok(placed.plan)
    }

    /// A plan as a person asks for it.
    fn plan_asked(&self, host: &Host, prepared: &Prepared, all: Vec<Candidate>) -> Result<Placed> {
        let unusable = |why| Error::Unusable(self.pool.with_absent(host, why));
        let candidates = place::named(all, &prepared.spec).map_err(unusable)?;
        let plan = place::plan(prepared, &candidates, &prepared.spec, false)
            .map_err(|why| unusable(with_leader(why, prepared, &candidates)))?;
        Ok(Placed { plan, candidates, is_as_asked: true })
    }

    /// Places a model and starts its workers.
    pub(crate) fn serve(&mut self, host: &mut Host, mut prepared: Prepared) -> Result<String> {
        let model = match &prepared.spec.name {
            None => prepared.found.name.clone(),
            Some(name) if is_model_name(name) => name.clone(),
            Some(name) => {
                let text = format!(
                    "{name:?} is no name: give 1 to {MODEL_NAME_CHARS_MAX} visible letters"
                );
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
        self.clear_name(host, &model)?;
        if !prepared.spec.on_request {
            idle::unload_for(self, host, &prepared);
        }
        let mut all = self.pool.asked(host, &self.table, &prepared.spec);
        self.pool.partition.try_again();
        if prepared.spec.on_request {
            // The memory of the first request counts, not the present one.
            idle::count_as_empty(&host.ctx, &mut all);
        }
        let placed = self.plan_asked(host, &prepared, all)?;
        let checked = placed.plan.check_wire(prepared.spec.options.wire_type);
        checked.map_err(|why| Error::Unusable(why.to_string()))?;
        // Wherever it is placed later, requests that fit now must fit then.
        prepared.spec = place::of_size(&prepared.spec, &placed.plan.split);

        let id = format!("i-{:08x}", host.ctx.random_u32());
        let ModelFile { digest, bytes, path, .. } = prepared.found.clone();
        let wanted = Wanted {
            id: id.clone(),
            spec: prepared.spec.clone().into(),
            digest,
            bytes,
            created_unix_s: prepared.created_unix_s,
        };
        let entry = host.ctx.desired.serve(&model, wanted);
        host.files.located(&mut host.ctx, digest, Some(path));
        // Before its workers are ordered, so that their nodes know whose order it is.
        host.ctx.replicate(vec![entry.clone()], None);
        if entry.unloaded {
            self.table.slot(&id).unloaded = Some(prepared.into());
        } else {
            self.own(host, &id, entry, prepared, Ok(placed));
        }
        Ok(id)
    }

    /// Starts what is to be served, after a restart or a takeover: as it was asked for if possible,
    /// else on whatever nodes there are; without enough nodes it waits for them.
    fn own_again(&mut self, host: &mut Host, id: &str, entry: Entry, prepared: Prepared) {
        let transport = prepared.spec.options.transport;
        let all = self.pool.together(host, &self.table, None, transport);
        let kept = kept_ranks(&host.ctx, id, &all);
        let placed = match plan_with_kept(&prepared, &all, &kept) {
            Some(placed) => Ok(placed),
            None => plan_somehow(&prepared, all, &prepared.spec),
        };
        self.own(host, id, entry, prepared, placed);
    }

    fn own(
        &mut self,
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
        let fixed = fixed(id, entry, &prepared, self.table.number(&mut host.ctx));
        let (owned, effects) = Owned::new(fixed, prepared.into(), placed, host.ctx.now());
        self.table.slot(id).current = Some(owned);
        // Its first epoch takes the fastest paths, too.
        let routes = host.paths.routes(&host.ctx);
        self.route(&routes);
        host.ctx.changed();
        self.run(host, id, effects);
    }

    /// A name belongs to one instance; a failed one gives way.
    fn clear_name(&mut self, host: &mut Host, model: &str) -> Result<()> {
        let statuses = status::all(self, host);
        let Some(existing) = statuses.into_iter().find(|status| status.model == model) else {
            return Ok(());
        };
        if matches!(existing.state, InstanceState::Failed { .. }) {
            self.release(host, &existing.id, "it is served anew");
            return Ok(());
        }
        Err(Error::AlreadyServed { model: existing.model, instance: existing.id })
    }

    /// An instance is not to be served any more; its owner ends it when it hears of that.
    pub(crate) fn stop(&mut self, host: &mut Host, name: &str) -> Result<()> {
        let Some((entry, wanted)) = host.ctx.desired.find(name) else {
            return Err(status::not_served(self, host, name));
        };
        let (model, id) = (entry.name.clone(), wanted.id.clone());
        info!(instance = id, model, "stopped");
        let entry = host.ctx.desired.stop(&model);
        host.ctx.replicate(vec![entry], None);
        Ok(())
    }

    /// Reads a model's header: from memory, this node's disk, or the node that owns the model.
    pub(crate) fn header(&self, host: &mut Host, name: &str, reply: Reply<Arc<Directory>>) {
        let found = host.ctx.desired.find(name);
        let unloaded = found.and_then(|(_, wanted)| self.table.unloaded(&wanted.id));
        let owned = self.table.find(name).and_then(|id| self.table.get(id));
        // A caller that has stopped waiting needs no answer.
        if let Some(prepared) = owned.map(|owned| &owned.prepared).or(unloaded) {
            return drop(reply.send(Ok(prepared.file.directory().clone())));
        }
        let Some((entry, wanted)) = found else {
            return drop(reply.send(Err(status::not_served(self, host, name))));
        };
        let (model, node, digest) = (entry.name.clone(), entry.owner(), wanted.digest);
        if let Some(path) = host.files.here(&digest).cloned() {
            let of = HeaderOf { model, owner: host.ctx.config.name.clone() };
            return host.ctx.outside.read_header(path, of, reply);
        }
        if conn_to_owner(&host.ctx, entry, wanted).is_none() {
            let reason = status::why_nowhere(self, host, &wanted.id);
            return drop(reply.send(Err(Error::Away { model, reason })));
        }
        let (addresses, name) = (host.ctx.addresses_of(node), host.ctx.name_of(node));
        let source = Source { node, name: name.clone(), addresses, digest };
        let of = HeaderOf { model, owner: name };
        host.ctx.outside.fetch_header(source, of, reply);
    }

    /// Ends an instance here and its successor, and says why to the clients that wait for it.
    pub(crate) fn release(&mut self, host: &mut Host, id: &str, why: &str) {
        self.abandon(host, id, why);
        let Some(owned) = self.table.get_mut(id) else { return };
        info!(instance = id, why, "an instance ends on this node");
        let effects = owned.machine.stop(why);
        self.run(host, id, effects);
        self.table.take_current(id);
        host.ctx.changed();
    }

    pub(crate) fn release_all(&mut self, host: &mut Host, why: &str) {
        for id in self.table.successor_ids() {
            self.abandon(host, &id, why);
        }
        for id in self.table.ids() {
            self.release(host, &id, why);
        }
    }

    /// Ends what was stopped, and what another node owns now.
    pub(crate) fn end_superseded(&mut self, host: &mut Host) {
        let owned = self.table.current().map(|(id, owned)| (id, owned.machine.fixed().claim));
        let over: Vec<String> = owned
            .filter(|(id, claim)| !host.ctx.is_current(id, *claim))
            .map(|(id, _)| id.clone())
            .collect();
        self.abandon_superseded(host);
        for id in over {
            let reason = match host.ctx.desired.find(&id) {
                Some((entry, _)) => {
                    format!("node {} has taken it over", host.ctx.name_of(entry.owner()))
                }
                None => "it was stopped".to_owned(),
            };
            self.release(host, &id, &reason);
        }
        idle::forget(&mut self.table, &host.ctx);
        self.table.prune();
    }

    /// Opens the files of what this node owns and does not run yet. Of an unloaded instance it
    /// needs the header.
    pub(crate) fn start_owned(&mut self, host: &mut Host) {
        let (me, now) = (host.ctx.me, host.ctx.now());
        let mine = host.ctx.desired.wanted().filter(|(entry, _)| entry.owner() == me);
        let is_due = |id: &str| match self.table.start(id) {
            None => self.table.get(id).is_none() && self.table.unloaded(id).is_none(),
            Some(Starting::Opening) => false,
            Some(Starting::Waiting { looked, .. }) => {
                now.saturating_sub(*looked) >= idle::ROOM_LOOK
            }
            Some(Starting::Failed(_, since)) => now.saturating_sub(*since) >= LOOK_AGAIN,
        };
        let due: Vec<Wanted> =
            mine.map(|(_, wanted)| wanted.clone()).filter(|wanted| is_due(&wanted.id)).collect();
        due.into_iter().for_each(|wanted| self.open(host, wanted));
    }

    /// Reads from disk what starting an instance takes; [`Self::opened`] gets it.
    fn open(&mut self, host: &mut Host, wanted: Wanted) {
        // An instance that waits for memory goes on waiting while its file is read again.
        match self.table.start_mut(&wanted.id) {
            Some(Starting::Waiting { looked, .. }) => *looked = host.ctx.now(),
            _ => self.table.slot(&wanted.id).start = Some(Starting::Opening),
        }
        host.ctx.outside.open(wanted);
    }

    /// Starts an instance whose file is open now, unless another node has taken it over meanwhile.
    pub(crate) fn opened(
        &mut self,
        host: &mut Host,
        id: &str,
        opened: std::result::Result<Box<Prepared>, String>,
    ) {
        host.ctx.changed();
        let waiting = self.table.take_start(id);
        let Some((entry, _)) = host.ctx.desired.find(id) else { return };
        let entry = entry.clone();
        if self.table.get(id).is_some() {
            return;
        }
        let now = host.ctx.now();
        match opened {
            Ok(prepared) if entry.owner() != host.ctx.me => {
                self.prepare_to_own(host, id, entry, *prepared);
            }
            Ok(prepared) if entry.unloaded => {
                self.table.slot(id).unloaded = Some(prepared.into());
            }
            Ok(prepared) => {
                let since = match waiting {
                    Some(Starting::Waiting { since, .. }) => since,
                    _ => now,
                };
                if idle::must_wait_for_room(self, host, &prepared, since) {
                    self.table.slot(id).start = Some(Starting::Waiting { since, looked: now });
                } else {
                    self.own_again(host, id, entry, *prepared);
                }
            }
            Err(why) => {
                warn!(instance = id, why, "what this node owns cannot be started");
                self.table.slot(id).start = Some(Starting::Failed(why, now));
                // Another node may have the file.
                let digest = host.ctx.desired.find(id).map(|(_, wanted)| wanted.digest);
                if let Some(digest) = digest {
                    host.files.located(&mut host.ctx, digest, None);
                }
            }
        }
    }

    /// The file of a placed model, for a node of the cluster that lacks it. This node may lack it as
    /// well, if the file was replaced since.
    pub(crate) fn file_for(
        &self,
        ctx: &Context,
        peer: NodeId,
        digest: Digest,
    ) -> Option<Arc<ServedFile>> {
        let belongs_here = peer == ctx.me || ctx.membership.is_member(peer);
        self.table.file(digest).filter(|_| belongs_here).cloned()
    }

    /// Hands an event to every instance.
    pub(crate) fn step_all(&mut self, host: &mut Host, event: impl Fn() -> Input) {
        for id in self.table.ids() {
            self.step(host, &id, event());
        }
        for id in self.table.successor_ids() {
            self.step_successor(host, &id, event());
        }
    }

    /// A member can be given work: `path` is the one of its connection.
    pub(crate) fn node_up(&mut self, host: &mut Host, node: NodeId, path: Path) {
        self.pool.growth.node_up(node, host.ctx.now());
        self.pool.partition.forget(node);
        let numerics = host.ctx.heartbeat_of(node).map(|heartbeat| heartbeat.numerics);
        if numerics == Some(host.ctx.versions.numerics) {
            self.step_all(host, || Input::NodeUp { node, path });
        }
    }

    /// Hands the report of a worker to its instance.
    pub(crate) fn worker(&mut self, host: &mut Host, from: NodeId, worker: WorkerId, event: Input) {
        let Some((id, owned, is_current)) = self.table.of_worker(worker) else { return };
        let id = id.clone();
        match owned.machine.host(worker) {
            Some(known) if known == from && is_current => self.step(host, &id, event),
            Some(known) if known == from => self.step_successor(host, &id, event),
            Some(_) => host.ctx.disbelieve(from, "a worker that another node runs"),
            // It has ended since.
            None => {}
        }
    }

    fn step(&mut self, host: &mut Host, id: &str, event: Input) {
        let now = host.ctx.now();
        let Some(owned) = self.table.get_mut(id) else { return };
        host.ctx.changed_if(matches!(
            &event,
            Input::FromWorker { event: WorkerEvent::Stats(_) | WorkerEvent::RankStats(_), .. }
        ));
        let (was, had_generated) = (owned.machine.state(), owned.machine.has_generated());
        let effects = owned.machine.step(event, now);
        let is = owned.machine.state();
        host.ctx.changed_if(had_generated != owned.machine.has_generated());
        if was != is {
            host.ctx.changed();
            match &is {
                InstanceState::Failed { reason } | InstanceState::Recovering { reason } => {
                    warn!(instance = id, reason, "instance in trouble");
                }
                state => info!(instance = id, ?state, "instance"),
            }
        }
        self.run(host, id, effects);
    }

    /// Does what an instance asks for, and what that leads to.
    fn run(&mut self, host: &mut Host, id: &str, effects: Vec<Effect>) {
        let mut todo = VecDeque::from(effects);
        while let Some(effect) = todo.pop_front() {
            match effect {
                Effect::Spawn { node, worker, order } => {
                    let served = self.table.file(order.digest).cloned();
                    host.order(node, worker, order, served);
                }
                Effect::Send { node, worker, command } => host.command(node, worker, command),
                Effect::End { node, worker, at_once } => host.end(node, worker, at_once),
                Effect::Emit { request, event } => {
                    if let Some(owned) = self.table.get_mut(id) {
                        owned.emit(&mut host.ctx, request, event);
                    }
                }
                Effect::LetGo { request, reason } => {
                    if let Some(owned) = self.table.get_mut(id) {
                        owned.let_go(&mut host.ctx, request, reason);
                    }
                }
                Effect::Reorder(order) => todo.extend(self.reorder(host, id, &order)),
                Effect::Replan => todo.extend(self.replan(host, id)),
                Effect::Part(pairs) => {
                    self.pool.partition.note(&host.ctx, pairs);
                    todo.extend(self.part(host, id));
                }
            }
        }
    }

    /// Places an instance again on the nodes that are left. The wishes for their number give way: a
    /// model on fewer nodes is better than none.
    fn replan(&mut self, host: &mut Host, id: &str) -> Vec<Effect> {
        let placed = self.plan_on_rest(host, id);
        let Some((owned, placed)) = self.table.get_mut(id).zip(placed) else { return Vec::new() };
        let now = host.ctx.now();
        host.ctx.changed();
        match placed {
            Ok(placed) => {
                let why = &placed.plan.why;
                warn!(instance = id, ranks = placed.plan.ranks.len(), ?why, "placed again");
                owned.place(placed, |machine, ranks, split| machine.replace(ranks, split, now))
            }
            Err(why) => {
                warn!(instance = id, why, "cannot be placed again");
                owned.machine.give_up(&why, now)
            }
        }
    }

    /// A plan for the nodes that are left and reach each other.
    fn plan_on_rest(&self, host: &Host, id: &str) -> Option<std::result::Result<Placed, String>> {
        let owned = self.table.get(id)?;
        let wanted = &owned.machine.fixed().spec;
        let candidates = self.pool.together(host, &self.table, Some(id), wanted.options.transport);
        Some(plan_in_need(&owned.prepared, candidates, wanted))
    }

    /// Places an instance again on the same nodes in another order, each with its present share.
    /// Does nothing if one of them has just gone, of which the instance will hear.
    fn reorder(&mut self, host: &mut Host, id: &str, order: &[(NodeId, u32)]) -> Vec<Effect> {
        let now = host.ctx.now();
        host.ctx.changed();
        let Some(owned) = self.table.get(id) else { return Vec::new() };
        let (wanted, split) = (&owned.machine.fixed().spec, owned.machine.split());
        let all = self.pool.candidates(host, &self.table, Some(id), wanted.options.transport);
        let placed = plan_ring(&owned.prepared, all, wanted, split, order);
        let Some((owned, placed)) = self.table.get_mut(id).zip(placed) else { return Vec::new() };
        match placed {
            Ok(placed) => {
                warn!(instance = id, why = ?placed.plan.why, "placed in the order of a ring");
                owned.place(placed, |machine, ranks, split| machine.reorder(ranks, split, now))
            }
            Err(why) => {
                warn!(instance = id, why, "cannot be placed in the order of a ring");
                owned.machine.give_up(&format!("in the order of the only ring, {why}"), now)
            }
        }
    }

    /// Places an instance without some of the nodes that have no link, if the rest suffices.
    fn part(&mut self, host: &mut Host, id: &str) -> Vec<Effect> {
        let now = host.ctx.now();
        let placed = self.plan_on_rest(host, id);
        let Some((owned, placed)) = self.table.get_mut(id).zip(placed) else { return Vec::new() };
        host.ctx.changed();
        match placed {
            Ok(placed) => {
                let apart = self.pool.partition.in_words(&host.ctx).join("; ");
                let why = format!("it is loaded on {}, since {apart}", placed.names());
                warn!(instance = id, why, "placed again");
                owned
                    .place(placed, |machine, ranks, split| machine.move_to(ranks, split, &why, now))
            }
            Err(why) => {
                warn!(instance = id, why, "cannot do without nodes that have no link");
                owned.machine.cannot_part(&why);
                Vec::new()
            }
        }
    }

    /// Where links do not come up, nodes that do not reach each other need not be waited for.
    pub(crate) fn look_at_late_links(&mut self, host: &mut Host) {
        self.pool.partition.expire(&mut host.ctx);
        let now = host.ctx.now();
        let late = self.table.current().filter(|(_, owned)| owned.machine.is_late(now));
        for id in late.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            let Some(owned) = self.table.get_mut(&id) else { continue };
            let pairs = pool::apart_on(&host.ctx, owned);
            if !pairs.is_empty() {
                let effects = owned.machine.unreached(&pairs, now);
                self.run(host, &id, effects);
            }
        }
    }

    /// Gives all instances the fastest addresses of their ranks.
    pub(crate) fn route(&mut self, routes: &Routes) {
        for (_, owned) in self.table.current_mut() {
            owned.machine.set_routes(routes.clone());
        }
    }

    /// The instance of this id or name, if this node runs it.
    pub(crate) fn find(&self, name: &str) -> Option<String> {
        self.table.find(name).cloned()
    }

    /// Hands a request to an instance of this node.
    pub(crate) fn submit(
        &mut self,
        host: &mut Host,
        id: &str,
        request: GenerateRequest,
        sink: Sink,
    ) -> Result<RequestId> {
        host.ctx.changed();
        let now = host.ctx.now();
        let Some(owned) = self.table.get_mut(id) else {
            return Err(status::not_served(self, host, id));
        };
        let keep_alive = request.keep_alive;
        let request = owned.machine.submit(request, now)?;
        owned.rest.asked(keep_alive);
        owned.sinks.insert(request, sink);
        let effects = owned.machine.take_effects();
        self.run(host, id, effects);
        Ok(request)
    }

    /// Ends a request whose client is gone.
    pub(crate) fn cancel(&mut self, host: &mut Host, id: &str, request: RequestId) {
        let now = host.ctx.now();
        let Some(owned) = self.table.get_mut(id) else { return };
        if owned.sinks.remove(&request).is_some() {
            host.ctx.changed();
            let effects = owned.machine.step(Input::Cancel(request), now);
            self.run(host, id, effects);
        }
    }

    /// Ends the requests of other nodes' streams that match.
    pub(crate) fn cancel_for(&mut self, host: &mut Host, is_it: impl Fn(ConnId, u64) -> bool) {
        let of = |(id, owned): (&String, &Owned)| {
            let requests = owned.of_peers(&is_it).into_iter();
            requests.map(|request| (id.clone(), request)).collect::<Vec<_>>()
        };
        for (id, request) in self.table.current().flat_map(of).collect::<Vec<_>>() {
            self.cancel(host, &id, request);
        }
    }

    /// The deadline of the first instance that has one before the next tick.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.table.deadline()
    }
}

impl Owned {
    /// Puts an instance on the ranks of a plan.
    fn place(
        &mut self,
        placed: Placed,
        put: impl FnOnce(&mut machine::Instance, Vec<machine::Rank>, protocol::Split) -> Vec<Effect>,
    ) -> Vec<Effect> {
        let ranks = placed.ranks();
        (self.why, self.prediction) = (placed.plan.why, placed.plan.prediction);
        put(&mut self.machine, ranks, placed.plan.split)
    }
}

/// The reason for which a model cannot be placed, with the node that could lead it with a copy of
/// the file.
fn with_leader(why: String, prepared: &Prepared, all: &[Candidate]) -> String {
    let (Some((me, others)), None | Some(Nodes::Count(_))) =
        (all.split_first(), &prepared.spec.nodes)
    else {
        return why;
    };
    let leads = |other: &&Candidate| {
        let rest = others.iter().filter(|one| one.node != other.node);
        let order: Vec<Candidate> = std::iter::once(*other).chain(rest).cloned().collect();
        place::plan(prepared, &order, &prepared.spec, false).is_ok()
    };
    let mut largest: Vec<&Candidate> = others.iter().collect();
    largest.sort_by_key(|other| std::cmp::Reverse(other.memory_free_bytes));
    match largest.into_iter().find(leads) {
        None => why,
        Some(leader) => {
            let (here, there, model) = (&me.name, &leader.name, &prepared.found.name);
            format!(
                "{why}. Node {here} has the file, so it leads and holds a part. Node {there} can \
                 lead without it, with a copy of the file; there: sinew pull {model} && sinew \
                 serve {model}"
            )
        }
    }
}

/// What does not change of an instance.
fn fixed(
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
fn kept_ranks(ctx: &Context, id: &str, all: &[Candidate]) -> Vec<(NodeId, crate::wire::KeptRank)> {
    let kept = |candidate: &Candidate| {
        let heartbeat = ctx.heartbeat_of(candidate.node)?;
        let kept = heartbeat.kept.iter().find(|kept| kept.instance == id)?;
        Some((candidate.node, kept.clone()))
    };
    all.iter().filter_map(kept).collect()
}
