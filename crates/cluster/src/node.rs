use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::{mpsc, watch};

use crate::{
    ClusterStatus, Error, GenerateEvent, GenerateRequest, Invite, Joined, NodeConfig, NodeId,
    Result, ServeRequest,
};

/// One machine's part of the cluster. Clones are handles to the same node, which shuts down with
/// [`Node::shutdown`] or when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Node {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: NodeId,
    name: String,
    listen: SocketAddr,
    status: watch::Receiver<Arc<ClusterStatus>>,
}

impl Node {
    /// Loads or makes this machine's identity, listens, and looks for the remembered members.
    ///
    /// # Errors
    /// The data directory cannot be used, or the address cannot be listened on.
    pub async fn start(config: NodeConfig) -> Result<Self> {
        let id = NodeId([0; 32]);
        let status = ClusterStatus { node: id, nodes: vec![], instances: vec![], notices: vec![] };
        let (_, status) = watch::channel(Arc::new(status));
        let shared = Shared { id, name: config.name, listen: config.listen, status };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn id(&self) -> NodeId {
        self.shared.id
    }

    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Where it listens, with the port that the system chose.
    pub fn listen_addr(&self) -> SocketAddr {
        self.shared.listen
    }

    /// Everything that is known of the cluster now; from memory, at once.
    pub fn status(&self) -> ClusterStatus {
        self.shared.status.borrow().as_ref().clone()
    }

    /// The status whenever it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<ClusterStatus>> {
        self.shared.status.clone()
    }

    /// Makes a one-time code with which one machine can join until `ttl` has passed.
    ///
    /// # Errors
    /// The node has been shut down.
    pub async fn invite(&self, _ttl: Duration) -> Result<Invite> {
        Err(Error::ShutDown)
    }

    /// Joins the cluster of the node that made `code`.
    ///
    /// # Errors
    /// The code is not one, the node does not answer, or it refuses.
    pub async fn join(&self, _code: &str) -> Result<Joined> {
        Err(Error::ShutDown)
    }

    /// Places a model and starts its workers; returns the instance's id while it is loading.
    ///
    /// # Errors
    /// The model is unknown or unreadable, is served already, or fits on no set of nodes.
    pub async fn serve(&self, _request: ServeRequest) -> Result<String> {
        Err(Error::ShutDown)
    }

    /// Waits until an instance takes requests.
    ///
    /// # Errors
    /// It failed or was stopped.
    pub async fn wait_ready(&self, _instance: &str) -> Result<()> {
        Err(Error::ShutDown)
    }

    /// Stops an instance, given its id or its model's name.
    ///
    /// # Errors
    /// No such instance is served.
    pub async fn stop(&self, _name: &str) -> Result<()> {
        Err(Error::ShutDown)
    }

    /// Asks an instance, given its id or its model's name, for tokens.
    ///
    /// # Errors
    /// It is not served, has failed, or too many requests wait for it.
    pub async fn generate(&self, _name: &str, _request: GenerateRequest) -> Result<GenerateStream> {
        Err(Error::ShutDown)
    }

    /// The model's metadata, for its tokenizer and template.
    ///
    /// # Errors
    /// It is not served, or by another node.
    pub async fn model_header(&self, _name: &str) -> Result<Arc<gguf::Directory>> {
        Err(Error::ShutDown)
    }

    /// Stops all workers and leaves the cluster's members to themselves; members and identity stay
    /// on disk.
    pub async fn shutdown(&self) {}
}

/// The events of one request, in order; ends after `Done` or `Failed`. Dropping it cancels the
/// request.
#[derive(Debug)]
pub struct GenerateStream {
    events: mpsc::UnboundedReceiver<GenerateEvent>,
}

impl GenerateStream {
    /// The next event; `None` after the last.
    pub async fn recv(&mut self) -> Option<GenerateEvent> {
        self.events.recv().await
    }
}

impl Stream for GenerateStream {
    type Item = GenerateEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<GenerateEvent>> {
        self.events.poll_recv(cx)
    }
}
