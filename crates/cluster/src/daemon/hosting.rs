use std::io;
use std::sync::Arc;
use std::time::Duration;

use protocol::{ModelSource, WorkerCommand, WorkerEvent, WorkerSpec};
use store::Store;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::{Daemon, Event};
use crate::desired::Version;
use crate::instance::Input;
use crate::model_file::{OVERWRITTEN, ServedFile};
use crate::net::Net;
use crate::relay::{Relay, Source};
use crate::wire::{Message, WorkerId, WorkerOrder};
use crate::worker::{WorkerNews, WorkerProcess};
use crate::{NodeConfig, NodeId};

/// How long a worker outlives the connection to its owner: a short cut of the network should not
/// cost minutes of loading.
const ORPHAN_MAX: Duration = Duration::from_secs(30);
/// Events of one worker on their way to the driver.
const NEWS_MAX: usize = 1024;

/// A worker of this node, whoever owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WorkerKey {
    owner: NodeId,
    /// The owner numbers its workers anew when it restarts.
    boot: u64,
    worker: WorkerId,
}

/// A worker that this node runs.
pub(super) struct Hosted {
    instance: String,
    claim: Version,
    memory_bytes: u64,
    /// None while it is being started, and once it has been told to end.
    process: Option<WorkerProcess>,
    pid: Option<u32>,
    ending: bool,
    /// What an owner that returns needs to hear again.
    listening: Option<WorkerEvent>,
    loaded: Option<WorkerEvent>,
    orphaned_at: Option<Duration>,
    /// Closed when the process is gone.
    gone: watch::Sender<()>,
    /// Closes the relay when it is dropped.
    _relay: Option<watch::Sender<()>>,
}

/// A worker process that has just been started.
pub(crate) struct Started {
    process: WorkerProcess,
    news: mpsc::Receiver<WorkerNews>,
    relay: Option<watch::Sender<()>>,
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
        if let Some((entry, _)) =
            self.desired.find(&order.instance).filter(|_| owner != self.net.id())
            && entry.claim > order.claim
        {
            let now_owner = self.node_name(entry.owner());
            let how = format!("was not started: node {now_owner} owns the model now");
            return self.tell_owner(key, Input::Exited { worker, how });
        }
        let free = self.config.memory_bytes.saturating_sub(self.memory_used_bytes());
        let refusal = (order.memory_bytes > free).then(|| {
            let (needed, free) = (mib(order.memory_bytes), mib(free));
            io::Error::other(format!("it needs {needed} MiB and {free} MiB are free"))
        });
        let leaving = self.leaving(order.memory_bytes);
        let hosted = Hosted {
            instance: order.instance.clone(),
            claim: order.claim,
            memory_bytes: order.memory_bytes,
            process: None,
            pid: None,
            ending: false,
            listening: None,
            loaded: None,
            orphaned_at: None,
            gone: watch::channel(()).0,
            _relay: None,
        };
        self.workers.insert(key, hosted);
        let start = Start {
            config: self.config.clone(),
            net: self.net.clone(),
            store: self.store.clone(),
            source: self.source(owner, &order),
            served: self.owned.get(&order.instance).map(|owned| owned.prepared.file.clone()),
            order,
        };
        let inputs = self.inputs.clone();
        // Not `spawn`: a worker that is being started must be seen to its end.
        tokio::spawn(async move {
            let started = match refusal {
                Some(refusal) => Err(refusal),
                None => {
                    for mut process in leaving {
                        // It closes, and never changes.
                        let _ = process.changed().await;
                    }
                    start.run().await
                }
            };
            // The driver is gone only if the whole node is; then the handle ends the worker.
            let _ = inputs.send(Event::WorkerStarted { key, started }).await;
        });
    }

    /// The processes on whose memory a new worker must wait, since it is not free before they are
    /// gone.
    fn leaving(&self, memory_bytes: u64) -> Vec<watch::Receiver<()>> {
        let all: u64 = self.workers.values().map(|hosted| hosted.memory_bytes).sum();
        let fits = all.saturating_add(memory_bytes) <= self.config.memory_bytes;
        let leaving = self.workers.values().filter(|hosted| hosted.ending && !fits);
        leaving.map(|hosted| hosted.gone.subscribe()).collect()
    }

    /// Ends workers for other nodes whose instance, under their owner's claim, is as asked.
    pub(super) fn end_workers_if(&mut self, is_over: impl Fn(&Self, &str, Version) -> bool) {
        let me = self.net.id();
        let theirs = self.workers.iter().filter(|(key, hosted)| key.owner != me && !hosted.ending);
        let over = theirs.filter(|(_, hosted)| is_over(self, &hosted.instance, hosted.claim));
        for key in over.map(|(key, _)| *key).collect::<Vec<_>>() {
            info!(worker = key.worker, "a worker's owner is no longer the owner; it is ended");
            self.end(key, true);
        }
    }

    pub(super) fn worker_started(&mut self, key: WorkerKey, started: io::Result<Started>) {
        self.dirty = true;
        let worker = key.worker;
        match started {
            Ok(Started { process, mut news, relay }) => {
                let pid = process.pid();
                info!(worker, pid, "a worker runs");
                if let Some(hosted) = self.workers.get_mut(&key) {
                    hosted.pid = Some(pid);
                    hosted._relay = relay;
                    hosted.process = (!hosted.ending).then_some(process);
                }
                let inputs = self.inputs.clone();
                tokio::spawn(async move {
                    while let Some(news) = news.recv().await {
                        if inputs.send(Event::Worker { key, news }).await.is_err() {
                            return;
                        }
                    }
                });
                self.tell_owner(key, Input::Spawned { worker, pid });
            }
            Err(error) => {
                warn!(worker, %error, "a worker could not be started");
                self.workers.remove(&key);
                let how = format!("could not be started: {error}");
                self.tell_owner(key, Input::Exited { worker, how });
            }
        }
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
                let expected = self.workers.remove(&key).is_some_and(|hosted| hosted.ending);
                if expected {
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
        if let Some(process) = self.workers.get_mut(&key).and_then(|hosted| hosted.process.as_mut())
        {
            process.send(command);
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
        // Dropping the handle ends the worker's input, and it leaves by itself.
        if let (Some(mut process), true) = (hosted.process.take(), at_once) {
            process.kill();
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
        for (_, hosted) in self.workers.iter_mut().filter(|(key, _)| key.owner == owner) {
            // Several losses in a row are one absence, until the owner claims the worker.
            hosted.orphaned_at.get_or_insert(now);
            if let Some(process) = &mut hosted.process {
                process.send(WorkerCommand::Disconnect);
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
        if key.owner == self.net.id() {
            return self.step_owner(key.worker, event);
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
        if owner == self.net.id() { Some(self.net.boot()) } else { self.view_boot(owner) }
    }

    /// The owner has the file.
    fn source(&self, owner: NodeId, order: &WorkerOrder) -> Source {
        Source { node: owner, addresses: self.addresses_of(owner), digest: order.digest }
    }
}

/// Everything that starting a worker takes.
struct Start {
    config: NodeConfig,
    net: Arc<Net>,
    store: Arc<Store>,
    source: Source,
    /// The file that this node holds open, if it owns the instance.
    served: Option<Arc<ServedFile>>,
    order: WorkerOrder,
}

impl Start {
    async fn run(self) -> io::Result<Started> {
        let label = format!("{}/{}", self.order.instance, self.order.rank);
        let (model, relay) = self.model().await?;
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let mut process = WorkerProcess::spawn(&self.config.worker_command, label, sender)?;
        process.send(WorkerCommand::Open(Box::new(self.spec(model))));
        Ok(Started { process, news, relay })
    }

    /// This machine's own file if it has one with the right content now, else a relay to what the
    /// owner holds open.
    async fn model(&self) -> io::Result<(ModelSource, Option<watch::Sender<()>>)> {
        let (store, digest, bytes) =
            (self.store.clone(), self.order.digest, self.order.model_bytes);
        let served = self.served.clone();
        let find = tokio::task::spawn_blocking(move || {
            let found = store.find(&digest, bytes);
            let is_lost = found.is_none() && served.is_some_and(|file| file.intact().is_none());
            if is_lost { Err(io::Error::other(OVERWRITTEN)) } else { Ok(found) }
        });
        if let Some(path) = find.await.map_err(io::Error::other)?? {
            return Ok((ModelSource::File { path }, None));
        }
        let relay = Relay::open(self.net.clone(), self.source.clone()).await?;
        let model = ModelSource::Peer { relay: relay.address()?, token: relay.token() };
        let (open, mut closed) = watch::channel(());
        tokio::spawn(async move {
            tokio::select! {
                () = relay.run() => {}
                _ = closed.changed() => {}
            }
        });
        Ok((model, Some(open)))
    }

    fn spec(&self, model: ModelSource) -> WorkerSpec {
        let order = &self.order;
        WorkerSpec {
            instance: order.instance.clone(),
            rank: order.rank,
            spec: order.spec.clone(),
            split: order.split.clone(),
            model,
            threads: self.config.threads,
            cpus: self.config.cpus.clone(),
            link_latency_us: 0,
            bind: order.bind,
            bind_more: self.config.link_addresses.clone(),
            secret: order.secret.clone(),
        }
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
