//! The trait that this crate requires of a node. Tests implement it with a double.

mod adapter;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cluster::{
    BurnReport, BurnSpec, ByteStream, ClusterStatus, Forgotten, Found, GenerateEvent,
    GenerateRequest, Held, History, Identified, InstanceSpec, Invite, Joined, Library, ModelAbout,
    NodeId, Offer, PairAsking, PairRequest, PairWith, Paired, Pairing, Parted, Planned, PullStatus,
};
use futures_util::Stream;
use protocol::Preset;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};

/// A boxed future, which keeps [`Cluster`] object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The events of one request; dropping it cancels the request on every node.
pub type EventStream = Pin<Box<dyn Stream<Item = GenerateEvent> + Send>>;

/// The progress of a download, one item for each change.
pub type PullStream = Pin<Box<dyn Stream<Item = PullStatus> + Send>>;

/// One node of a cluster, as seen from its HTTP API. `name` is an instance's id or its model's
/// name.
pub trait Cluster: Send + Sync + 'static {
    /// The current status. It comes from memory and returns at once, whatever the state of other
    /// nodes.
    fn status(&self) -> ClusterStatus;

    /// Past events, updated with new ones.
    fn events(&self) -> watch::Receiver<History>;

    /// Creates a one-time code with which one machine can join within `ttl`.
    fn invite(&self, ttl: Duration) -> BoxFuture<'_, Result<Invite, Refusal>>;

    /// Joins the cluster of the node that created `code`.
    fn join<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Joined, Refusal>>;

    /// Sends a request to join to a node nearby or at an address; a person types the number there.
    fn pair(&self, with: PairWith) -> BoxFuture<'_, Result<PairAsking, Refusal>>;

    /// Admits the machine that shows this number.
    fn accept<'a>(
        &'a self,
        number: &'a str,
        node: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Paired, Refusal>>;

    /// Refuses a machine's request to join.
    fn refuse<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<PairRequest, Refusal>>;

    /// Ends this node's request to join, if it has one.
    fn withdraw(&self) -> BoxFuture<'_, Result<(), Refusal>>;

    /// Machines that request to join here, and requests sent by this node.
    fn pairing(&self) -> BoxFuture<'_, Result<Pairing, Refusal>>;

    /// Removes a member, named by its name or a prefix of its id, from the cluster.
    fn remove<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Parted, Refusal>>;

    /// Removes this node from its cluster.
    fn leave(&self) -> BoxFuture<'_, Result<Parted, Refusal>>;

    /// How a model would be placed now, and what would be downloaded first.
    fn plan(&self, request: InstanceSpec) -> BoxFuture<'_, Result<Planned, Refusal>>;

    /// Loads all nodes and links for some time; dropping the future ends it.
    fn burn(&self, spec: BurnSpec) -> BoxFuture<'_, Result<BurnReport, Refusal>>;

    /// Places a model and starts its workers; returns the instance's id while it is loading.
    fn serve(&self, request: InstanceSpec) -> BoxFuture<'_, Result<String, Refusal>>;

    /// Fetches a model to this node's disk, unless it is already there; `model` is a name or a
    /// path. The last item has a final stage. Dropping the stream leaves the download to other
    /// callers that wait for it; one that `goes_on` needs none, and outlives a restart.
    fn pull<'a>(
        &'a self,
        model: &'a str,
        update: bool,
        goes_on: bool,
    ) -> BoxFuture<'a, Result<PullStream, Refusal>>;

    /// Whether a model is on this node's disk.
    fn has_model<'a>(&'a self, model: &'a str) -> BoxFuture<'a, bool>;

    /// The models on the nodes' disks, in any folder, this machine's first.
    fn models(&self) -> BoxFuture<'_, Vec<Held>>;

    /// What this cluster could serve.
    fn library(&self) -> BoxFuture<'_, Library>;

    /// The quantisations of a model on the hub.
    fn variants<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Vec<Offer>, Refusal>>;

    /// Searches the hub for models.
    fn search<'a>(&'a self, words: &'a str) -> BoxFuture<'a, Result<Vec<Found>, Refusal>>;

    /// Stops a download of this node, whichever client waits for it.
    fn stop_pull<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Whether this exact model, by name or path, is served, and under which name.
    fn identify<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Identified, Refusal>>;

    /// Details of a model, from any node that has it.
    fn describe<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<ModelAbout, Refusal>>;

    /// Deletes a model from the own folder of this node, or of the member with this name; returns
    /// the number of bytes freed.
    fn remove_model<'a>(
        &'a self,
        model: &'a str,
        node: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64, Refusal>>;

    /// Deletes the prompts that the connected nodes keep on disk.
    fn forget_prompts(&self) -> BoxFuture<'_, Vec<Forgotten>>;

    /// Stops an instance.
    fn stop<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Drains a node, named by its name or a prefix of its id. On return its work is already moving
    /// to the other nodes.
    fn drain<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<NodeId, Refusal>>;

    /// Lets a node take work again.
    fn undrain<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<NodeId, Refusal>>;

    /// The presets of the cluster, by name, without a copy of the status.
    fn presets(&self) -> Arc<[Preset]>;

    /// Writes a preset on all nodes, instead of one of the same name.
    fn write_preset(&self, preset: Preset) -> BoxFuture<'_, Result<(), Refusal>>;

    /// Removes a preset from all nodes.
    fn remove_preset<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Generates tokens with an instance.
    fn generate<'a>(
        &'a self,
        name: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<EventStream, Refusal>>;

    /// The metadata of an instance's model, for its tokenizer and template.
    fn model_header<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<gguf::Directory>, Refusal>>;

    /// Other members' connections to this API, for the server; `None` after the first call. Each
    /// carries one request.
    fn visits(&self) -> Option<mpsc::Receiver<DuplexStream>>;

    /// Opens a way to the API of a member, named by its name or a prefix of its id, for one
    /// request.
    fn visit<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Box<dyn ByteStream>, Refusal>>;
}

/// Why a node refused a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    /// For people: the cause, the reason and the next step.
    pub message: String,
}

impl Refusal {
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// What a refusal means for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// A changed request could succeed; a retry could not.
    Invalid,
    /// Nothing has that name.
    NotFound,
    /// Already done, or something else is in its place.
    Conflict,
    /// It has failed for good and needs a person.
    Failed,
    /// Too many requests wait; a later retry may succeed.
    Busy,
    /// The node cannot do it at the moment.
    Unavailable,
}
