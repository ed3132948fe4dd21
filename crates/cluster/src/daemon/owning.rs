use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gguf::Directory;
use protocol::{Secret, WorkerCommand, WorkerEvent};
use store::Digest;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{info, warn};

use super::placing::{plan, ranks};
use super::{Daemon, Owned, Prepared};
use crate::instance::{Effect, Fixed, Input, Instance};
use crate::members::{NAME_CHARS_MAX, clean_name};
use crate::model_file::ServedFile;
use crate::relay::{Source, fetch_header};
use crate::wire::{Message, WorkerId};
use crate::{Error, InstanceState, NodeId, Result};

/// Worker numbers of one instance; none is respawned as often as this.
const WORKERS_BITS: u32 = 32;

/// A header has a few megabytes; a slow network needs seconds for them.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

impl Daemon {
    /// Places a model and starts its workers.
    pub(super) fn serve(&mut self, prepared: Prepared) -> Result<String> {
        let spec = &prepared.spec;
        let model = match &spec.name {
            None => prepared.found.name.clone(),
            Some(name) if clean_name(name) == *name => name.clone(),
            Some(name) => {
                let text =
                    format!("{name:?} is no name: give 1 to {NAME_CHARS_MAX} visible letters");
                return Err(Error::Unusable(text));
            }
        };
        self.clear_name(&model)?;
        let candidates = self.candidates(None, spec.options.transport);
        let plan = plan(&prepared.model, &candidates, spec, false).map_err(Error::Unusable)?;
        plan.check_wire(spec.options.wire_type).map_err(|why| Error::Unusable(why.to_string()))?;
        let id = format!("i-{:08x}", u32::from_le_bytes(crate::identity::random()));
        info!(instance = id, model, ranks = plan.ranks.len(), why = ?plan.why, "placed");

        self.instances_made += 1;
        let fixed = Fixed {
            id: id.clone(),
            model,
            owner: self.net.id(),
            digest: prepared.found.digest,
            model_bytes: prepared.found.bytes,
            spec: spec.clone(),
            secret: Secret(crate::identity::random()),
            first_worker: self.instances_made << WORKERS_BITS,
        };
        let mut machine = Instance::new(fixed, ranks(&plan, &candidates), plan.split, self.now());
        let effects = machine.take_effects();
        let owned = Owned { machine, prepared, sinks: HashMap::new(), why: plan.why };
        self.owned.insert(id.clone(), owned);
        self.run_effects(&id, effects);
        Ok(id)
    }

    /// A name belongs to one instance; one that has failed gives way.
    fn clear_name(&mut self, model: &str) -> Result<()> {
        let statuses = self.instance_statuses();
        let Some(existing) = statuses.into_iter().find(|status| status.model == model) else {
            return Ok(());
        };
        if matches!(existing.state, InstanceState::Failed { .. })
            && self.owned.contains_key(&existing.id)
        {
            return self.stop(&existing.id);
        }
        Err(Error::AlreadyServed { model: existing.model, instance: existing.id })
    }

    /// Stops an instance of this node, or has its owner stop it.
    pub(super) fn stop(&mut self, name: &str) -> Result<()> {
        if let Some(id) = self.find_owned(name) {
            info!(instance = id, "stopped");
            let effects =
                self.owned.get_mut(&id).map(|owned| owned.machine.stop()).unwrap_or_default();
            self.run_effects(&id, effects);
            self.owned.remove(&id);
            return Ok(());
        }
        let found = self.instance_statuses().into_iter().find(|s| s.id == name || s.model == name);
        let Some(status) = found else { return Err(self.not_served(name)) };
        self.send_to(status.owner, Message::Stop { instance: status.id });
        Ok(())
    }

    /// Finds a model's header here, or reads it from the node that serves the model.
    pub(super) fn header(&self, name: &str, reply: oneshot::Sender<Result<Arc<Directory>>>) {
        // A caller that has stopped waiting needs no answer.
        if let Some(owned) = self.find_owned(name).and_then(|id| self.owned.get(&id)) {
            return drop(reply.send(Ok(owned.prepared.file.directory().clone())));
        }
        let Some((node, digest)) = self.find_elsewhere(name) else {
            return drop(reply.send(Err(self.not_served(name))));
        };
        let source = Source { node, addresses: self.addresses_of(node), digest };
        let (net, owner) = (self.net.clone(), self.node_name(node));
        self.spawn(async move {
            let fetched = timeout(HEADER_TIMEOUT, fetch_header(&net, source)).await;
            let fetched = fetched.unwrap_or_else(|elapsed| Err(elapsed.into()));
            let failed = |error: std::io::Error| Error::Header { owner, why: error.to_string() };
            let _ = reply.send(fetched.map(Arc::new).map_err(failed));
        });
    }

    /// The owner of another node's instance, and what its model file holds.
    fn find_elsewhere(&self, name: &str) -> Option<(NodeId, Digest)> {
        let reachable = self.views.iter().filter(|(id, _)| self.membership.conn(**id).is_some());
        reachable.filter_map(|(id, view)| Some((id, view.heartbeat.as_ref()?))).find_map(
            |(id, heartbeat)| {
                let mut known = heartbeat.instances.iter().zip(&heartbeat.digests);
                let found = known.find(|(its, _)| its.id == name || its.model == name);
                found.map(|(_, digest)| (*id, *digest))
            },
        )
    }

    /// The file of a placed model, for a node of the cluster that lacks it. This one may lack it
    /// as well, if the file was replaced since.
    pub(super) fn file_for(&self, peer: NodeId, digest: Digest) -> Option<Arc<ServedFile>> {
        let mut owned = self.owned.values();
        let found = owned.find(|owned| owned.prepared.found.digest == digest)?;
        let belongs_here = peer == self.net.id() || self.membership.is_member(peer);
        belongs_here.then(|| found.prepared.file.clone())
    }

    /// Tells every instance of this node.
    pub(super) fn step_instances(&mut self, event: impl Fn() -> Input) {
        for id in self.owned.keys().cloned().collect::<Vec<_>>() {
            self.step_instance(&id, event());
        }
    }

    pub(super) fn tick_instances(&mut self) {
        self.step_instances(|| Input::Tick);
    }

    /// Tells the instance whose worker it is.
    pub(super) fn step_owner(&mut self, worker: WorkerId, event: Input) {
        let is_its = |owned: &Owned| {
            owned.machine.fixed().first_worker == worker >> WORKERS_BITS << WORKERS_BITS
        };
        let found = self.owned.iter().find(|(_, owned)| is_its(owned));
        let Some(id) = found.map(|(id, _)| id.clone()) else { return };
        self.step_instance(&id, event);
    }

    fn step_instance(&mut self, id: &str, event: Input) {
        let now = self.now();
        let Some(owned) = self.owned.get_mut(id) else { return };
        self.dirty |= matches!(&event, Input::FromWorker { event: WorkerEvent::Stats(_), .. });
        let (was, had_generated) = (owned.machine.status().state, owned.machine.has_generated());
        let effects = owned.machine.step(event, now);
        let is = owned.machine.status().state;
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
                Effect::Spawn { node, worker, order } if node == self.net.id() => {
                    self.host(node, worker, *order);
                }
                Effect::Spawn { node, worker, order } => {
                    self.send_to(node, Message::Spawn { worker, order });
                }
                Effect::Send { node, worker, command } => {
                    self.send_command(node, worker, command);
                }
                Effect::End { node, worker, at_once } if node == self.net.id() => {
                    self.end_worker(node, worker, at_once);
                }
                Effect::End { node, worker, at_once } => {
                    self.send_to(node, Message::End { worker, at_once });
                }
                Effect::Emit { request, event } => self.emit(id, request, event),
                Effect::Reorder(order) => todo.extend(self.reorder(id, &order)),
                Effect::Replan => todo.extend(self.replan(id)),
            }
        }
    }

    fn send_command(&mut self, node: NodeId, worker: WorkerId, command: WorkerCommand) {
        if node == self.net.id() {
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
