//! All state of a node, and what it decides. Everything that happens reaches it as a [`Call`] or an
//! [`Event`]; it feeds the state machines with them and has [`Outside`] do what they ask for. It
//! knows no sockets, processes, files and clocks, and never waits, so that [`driver`] can run it on
//! a real [`system`], and a simulation whole clusters of it.

mod adopting;
mod conn;
mod copying;
mod desiring;
mod driver;
mod hosting;
mod joining;
mod leaving;
#[cfg(test)]
mod lies;
mod listening;
mod outside;
mod owning;
mod pairing;
mod peers;
mod placing;
mod processes;
mod publish;
mod reporting;
mod requests;
#[cfg(test)]
mod simulation;
mod streams;
mod system;
#[cfg(test)]
mod tests;
mod uniting;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::RequestId;
use store::{Digest, ModelFile};
use tokio::sync::{mpsc, oneshot, watch};

use crate::desired::{Desired, Document};
use crate::instance::Instance;
use crate::invites::Invites;
use crate::journal::Journal;
use crate::kept::Saver;
use crate::machine::{Machine, Sensors};
use crate::members::{Member, Members};
use crate::membership::{self, ConnId, HEARTBEAT, Membership};
use crate::model_file::ServedFile;
use crate::nearby::{Nearby, Sighting};
use crate::net::DialError;
use crate::ways::{Found, Ways};
use crate::wire::{JoinAnswer, Message, Versions};
use crate::worker::WorkerNews;
use crate::{
    ClusterStatus, GenerateEvent, GenerateRequest, InstanceSpec, Joined, NodeConfig, NodeId,
    PairAsking, PairRequest, PairWith, Paired, Pairing, Parted, Result,
};

pub(crate) use driver::{INPUTS_MAX, run};
pub(crate) use listening::listen;
use outside::{Opened, Outside, ProcessId};
pub(crate) use system::System;

/// Half a heartbeat, so that silence is noticed in time.
const TICK: Duration = Duration::from_millis(250);

/// Where an answer to a call goes.
type Reply<T> = oneshot::Sender<Result<T>>;

/// What a [`crate::Node`] handle asks.
pub(crate) enum Call {
    Invite { ttl: Duration, reply: Reply<String> },
    Join { code: String, reply: Reply<Joined> },
    Remove { name: String, reply: Reply<Parted> },
    Leave { reply: Reply<Parted> },
    Pair { with: PairWith, reply: Reply<PairAsking> },
    Accept { number: String, node: Option<String>, reply: Reply<Paired> },
    RefuseRequest { node: String, reply: Reply<PairRequest> },
    Pairing { reply: Reply<Pairing> },
    Serve { prepared: Box<Prepared>, reply: Reply<String> },
    Plan { prepared: Box<Prepared>, reply: Reply<placement::Plan> },
    Stop { name: String, reply: Reply<()> },
    Generate { name: String, request: Box<GenerateRequest>, reply: Reply<Events> },
    Header { name: String, reply: Reply<Arc<gguf::Directory>> },
    Shutdown { reply: oneshot::Sender<()> },
}

pub(crate) type Events = mpsc::UnboundedReceiver<GenerateEvent>;

/// What keeps the state of a node on disk.
pub(crate) struct Kept {
    pub members: Arc<Saver<Members>>,
    pub desired: Arc<Saver<Document>>,
}

/// A serve request with everything that had to be read from disk for it.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub spec: InstanceSpec,
    pub found: ModelFile,
    pub file: Arc<ServedFile>,
    pub model: layout::Outline,
    /// What the draft model takes on the first node.
    pub draft_bytes: u64,
    /// When it was asked for, seconds since 1970.
    pub created_unix_s: u64,
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
    Connected(Opened),
    DialFailed {
        peer: NodeId,
        error: DialError,
    },
    Received {
        conn: ConnId,
        message: Message,
    },
    /// Some of a message has come.
    Heard {
        conn: ConnId,
    },
    Closed {
        conn: ConnId,
        reason: String,
    },
    /// Somebody announces a node on a network of this machine.
    Sighted(Sighting),
    /// It does so no more; the beginning of its id.
    Vanished(String),
    /// A stranger shows a code's secret.
    JoinAsked {
        member: Member,
        secret: Vec<u8>,
        reply: oneshot::Sender<JoinAnswer>,
    },
    /// A node whose code was accepted tells whom it now belongs with.
    JoinDone {
        by: NodeId,
        members: Members,
        reply: oneshot::Sender<Result<Joined>>,
    },
    /// A node has proved that it has this node's fleet key, and tells whom it belongs with.
    FleetAsked {
        peer: NodeId,
        members: Members,
        reply: oneshot::Sender<JoinAnswer>,
    },
    /// Another node with the same key took this one's proof, and tells the same.
    United {
        peer: NodeId,
        members: Members,
    },
    Pair(pairing::PairEvent),
    /// A node leaves; the answer is whether it was a member.
    LeaveAsked {
        peer: NodeId,
        reply: oneshot::Sender<bool>,
    },
    /// A peer wants to measure the way to this node; the answer is whether it may.
    ProbeAsked {
        peer: NodeId,
        reply: oneshot::Sender<bool>,
    },
    /// A way to a peer was measured, or does not answer.
    Measured {
        peer: NodeId,
        address: SocketAddr,
        found: Option<Found>,
    },
    /// What the machine says of itself was read.
    Sensed(Machine, Sensors),
    /// What this node's threads read from memory was measured.
    ReadSpeed(placement::Speed),
    /// A peer asks for slices of a model file.
    BulkAsked {
        peer: NodeId,
        digest: Digest,
        reply: oneshot::Sender<Option<Arc<ServedFile>>>,
    },
    /// Bytes of a node's model file are not what they were when it was hashed.
    Damaged {
        node: NodeId,
        digest: Digest,
        /// Which MiB, from 0, if that is known.
        group: Option<u64>,
    },
    /// A model's file was copied to this node, or why not.
    Copied {
        digest: Digest,
        copied: std::result::Result<PathBuf, String>,
    },
    WorkerStarted {
        process: ProcessId,
        started: std::io::Result<u32>,
    },
    Worker {
        process: ProcessId,
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
    sinks: BTreeMap<RequestId, requests::Sink>,
    /// Why it is placed as it is.
    why: Vec<String>,
    prediction: Option<placement::Prediction>,
}

pub(crate) struct Daemon {
    config: NodeConfig,
    me: NodeId,
    /// Drawn at random when the daemon starts.
    boot: u64,
    /// Where it listens.
    listen: SocketAddr,
    versions: Versions,
    outside: Box<dyn Outside>,
    status: watch::Sender<Arc<ClusterStatus>>,
    dirty: bool,
    ticks: u64,
    journal: Journal,
    /// Of this node's threads together, once it is measured.
    speed: Option<placement::Speed>,
    machine: Machine,
    sensors: Sensors,
    ways: Ways,
    /// Whether the others should hear at once what was measured.
    has_news: bool,

    membership: Membership,
    invites: Invites,
    conns: BTreeMap<ConnId, peers::PeerConn>,
    views: BTreeMap<NodeId, peers::View>,
    /// Why members do not let this node in, in their words.
    refusals: BTreeMap<NodeId, peers::Refusal>,
    joining: Vec<joining::Joining>,
    nearby: Nearby,
    uniting: uniting::Uniting,
    pairs: pairing::Pairs,
    /// Why this node belongs to no cluster any more, if it did.
    parted: Option<String>,

    desired: Desired,
    duties: desiring::Duties,
    /// What a person should know of the files that were found damaged.
    told: Vec<String>,
    /// Models whose bytes were found damaged, on which node, and which MiB, from 0.
    damage: BTreeMap<(NodeId, Digest), Option<u64>>,

    /// By instance id.
    owned: BTreeMap<String, Owned>,
    instances_made: u64,
    workers: BTreeMap<hosting::WorkerKey, hosting::Hosted>,
    next_process: ProcessId,
    /// Of this node's clients.
    streams: BTreeMap<u64, streams::Stream>,
    next_stream: u64,
}

impl Daemon {
    pub(crate) fn new(
        config: NodeConfig,
        (me, boot, listen): (NodeId, u64, SocketAddr),
        (document, told): (Document, Vec<String>),
        status: watch::Sender<Arc<ClusterStatus>>,
        outside: Box<dyn Outside>,
    ) -> Self {
        Self {
            membership: Membership::new(me, outside.now()),
            desired: Desired::new(me, document, outside.signer()),
            config,
            me,
            boot,
            listen,
            versions: outside.versions(),
            outside,
            status,
            dirty: true,
            ticks: 0,
            journal: Journal::default(),
            speed: None,
            machine: Machine::default(),
            sensors: Sensors::default(),
            ways: Ways::default(),
            has_news: false,
            invites: Invites::default(),
            conns: BTreeMap::new(),
            views: BTreeMap::new(),
            refusals: BTreeMap::new(),
            joining: Vec::new(),
            nearby: Nearby::default(),
            uniting: uniting::Uniting::default(),
            pairs: pairing::Pairs::default(),
            parted: None,
            duties: desiring::Duties::default(),
            told,
            damage: BTreeMap::new(),
            owned: BTreeMap::new(),
            instances_made: 0,
            workers: BTreeMap::new(),
            next_process: 0,
            streams: BTreeMap::new(),
            next_stream: 0,
        }
    }

    /// Begins to look for the members that it remembers.
    fn start(&mut self, remembered: Members) {
        self.step_membership(membership::Input::Learned { members: remembered, by: None });
        self.announce();
        self.outside.measure_reading();
        self.outside.sense();
    }

    /// After every event: what has changed may let requests go on.
    fn settle_streams(&mut self) {
        if self.dirty {
            self.resume_streams();
        }
    }

    fn call(&mut self, call: Call) {
        self.dirty = true;
        // A caller that has stopped waiting is no reason to undo what it asked for.
        match call {
            Call::Invite { ttl, reply } => drop(reply.send(Ok(self.invite(ttl)))),
            Call::Join { code, reply } => self.join(&code, reply),
            Call::Remove { name, reply } => self.remove(&name, reply),
            Call::Leave { reply } => self.leave(reply),
            Call::Pair { with, reply } => self.pair(&with, reply),
            Call::Accept { number, node, reply } => self.accept(&number, node.as_deref(), reply),
            Call::RefuseRequest { node, reply } => self.refuse_request(&node, reply),
            Call::Pairing { reply } => drop(reply.send(Ok(self.pairing()))),
            Call::Serve { prepared, reply } => {
                let outcome = self.serve(*prepared);
                self.answer_when_kept(reply, outcome);
            }
            Call::Plan { prepared, reply } => drop(reply.send(self.plan(&prepared))),
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
        // A caller that has stopped waiting needs no answer.
        match outcome {
            Err(error) => drop(reply.send(Err(error))),
            Ok(value) => self.outside.when_desired_kept(Box::new(|kept| {
                drop(reply.send(kept.map(|()| value)));
            })),
        }
    }

    fn input(&mut self, input: Event) {
        match input {
            Event::Connected(opened) => self.connected(opened),
            Event::DialFailed { peer, error } => self.dial_failed(peer, &error),
            Event::Received { conn, message } => self.received(conn, message),
            Event::Heard { conn } => self.heard(conn),
            Event::Closed { conn, reason } => {
                self.step_membership(membership::Input::Closed { conn, reason })
            }
            Event::Sighted(sighting) => self.sighted(sighting),
            Event::Vanished(id) => self.dirty |= self.nearby.forget(&id),
            Event::JoinAsked { member, secret, reply } => self.join_asked(member, &secret, reply),
            Event::JoinDone { by, members, reply } => self.join_done(by, members, reply),
            Event::FleetAsked { peer, members, reply } => self.fleet_asked(peer, members, reply),
            Event::United { peer, members } => self.united(peer, members),
            Event::Pair(event) => self.pair_event(event),
            Event::LeaveAsked { peer, reply } => self.leave_asked(peer, reply),
            Event::ProbeAsked { peer, reply } => {
                // A visitor that has left needs no answer.
                let _ = reply.send(peer == self.me || self.membership.is_member(peer));
            }
            Event::ReadSpeed(speed) => self.speed_measured(speed),
            Event::Measured { peer, address, found } => self.measured(peer, address, found),
            Event::Sensed(machine, sensors) => self.sensed(machine, sensors),
            Event::BulkAsked { peer, digest, reply } => {
                drop(reply.send(self.file_for(peer, digest)));
            }
            Event::Damaged { node, digest, group } => self.damaged(node, digest, group),
            Event::Copied { digest, copied } => self.copied(digest, copied),
            Event::WorkerStarted { process, started } => self.worker_started(process, started),
            Event::Worker { process, news } => self.worker_news(process, news),
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
        self.tick_ways();
        self.tick_instances();
        self.end_orphans();
        self.resume_streams();
        self.finish_joining();
        self.unite_due();
        self.expire_requests();
    }

    fn now(&self) -> Duration {
        self.outside.now()
    }

    fn random_u32(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.outside.random();
        u32::from_le_bytes([a, b, c, d])
    }

    /// When the next instance wants to be ticked, at the latest with the next regular tick.
    fn next_deadline(&self) -> Duration {
        let deadlines = self.owned.values().filter_map(|owned| owned.machine.deadline());
        deadlines.min().unwrap_or(self.now() + TICK)
    }

    /// Ends all instances, streams and workers.
    fn end_all(&mut self) {
        self.release_all("its node shuts down");
        self.end_streams();
        self.end_all_workers();
    }

    /// Where a node can be called, this one included.
    fn addresses_of(&self, id: NodeId) -> Vec<SocketAddr> {
        if id == self.me {
            return self.outside.addresses();
        }
        let member = self.membership.members().find(|member| member.id == id);
        member.map(|member| member.addresses.clone()).unwrap_or_default()
    }
}
