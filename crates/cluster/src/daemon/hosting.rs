//! The workers of this node, whoever owns them: when they start, who hears of them, when they end.

use std::io;
use std::time::Duration;

use protocol::{WorkerCommand, WorkerEvent};
use tracing::{info, warn};

use super::Daemon;
use super::outside::Start;
use crate::NodeId;
use crate::desired::Version;
use crate::instance::Input;
use crate::relay::Source;
use crate::wire::{Message, WorkerId, WorkerOrder};
use crate::worker::WorkerNews;

/// How long a worker outlives the connection to its owner: a short cut of the network should not
/// cost minutes of loading.
const ORPHAN_MAX: Duration = Duration::from_secs(30);
/// A worker of this node, whoever owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerKey {
    owner: NodeId,
    /// The owner numbers its workers anew when it restarts.
    boot: u64,
    worker: WorkerId,
}

/// A worker that this node runs.
pub(super) struct Hosted {
    pub instance: String,
    pub claim: Version,
    memory_bytes: u64,
    pid: Option<u32>,
    pub ending: bool,
    /// What an owner that returns needs to hear again.
    listening: Option<WorkerEvent>,
    loaded: Option<WorkerEvent>,
    orphaned_at: Option<Duration>,
    /// It is started once these are gone: their memory is not free before.
    waits: Option<(Vec<WorkerKey>, Box<Start>)>,
}

impl Daemon {
    /// Starts a worker for its owner, or takes up the one that still runs under this number.
    pub(super) fn host(&mut self, owner: NodeId, worker: WorkerId, order: WorkerOrder) {
        let Some(key) = self.key(owner, worker) else { return };
        if let Some(hosted) = self.workers.get_mut(&key).filter(|hosted| !hosted.ending) {
            hosted.orphaned_at = None;
            let again = [hosted.listening.clone(), hosted.loaded.clone()];
            if let Some(pid) = hosted.pid {
                self.tell_owner(key, Input::Spawned { worker, pid });
            }
            for event in again.into_iter().flatten() {
                self.tell_owner(key, Input::FromWorker { worker, event });
            }
            return;
        }
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
        let free = self.config.memory_bytes.saturating_sub(self.memory_used_bytes());
        let refusal = (order.memory_bytes > free).then(|| {
            let (needed, free) = (mib(order.memory_bytes), mib(free));
            format!("it needs {needed} MiB and {free} MiB are free")
        });
        let leaving = self.leaving(order.memory_bytes);
        let mut hosted = Hosted {
            instance: order.instance.clone(),
            claim: order.claim,
            memory_bytes: order.memory_bytes,
            pid: None,
            ending: false,
            listening: None,
            loaded: None,
            orphaned_at: None,
            waits: None,
        };
        let source = self.source(owner, &order);
        let served = self.owned.get(&order.instance).map(|owned| owned.prepared.file.clone());
        let start = Start { key, order, source, served, refusal };
        if leaving.is_empty() || start.refusal.is_some() {
            self.outside.start_worker(start);
        } else {
            hosted.waits = Some((leaving, Box::new(start)));
        }
        self.workers.insert(key, hosted);
    }

    /// The processes on whose memory a new worker must wait, since it is not free before they are
    /// gone.
    fn leaving(&self, memory_bytes: u64) -> Vec<WorkerKey> {
        let all: u64 = self.workers.values().map(|hosted| hosted.memory_bytes).sum();
        let fits = all.saturating_add(memory_bytes) <= self.config.memory_bytes;
        let leaving = self.workers.iter().filter(|(_, hosted)| hosted.ending && !fits);
        leaving.map(|(key, _)| *key).collect()
    }

    /// A process is gone: starts those that have waited for the last of its kind.
    fn process_gone(&mut self, gone: WorkerKey) {
        for hosted in self.workers.values_mut() {
            let Some((leaving, _)) = &mut hosted.waits else { continue };
            leaving.retain(|key| *key != gone);
            if leaving.is_empty()
                && let Some((_, start)) = hosted.waits.take()
            {
                self.outside.start_worker(*start);
            }
        }
    }

    /// Ends workers for other nodes whose instance, under their owner's claim, is as asked.
    pub(super) fn end_workers_if(&mut self, is_over: impl Fn(&Self, &str, Version) -> bool) {
        let me = self.me;
        let theirs = self.workers.iter().filter(|(key, hosted)| key.owner != me && !hosted.ending);
        let over = theirs.filter(|(_, hosted)| is_over(self, &hosted.instance, hosted.claim));
        for key in over.map(|(key, _)| *key).collect::<Vec<_>>() {
            info!(worker = key.worker, "a worker's owner is no longer the owner; it is ended");
            self.end(key, true);
        }
    }

    pub(super) fn worker_started(&mut self, key: WorkerKey, started: io::Result<u32>) {
        self.dirty = true;
        let worker = key.worker;
        match started {
            Ok(pid) => {
                info!(worker, pid, "a worker runs");
                match self.workers.get_mut(&key) {
                    Some(hosted) if !hosted.ending => hosted.pid = Some(pid),
                    // It was told to end before it ran.
                    _ => self.outside.end_worker(key, false),
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
        let expected = self.workers.remove(&key).is_some_and(|hosted| hosted.ending);
        self.process_gone(key);
        expected
    }

    pub(super) fn worker_news(&mut self, key: WorkerKey, news: WorkerNews) {
        let worker = key.worker;
        match news {
            WorkerNews::Event(event) => {
                if let Some(hosted) = self.workers.get_mut(&key) {
                    match &event {
                        WorkerEvent::Listening { .. } => hosted.listening = Some(event.clone()),
                        WorkerEvent::Loaded { .. } => hosted.loaded = Some(event.clone()),
                        WorkerEvent::Linked { notes, .. } => {
                            notes.iter().for_each(|note| warn!(worker, "{note}"));
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
        if self.workers.get(&key).is_some_and(|hosted| !hosted.ending) {
            self.outside.command(key, command);
        }
    }

    pub(super) fn end_worker(&mut self, owner: NodeId, worker: WorkerId, at_once: bool) {
        if let Some(key) = self.key(owner, worker) {
            self.end(key, at_once);
        }
    }

    fn end(&mut self, key: WorkerKey, at_once: bool) {
        let Some(hosted) = self.workers.get_mut(&key) else { return };
        hosted.ending = true;
        match hosted.waits.take() {
            None => self.outside.end_worker(key, at_once),
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

    /// The connection to an owner is gone: its workers stop the epoch and keep their shards.
    pub(super) fn owner_left(&mut self, owner: NodeId) {
        let now = self.now();
        for (key, hosted) in self.workers.iter_mut().filter(|(key, _)| key.owner == owner) {
            // Several losses in a row are one absence, until the owner claims the worker.
            hosted.orphaned_at.get_or_insert(now);
            if !hosted.ending {
                self.outside.command(*key, WorkerCommand::Disconnect);
            }
        }
    }

    /// An owner is here (again): what it started before a restart is of no use to it.
    pub(super) fn owner_returned(&mut self, owner: NodeId, boot: u64) {
        let stale = |key: &&WorkerKey| key.owner == owner && key.boot != boot;
        for key in self.workers.keys().filter(stale).copied().collect::<Vec<_>>() {
            self.end(key, false);
        }
    }

    /// Ends workers that nobody has claimed for a while.
    pub(super) fn end_orphans(&mut self) {
        let now = self.now();
        let is_old = |hosted: &Hosted| {
            !hosted.ending
                && hosted.orphaned_at.is_some_and(|at| now.saturating_sub(at) >= ORPHAN_MAX)
        };
        let old = self.workers.iter().filter(|(_, hosted)| is_old(hosted));
        for key in old.map(|(key, _)| *key).collect::<Vec<_>>() {
            warn!(worker = key.worker, "a worker's owner stays away; it is ended");
            self.end(key, false);
        }
    }

    /// Set aside for the workers of this node.
    pub(super) fn memory_used_bytes(&self) -> u64 {
        let staying = self.workers.values().filter(|hosted| !hosted.ending);
        staying.map(|hosted| hosted.memory_bytes).sum()
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

    fn boot_of(&self, owner: NodeId) -> Option<u64> {
        if owner == self.me { Some(self.boot) } else { self.view_boot(owner) }
    }

    /// The owner has the file.
    fn source(&self, owner: NodeId, order: &WorkerOrder) -> Source {
        Source { node: owner, addresses: self.addresses_of(owner), digest: order.digest }
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
