use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gguf::Directory;
use protocol::{InstanceSpec, Secret, Split, SplitOptions, Strategy, Transport, WorkerCommand};
use store::Digest;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{info, warn};

use super::{Daemon, Owned, Prepared};
use crate::instance::{Effect, Fixed, Input, Instance, Path, Rank};
use crate::model_file::ServedFile;
use crate::relay::{Source, fetch_header};
use crate::wire::{Message, WorkerId};
use crate::{Error, InstanceState, NodeId, NodeState, Result};

/// Worker numbers of one instance; none is respawned as often as this.
const WORKERS_BITS: u32 = 32;

/// A header has a few megabytes; a slow network needs seconds for them.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// A node that could take a rank.
struct Candidate {
    node: NodeId,
    name: String,
    path: Path,
    memory_free_bytes: u64,
    threads: usize,
    read_bytes_per_sec: Option<f64>,
    link: Option<placement::Link>,
}

impl Daemon {
    /// Places a model and starts its workers.
    pub(super) fn serve(&mut self, prepared: Prepared) -> Result<String> {
        let model = prepared.found.name.clone();
        self.clear_name(&model)?;
        let spec = &prepared.spec;
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
        let was = owned.machine.status().state;
        let effects = owned.machine.step(event, now);
        let is = owned.machine.status().state;
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

    /// Places an instance again on the nodes that are left. What was asked for about their number
    /// gives way: a model on fewer nodes is better than none.
    fn replan(&mut self, id: &str) -> Vec<Effect> {
        self.dirty = true;
        let now = self.now();
        let Some(owned) = self.owned.get(id) else { return Vec::new() };
        let candidates = self.candidates(Some(id), owned.machine.fixed().spec.options.transport);
        let Some(owned) = self.owned.get_mut(id) else { return Vec::new() };
        let wanted = &owned.machine.fixed().spec;
        let options = SplitOptions {
            shares: None,
            stages: None,
            stage_layers: None,
            ..wanted.options.clone()
        };
        let spec = InstanceSpec { nodes: None, options, ..of_size(wanted, owned.machine.split()) };
        match plan(&owned.prepared.model, &candidates, &spec, false) {
            Ok(plan) => {
                warn!(instance = id, ranks = plan.ranks.len(), why = ?plan.why, "placed again");
                let ranks = ranks(&plan, &candidates);
                owned.why = plan.why;
                owned.machine.replace(ranks, plan.split, now)
            }
            Err(why) => {
                warn!(instance = id, why, "cannot be placed again");
                owned.machine.give_up(&why)
            }
        }
    }

    /// Places an instance again on the same nodes in another order, each with the share it has.
    /// Nothing happens if one of them has just gone, which the instance will hear of.
    fn reorder(&mut self, id: &str, order: &[(NodeId, u32)]) -> Vec<Effect> {
        self.dirty = true;
        let now = self.now();
        let Some(owned) = self.owned.get(id) else { return Vec::new() };
        let all = self.candidates(Some(id), owned.machine.fixed().spec.options.transport);
        let Some(owned) = self.owned.get_mut(id) else { return Vec::new() };
        let place = |candidate: &Candidate| order.iter().position(|at| at.0 == candidate.node);
        let mut candidates: Vec<_> = all.into_iter().filter(|c| place(c).is_some()).collect();
        if candidates.len() < order.len() {
            return Vec::new();
        }
        candidates.sort_by_key(place);
        let (wanted, split) = (&owned.machine.fixed().spec, owned.machine.split());
        let (asked, stages) = (&wanted.options, &split.stages);
        // A ring over all serves tensors and a pipeline alike, so the faster one is chosen anew.
        let is_free = asked.strategy == Strategy::Auto
            && asked.stages.is_none()
            && asked.stage_layers.is_none()
            && stages.iter().all(|stage| stage.ranks == 1);
        let kept = Some(stages).filter(|stages| !is_free && !stages.is_empty());
        let options = SplitOptions {
            shares: asked.shares.is_some().then(|| order.iter().map(|at| at.1).collect()),
            strategy: if is_free { Strategy::Auto } else { Strategy::Tensor },
            stages: kept.map(|stages| stages.iter().map(|stage| stage.ranks).collect()),
            ..asked.clone()
        };
        let spec = InstanceSpec { nodes: Some(order.len()), options, ..of_size(wanted, split) };
        match plan(&owned.prepared.model, &candidates, &spec, true) {
            Ok(plan) => {
                warn!(instance = id, why = ?plan.why, "placed in the order of a ring");
                let ranks = ranks(&plan, &candidates);
                owned.why = plan.why;
                owned.machine.reorder(ranks, plan.split, now)
            }
            Err(why) => {
                warn!(instance = id, why, "cannot be placed in the order of a ring");
                owned.machine.give_up(&format!("in the order of the only ring, {why}"))
            }
        }
    }

    /// The nodes that could take a rank now, this one first. The memory of `leaving` counts as
    /// free.
    fn candidates(&self, leaving: Option<&str>, transport: Transport) -> Vec<Candidate> {
        let me = Candidate {
            node: self.net.id(),
            name: self.config.name.clone(),
            path: Path::LOOPBACK,
            memory_free_bytes: self.config.memory_bytes,
            threads: self.config.threads,
            read_bytes_per_sec: self.read_bytes_per_sec,
            link: None,
        };
        let live =
            self.membership.members().filter(|m| self.membership.state(m.id) == NodeState::Live);
        let peers = live.filter_map(|member| {
            let heartbeat = self.views.get(&member.id)?.heartbeat.as_ref()?;
            let path = self.conn(member.id)?.path;
            Some(Candidate {
                node: member.id,
                name: member.name.clone(),
                path,
                memory_free_bytes: heartbeat.memory_bytes,
                threads: heartbeat.threads,
                read_bytes_per_sec: heartbeat.read_bytes_per_sec,
                link: self.way_to(member.id, path, transport),
            })
        });
        let mut candidates: Vec<Candidate> = std::iter::once(me).chain(peers).collect();
        for candidate in &mut candidates {
            let used = self.memory_used_on(candidate.node, leaving);
            candidate.memory_free_bytes = candidate.memory_free_bytes.saturating_sub(used);
        }
        candidates
    }

    /// What is taken on a node: as it says itself, but no less than this node has placed there.
    fn memory_used_on(&self, node: NodeId, leaving: Option<&str>) -> u64 {
        let planned = |owned: &Owned| owned.machine.memory_bytes_on(node);
        let mine: u64 = self.owned.values().map(planned).sum();
        let leaving = leaving.and_then(|id| self.owned.get(id)).map_or(0, planned);
        let told = if node == self.net.id() {
            self.memory_used_bytes()
        } else {
            let heartbeat = self.views.get(&node).and_then(|view| view.heartbeat.as_ref());
            heartbeat.map_or(0, |heartbeat| heartbeat.memory_used_bytes)
        };
        told.max(mine).saturating_sub(leaving)
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

/// What is wanted of an instance, with the size that it has.
fn of_size(wanted: &InstanceSpec, split: &Split) -> InstanceSpec {
    InstanceSpec {
        context_tokens: Some(split.context_tokens),
        sequences_max: Some(split.sequences_max),
        ..wanted.clone()
    }
}

fn plan(
    model: &placement::Model,
    candidates: &[Candidate],
    spec: &InstanceSpec,
    ring: bool,
) -> std::result::Result<placement::Plan, String> {
    let node = |(id, candidate): (usize, &Candidate)| placement::Node {
        id,
        memory_free_bytes: candidate.memory_free_bytes,
        threads: candidate.threads,
        read_bytes_per_sec: candidate.read_bytes_per_sec,
        link: candidate.link,
    };
    let nodes: Vec<placement::Node> = candidates.iter().enumerate().map(node).collect();
    placement::plan(model, &nodes, &placement::Options { spec, ring }).map_err(|error| match &error
    {
        // Placement knows nodes by number; a person knows them by name.
        placement::Error::Memory { node, .. } => {
            let (number, name) = (format!("node {node} "), &candidates[*node].name);
            error.to_string().replacen(&number, &format!("node {name} "), 1)
        }
        _ => error.to_string(),
    })
}

fn ranks(plan: &placement::Plan, candidates: &[Candidate]) -> Vec<Rank> {
    let rank = |planned: &placement::PlannedRank| {
        let Candidate { node, name, path, .. } = &candidates[planned.node];
        Rank::new(*node, name.clone(), planned.memory_bytes, *path)
    };
    plan.ranks.iter().map(rank).collect()
}
