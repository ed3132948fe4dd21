//! Everything that a daemon does and learns outside of its own memory. The daemon decides what is
//! done and knows no sockets, processes, files and clocks; [`super::system`] does it, and a
//! simulation can do as if.
//!
//! Nothing here waits: what comes of a call reaches the daemon as an [`super::Event`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gguf::Directory;
use protocol::WorkerCommand;
use store::Digest;
use tokio::sync::{mpsc, oneshot};

use crate::admission::code::JoinCode;
use crate::admission::nearby::Announcement;
use crate::admission::pake::Number;
use crate::desired::{Document, Signer, Wanted};
use crate::files::source::{Source, Sources};
use crate::instance::Path;
use crate::members::Members;
use crate::membership::ConnId;
use crate::paths::ways::Depth;
use crate::transfer::model_file::ServedFile;
use crate::wire::{Message, Verdict, Versions, WorkerOrder};
use crate::{GenerateEvent, Joined, NodeId, PullStatus, Result};

/// The way of an answer to a call.
pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// A worker of this node, by a number that is never used twice.
pub(crate) type ProcessId = u64;

/// What is to be done once something is on disk, or could not be written.
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
    /// Where the peer can be called, the best first.
    pub addresses: Vec<SocketAddr>,
    pub path: Path,
    /// The version of the protocol that both speak.
    pub protocol: u32,
}

/// A worker to be started, and where its model's bytes are.
pub(crate) struct Start {
    pub process: ProcessId,
    pub order: WorkerOrder,
    /// Who else has the file: for what this machine lacks of it.
    pub wanted: Sources,
    /// The file that this node holds open, if it owns the instance.
    pub served: Option<Arc<ServedFile>>,
    /// Why it is not started after all; its owner hears of it as of any that cannot be.
    pub refusal: Option<String>,
}

/// Whose header is read, and where, for the error.
pub(crate) struct HeaderOf {
    pub model: String,
    /// The name of the node that has the file.
    pub owner: String,
}

/// A call by which this node asks to be let in.
pub(crate) struct Attempt {
    pub attempt: u64,
    /// Who must answer, if that is known; a person may give an address only.
    pub peer: Option<NodeId>,
    pub addresses: Vec<SocketAddr>,
    pub number: Number,
    /// Ends the call when its other end is dropped.
    pub cancelled: oneshot::Receiver<()>,
}

pub(crate) trait Outside: Send {
    /// Since the daemon started. Never goes back.
    fn now(&self) -> Duration;
    /// Milliseconds since 1970 by the machine's clock: for people, nothing is decided by it.
    fn unix_ms(&self) -> u64;
    fn random(&mut self) -> [u8; 32];
    /// By which this node's word about what is to be served is known to be its own.
    fn signer(&self) -> Signer;
    /// In which versions this node speaks and computes.
    fn versions(&self) -> Versions;
    /// Where others can call this node now.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Calls a member: `Connected` or `DialFailed`.
    fn dial(&mut self, peer: NodeId, addresses: Vec<SocketAddr>);
    /// Lets messages through a new connection: `Received`, and at last `Closed`.
    fn keep(&mut self, conn: ConnId);
    /// Tells whoever called why the connection is not kept.
    fn refuse(&mut self, conn: ConnId, reason: String, verdict: Option<Verdict>);
    /// Lets a connection go once what was sent to it is on its way.
    fn close(&mut self, conn: ConnId);
    /// Puts a message on its way. A peer that does not take its messages is cut off: `Closed`.
    fn send(&mut self, conn: ConnId, message: Message);

    /// Lets this be announced on the networks; who else is there: `Sighted`, `Vanished`.
    fn announce(&mut self, announcement: Announcement);

    /// Proves to a node, or to whoever is at an address, that this one has the fleet key: `United`.
    fn unite(&mut self, peer: Option<NodeId>, addresses: Vec<SocketAddr>, members: Members);

    /// Asks a node to let this one in by a number: `Pair` with what comes of it.
    fn pair(&mut self, attempt: Attempt);

    /// Writes the members to disk, later ones instead of earlier ones.
    fn keep_members(&mut self, members: Members);
    /// Does something once the members are on disk, or could not be written.
    fn when_members_kept(&mut self, done: Done);
    /// The same for what is to be served.
    fn keep_desired(&mut self, document: Document);
    fn when_desired_kept(&mut self, done: Done);

    /// Looks for the file of what is to be served: `Located`.
    fn locate(&mut self, digest: Digest, wanted: Wanted);
    /// Reads what starting an instance takes: `Opened`.
    fn open(&mut self, wanted: Wanted);

    /// Copies a model's file to this node: `Copied`.
    fn copy(&mut self, wanted: Wanted, from: Sources);

    /// Starts a worker: `WorkerStarted`, then `Worker` with all that it says, its end the last.
    fn start_worker(&mut self, start: Start);
    fn command(&mut self, process: ProcessId, command: WorkerCommand);
    /// Ends a worker: with a moment to clean up, or at once.
    fn end_worker(&mut self, process: ProcessId, at_once: bool);

    /// Tells when the client of a stream has left: `Abandoned`.
    fn watch_client(&mut self, stream: u64, events: mpsc::UnboundedSender<GenerateEvent>);
    /// Shows a code's secret to the node that made it: `JoinDone`, or the error as the answer.
    fn ask_to_join(&mut self, code: JoinCode, reply: Reply<Joined>);
    /// Reads a model's header from this machine's file.
    fn read_header(&mut self, path: PathBuf, of: HeaderOf, reply: Reply<Arc<Directory>>);
    /// Reads it from the node that has the file.
    fn fetch_header(&mut self, source: Source, of: HeaderOf, reply: Reply<Arc<Directory>>);
    /// Measures what this node's threads read and multiply: `ReadSpeed`.
    fn measure_reading(&mut self);
    /// Measures the way to a peer by one of its addresses: `Measured`.
    fn measure_way(&mut self, peer: NodeId, address: SocketAddr, depth: Depth);
    /// Reads what the machine says of itself: `Sensed`.
    fn sense(&mut self);
    /// The models that this node is fetching.
    fn downloads(&self) -> Vec<PullStatus>;
}
