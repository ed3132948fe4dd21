//! What reaches a node: calls of its handle, and whatever else happens.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use store::Digest;
use tokio::sync::{mpsc, oneshot};

use crate::admission::PairEvent;
use crate::admission::nearby::Sighting;
use crate::context::{Opened, Prepared, ProcessId, Reply};
use crate::instances::Models;
use crate::io::machine::{Machine, Sensors};
use crate::io::net::DialError;
use crate::io::worker::WorkerNews;
use crate::members::{Member, Members};
use crate::membership::ConnId;
use crate::paths::ways::Found;
use crate::transfer::model_file::ServedFile;
use crate::wire::{JoinAnswer, Message};
use crate::{
    GenerateEvent, GenerateRequest, Joined, NodeId, PairAsking, PairRequest, PairWith, Paired,
    Pairing, Parted, Result,
};

/// What a [`crate::Node`] handle asks.
pub(crate) enum Call {
    Invite {
        ttl: Duration,
        reply: Reply<String>,
    },
    Join {
        code: String,
        reply: Reply<Joined>,
    },
    Remove {
        name: String,
        reply: Reply<Parted>,
    },
    Leave {
        reply: Reply<Parted>,
    },
    Pair {
        with: PairWith,
        reply: Reply<PairAsking>,
    },
    Accept {
        number: String,
        node: Option<String>,
        reply: Reply<Paired>,
    },
    RefuseRequest {
        node: String,
        reply: Reply<PairRequest>,
    },
    Pairing {
        reply: Reply<Pairing>,
    },
    Serve {
        prepared: Box<Prepared>,
        reply: Reply<String>,
    },
    Plan {
        prepared: Box<Prepared>,
        reply: Reply<placement::Plan>,
    },
    Stop {
        name: String,
        reply: Reply<()>,
    },
    /// Empty a node; with what the files hold of the instances that have to leave it.
    Drain {
        node: NodeId,
        models: Models,
        reply: Reply<()>,
    },
    Undrain {
        node: NodeId,
        reply: Reply<()>,
    },
    Generate {
        name: String,
        request: Box<GenerateRequest>,
        reply: Reply<Events>,
    },
    Header {
        name: String,
        reply: Reply<Arc<gguf::Directory>>,
    },
    Shutdown {
        reply: oneshot::Sender<()>,
    },
}

pub(crate) type Events = mpsc::UnboundedReceiver<GenerateEvent>;

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
        from: IpAddr,
        /// Beside the answer: whether it was no member before.
        reply: oneshot::Sender<(JoinAnswer, bool)>,
    },
    /// A node whose code was accepted tells whom it now belongs with.
    /// A machine that was let in by a code has gone before it kept its membership.
    JoinLost {
        peer: NodeId,
        secret: Vec<u8>,
    },
    JoinDone {
        /// Told once the membership is on this node's disk.
        kept: oneshot::Sender<()>,
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
    Pair(PairEvent),
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
    /// Where the members may be that a person named.
    PeersFound(Vec<SocketAddr>),
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
