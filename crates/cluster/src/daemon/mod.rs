//! The driver: one task that owns all state of a node, feeds the state machines and does what they
//! ask for. Everything that happens reaches it as an [`Event`]; it never waits for anything but
//! the next one, so no peer and no worker can hold it up.

mod conn;
mod desiring;
mod hosting;
mod joining;
mod listening;
mod owning;
mod peers;
mod placing;
mod probing;
mod publish;
mod requests;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::RequestId;
use store::{Digest, ModelFile, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;

use crate::desired::{Desired, Document};
use crate::instance::Instance;
use crate::invites::Invites;
use crate::kept::Saver;
use crate::members::{Member, Members};
use crate::membership::{self, ConnId, HEARTBEAT, Membership};
use crate::model_file::ServedFile;
use crate::net::{Connection, DialError, Net};
use crate::wire::{JoinAnswer, Message};
use crate::worker::WorkerNews;
use crate::{
    ClusterStatus, GenerateEvent, GenerateRequest, InstanceSpec, Joined, NodeConfig, NodeId, Result,
};

pub(crate) use listening::listen;

/// Inputs on their way to the driver; who brings more waits.
const INPUTS_MAX: usize = 4096;
/// Inputs handled in a row before the status is published again.
const BATCH_MAX: usize = 256;
/// Half a heartbeat, so that silence is noticed in time.
const TICK: Duration = Duration::from_millis(250);
/// Workers get their own grace; this is a little more.
const SHUTDOWN_MAX: Duration = Duration::from_secs(4);

/// Where an answer to a call goes.
type Reply<T> = oneshot::Sender<Result<T>>;

/// What a [`crate::Node`] handle asks.
pub(crate) enum Call {
    Invite { ttl: Duration, reply: Reply<String> },
    Join { code: String, reply: Reply<Joined> },
    Serve { prepared: Box<Prepared>, reply: Reply<String> },
    Stop { name: String, reply: Reply<()> },
    Generate { name: String, request: Box<GenerateRequest>, reply: Reply<Events> },
    Header { name: String, reply: Reply<Arc<gguf::Directory>> },
    Shutdown { reply: oneshot::Sender<()> },
}

pub(crate) type Events = mpsc::UnboundedReceiver<GenerateEvent>;

/// What was on disk, and what keeps it there.
pub(crate) struct Kept {
    pub members: Arc<Saver<Members>>,
    pub desired: Arc<Saver<Document>>,
    pub document: Document,
    /// What a person should know of the files.
    pub told: Option<String>,
}

/// A serve request with everything that had to be read from disk for it.
pub(crate) struct Prepared {
    pub spec: InstanceSpec,
    pub found: ModelFile,
    pub file: Arc<ServedFile>,
    pub model: layout::Outline,
    /// What the draft model takes on the first node.
    pub draft_bytes: u64,
}

/// What an instance's draft model takes on the node that leads, if there is one.
///
/// # Errors
/// It cannot be read, or is no model that can run.
pub(crate) fn draft_bytes(spec: &InstanceSpec) -> std::result::Result<u64, String> {
    let Some(path) = &spec.options.draft else { return Ok(0) };
    let unusable = |error: &dyn std::fmt::Display| {
        format!("the draft model {} cannot be used: {error}", path.display())
    };
    let file = gguf::File::open(path).map_err(|error| unusable(&error))?;
    let header = gguf::Source::directory(&file);
    let outline = layout::Outline::read(header).map_err(|error| unusable(&error))?;
    let whole = layout::Layout::new(&[1], &[], outline.config.layers);
    let whole = whole.map_err(|error| unusable(&error))?;
    let context_tokens = spec.context_tokens.unwrap_or(usize::MAX);
    let capacity = layout::Capacity::of_draft(outline.config.context_max, context_tokens);
    let holding = layout::Holding::new(&outline, &whole, 0);
    Ok(holding.footprint(&capacity, layout::Device::Cpu).bytes())
}

/// Whatever happens to a node besides calls.
pub(crate) enum Event {
    Connected {
        connection: Box<Connection>,
        dialed: bool,
    },
    DialFailed {
        peer: NodeId,
        error: DialError,
    },
    Received {
        conn: ConnId,
        message: Message,
    },
    Closed {
        conn: ConnId,
        reason: String,
    },
    /// A stranger shows a code's secret.
    JoinAsked {
        member: Member,
        secret: Vec<u8>,
        reply: oneshot::Sender<JoinAnswer>,
    },
    /// A node whose code was accepted tells whom it now belongs with.
    JoinDone {
        by: NodeId,
        members: Vec<Member>,
        reply: oneshot::Sender<Result<Joined>>,
    },
    /// A peer wants to measure the way to this node; the answer is whether it may.
    ProbeAsked {
        peer: NodeId,
        reply: oneshot::Sender<bool>,
    },
    /// The way to a peer was measured.
    Probed {
        peer: NodeId,
        link: placement::LinkSpeed,
    },
    /// What this node's threads read from memory was measured.
    ReadSpeed(f64),
    /// A peer asks for slices of a model file.
    BulkAsked {
        peer: NodeId,
        digest: Digest,
        reply: oneshot::Sender<Option<Arc<ServedFile>>>,
    },
    WorkerStarted {
        key: hosting::WorkerKey,
        started: std::io::Result<hosting::Started>,
    },
    Worker {
        key: hosting::WorkerKey,
        news: WorkerNews,
    },
    /// The file of what is to be served was looked for.
    Located {
        digest: Digest,
        path: Option<PathBuf>,
    },
    /// What starting an instance of this node takes was read from disk.
    Opened {
        id: String,
        opened: std::result::Result<Box<Prepared>, String>,
    },
    /// A client of this node has dropped its stream.
    Abandoned {
        stream: u64,
    },
}

/// A model that this node owns, and what its state machine does not know.
struct Owned {
    machine: Instance,
    prepared: Prepared,
    sinks: HashMap<RequestId, requests::Sink>,
    /// Why it is placed as it is.
    why: Vec<String>,
}

pub(crate) struct Daemon {
    config: NodeConfig,
    net: Arc<Net>,
    store: Arc<Store>,
    saver: Arc<Saver<Members>>,
    desired_saver: Arc<Saver<Document>>,
    started: Instant,
    inputs: mpsc::Sender<Event>,
    status: watch::Sender<Arc<ClusterStatus>>,
    /// Never changes; tasks end when it is dropped.
    closing: watch::Sender<()>,
    dirty: bool,
    ticks: u64,
    /// Of this node's threads together, once it is measured.
    read_bytes_per_sec: Option<f64>,

    membership: Membership,
    invites: Invites,
    conns: HashMap<ConnId, peers::PeerConn>,
    views: HashMap<NodeId, peers::View>,
    next_conn: ConnId,
    /// Why members do not let this node in, in their words.
    refusals: BTreeMap<NodeId, peers::Refusal>,
    joining: Vec<joining::Joining>,

    desired: Desired,
    duties: desiring::Duties,
    /// What a person should know of the files that were found damaged.
    told: Option<String>,

    /// By instance id.
    owned: BTreeMap<String, Owned>,
    instances_made: u64,
    workers: HashMap<hosting::WorkerKey, hosting::Hosted>,
    /// Of this node's clients.
    streams: BTreeMap<u64, streams::Stream>,
    next_stream: u64,
}

impl Daemon {
    pub(crate) fn new(
        config: NodeConfig,
        net: Arc<Net>,
        store: Arc<Store>,
        kept: Kept,
        status: watch::Sender<Arc<ClusterStatus>>,
    ) -> (Self, mpsc::Receiver<Event>) {
        let (inputs, inbox) = mpsc::channel(INPUTS_MAX);
        let desired = Desired::new(net.id(), kept.document);
        let daemon = Self {
            membership: Membership::new(net.id(), Duration::ZERO),
            config,
            net,
            store,
            saver: kept.members,
            desired_saver: kept.desired,
            started: Instant::now(),
            inputs,
            status,
            closing: watch::channel(()).0,
            dirty: true,
            ticks: 0,
            read_bytes_per_sec: None,
            invites: Invites::default(),
            conns: HashMap::new(),
            views: HashMap::new(),
            next_conn: 0,
            refusals: BTreeMap::new(),
            joining: Vec::new(),
            desired,
            duties: desiring::Duties::default(),
            told: kept.told,
            owned: BTreeMap::new(),
            instances_made: 0,
            workers: HashMap::new(),
            streams: BTreeMap::new(),
            next_stream: 0,
        };
        (daemon, inbox)
    }

    pub(crate) fn inputs(&self) -> mpsc::Sender<Event> {
        self.inputs.clone()
    }

    pub(crate) fn closing(&self) -> watch::Receiver<()> {
        self.closing.subscribe()
    }

    /// Runs until told to shut down, or until no handle is left; returns whom to tell.
    pub(crate) async fn run(
        mut self,
        remembered: Vec<Member>,
        mut calls: mpsc::Receiver<Call>,
        mut inbox: mpsc::Receiver<Event>,
    ) -> Option<oneshot::Sender<()>> {
        self.step_membership(membership::Input::Learned(remembered));
        self.measure_reading();
        let mut ticker = tokio::time::interval(TICK);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let deadline = self.next_deadline();
            tokio::select! {
                call = calls.recv() => match call {
                    Some(Call::Shutdown { reply }) => {
                        self.shut_down(&mut inbox).await;
                        return Some(reply);
                    }
                    Some(call) => self.call(call),
                    None => {
                        self.shut_down(&mut inbox).await;
                        return None;
                    }
                },
                Some(input) = inbox.recv() => {
                    self.input(input);
                    for _ in 0..BATCH_MAX {
                        let Ok(input) = inbox.try_recv() else { break };
                        self.input(input);
                    }
                }
                _ = ticker.tick() => self.tick(),
                () = tokio::time::sleep_until(deadline.into()) => self.tick_instances(),
            }
            if self.dirty {
                self.resume_streams();
            }
            self.publish();
        }
    }

    fn call(&mut self, call: Call) {
        self.dirty = true;
        // A caller that has stopped waiting is no reason to undo what it asked for.
        match call {
            Call::Invite { ttl, reply } => drop(reply.send(Ok(self.invite(ttl)))),
            Call::Join { code, reply } => self.join(&code, reply),
            Call::Serve { prepared, reply } => {
                let outcome = self.serve(*prepared);
                self.answer_when_kept(reply, outcome);
            }
            Call::Stop { name, reply } => {
                let outcome = self.stop(&name);
                self.answer_when_kept(reply, outcome);
            }
            Call::Generate { name, request, reply } => {
                drop(reply.send(self.generate(&name, *request)));
            }
            Call::Header { name, reply } => self.header(&name, reply),
            Call::Shutdown { reply } => drop(reply),
        }
    }

    /// Whoever is told that something is served, or stopped, may rely on it after a power cut.
    fn answer_when_kept<T: Send + 'static>(&mut self, reply: Reply<T>, outcome: Result<T>) {
        self.publish();
        let saver = self.desired_saver.clone();
        self.spawn(async move {
            if outcome.is_ok() {
                saver.save().await;
            }
            // A caller that has stopped waiting needs no answer.
            let _ = reply.send(outcome);
        });
    }

    fn input(&mut self, input: Event) {
        match input {
            Event::Connected { connection, dialed } => self.connected(*connection, dialed),
            Event::DialFailed { peer, error } => self.dial_failed(peer, &error),
            Event::Received { conn, message } => self.received(conn, message),
            Event::Closed { conn, reason } => {
                self.step_membership(membership::Input::Closed { conn, reason })
            }
            Event::JoinAsked { member, secret, reply } => self.join_asked(member, &secret, reply),
            Event::JoinDone { by, members, reply } => self.join_done(by, members, reply),
            Event::ProbeAsked { peer, reply } => {
                // A visitor that has left needs no answer.
                let _ = reply.send(self.membership.is_member(peer));
            }
            Event::Probed { peer, link } => self.probed(peer, link),
            Event::ReadSpeed(bytes_per_sec) => self.reading_measured(bytes_per_sec),
            Event::BulkAsked { peer, digest, reply } => {
                drop(reply.send(self.file_for(peer, digest)));
            }
            Event::WorkerStarted { key, started } => self.worker_started(key, started),
            Event::Worker { key, news } => self.worker_news(key, news),
            Event::Located { digest, path } => self.located(digest, path),
            Event::Opened { id, opened } => self.opened(&id, opened),
            Event::Abandoned { stream } => self.abandoned(stream),
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.step_membership(membership::Input::Tick);
        if self.ticks.is_multiple_of(HEARTBEAT.as_millis() as u64 / TICK.as_millis() as u64) {
            self.send_heartbeats();
        }
        self.reconcile();
        self.tick_instances();
        self.end_orphans();
        self.resume_streams();
        self.finish_joining();
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// When the next instance wants to be ticked, if that is before the next regular tick.
    fn next_deadline(&self) -> Instant {
        let deadlines = self.owned.values().filter_map(|owned| owned.machine.deadline());
        let next = deadlines.min().unwrap_or(self.now() + TICK);
        self.started + next
    }

    /// Ends all instances and workers, and waits for the workers to be gone.
    async fn shut_down(&mut self, inbox: &mut mpsc::Receiver<Event>) {
        for id in self.owned.keys().cloned().collect::<Vec<_>>() {
            self.release(&id, "its node shuts down");
        }
        self.end_streams();
        self.end_all_workers();
        let gone = async {
            while !self.workers.is_empty() {
                match inbox.recv().await {
                    Some(input @ (Event::Worker { .. } | Event::WorkerStarted { .. })) => {
                        self.input(input);
                    }
                    Some(_) => {}
                    None => return,
                }
            }
        };
        // What is left after that is killed with its handle.
        let _ = tokio::time::timeout(SHUTDOWN_MAX, gone).await;
    }

    /// Runs a task that ends with this daemon.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(Box::pin(task));
    }

    /// Compiled once, not for each kind of task.
    fn spawn_boxed(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let mut closing = self.closing.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = task => {}
                _ = closing.changed() => {}
            }
        });
    }

    /// Where a node can be called, this one included.
    fn addresses_of(&self, id: NodeId) -> Vec<SocketAddr> {
        if id == self.net.id() {
            return self.net.addresses();
        }
        let member = self.membership.members().find(|member| member.id == id);
        member.map(|member| member.addresses.clone()).unwrap_or_default()
    }
}
