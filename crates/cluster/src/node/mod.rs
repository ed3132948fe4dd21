mod calls;
pub(crate) mod leave;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::Stream;
use store::Store;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::info;

use crate::context::Events;
use crate::core::{Call, Core};
use crate::desired::Document;
use crate::io::history::HistoryFile;
use crate::io::identity::{self, Identity, open_data_dir, random};
use crate::io::kept::{KeptFile, Saver};
use crate::io::net::{Net, own_addresses};
use crate::io::peer_names;
use crate::io::prompts::KeptPrompts;
use crate::io::{INPUTS_MAX, Kept, System, bind, listen, run};
use crate::members::{Members, clean_name};
use crate::transfer::about::can_run;
use crate::transfer::burn::Burner;
use crate::transfer::desk::Desk;
use crate::transfer::preview::Previews;
use crate::transfer::pulls::Pulls;
use crate::transfer::visits::{self, ByteStream, Visits};
use crate::{
    ClusterStatus, Error, GenerateEvent, GenerateRequest, History, InstanceState, NodeConfig,
    NodeId, Peer, Result, Versions, find_node,
};

/// Capacity of the queue of calls to the driver.
const CALLS_MAX: usize = 256;
/// How long a model's header is retried: a node that takes over an instance has it within half of
/// this.
const HEADER_PATIENCE: Duration = Duration::from_secs(8);
const HEADER_RETRY: Duration = Duration::from_millis(200);

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
    store: Arc<Store>,
    desk: Desk,
    pulls: Arc<Pulls>,
    previews: Arc<Previews>,
    calls: mpsc::Sender<Call>,
    status: watch::Receiver<Arc<ClusterStatus>>,
    history: watch::Receiver<History>,
}

impl Node {
    /// Loads or makes this machine's identity, listens, and looks for the remembered members.
    ///
    /// # Errors
    /// The data directory is unusable, or the address cannot be bound.
    pub async fn start(config: NodeConfig) -> Result<Self> {
        let node = Self::start_as(config, Versions::CURRENT).await?;
        let shared = Arc::downgrade(&node.shared);
        node.shared.pulls.unfinished().resume(move |model| {
            let node = shared.upgrade().map(|shared| Self { shared });
            async move { Some(node?.pull(&model, false).await) }
        });
        Ok(node)
    }

    /// Starts a node that announces other versions, like a neighbour in a rolling update.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub async fn start_as(mut config: NodeConfig, versions: Versions) -> Result<Self> {
        if config.worker_command.is_empty() {
            return Err(Error::NoWorkerCommand);
        }
        config.name = clean_name(&config.name);
        let lock = open_data_dir(&config.data_dir)?;
        let members = KeptFile::<Members>::new(&config.data_dir, "members.json");
        let desired = KeptFile::<Document>::new(&config.data_dir, "desired.json");
        let events_file = HistoryFile::new(&config.data_dir);
        members.sweep();
        desired.sweep();
        let full = members.check_start(identity::is_in(&config.data_dir))?;
        let identity = Identity::load_or_create(&config.data_dir)?;
        let (remembered, members_told) = members.load()?;
        let remembered = remembered.sanitized();
        let (document, told) = desired.load_or_begin()?;
        let told: Vec<String> = full.into_iter().chain(members_told).chain(told).collect();
        let store = Store::open_with(&config.data_dir, config.places.clone());
        let (store, check_text) =
            (store.map_err(|error| Error::Unusable(error.to_string()))?, config.check_text);
        let store = Arc::new(store.judging(move |header| can_run(header, check_text).map(drop)));

        let address = config.listen;
        let fail = |source| Error::Listen { address, source };
        let listener = bind(address).await.map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        config.listen = address;
        let boot = u64::from_le_bytes(random());
        let net =
            Arc::new(Net::new(identity, config.name.clone(), boot, address).speaking(versions));
        let (id, name) = (net.id(), config.name.clone());
        info!(node = %id, name, %address, members = remembered.members.len(), "node starts");

        let (publisher, status) = watch::channel(Arc::new(ClusterStatus::empty(id)));
        let (calls, inbox) = mpsc::channel(CALLS_MAX);
        let hub = config.hub.clone();
        let pulls = Pulls::new(&config, store.clone(), net.clone(), status.clone())?;
        let saver = Arc::new(Saver::new(members, remembered.clone()));
        let desired = Arc::new(Saver::new(desired, document.clone()));
        let kept = Kept { members: saver.clone(), desired };
        let (inputs, events) = mpsc::channel(INPUTS_MAX);
        let system = System::new(config.clone(), net.clone(), pulls.clone(), &kept, inputs.clone());
        let desk = Desk {
            id,
            store: store.clone(),
            desired: kept.desired.clone(),
            calls: calls.downgrade(),
            inputs: inputs.downgrade(),
            status: status.clone(),
            burner: Burner::new(&config.worker_command),
            prompts: KeptPrompts::new(&config.prompts, net.prompts_key()),
            visits: Visits::new(),
            check_text: config.check_text,
        };
        let (admission, closing) = (system.admission(), system.closing());
        let listening =
            listen(listener, net, saver, inputs, admission, (pulls.clone(), desk.clone()), closing);
        let (me, told) = ((id, boot, address), (document, told));
        if config.peers.iter().any(|peer| matches!(peer, Peer::Name { .. })) {
            tokio::spawn(peer_names::look_up(config.peers.clone(), system.inputs()));
        }
        let mut daemon = Core::new(config, me, told, publisher, Box::new(system));
        daemon.recall(events_file.load());
        daemon.publish();
        let history = daemon.events();
        let keeper = tokio::spawn(events_file.follow(history.clone()));
        let listening = tokio::spawn(listening);
        tokio::spawn(async move {
            let asked = run(daemon, remembered, inbox, events).await;
            // The listener ends with the daemon; an error would mean another end.
            let _ = listening.await;
            kept.desired.close().await;
            kept.members.close().await;
            // It has ended with the daemon.
            let _ = keeper.await;
            // From here on another daemon may use the directory and the port.
            drop(lock);
            if let Some(reply) = asked {
                // The caller may have stopped waiting.
                let _ = reply.send(());
            }
        });
        let previews = Arc::new(Previews::new(hub));
        let shared = Shared {
            id,
            name,
            listen: address,
            store,
            pulls,
            previews,
            desk,
            calls,
            status,
            history,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn id(&self) -> NodeId {
        self.shared.id
    }

    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The listen address, with the port that the system chose.
    pub fn listen_addr(&self) -> SocketAddr {
        self.shared.listen
    }

    /// Addresses at which other nodes can call this node now; empty without a network.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        own_addresses(self.shared.listen)
    }

    /// The present state of the cluster, from memory.
    pub fn status(&self) -> ClusterStatus {
        let mut status = self.shared.status.borrow().as_ref().clone();
        // This node's downloads as of now; other nodes report theirs each second.
        let own = status.nodes.iter_mut().find(|node| node.id == status.node);
        if let Some(own) = own {
            own.downloads = self.shared.pulls.list();
        }
        status
    }

    /// The status, updated whenever it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<ClusterStatus>> {
        self.shared.status.clone()
    }

    /// The events so far, updated with each new one.
    pub fn events(&self) -> watch::Receiver<History> {
        self.shared.history.clone()
    }

    /// Waits until an instance, given by its id or its model's name, takes requests. An unloaded
    /// instance takes them too.
    ///
    /// # Errors
    /// The instance has failed or was stopped.
    pub async fn wait_ready(&self, name: &str) -> Result<()> {
        let mut watch = self.watch();
        loop {
            let found = {
                let status = watch.borrow_and_update();
                let mut instances = status.instances.iter();
                let found = instances.find(|known| known.id == name || known.model == name);
                found.map(|instance| (instance.model.clone(), instance.state.clone()))
            };
            match found {
                Some((_, InstanceState::Ready | InstanceState::Unloaded)) => return Ok(()),
                Some((model, InstanceState::Failed { reason })) => {
                    return Err(Error::Failed { model, reason });
                }
                Some((_, InstanceState::Loading | InstanceState::Recovering { .. })) => {}
                None => {
                    let known = "it was stopped, or never served".to_owned();
                    return Err(Error::NotServed { name: name.to_owned(), known });
                }
            }
            watch.changed().await.map_err(|_| Error::ShutDown)?;
        }
    }

    /// Stops an instance, given by its id or its model's name.
    ///
    /// # Errors
    /// No such instance is served.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.call(|reply| Call::Stop { name, reply }).await
    }

    /// Sends a request to an instance, given by its id or its model's name. The request waits while
    /// the instance loads or recovers.
    ///
    /// # Errors
    /// The instance is missing or has failed, or too many requests wait for it.
    pub async fn generate(&self, name: &str, request: GenerateRequest) -> Result<GenerateStream> {
        let name = name.to_owned();
        let request = Box::new(request);
        let events = self.call(|reply| Call::Generate { name, request, reply }).await?;
        Ok(GenerateStream { events })
    }

    /// The model's metadata, for its tokenizer and template: from this node's own file if there is
    /// one, else from the owner. Retries for a while if the owner is lost or has just started.
    ///
    /// # Errors
    /// The model is not served, or no holder is reachable.
    pub async fn model_header(&self, name: &str) -> Result<Arc<gguf::Directory>> {
        let deadline = Instant::now() + HEADER_PATIENCE;
        loop {
            let name = name.to_owned();
            match self.call(|reply| Call::Header { name, reply }).await {
                Err(Error::Header { .. } | Error::Away { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(HEADER_RETRY).await;
                }
                answer => return answer,
            }
        }
    }

    /// Other members' connections to this node's HTTP API, for whoever serves it; `None` after the
    /// first call. Each carries one request, and its sender counts as a stranger.
    pub fn visits(&self) -> Option<mpsc::Receiver<DuplexStream>> {
        self.shared.desk.visits.take()
    }

    /// Opens a way to the HTTP API of a member, given by its name or the first digits of its id,
    /// for one request.
    ///
    /// # Errors
    /// No member matches, it is this node, or it is not connected.
    pub async fn visit(&self, name: &str) -> Result<Box<dyn ByteStream>> {
        let status = self.status();
        let id = find(&status, name)?;
        let node = status.nodes.iter().find(|node| node.id == id);
        let node = node.map_or_else(|| name.to_owned(), |node| node.name.clone());
        let away = |why: String| Error::MemberAway { node: node.clone(), why };
        if id == self.id() {
            return Err(Error::Unusable(format!(
                "{node} is this node: ask it without a way there"
            )));
        }
        let neighbours = self.shared.pulls.neighbours();
        let member = neighbours.into_iter().find(|other| other.id == id);
        let member = member.ok_or_else(|| away("it is not connected".to_owned()))?;
        let opened = visits::visit(self.shared.pulls.net(), &member).await;
        opened.map_err(|error| away(error.to_string()))
    }

    /// Ends this node's instances and workers; other nodes go on. Identity and members stay on
    /// disk.
    pub async fn shutdown(&self) {
        let (reply, done) = oneshot::channel();
        // An error means that the node is already shut down.
        if self.shared.calls.send(Call::Shutdown { reply }).await.is_ok() {
            let _ = done.await;
        }
    }

    pub(crate) async fn call<T>(
        &self,
        call: impl FnOnce(oneshot::Sender<Result<T>>) -> Call,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.shared.calls.send(call(reply)).await.map_err(|_| Error::ShutDown)?;
        answer.await.map_err(|_| Error::ShutDown)?
    }
}

/// The events of one request, in order; ends after `Done` or `Failed`. Dropping it cancels the
/// request.
#[derive(Debug)]
pub struct GenerateStream {
    events: Events,
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

/// # Errors
/// No node or several nodes match.
fn find(status: &ClusterStatus, name: &str) -> Result<NodeId> {
    let nodes = status.nodes.iter().map(|node| (node.id, node.name.as_str()));
    Ok(find_node(name, nodes)?)
}
