use std::collections::VecDeque;
use std::sync::Arc;

use gguf::Directory;
use placement::Plan;
use protocol::{Nodes, Secret, WorkerCommand, WorkerEvent};
use store::{Digest, ModelFile};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::outside::HeaderOf;
use super::placing::{Candidate, named, of_size, plan, plan_somehow, ranks};
use super::{Daemon, Owned, Prepared};
use crate::desired::{Entry, Wanted};
use crate::instance::{Effect, Fixed, Input, Instance};
use crate::members::{MODEL_NAME_CHARS_MAX, is_model_name};
use crate::model_file::ServedFile;
use crate::relay::Source;
use crate::wire::{Message, WorkerId};
use crate::{Error, InstanceState, NodeId, Result};

/// Worker numbers of one instance; none is respawned as often as this.
pub(super) const WORKERS_BITS: u32 = 32;

impl Daemon {
    /// How a model would be placed.
    pub(super) fn plan(&self, prepared: &Prepared) -> Result<Plan> {
        let all = self.candidates_asked(&prepared.spec);
        let unusable = |why| Error::Unusable(self.with_absent(why));
        let candidates = named(all, &prepared.spec).map_err(unusable)?;
        let found = plan(prepared, &candidates, &prepared.spec, false);
        let mut found =
            found.map_err(|why| unusable(self.with_leader(why, prepared, &candidates)))?;
        found.why.extend(self.apart_in_words().into_iter().chain(self.absent()));
        found.why.extend(prepared.remarks.iter().cloned());
        Ok(found)
    }

    /// Why a model cannot be placed, with the node that could lead it if it had the file.
    fn with_leader(&self, why: String, prepared: &Prepared, all: &[Candidate]) -> String {
        let (Some((me, others)), None | Some(Nodes::Count(_))) =
            (all.split_first(), &prepared.spec.nodes)
        else {
            return why;
        };
        let leads = |other: &&Candidate| {
            let rest = others.iter().filter(|one| one.node != other.node);
            let order: Vec<Candidate> = std::iter::once(*other).chain(rest).cloned().collect();
            plan(prepared, &order, &prepared.spec, false).is_ok()
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

    /// Places a model and starts its workers.
    pub(super) fn serve(&mut self, mut prepared: Prepared) -> Result<String> {
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
        if self.desired.is_drained(self.me) {
            let name = &self.config.name;
            return Err(Error::Unusable(format!(
                "node {name} is to be empty and serves nothing new. Serve the model from another \
                 node, or type: sinew undrain {name}"
            )));
        }
        self.clear_name(&model)?;
        if !prepared.spec.on_request {
            self.unload_for(&prepared);
        }
        let mut all = self.candidates_asked(&prepared.spec);
        self.try_links_again();
        if prepared.spec.on_request {
            // What is in memory now may not be when somebody asks.
            self.count_as_empty(&mut all);
        }
        let unusable = |why| Error::Unusable(self.with_absent(why));
        let candidates = named(all, &prepared.spec).map_err(unusable)?;
        let plan = plan(&prepared, &candidates, &prepared.spec, false)
            .map_err(|why| unusable(self.with_leader(why, &prepared, &candidates)))?;
        let checked = plan.check_wire(prepared.spec.options.wire_type);
        checked.map_err(|why| Error::Unusable(why.to_string()))?;
        // Wherever it is placed later, requests that fit now must fit then.
        prepared.spec = of_size(&prepared.spec, &plan.split);

        let id = format!("i-{:08x}", self.random_u32());
        let ModelFile { digest, bytes, path, .. } = prepared.found.clone();
        let wanted = Wanted {
            id: id.clone(),
            spec: prepared.spec.clone().into(),
            digest,
            bytes,
            created_unix_s: prepared.created_unix_s,
        };
        let entry = self.desired.serve(&model, wanted);
        self.located(digest, Some(path));
        // Before its workers are ordered, so that their nodes know whose order it is.
        self.desired_changed(vec![entry.clone()], None);
        if entry.unloaded {
            self.unloaded.insert(id.clone(), prepared.into());
        } else {
            self.own(&id, entry, prepared, Ok((plan, candidates)));
        }
        Ok(id)
    }

    /// Starts what is to be served, after a restart or a takeover. If it cannot be placed as it was
    /// asked for, then otherwise; if not at all, it waits for nodes.
    pub(super) fn own_again(&mut self, id: &str, entry: Entry, prepared: Prepared) {
        let all = self.candidates_together(None, prepared.spec.options.transport);
        let placed = match self.plan_with_kept(id, &prepared, &all) {
            Some(placed) => Ok(placed),
            None => {
                let placed = plan_somehow(&prepared, all, &prepared.spec);
                placed.map(|(plan, candidates, _)| (plan, candidates))
            }
        };
        self.own(id, entry, prepared, placed);
    }

    fn own(
        &mut self,
        id: &str,
        entry: Entry,
        prepared: Prepared,
        placed: std::result::Result<(Plan, Vec<Candidate>), String>,
    ) {
        self.instances_made += 1;
        let first_worker = self.instances_made << WORKERS_BITS;
        let secret = Secret(self.outside.random());
        let fixed = Fixed { first_worker, ..fixed(id, entry, &prepared, secret) };
        let now = self.now();
        let (mut machine, why, prediction) = match placed {
            Ok((plan, candidates)) => {
                info!(instance = id, ranks = plan.ranks.len(), why = ?plan.why, "placed");
                let ranks = ranks(&plan, &candidates);
                (Instance::new(fixed, ranks, plan.split, now), plan.why, plan.prediction)
            }
            Err(why) => {
                warn!(instance = id, why, "cannot be placed");
                (Instance::waiting(fixed, &why, now), Vec::new(), None)
            }
        };
        let effects = machine.take_effects();
        let owned = Owned::new(machine, prepared.into(), why, prediction);
        self.owned.insert(id.to_owned(), owned);
        // Its first epoch, too, takes the fastest ways.
        self.route_instances();
        self.dirty = true;
        self.run_effects(id, effects);
    }

    /// A name belongs to one instance; one that has failed gives way.
    fn clear_name(&mut self, model: &str) -> Result<()> {
        let statuses = self.instance_statuses();
        let Some(existing) = statuses.into_iter().find(|status| status.model == model) else {
            return Ok(());
        };
        if matches!(existing.state, InstanceState::Failed { .. }) {
            self.release(&existing.id, "it is served anew");
            return Ok(());
        }
        Err(Error::AlreadyServed { model: existing.model, instance: existing.id })
    }

    /// From now on it is not to be served, whoever owns it; the owner ends it when it hears of it.
    pub(super) fn stop(&mut self, name: &str) -> Result<()> {
        let Some((entry, wanted)) = self.desired.find(name) else {
            return Err(self.not_served(name));
        };
        let (model, id) = (entry.name.clone(), wanted.id.clone());
        info!(instance = id, model, "stopped");
        let entry = self.desired.stop(&model);
        self.desired_changed(vec![entry], None);
        self.reconcile();
        Ok(())
    }

    /// Ends an instance here and what was to replace it, and says why to those who wait for it.
    pub(super) fn release(&mut self, id: &str, why: &str) {
        self.abandon(id, why);
        let Some(owned) = self.owned.get_mut(id) else { return };
        info!(instance = id, why, "an instance ends on this node");
        let effects = owned.machine.stop(why);
        self.run_effects(id, effects);
        self.owned.remove(id);
        self.dirty = true;
    }

    pub(super) fn release_all(&mut self, why: &str) {
        for id in self.successors.keys().cloned().collect::<Vec<_>>() {
            self.abandon(&id, why);
        }
        for id in self.owned.keys().cloned().collect::<Vec<_>>() {
            self.release(&id, why);
        }
    }

    /// Finds a model's header here, or reads it from this node's file or the node that serves the
    /// model.
    pub(super) fn header(&mut self, name: &str, reply: oneshot::Sender<Result<Arc<Directory>>>) {
        // A caller that has stopped waiting needs no answer.
        if let Some(owned) = self.find_owned(name).and_then(|id| self.owned.get(&id)) {
            return drop(reply.send(Ok(owned.prepared.file.directory().clone())));
        }
        let unloaded = self.desired.find(name).and_then(|(_, w)| self.unloaded.get(&w.id));
        if let Some(prepared) = unloaded {
            return drop(reply.send(Ok(prepared.file.directory().clone())));
        }
        let Some((entry, wanted)) = self.desired.find(name) else {
            return drop(reply.send(Err(self.not_served(name))));
        };
        let (model, node, digest) = (entry.name.clone(), entry.owner(), wanted.digest);
        if let Some(path) = self.duties.file_here(&digest).cloned() {
            let of = HeaderOf { model, owner: self.config.name.clone() };
            return self.outside.read_header(path, of, reply);
        }
        if self.conn_to_owner(entry, wanted).is_none() {
            let reason = self.why_nowhere(&wanted.id);
            return drop(reply.send(Err(Error::Away { model, reason })));
        }
        let (addresses, name) = (self.addresses_of(node), self.node_name(node));
        let source = Source { node, name: name.clone(), addresses, digest };
        let of = HeaderOf { model, owner: name };
        self.outside.fetch_header(source, of, reply);
    }

    /// The file of a placed model, for a node of the cluster that lacks it. This one may lack it
    /// as well, if the file was replaced since.
    pub(super) fn file_for(&self, peer: NodeId, digest: Digest) -> Option<Arc<ServedFile>> {
        let all = self.owned.values().chain(self.successors.values());
        let mut all = all.map(|owned| &owned.prepared).chain(self.unloaded.values());
        let found = all.find(|prepared| prepared.found.digest == digest)?;
        let belongs_here = peer == self.me || self.membership.is_member(peer);
        belongs_here.then(|| found.file.clone())
    }

    /// Tells every instance of this node.
    pub(super) fn step_instances(&mut self, event: impl Fn() -> Input) {
        for id in self.owned.keys().cloned().collect::<Vec<_>>() {
            self.step_instance(&id, event());
        }
        for id in self.successors.keys().cloned().collect::<Vec<_>>() {
            self.step_successor(&id, event());
        }
    }

    pub(super) fn tick_instances(&mut self) {
        self.step_instances(|| Input::Tick);
    }

    /// Tells the instance whose worker it is what the node says of it that should host it.
    pub(super) fn step_owner(&mut self, host: NodeId, worker: WorkerId, event: Input) {
        let is_its = |owned: &Owned| {
            owned.machine.fixed().first_worker == worker >> WORKERS_BITS << WORKERS_BITS
        };
        let mut all = self.owned.iter().chain(&self.successors);
        let Some((id, owned)) = all.find(|(_, owned)| is_its(owned)) else { return };
        let (id, is_owned) = (id.clone(), self.owned.get(id).is_some_and(is_its));
        match owned.machine.host(worker) {
            Some(known) if known == host && is_owned => self.step_instance(&id, event),
            Some(known) if known == host => self.step_successor(&id, event),
            Some(_) => self.disbelieve(host, "a worker that another node runs"),
            // It has ended since.
            None => {}
        }
    }

    fn step_instance(&mut self, id: &str, event: Input) {
        let now = self.now();
        let Some(owned) = self.owned.get_mut(id) else { return };
        self.dirty |= matches!(
            &event,
            Input::FromWorker { event: WorkerEvent::Stats(_) | WorkerEvent::RankStats(_), .. }
        );
        let (was, had_generated) = (owned.machine.state(), owned.machine.has_generated());
        let effects = owned.machine.step(event, now);
        let is = owned.machine.state();
        self.dirty |= had_generated != owned.machine.has_generated();
        if was != is {
            self.dirty = true;
            match &is {
                InstanceState::Failed { reason } | InstanceState::Recovering { reason } => {
                    warn!(instance = id, reason, "instance in trouble");
                }
                state => info!(instance = id, ?state, "instance"),
            }
        }
        self.run_effects(id, effects);
    }

    /// Does what an instance asks for; what that leads to is asked for in turn.
    pub(super) fn run_effects(&mut self, id: &str, effects: Vec<Effect>) {
        let mut todo = VecDeque::from(effects);
        while let Some(effect) = todo.pop_front() {
            match effect {
                Effect::Spawn { node, worker, mut order } => {
                    order.numerics = self.versions.numerics;
                    if node == self.me {
                        self.host(node, worker, *order);
                    } else {
                        self.send_to(node, Message::Spawn { worker, order });
                    }
                }
                Effect::Send { node, worker, command } => {
                    self.send_command(node, worker, command);
                }
                Effect::End { node, worker, at_once } if node == self.me => {
                    self.end_worker(node, worker, at_once);
                }
                Effect::End { node, worker, at_once } => {
                    self.send_to(node, Message::End { worker, at_once });
                }
                Effect::Emit { request, event } => self.emit(id, request, event),
                Effect::LetGo { request, reason } => self.let_go(id, request, reason),
                Effect::Reorder(order) => todo.extend(self.reorder(id, &order)),
                Effect::Replan => todo.extend(self.replan(id)),
                Effect::Part(pairs) => todo.extend(self.part(id, pairs)),
            }
        }
    }

    fn send_command(&mut self, node: NodeId, worker: WorkerId, command: WorkerCommand) {
        if node == self.me {
            self.command(node, worker, command);
        } else {
            self.send_to(node, Message::Command { worker, command });
        }
    }

    pub(super) fn find_owned(&self, name: &str) -> Option<String> {
        let is_it = |id: &str, owned: &Owned| id == name || owned.machine.fixed().model == name;
        self.owned.iter().find(|(id, owned)| is_it(id, owned)).map(|(id, _)| id.clone())
    }

    pub(super) fn not_served(&self, name: &str) -> Error {
        let statuses = self.instance_statuses();
        let models: Vec<&str> = statuses.iter().map(|status| status.model.as_str()).collect();
        let known = match models.as_slice() {
            [] => "no model is served".to_owned(),
            models => format!("served are: {}", models.join(", ")),
        };
        Error::NotServed { name: name.to_owned(), known }
    }
}

/// What does not change of an instance, but for the numbers of its workers.
pub(super) fn fixed(id: &str, entry: Entry, prepared: &Prepared, secret: Secret) -> Fixed {
    Fixed {
        id: id.to_owned(),
        model: entry.name,
        claim: entry.claim,
        digest: prepared.found.digest,
        model_bytes: prepared.found.bytes,
        spec: prepared.spec.clone(),
        secret,
        first_worker: 0,
    }
}
