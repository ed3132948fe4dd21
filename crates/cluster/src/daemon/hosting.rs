//! The workers of this node, whoever owns them: when they start, who hears of them, when they end.

use std::io;
use std::time::Duration;

use protocol::{WorkerCommand, WorkerEvent};
use store::Digest;
use tracing::{info, warn};

use super::Daemon;
use super::outside::{ProcessId, Start};
use crate::LINK_ADDRESSES_MAX;
use crate::NodeId;
use crate::instance::Input;
use crate::relay::Source;
use crate::swarm::Wanted;
use crate::wire::{Message, WorkerId, WorkerOrder};
use crate::worker::WorkerNews;

/// Damaged copies that are told of: more would only hide the first.
const DAMAGE_MAX: usize = 16;

/// A worker of this node, whoever owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerKey {
    pub owner: NodeId,
    /// The owner numbers its workers anew when it restarts.
    pub boot: u64,
    pub worker: WorkerId,
}

/// A worker that this node runs.
pub(super) struct Hosted {
    pub order: WorkerOrder,
    pub process: ProcessId,
    pid: Option<u32>,
    pub ending: bool,
    /// What an owner that returns, or another one, needs to hear again.
    listening: Option<WorkerEvent>,
    pub loaded: Option<WorkerEvent>,
    /// What it said of its last links.
    notes: Vec<String>,
    /// Since when it has no owner.
    pub orphaned_at: Option<Duration>,
    /// It is started once these are gone: their memory is not free before.
    waits: Option<(Vec<ProcessId>, Box<Start>)>,
}

impl Hosted {
    /// It has no owner, and may get one.
    pub(super) fn is_orphan(&self) -> bool {
        !self.ending && self.orphaned_at.is_some()
    }
}

impl Daemon {
    /// Starts a worker for its owner, or takes up the one that still runs under this number.
    pub(super) fn host(&mut self, owner: NodeId, worker: WorkerId, order: WorkerOrder) {
        let Some(key) = self.key(owner, worker) else { return };
        if let Some((entry, _)) = self.desired.find(&order.instance).filter(|_| owner != self.me)
            && entry.claim > order.claim
        {
            let now_owner = self.node_name(entry.owner());
            let how = format!("was not started: node {now_owner} owns the model now");
            return self.tell_owner(key, Input::Exited { worker, how });
        }
        if order.claim.node != owner {
            self.disbelieve(owner, "an instance that another node owns");
            let how = "was not started: it was ordered under another node's claim".to_owned();
            return self.tell_owner(key, Input::Exited { worker, how });
        }
        if order.numerics != self.versions.numerics {
            let (ours, theirs) = (self.versions.numerics, order.numerics);
            let how = format!(
                "was not started: this node computes in version {ours}, its owner in {theirs}. Update \
                 the older of the two"
            );
            return self.tell_owner(key, Input::Exited { worker, how });
        }
        let runs = self.workers.get(&key).is_some_and(|hosted| !hosted.ending);
        if runs || self.adopt(key, &order) {
            return self.tell_again(key);
        }
        self.make_room(&order);
        let free = self.config.memory_bytes.saturating_sub(self.memory_used_bytes());
        let refusal = (order.memory_bytes > free).then(|| {
            let (needed, free) = (mib(order.memory_bytes), mib(free));
            format!("it needs {needed} MiB and {free} MiB are free")
        });
        let leaving = self.leaving(order.memory_bytes);
        self.next_process += 1;
        let process = self.next_process;
        let wanted = self.sources(Some(owner), order.digest, order.model_bytes);
        let served = self.file_for(self.me, order.digest);
        let start = Start { process, order: order.clone(), wanted, served, refusal };
        let mut hosted = Hosted {
            order,
            process,
            pid: None,
            ending: false,
            listening: None,
            loaded: None,
            notes: Vec::new(),
            orphaned_at: None,
            waits: None,
        };
        if leaving.is_empty() || start.refusal.is_some() {
            self.outside.start_worker(start);
        } else {
            hosted.waits = Some((leaving, Box::new(start)));
        }
        self.workers.insert(key, hosted);
    }

    /// A worker has an owner again, which hears what it missed.
    fn tell_again(&mut self, key: WorkerKey) {
        let Some(hosted) = self.workers.get_mut(&key) else { return };
        hosted.orphaned_at = None;
        let (worker, pid) = (key.worker, hosted.pid);
        let again = [hosted.listening.clone(), hosted.loaded.clone()];
        if let Some(pid) = pid {
            self.tell_owner(key, Input::Spawned { worker, pid });
        }
        for event in again.into_iter().flatten() {
            self.tell_owner(key, Input::FromWorker { worker, event });
        }
    }

    /// The processes on whose memory a new worker must wait, since it is not free before they are
    /// gone.
    fn leaving(&self, memory_bytes: u64) -> Vec<ProcessId> {
        let all: u64 = self
            .workers
            .values()
            .map(|hosted| hosted.order.memory_bytes)
            .fold(0, u64::saturating_add);
        let fits = all.saturating_add(memory_bytes) <= self.config.memory_bytes;
        let leaving = self.workers.values().filter(|hosted| hosted.ending && !fits);
        leaving.map(|hosted| hosted.process).collect()
    }

    /// A process is gone: starts those that have waited for the last of its kind.
    fn process_gone(&mut self, gone: ProcessId) {
        for hosted in self.workers.values_mut() {
            let Some((leaving, _)) = &mut hosted.waits else { continue };
            leaving.retain(|process| *process != gone);
            if leaving.is_empty()
                && let Some((_, start)) = hosted.waits.take()
            {
                self.outside.start_worker(*start);
            }
        }
    }

    fn key_of(&self, process: ProcessId) -> Option<WorkerKey> {
        let mut all = self.workers.iter();
        all.find(|(_, hosted)| hosted.process == process).map(|(key, _)| *key)
    }

    pub(super) fn worker_started(&mut self, process: ProcessId, started: io::Result<u32>) {
        self.dirty = true;
        let Some(key) = self.key_of(process) else { return };
        let worker = key.worker;
        match started {
            Ok(pid) => {
                info!(worker, pid, "a worker runs");
                match self.workers.get_mut(&key) {
                    Some(hosted) if !hosted.ending => hosted.pid = Some(pid),
                    // It was told to end before it ran.
                    _ => self.outside.end_worker(process, false),
                }
                self.tell_owner(key, Input::Spawned { worker, pid });
            }
            Err(error) => {
                warn!(worker, %error, "a worker could not be started");
                self.forget(key);
                let how = format!("could not be started: {error}");
                self.tell_owner(key, Input::Exited { worker, how });
            }
        }
    }

    /// A worker is gone; whether it was told to end.
    fn forget(&mut self, key: WorkerKey) -> bool {
        let Some(hosted) = self.workers.remove(&key) else { return false };
        self.process_gone(hosted.process);
        hosted.ending
    }

    pub(super) fn worker_news(&mut self, process: ProcessId, news: WorkerNews) {
        let Some(key) = self.key_of(process) else { return };
        let worker = key.worker;
        match news {
            WorkerNews::Event(mut event) => {
                if let WorkerEvent::Listening { port, more } = &mut event {
                    if *port == 0 {
                        *port = self.config.listen.port();
                    }
                    more.extend(self.worker_addresses(*port));
                    more.truncate(LINK_ADDRESSES_MAX);
                }
                if let Some(hosted) = self.workers.get_mut(&key) {
                    match &event {
                        WorkerEvent::Listening { .. } => hosted.listening = Some(event.clone()),
                        WorkerEvent::Loaded { .. } => hosted.loaded = Some(event.clone()),
                        WorkerEvent::Linked { notes, .. } => {
                            // Every epoch has them; once is enough for the log.
                            let news = notes.iter().filter(|note| !hosted.notes.contains(note));
                            news.for_each(|note| warn!(worker, "{note}"));
                            hosted.notes.clone_from(notes);
                        }
                        _ => {}
                    }
                }
                self.dirty |= !matches!(event, WorkerEvent::Token { .. });
                self.tell_owner(key, Input::FromWorker { worker, event });
            }
            WorkerNews::Exited { how } => {
                self.dirty = true;
                if self.forget(key) {
                    info!(worker, how, "a worker has ended");
                } else {
                    warn!(worker, how, "a worker has died");
                }
                self.tell_owner(key, Input::Exited { worker, how });
            }
        }
    }

    pub(super) fn command(&mut self, owner: NodeId, worker: WorkerId, command: WorkerCommand) {
        let Some(key) = self.key(owner, worker) else { return };
        let hosted = self.workers.get(&key);
        // One without an owner waits until it has one.
        if let Some(hosted) = hosted.filter(|h| !h.ending && h.orphaned_at.is_none()) {
            self.outside.command(hosted.process, command);
        }
    }

    pub(super) fn end_worker(&mut self, owner: NodeId, worker: WorkerId, at_once: bool) {
        if let Some(key) = self.key(owner, worker) {
            self.end(key, at_once);
        }
    }

    pub(super) fn end(&mut self, key: WorkerKey, at_once: bool) {
        let Some(hosted) = self.workers.get_mut(&key) else { return };
        hosted.ending = true;
        match hosted.waits.take() {
            None => self.outside.end_worker(hosted.process, at_once),
            // Its owner hears of its end as of any other.
            Some((_, mut start)) => {
                start.refusal = Some("it was told to end before it ran".to_owned());
                self.outside.start_worker(*start);
            }
        }
    }

    pub(super) fn end_all_workers(&mut self) {
        for key in self.workers.keys().copied().collect::<Vec<_>>() {
            self.end(key, false);
        }
    }

    /// Set aside for the workers of this node; what those without an owner have can be had.
    pub(super) fn memory_used_bytes(&self) -> u64 {
        let staying = self.workers.values().filter(|h| !h.ending && h.orphaned_at.is_none());
        staying.map(|hosted| hosted.order.memory_bytes).fold(0, u64::saturating_add)
    }

    fn tell_owner(&mut self, key: WorkerKey, event: Input) {
        if key.owner == self.me {
            return self.step_owner(key.owner, key.worker, event);
        }
        if self.boot_of(key.owner) != Some(key.boot) {
            return;
        }
        let message = match event {
            Input::Spawned { worker, pid } => Message::Spawned { worker, pid },
            Input::FromWorker { worker, event } => Message::Event { worker, event },
            Input::Exited { worker, how } => Message::Exited { worker, how },
            Input::NodeUp { .. } | Input::NodeDown { .. } | Input::Cancel(_) | Input::Tick => {
                return;
            }
        };
        self.send_to(key.owner, message);
    }

    fn key(&self, owner: NodeId, worker: WorkerId) -> Option<WorkerKey> {
        Some(WorkerKey { owner, boot: self.boot_of(owner)?, worker })
    }

    pub(super) fn boot_of(&self, owner: NodeId) -> Option<u64> {
        if owner == self.me { Some(self.boot) } else { self.view_boot(owner) }
    }

    /// Who has a file: the owner, which holds it open, and all members that say so.
    pub(super) fn sources(&self, owner: Option<NodeId>, digest: Digest, bytes: u64) -> Wanted {
        let reachable = self.membership.reachable();
        let others = reachable.filter(|id| Some(*id) != owner && self.says(*id, &digest, true));
        let source = |node| Source {
            node,
            name: self.node_name(node),
            addresses: self.addresses_of(node),
            digest,
        };
        let sources = owner.into_iter().chain(others).map(source).collect();
        Wanted { digest, bytes, sources }
    }

    /// Bytes of a node's copy of a model are wrong. They were taken from another one, or the worker
    /// that wanted them fails; a person should know either way.
    pub(super) fn damaged(&mut self, node: NodeId, digest: Digest, group: Option<u64>) {
        let name = self.node_name(node);
        if self.damage.len() >= DAMAGE_MAX && !self.damage.contains_key(&(node, digest)) {
            return;
        }
        if self.damage.insert((node, digest), group).is_none() {
            warn!(node = name, %digest, ?group, "a copy of a model is damaged");
            self.dirty = true;
        }
        if node == self.me {
            // It is looked for again, and hashed anew.
            self.located(digest, None);
        }
    }

    /// What a person should know and do about damaged copies.
    pub(super) fn damage_notices(&self) -> impl Iterator<Item = String> {
        self.damage.iter().map(|((node, digest), group)| {
            let name = self.node_name(*node);
            let mut wanted = self.desired.wanted().filter(|(_, wanted)| wanted.digest == *digest);
            let short = || digest.to_string()[..12].to_owned();
            let model = wanted.next().map_or_else(short, |(_, wanted)| wanted.spec.model.clone());
            let what = group.map_or("some of it".to_owned(), |group| format!("MiB {}", group + 1));
            format!(
                "the copy of {model} on node {name} is damaged: {what} is not what it was when it was \
                 hashed. What is wrong there is taken from other nodes as long as they have it. On \
                 {name}: put a whole file in its place (of one that was pulled: sinew rm and sinew \
                 pull), and check that disk"
            )
        })
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
