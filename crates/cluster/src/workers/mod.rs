//! The workers of this node, for owners on any node: their start, their reports to the owner, their
//! end.

mod orphans;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::{WorkerCommand, WorkerEvent};
use tracing::{info, warn};

use crate::context::ServedFile;
use crate::context::WorkerNews;
use crate::context::{Context, News, ProcessId, Start};
use crate::files::sources;
use crate::instance::Input;
use crate::wire::bounds::check_order;
use crate::wire::{Message, WorkerId, WorkerOrder};
use crate::{LINK_ADDRESSES_MAX, NodeId};

/// Workers here of one other node: one for each of its instances.
const WORKERS_PER_OWNER_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerKey {
    pub owner: NodeId,
    /// The owner's boot: it numbers its workers anew after a restart.
    pub boot: u64,
    pub worker: WorkerId,
}

/// A worker that this node runs.
pub(crate) struct Hosted {
    pub order: WorkerOrder,
    pub process: ProcessId,
    pid: Option<u32>,
    pub ending: bool,
    /// The events that an owner needs again when it returns, or when another one takes over.
    listening: Option<WorkerEvent>,
    loaded: Option<WorkerEvent>,
    /// Its notes on its last links.
    notes: Vec<String>,
    /// Since when it has no owner.
    orphaned_at: Option<Duration>,
    /// Its start is delayed until these processes are gone, because their memory is not free
    /// before.
    waits: Option<(Vec<ProcessId>, Box<Start>)>,
}

impl Hosted {
    /// Whether it has no owner, and may get one.
    pub(crate) fn is_orphan(&self) -> bool {
        !self.ending && self.orphaned_at.is_some()
    }
}

#[derive(Default)]
pub(crate) struct Workers {
    hosted: BTreeMap<WorkerKey, Hosted>,
    last_process: ProcessId,
}

impl Workers {
    pub(crate) fn is_empty(&self) -> bool {
        self.hosted.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&WorkerKey, &Hosted)> {
        self.hosted.iter()
    }

    /// Whether a worker is about to end, and to free its memory.
    pub(crate) fn is_any_ending(&self) -> bool {
        self.hosted.values().any(|hosted| hosted.ending)
    }

    /// Starts a worker for its owner, or takes up the running one with this number. `served`: the
    /// file, if this node holds it open.
    pub(crate) fn host(
        &mut self,
        ctx: &mut Context,
        owner: NodeId,
        worker: WorkerId,
        order: WorkerOrder,
        served: Option<Arc<ServedFile>>,
    ) {
        let Some(key) = key(ctx, owner, worker) else { return };
        if let Some(how) = why_not(ctx, owner, &order) {
            return report(ctx, key, Input::Exited { worker, how });
        }
        let runs = self.hosted.get(&key).is_some_and(|hosted| !hosted.ending);
        if runs || self.adopt(ctx, key, &order) {
            return self.report_again(ctx, key);
        }
        if self.hosted.contains_key(&key) {
            // The owner counts it as gone, and orders another one under a new number.
            let how = "was not started: the one of this number is about to end".to_owned();
            return report(ctx, key, Input::Exited { worker, how });
        }
        let of_owner = self.hosted.keys().filter(|key| key.owner == owner).count();
        if of_owner >= WORKERS_PER_OWNER_MAX && owner != ctx.me {
            let how = format!("was not started: its owner has {of_owner} workers here already");
            return report(ctx, key, Input::Exited { worker, how });
        }
        self.make_room(ctx, &order);
        let free = ctx.config.memory_bytes.saturating_sub(self.memory_used_bytes());
        let refusal = (order.memory_bytes > free).then(|| {
            let (needed, free) = (mib(order.memory_bytes), mib(free));
            format!("it needs {needed} MiB and {free} MiB are free")
        });
        let leaving = self.leaving(ctx, order.memory_bytes);
        self.last_process += 1;
        let process = self.last_process;
        let wanted = sources(ctx, Some(owner), order.digest, order.model_bytes);
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
            ctx.outside.start_worker(start);
        } else {
            hosted.waits = Some((leaving, Box::new(start)));
        }
        self.hosted.insert(key, hosted);
    }

    /// A worker has an owner again: repeats the events that the owner missed.
    fn report_again(&mut self, ctx: &mut Context, key: WorkerKey) {
        let Some(hosted) = self.hosted.get_mut(&key) else { return };
        hosted.orphaned_at = None;
        let (worker, pid) = (key.worker, hosted.pid);
        let again = [hosted.listening.clone(), hosted.loaded.clone()];
        if let Some(pid) = pid {
            report(ctx, key, Input::Spawned { worker, pid });
        }
        for event in again.into_iter().flatten() {
            report(ctx, key, Input::FromWorker { worker, event });
        }
    }

    /// The processes that a new worker must wait for, since it needs their memory.
    fn leaving(&self, ctx: &Context, memory_bytes: u64) -> Vec<ProcessId> {
        let all = self.hosted.values().map(|hosted| hosted.order.memory_bytes);
        let all = all.fold(0, u64::saturating_add);
        let fits = all.saturating_add(memory_bytes) <= ctx.config.memory_bytes;
        let leaving = self.hosted.values().filter(|hosted| hosted.ending && !fits);
        leaving.map(|hosted| hosted.process).collect()
    }

    /// A process is gone: starts the workers that waited only for it.
    fn process_gone(&mut self, ctx: &mut Context, gone: ProcessId) {
        for hosted in self.hosted.values_mut() {
            let Some((leaving, _)) = &mut hosted.waits else { continue };
            leaving.retain(|process| *process != gone);
            if leaving.is_empty()
                && let Some((_, start)) = hosted.waits.take()
            {
                ctx.outside.start_worker(*start);
            }
        }
    }

    fn key_of(&self, process: ProcessId) -> Option<WorkerKey> {
        let mut all = self.hosted.iter();
        all.find(|(_, hosted)| hosted.process == process).map(|(key, _)| *key)
    }

    pub(crate) fn started(
        &mut self,
        ctx: &mut Context,
        process: ProcessId,
        started: io::Result<u32>,
    ) {
        ctx.changed();
        let Some(key) = self.key_of(process) else { return };
        let worker = key.worker;
        match started {
            Ok(pid) => {
                info!(worker, pid, "a worker runs");
                match self.hosted.get_mut(&key) {
                    Some(hosted) if !hosted.ending => hosted.pid = Some(pid),
                    // An `end` came before its start.
                    _ => ctx.outside.end_worker(process, false),
                }
                report(ctx, key, Input::Spawned { worker, pid });
            }
            Err(error) => {
                warn!(worker, %error, "a worker could not be started");
                self.forget(ctx, key);
                let how = format!("could not be started: {error}");
                report(ctx, key, Input::Exited { worker, how });
            }
        }
    }

    /// Removes a worker that is gone; returns whether its end was ordered.
    fn forget(&mut self, ctx: &mut Context, key: WorkerKey) -> bool {
        let Some(hosted) = self.hosted.remove(&key) else { return false };
        self.process_gone(ctx, hosted.process);
        hosted.ending
    }

    pub(crate) fn news(&mut self, ctx: &mut Context, process: ProcessId, news: WorkerNews) {
        let Some(key) = self.key_of(process) else { return };
        let worker = key.worker;
        match news {
            WorkerNews::Event(mut event) => {
                complete(ctx, &mut event);
                if let Some(hosted) = self.hosted.get_mut(&key) {
                    hosted.note(worker, &event);
                }
                ctx.changed_if(!matches!(event, WorkerEvent::Token { .. }));
                report(ctx, key, Input::FromWorker { worker, event });
            }
            WorkerNews::Exited { how } => {
                ctx.changed();
                if self.forget(ctx, key) {
                    info!(worker, how, "a worker has ended");
                } else {
                    warn!(worker, how, "a worker has died");
                }
                report(ctx, key, Input::Exited { worker, how });
            }
        }
    }

    pub(crate) fn command(
        &mut self,
        ctx: &mut Context,
        owner: NodeId,
        worker: WorkerId,
        command: WorkerCommand,
    ) {
        let Some(key) = key(ctx, owner, worker) else { return };
        let hosted = self.hosted.get(&key);
        // A worker without an owner gets no commands until it has one.
        if let Some(hosted) = hosted.filter(|h| !h.ending && h.orphaned_at.is_none()) {
            ctx.outside.command(hosted.process, command);
        }
    }

    pub(crate) fn end(
        &mut self,
        ctx: &mut Context,
        owner: NodeId,
        worker: WorkerId,
        at_once: bool,
    ) {
        if let Some(key) = key(ctx, owner, worker) {
            self.end_one(ctx, key, at_once);
        }
    }

    fn end_one(&mut self, ctx: &mut Context, key: WorkerKey, at_once: bool) {
        let Some(hosted) = self.hosted.get_mut(&key) else { return };
        hosted.ending = true;
        match hosted.waits.take() {
            None => ctx.outside.end_worker(hosted.process, at_once),
            // Its owner receives this end like any other.
            Some((_, mut start)) => {
                start.refusal = Some("its end was ordered before it ran".to_owned());
                ctx.outside.start_worker(*start);
            }
        }
    }

    pub(crate) fn end_all(&mut self, ctx: &mut Context) {
        for key in self.hosted.keys().copied().collect::<Vec<_>>() {
            self.end_one(ctx, key, false);
        }
    }

    /// The memory of this node's workers, without those that end and those without an owner, which
    /// make room for others.
    pub(crate) fn memory_used_bytes(&self) -> u64 {
        let staying = self.hosted.values().filter(|h| !h.ending && h.orphaned_at.is_none());
        staying.map(|hosted| hosted.order.memory_bytes).fold(0, u64::saturating_add)
    }
}

impl Hosted {
    fn note(&mut self, worker: WorkerId, event: &WorkerEvent) {
        match event {
            WorkerEvent::Listening { .. } => self.listening = Some(event.clone()),
            WorkerEvent::Loaded { .. } => self.loaded = Some(event.clone()),
            WorkerEvent::Linked { notes, .. } => {
                // Every epoch repeats them; the log has each once.
                let news = notes.iter().filter(|note| !self.notes.contains(note));
                news.for_each(|note| warn!(worker, "{note}"));
                self.notes.clone_from(notes);
            }
            _ => {}
        }
    }
}

/// Why this node does not start a worker, apart from memory.
fn why_not(ctx: &mut Context, owner: NodeId, order: &WorkerOrder) -> Option<String> {
    if let Err(why) = check_order(order) {
        return Some(format!("was not started: its order cannot be: {why}"));
    }
    if let Some((entry, _)) = ctx.desired.find(&order.instance).filter(|_| owner != ctx.me)
        && entry.claim > order.claim
    {
        let now_owner = ctx.name_of(entry.owner());
        return Some(format!("was not started: node {now_owner} owns the model now"));
    }
    if order.claim.node != owner {
        ctx.disbelieve(owner, "an instance that another node owns");
        return Some("was not started: it was ordered under another node's claim".to_owned());
    }
    let (ours, theirs) = (ctx.versions.numerics, order.numerics);
    (ours != theirs).then(|| {
        format!(
            "was not started: this node computes in version {ours}, its owner in {theirs}. Update \
             the older of the two"
        )
    })
}

/// Adds the addresses of this node at which its worker can be called.
fn complete(ctx: &Context, event: &mut WorkerEvent) {
    let WorkerEvent::Listening { port, more } = event else { return };
    let listen = &ctx.config.listen;
    if *port == 0 {
        *port = listen.port();
    }
    if listen.ip().is_unspecified() {
        let all = ctx.outside.addresses();
        more.extend(all.into_iter().map(|address| SocketAddr::new(address.ip(), *port)));
    }
    more.truncate(LINK_ADDRESSES_MAX);
}

/// Reports to the owner of a worker, on any node.
fn report(ctx: &mut Context, key: WorkerKey, event: Input) {
    let (owner, worker) = (key.owner, key.worker);
    if owner == ctx.me {
        return ctx.post(News::Worker { host: owner, worker, event });
    }
    if ctx.boot_of(owner) != Some(key.boot) {
        return;
    }
    let message = match event {
        Input::Spawned { worker, pid } => Message::Spawned { worker, pid },
        Input::FromWorker { worker, event } => Message::Event { worker, event },
        Input::Exited { worker, how } => Message::Exited { worker, how },
        Input::NodeUp { .. } | Input::NodeDown { .. } | Input::Cancel(_) | Input::Tick => return,
    };
    ctx.send_to(owner, message);
}

fn key(ctx: &Context, owner: NodeId, worker: WorkerId) -> Option<WorkerKey> {
    Some(WorkerKey { owner, boot: ctx.boot_of(owner)?, worker })
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
