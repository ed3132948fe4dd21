//! The inputs of a node: calls of its handle, and events.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::Preset;
use store::Digest;
use tokio::sync::oneshot;

use crate::admission::PairEvent;
use crate::admission::nearby::Sighting;
use crate::api::machine::{Machine, Sensors};
use crate::context::DialError;
use crate::context::ServedFile;
use crate::context::WorkerNews;
use crate::context::{Events, Opened, Placeable, Prepared, ProcessId, Reply};
use crate::edge::Measurement;
use crate::instances::Models;
use crate::members::{Member, Members};
use crate::membership::ConnId;
use crate::wire::{JoinAnswer, Message};
use crate::{
    GenerateRequest, InstanceSpec, Joined, NodeId, PairAsking, PairRequest, PairWith, Paired,
    Pairing, Parted, Result,
};

/// A call of a [`crate::Node`] handle.
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
    WithdrawRequest {
        reply: Reply<()>,
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
        spec: Box<InstanceSpec>,
        model: Box<Placeable>,
        reply: Reply<placement::Plan>,
    },
    Stop {
        name: String,
        reply: Reply<()>,
    },
    /// Drains a node; with the outlines of the instances that have to leave it.
    Drain {
        node: NodeId,
        models: Models,
        reply: Reply<()>,
    },
    Undrain {
        node: NodeId,
        reply: Reply<()>,
    },
    /// Writes a preset, or removes the one of this name.
    WritePreset {
        name: String,
        preset: Option<Box<Preset>>,
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

/// All inputs of a node besides calls.
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
    /// A part of a message has arrived.
    Heard {
        conn: ConnId,
    },
    Closed {
        conn: ConnId,
        reason: String,
    },
    /// A node announces itself on a network of this machine.
    Sighted(Sighting),
    /// Its announcement ended; the beginning of its id.
    Vanished(String),
    /// A machine presents the secret of a code.
    JoinAsked {
        member: Member,
        secret: Vec<u8>,
        from: IpAddr,
        /// The flag is true if it was not a member before.
        reply: oneshot::Sender<(JoinAnswer, bool)>,
    },
    /// A machine admitted by a code hung up before it saved its membership.
    JoinLost {
        peer: NodeId,
        secret: Vec<u8>,
    },
    /// The maker of a code has admitted this node; with its list of members.
    JoinDone {
        /// Completes once the membership is on this node's disk.
        kept: oneshot::Sender<()>,
        by: NodeId,
        members: Members,
        reply: oneshot::Sender<Result<Joined>>,
    },
    /// A node has proved that it has this node's fleet key; with its list of members.
    FleetAsked {
        peer: NodeId,
        members: Members,
        reply: oneshot::Sender<JoinAnswer>,
    },
    /// Another node with the same key has accepted this node's proof; with its list of members.
    United {
        peer: NodeId,
        members: Members,
    },
    Pair(PairEvent),
    /// A node leaves; the reply states whether it was a member.
    LeaveAsked {
        peer: NodeId,
        reply: oneshot::Sender<bool>,
    },
    /// A peer wants to measure the path to this node; the reply states whether it may.
    ProbeAsked {
        peer: NodeId,
        reply: oneshot::Sender<bool>,
    },
    /// A path to a peer was measured, or did not answer.
    Measured {
        peer: NodeId,
        address: SocketAddr,
        found: Option<Measurement>,
    },
    /// The present addresses of the peers from `--peer`.
    PeersFound(Vec<SocketAddr>),
    /// The hardware and its sensors were read.
    Sensed(Machine, Sensors),
    /// The speed of this node's threads was measured.
    ReadSpeed(placement::Speed),
    /// A peer requests slices of a model file.
    BulkAsked {
        peer: NodeId,
        digest: Digest,
        reply: oneshot::Sender<Option<Arc<ServedFile>>>,
    },
    /// Bytes of a node's model file no longer match their hash.
    Damaged {
        node: NodeId,
        digest: Digest,
        /// Number of the MiB, from 0, if known.
        group: Option<u64>,
    },
    /// A model's file was copied to this node, or the copy failed.
    Copied {
        digest: Digest,
        copied: std::io::Result<PathBuf>,
    },
    WorkerStarted {
        process: ProcessId,
        started: std::io::Result<u32>,
    },
    Worker {
        process: ProcessId,
        news: WorkerNews,
    },
    /// The search for an instance's file has ended.
    Located {
        digest: Digest,
        path: Option<PathBuf>,
    },
    /// The files of an instance of this node were read, or could not be.
    Opened {
        id: String,
        opened: std::result::Result<Box<Prepared>, String>,
    },
    /// A client of this node has dropped its stream.
    Abandoned {
        stream: u64,
    },
}
