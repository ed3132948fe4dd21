pub(crate) mod about;
pub(crate) mod burn;
pub(crate) mod desk;
pub(crate) mod leave;
mod members;

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::Stream;
use hub::Room;
use store::Store;
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
use crate::io::{INPUTS_MAX, Kept, System, bind, listen, run};
use crate::members::{Members, clean_name};
use crate::node::about::can_run;
use crate::node::burn::Burner;
use crate::node::desk::Desk;
use crate::transfer::lookup::{self, Asked};
use crate::transfer::pulls::Pulls;
use crate::transfer::remote::{self, RemoteModel};
use crate::{
    ClusterStatus, Error, GenerateEvent, GenerateRequest, Held, History, Identified, InstanceSpec,
    InstanceState, InstanceStatus, ModelAbout, NodeConfig, NodeId, NodeState, NodeStatus, Peer,
    PullStatus, Result, Versions,
};

/// Capacity of the queue of calls to the driver.
const CALLS_MAX: usize = 256;
/// Messages that a member sent before its answer arrive within a round trip or two.
const TELLING_MAX: Duration = Duration::from_secs(5);
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
        Self::start_as(config, Versions::CURRENT).await
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
        let judge = move |header: &gguf::Directory| can_run(header, check_text).map(drop);
        let store = Arc::new(store.judging(judge));

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
        let (cluster, settings) = (status.clone(), config.hub.clone());
        let pulls = Pulls::new(settings, store.clone(), net.clone(), cluster, check_text);
        let saver = Arc::new(Saver::new(members, remembered.clone()));
        let kept = Kept {
            members: saver.clone(),
            desired: Arc::new(Saver::new(desired, document.clone())),
        };
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
        let shared =
            Shared { id, name, listen: address, store, pulls, desk, calls, status, history };
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

    /// Places a model and starts its workers; returns the instance's id while it is loading. If
    /// only another node has the model, that node serves it.
    ///
    /// # Errors
    /// The model is missing, unreadable, or served already, or no set of nodes has room.
    pub async fn serve(&self, spec: InstanceSpec) -> Result<String> {
        let shared = &self.shared;
        let missing = match shared.desk.serve(spec.clone(), Asked::Here).await {
            Err(error @ Error::NotHere(_)) => error,
            outcome => return outcome,
        };
        let found = self.find_elsewhere(&spec.model).await?.ok_or(missing)?;
        let id = remote::serve(shared.pulls.net(), &found, spec).await?;
        let mut watch = self.watch();
        let is_told = |status: &Arc<ClusterStatus>| status.instances.iter().any(|i| i.id == id);
        // The next request for the model must find it here. The other node has already sent the
        // change to its members.
        let _ = tokio::time::timeout(TELLING_MAX, watch.wait_for(is_told)).await;
        Ok(id)
    }

    /// The plan for a model: its placement, its speed, and the reasons against other plans.
    ///
    /// # Errors
    /// No node has the model, it is unreadable, or no set of nodes has room.
    pub async fn plan(&self, spec: InstanceSpec) -> Result<placement::Plan> {
        let missing = match self.shared.desk.plan(spec.clone(), Asked::Here).await {
            Err(error @ Error::NotHere(_)) => error,
            outcome => return outcome,
        };
        let found = self.find_elsewhere(&spec.model).await?.ok_or(missing)?;
        remote::plan(self.shared.pulls.net(), &found, spec).await
    }

    /// Finds a model on other nodes.
    async fn find_elsewhere(&self, model: &str) -> Result<Option<RemoteModel>> {
        let pulls = &self.shared.pulls;
        remote::find(pulls.net(), pulls.neighbours(), model).await
    }

    /// Whether this model, given by name or path, is served. Compares the content of files: the
    /// model is hashed if a served one has the same length.
    ///
    /// # Errors
    /// The file is unreadable.
    pub async fn identify(&self, model: &str) -> Result<Identified> {
        let instances = self.status().instances;
        let by_name = instances.iter().find(|one| one.model == model || one.id == model);
        if let Some(served) = by_name.filter(|_| !Path::new(model).exists()) {
            let served_as = Some(served.model.clone());
            return Ok(Identified { served_as: served_as.clone(), name: served_as });
        }
        let (store, asked) = (self.shared.store.clone(), model.to_owned());
        let lens: Vec<u64> = instances.iter().map(|one| one.model_bytes).collect();
        let look = tokio::task::spawn_blocking(move || lookup::identify(&store, &asked, &lens));
        let (name, digest) = match look.await.map_err(|_| Error::ShutDown)? {
            Err(Error::NotHere(_)) => match self.find_elsewhere(model).await? {
                Some(found) => (found.listed.model.name, found.listed.digest),
                None => return Ok(Identified::default()),
            },
            identified => identified?,
        };
        let same = instances.iter().find(|one| digest.is_some() && one.digest == digest);
        Ok(Identified { served_as: same.map(|one| one.model.clone()), name: Some(name) })
    }

    /// The description of a model from its header, on any node.
    ///
    /// # Errors
    /// No node has the model, or its file is unreadable.
    pub async fn describe(&self, model: &str) -> Result<ModelAbout> {
        let (store, asked) = (self.shared.store.clone(), model.to_owned());
        let (room, check) = (self.shared.desk.room_bytes(), self.shared.desk.check_text);
        let read = tokio::task::spawn_blocking(move || {
            let (_, path) = lookup::locate(&store, &asked).map_err(lookup::refuse)?;
            let read = ModelAbout::read(&asked, &path, room, check);
            read.map_err(|error| Error::Unusable(error.to_string()))
        });
        let missing = match read.await.map_err(|_| Error::ShutDown)? {
            Err(error @ Error::NotHere(_)) => error,
            read => return read,
        };
        let found = self.find_elsewhere(model).await?.ok_or(missing)?;
        let about = remote::describe(self.shared.pulls.net(), &found, model).await?;
        Ok(ModelAbout { node: Some(found.holder.name), ..about })
    }

    /// Fetches a model, given by name or path, to this node's disk unless it is there. The
    /// receiver's last value has a final stage. Dropping all receivers ends the download; its data
    /// stays.
    ///
    /// # Errors
    /// The name is invalid, or too many models are being fetched.
    pub async fn pull(&self, model: &str, update: bool) -> Result<watch::Receiver<PullStatus>> {
        let (pulls, room, model) = (self.shared.pulls.clone(), self.room(), model.to_owned());
        let asked = model.clone();
        let start = tokio::task::spawn_blocking(move || pulls.start(&asked, Some(room), update));
        let missing = match start.await.map_err(|_| Error::ShutDown)? {
            Err(error @ Error::NotHere(_)) => error,
            outcome => return outcome,
        };
        let found = self.find_elsewhere(&model).await?.ok_or(missing)?;
        let inputs = self.shared.desk.inputs.upgrade().ok_or(Error::ShutDown)?;
        Ok(remote::pull(self.shared.pulls.clone(), inputs, found, model))
    }

    /// Whether a model, given by name or path, is on this node's disk.
    pub async fn has_model(&self, model: &str) -> bool {
        let (store, model) = (self.shared.store.clone(), model.to_owned());
        let look = tokio::task::spawn_blocking(move || lookup::is_here(&store, &model));
        look.await.unwrap_or(false)
    }

    /// The models on all nodes' disks, this machine's first.
    pub async fn models(&self) -> Vec<Held> {
        let (store, pulls) = (self.shared.store.clone(), &self.shared.pulls);
        let here = tokio::task::spawn_blocking(move || store.list());
        let others = remote::list(pulls.net(), pulls.neighbours());
        let (here, others) = tokio::join!(here, others);
        let here = here.unwrap_or_default().into_iter();
        let here = here.map(|listed| Held { listed, node: None });
        let others = others.into_iter().flat_map(|(node, listed)| {
            let of = move |listed| Held { listed, node: Some(node.clone()) };
            listed.into_iter().map(of)
        });
        here.chain(others).collect()
    }

    /// Deletes a model from this node's model folder; returns the bytes freed.
    ///
    /// # Errors
    /// The model is missing, served, another program's, or cannot be deleted.
    pub async fn remove_model(&self, model: &str) -> Result<u64> {
        let (store, asked) = (self.shared.store.clone(), model.to_owned());
        let look =
            move || lookup::locate(&store, &asked).ok().and_then(|(_, at)| store.known_digest(&at));
        let digest = tokio::task::spawn_blocking(look).await.map_err(|_| Error::ShutDown)?;
        let instances = self.status().instances;
        let is_it = |one: &InstanceStatus| match digest {
            Some(_) => one.digest == digest,
            None => one.model == model || one.id == model,
        };
        if let Some(served) = instances.iter().find(|one| is_it(one)) {
            let name = &served.model;
            let text = format!("{name} is served. Stop it first: sinew stop {name}");
            return Err(Error::Unusable(text));
        }
        let (store, model) = (self.shared.store.clone(), model.to_owned());
        let remove = {
            let model = model.clone();
            tokio::task::spawn_blocking(move || lookup::remove(&store, &model))
        };
        match remove.await.map_err(|_| Error::ShutDown)? {
            Err(Error::NotHere(why)) => match self.find_elsewhere(&model).await {
                Ok(Some(found)) => Err(Error::NotHere(format!(
                    "{model} is on node {0}, not here. Type on {0}: sinew rm {model}",
                    found.holder.name
                ))),
                _ => Err(Error::NotHere(why)),
            },
            outcome => outcome,
        }
    }

    /// The free memory of the live nodes, for the choice of a model's size.
    fn room(&self) -> Room {
        let nodes = self.status().nodes;
        let live: Vec<_> = nodes.iter().filter(|node| node.state == NodeState::Live).collect();
        let free = |node: &&NodeStatus| node.memory_bytes.saturating_sub(node.memory_used_bytes);
        let whose = match live.len() {
            0 | 1 => "this machine has".to_owned(),
            count => format!("the {count} nodes have"),
        };
        Room { bytes: live.iter().map(free).fold(0, u64::saturating_add), whose }
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
