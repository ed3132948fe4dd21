//! What this crate needs of a node, as a trait that a test can play.

mod adapter;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cluster::{
    BurnReport, BurnSpec, ClusterStatus, GenerateEvent, GenerateRequest, Held, History, Identified,
    InstanceSpec, Invite, Joined, ModelAbout, NodeId, PairAsking, PairRequest, PairWith, Paired,
    Pairing, Parted, Plan, PullStatus,
};
use futures_util::Stream;
use tokio::sync::watch;

/// A boxed future, which keeps [`Cluster`] object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The events of one request; dropping it cancels the request on every node.
pub type EventStream = Pin<Box<dyn Stream<Item = GenerateEvent> + Send>>;

/// Where the fetching of a model is, whenever that changes.
pub type PullStream = Pin<Box<dyn Stream<Item = PullStatus> + Send>>;

/// One node of a cluster, as seen from its HTTP API. `name` is an instance's id or its model's
/// name.
pub trait Cluster: Send + Sync + 'static {
    /// Everything that is known now; from memory, at once, whatever state other nodes are in.
    fn status(&self) -> ClusterStatus;

    /// What has happened, now and whenever there is more.
    fn events(&self) -> watch::Receiver<History>;

    /// Makes a one-time code with which one machine can join until `ttl` has passed.
    fn invite(&self, ttl: Duration) -> BoxFuture<'_, Result<Invite, Refusal>>;

    /// Joins the cluster of the node that made `code`.
    fn join<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Joined, Refusal>>;

    /// Asks a node nearby or at an address to let this one in; a person types the number there.
    fn pair(&self, with: PairWith) -> BoxFuture<'_, Result<PairAsking, Refusal>>;

    /// Lets in the machine that shows this number.
    fn accept<'a>(
        &'a self,
        number: &'a str,
        node: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Paired, Refusal>>;

    /// Sends a machine that asks to be let in away.
    fn refuse<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<PairRequest, Refusal>>;

    /// Who asks to be let in here, and what this node has asked.
    fn pairing(&self) -> BoxFuture<'_, Result<Pairing, Refusal>>;

    /// Takes a member, given by its name or the first digits of its id, out of the cluster.
    fn remove<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Parted, Refusal>>;

    /// Takes this node out of its cluster.
    fn leave(&self) -> BoxFuture<'_, Result<Parted, Refusal>>;

    /// How a model would be placed now.
    fn plan(&self, request: InstanceSpec) -> BoxFuture<'_, Result<Plan, Refusal>>;

    /// Loads all nodes and links for some time; dropping this ends it.
    fn burn(&self, spec: BurnSpec) -> BoxFuture<'_, Result<BurnReport, Refusal>>;

    /// Places a model and starts its workers; returns the instance's id while it is loading.
    fn serve(&self, request: InstanceSpec) -> BoxFuture<'_, Result<String, Refusal>>;

    /// Fetches a model to this node's disk, unless it is there; `model` is a name or a path. The
    /// last status is of a last stage. Dropping the stream leaves the rest to others who wait.
    fn pull<'a>(
        &'a self,
        model: &'a str,
        update: bool,
    ) -> BoxFuture<'a, Result<PullStream, Refusal>>;

    /// Whether a model is on this node's disk.
    fn has_model<'a>(&'a self, model: &'a str) -> BoxFuture<'a, bool>;

    /// The models on the nodes' disks, wherever they lie, this machine's first.
    fn models(&self) -> BoxFuture<'_, Vec<Held>>;

    /// Whether this very model, by name or path, is served, and as what.
    fn identify<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Identified, Refusal>>;

    /// What a model is, whichever node has it.
    fn describe<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<ModelAbout, Refusal>>;

    /// Deletes a model of this node's own folder; returns the bytes that this freed.
    fn remove_model<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<u64, Refusal>>;

    /// Stops an instance.
    fn stop<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Empties a node, given by its name or the first digits of its id. What it has is on its way
    /// to the others when this returns.
    fn drain<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<NodeId, Refusal>>;

    /// Lets a node have work again.
    fn undrain<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<NodeId, Refusal>>;

    /// Asks an instance for tokens.
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
}

/// Why a node did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub kind: RefusalKind,
    /// For a person: what happened, why, what to do next.
    pub message: String,
}

impl Refusal {
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// What a refusal means for whoever asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// Asking in another way could help; asking again could not.
    Invalid,
    /// There is nothing of that name.
    NotFound,
    /// It is done already, or something else is in its place.
    Conflict,
    /// It has given up; a person must look.
    Failed,
    /// Too many requests wait; later may help.
    Busy,
    /// The node cannot do it now.
    Unavailable,
}
