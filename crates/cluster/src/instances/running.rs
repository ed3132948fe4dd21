//! Drives the running instances: feeds the state machines, runs their effects, and replaces them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use protocol::{RequestId, WorkerEvent};
use store::Digest;
use tracing::{info, warn};

use super::host::Host;
use super::owned::{Owned, Sink};
use super::place::{Placed, plan_ring, plan_somehow};
use super::pool::{self, Pool};
use super::replicas;
use super::table::Table;
use crate::context::ServedFile;
use crate::context::{Context, News};
use crate::instance::{Effect, Input, Path, Routes};
use crate::membership::ConnId;
use crate::wire::{Offer, Question, WorkerId};
use crate::{Error, GenerateRequest, InstanceState, NodeId, Result};

#[derive(Default)]
pub(crate) struct Instances {
    pub(crate) table: Table,
    pub(crate) pool: Pool,
}

impl Instances {
    /// Ends an instance and its successor here; `why` is the reason for waiting clients.
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

    /// The file of a placed model, for a node that lacks it. This node may lack it too, if the file
    /// was replaced.
    pub(crate) fn file_for(
        &self,
        ctx: &Context,
        peer: NodeId,
        digest: Digest,
    ) -> Option<Arc<ServedFile>> {
        let belongs_here = peer == ctx.me || ctx.membership.is_member(peer);
        self.table.file(digest).filter(|_| belongs_here).cloned()
    }

    /// Steps every instance with an event.
    pub(crate) fn step_all(&mut self, host: &mut Host, event: impl Fn() -> Input) {
        for id in self.table.ids() {
            self.step(host, &id, event());
        }
        for id in self.table.successor_ids() {
            self.step_successor(host, &id, event());
        }
    }

    /// A member can take work; `path` is that of its connection.
    pub(crate) fn node_up(&mut self, host: &mut Host, node: NodeId, path: Path) {
        self.pool.growth.node_up(node, host.ctx.now());
        self.pool.partition.forget(node);
        let numerics = host.ctx.heartbeat_of(node).map(|heartbeat| heartbeat.numerics);
        if numerics == Some(host.ctx.versions.numerics) {
            self.step_all(host, || Input::NodeUp { node, path });
        }
    }

    /// Steps a worker's instance with its report.
    pub(crate) fn worker(&mut self, host: &mut Host, from: NodeId, worker: WorkerId, event: Input) {
        let Some((id, owned, is_current)) = self.table.of_worker(worker) else { return };
        let id = id.clone();
        match owned.machine.host(worker) {
            Some(known) if known == from && is_current => self.step(host, &id, event),
            Some(known) if known == from => self.step_successor(host, &id, event),
            Some(_) => host.ctx.disbelieve(from, "a worker that another node runs"),
            // Its instance has ended.
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

    /// Runs the effects of an instance, and the effects that follow from them.
    pub(super) fn run(&mut self, host: &mut Host, id: &str, effects: Vec<Effect>) {
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

    /// Places an instance again on the remaining nodes. The requested number of nodes gives way: a
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

    /// A plan for the remaining nodes that reach each other: as asked for if they can, so that what
    /// follows from the split stays.
    fn plan_on_rest(&self, host: &Host, id: &str) -> Option<std::result::Result<Placed, String>> {
        let owned = self.table.get(id)?;
        let wanted = &owned.machine.fixed().spec;
        let candidates = self.pool.together(host, &self.table, Some(id), wanted.options.transport);
        let candidates = replicas::share(host, &self.table, id, candidates);
        Some(plan_somehow(&owned.prepared.model, candidates, wanted))
    }

    /// Places an instance again on the same nodes in another order, each with its present share.
    /// Does nothing if one of them has just gone; its `NodeDown` follows.
    fn reorder(&mut self, host: &mut Host, id: &str, order: &[(NodeId, u32)]) -> Vec<Effect> {
        let now = host.ctx.now();
        host.ctx.changed();
        let Some(owned) = self.table.get(id) else { return Vec::new() };
        let (wanted, split) = (&owned.machine.fixed().spec, owned.machine.split());
        let all = self.pool.candidates(host, &self.table, Some(id), wanted.options.transport);
        let placed = plan_ring(&owned.prepared.model, all, wanted, split, order);
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

    /// Checks instances whose links are late: nodes that do not reach each other need not be
    /// awaited.
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

    /// Sets the fastest addresses between the ranks of all instances.
    pub(crate) fn route(&mut self, routes: &Routes) {
        for owned in self.table.running_mut() {
            owned.machine.set_routes(routes.clone());
        }
    }

    /// The instance of this id or name, if this node runs it.
    pub(crate) fn find(&self, name: &str) -> Option<String> {
        self.table.find(name).cloned()
    }

    /// Submits a request to an instance of this node.
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
            let reason = format!("node {} does not run it", host.ctx.config.name);
            return Err(Error::Away { model: id.to_owned(), reason });
        };
        let keep_alive = request.keep_alive;
        let request = owned.machine.submit(request, now)?;
        owned.rest.asked(keep_alive);
        owned.sinks.insert(request, sink);
        let effects = owned.machine.take_effects();
        self.run(host, id, effects);
        Ok(request)
    }

    /// What a request would cost an instance of this node; `None`: it takes none now.
    pub(crate) fn offer(&self, id: &str, question: &Question) -> Option<Offer> {
        let owned = self.table.get(id)?;
        owned.machine.offer(question, owned.prediction.as_ref())
    }

    /// Cancels a request whose client is gone.
    pub(crate) fn cancel(&mut self, host: &mut Host, id: &str, request: RequestId) {
        let now = host.ctx.now();
        let Some(owned) = self.table.get_mut(id) else { return };
        if owned.sinks.remove(&request).is_some() {
            host.ctx.changed();
            let effects = owned.machine.step(Input::Cancel(request), now);
            self.run(host, id, effects);
        }
    }

    /// Cancels the requests of other nodes' streams that match.
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

    /// Steps a successor, which takes over once it works.
    pub(super) fn step_successor(&mut self, host: &mut Host, id: &str, event: Input) {
        let now = host.ctx.now();
        let Some(next) = self.table.successor_mut(id) else { return };
        let mut effects = next.machine.step(event, now);
        // A successor exists only as an improvement: any trouble ends it.
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
            self.pool.growth.failed(id, now);
            let why = match state {
                InstanceState::Failed { reason } | InstanceState::Recovering { reason } => reason,
                _ => "not all of its ranks can link".to_owned(),
            };
            self.abandon(host, id, &why);
        } else if works {
            self.switch(host, id);
        }
    }

    /// Replaces the current instance by its successor, which continues its answers.
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
        let Some(mut next) = self.table.take_successor(id) else { return };
        if let Some(current) = self.table.get_mut(id) {
            next.rest = std::mem::take(&mut current.rest);
            next.epochs_before = current.told().epoch;
            next.replicas_wanted = current.replicas_wanted;
            next.crowd = std::mem::take(&mut current.crowd);
        }
        self.release(host, id, &format!("it continues on {names}"));
        self.table.take_unloaded(id);
        self.table.slot(id).current = Some(next);
        // From now on the former owner's workers no longer obey it.
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
}
