//! Everything that a daemon does and learns outside of its own memory. The daemon decides, and
//! knows no sockets, processes, files or clocks; [`crate::io::System`] acts, or a simulation does
//! in its place.
//!
//! Nothing here blocks: results reach the daemon as [`crate::core::Event`]s.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gguf::Directory;
use protocol::{WorkerCommand, WorkerEvent};
use store::Digest;
use tokio::sync::{mpsc, oneshot};

use super::announcement::Announcement;
use crate::context::ServedFile;
use crate::context::sources::Sources;
use crate::desired::{Document, Service, Signer};
use crate::edge::Depth;
use crate::instance::Path;
use crate::members::Members;
use crate::membership::ConnId;
use crate::secrets::code::JoinCode;
use crate::secrets::pake::Number;
use crate::wire::{Message, Verdict, Versions, WorkerOrder};
use crate::{GenerateEvent, Joined, NodeId, PullStatus, Result};

/// The events of one request.
pub(crate) type Events = mpsc::UnboundedReceiver<GenerateEvent>;

/// The channel for the answer to a call.
pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// A worker of this node. Numbers are never reused.
pub(crate) type ProcessId = u64;

/// Runs once a write has succeeded or failed.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// A new connection, past its handshake.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub conn: ConnId,
    /// Whether this node made the call.
    pub dialed: bool,
    pub peer: NodeId,
    pub boot: u64,
    pub name: String,
    /// Addresses at which the peer can be called, the best first.
    pub addresses: Vec<SocketAddr>,
    pub path: Path,
    /// The protocol version of both ends.
    pub protocol: u32,
}

/// A worker to be started, and the sources of its model's bytes.
pub(crate) struct Start {
    pub process: ProcessId,
    pub order: WorkerOrder,
    /// Other holders of the file, for parts that this machine lacks.
    pub wanted: Sources,
    /// The file that this node holds open, if it owns the instance.
    pub served: Option<Arc<ServedFile>>,
    /// Set if it is not started after all; its owner gets this like any other failure.
    pub refusal: Option<String>,
}

/// Events of a worker process, in order; `Exited` is the last.
#[derive(Debug)]
pub(crate) enum WorkerNews {
    Event(WorkerEvent),
    Exited { how: String },
}

/// The model whose header is read, and its holder, for error texts.
pub(crate) struct HeaderOf {
    pub model: String,
    /// The name of the file's holder.
    pub owner: String,
}

/// A call that requests admission for this node.
pub(crate) struct Attempt {
    pub attempt: u64,
    /// The key that must answer, if known; a user may give only an address.
    pub peer: Option<NodeId>,
    pub addresses: Vec<SocketAddr>,
    pub number: Number,
    /// Ends the call when its sender is dropped.
    pub cancelled: oneshot::Receiver<()>,
}

pub(crate) trait Outside: Send {
    /// Time since the daemon started. Never goes back.
    fn now(&self) -> Duration;
    /// Milliseconds since 1970 by the machine's clock: for display only, not for decisions.
    fn unix_ms(&self) -> u64;
    fn random(&mut self) -> [u8; 32];
    /// Signs this node's entries in the document.
    fn signer(&self) -> Signer;
    /// The versions of this node's protocol and numerics.
    fn versions(&self) -> Versions;
    /// Addresses at which others can call this node now.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Calls a member: `Connected` or `DialFailed`.
    fn dial(&mut self, peer: NodeId, addresses: Vec<SocketAddr>);
    /// Keeps a new connection and delivers its messages: `Received`, and finally `Closed`.
    fn keep(&mut self, conn: ConnId);
    /// Refuses a connection and sends its caller the reason.
    fn refuse(&mut self, conn: ConnId, reason: String, verdict: Option<Verdict>);
    /// Closes a connection once its queue is sent.
    fn close(&mut self, conn: ConnId);
    /// Queues a message. A peer that does not read its messages is cut off: `Closed`.
    fn send(&mut self, conn: ConnId, message: Message);

    /// Announces this node on its networks; other nodes' announcements: `Sighted`, `Vanished`.
    fn announce(&mut self, announcement: Announcement);

    /// Proves the fleet key to a node, or to any node at an address: `United`.
    fn unite(&mut self, peer: Option<NodeId>, addresses: Vec<SocketAddr>, members: Members);

    /// Requests admission by a number: `Pair` with the outcome.
    fn pair(&mut self, attempt: Attempt);

    /// Writes the members to disk; later ones replace earlier ones that are still unwritten.
    fn keep_members(&mut self, members: Members);
    /// Calls `done` once the members are on disk or the write has failed.
    fn when_members_kept(&mut self, done: Done);
    /// The same for the document.
    fn keep_desired(&mut self, document: Document);
    fn when_desired_kept(&mut self, done: Done);

    /// Looks for the file of an instance: `Located`.
    fn locate(&mut self, digest: Digest, wanted: Service);
    /// Reads the files of an instance to start: `Opened`.
    fn open(&mut self, wanted: Service);

    /// Copies a model's file to this node: `Copied`.
    fn copy(&mut self, wanted: Service, from: Sources);

    /// Starts a worker: `WorkerStarted`, then `Worker` with each of its events, its exit the last.
    fn start_worker(&mut self, start: Start);
    fn command(&mut self, process: ProcessId, command: WorkerCommand);
    /// Ends a worker: with a grace period, or at once.
    fn end_worker(&mut self, process: ProcessId, at_once: bool);

    /// Reports when the client of a stream has left: `Abandoned`.
    fn watch_client(&mut self, stream: u64, events: mpsc::UnboundedSender<GenerateEvent>);
    /// Presents a code's secret to the code's maker: `JoinDone`, or the error in `reply`.
    fn ask_to_join(&mut self, code: JoinCode, reply: Reply<Joined>);
    /// Reads a model's header from this machine's file.
    fn read_header(&mut self, path: PathBuf, of: HeaderOf, reply: Reply<Arc<Directory>>);
    /// Reads a model's header from the nodes that have it.
    fn fetch_header(&mut self, from: Sources, of: HeaderOf, reply: Reply<Arc<Directory>>);
    /// Measures the memory and arithmetic speed of this node's threads: `ReadSpeed`.
    fn measure_reading(&mut self);
    /// Measures the path to a peer by one of its addresses: `Measured`.
    fn measure_way(&mut self, peer: NodeId, address: SocketAddr, depth: Depth);
    /// Reads the hardware and its sensors: `Sensed`.
    fn sense(&mut self);
    /// The downloads of this node.
    fn downloads(&self) -> Vec<PullStatus>;
}
