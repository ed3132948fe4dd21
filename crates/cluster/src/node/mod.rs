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

use crate::core::{Call, Core, Events};
use crate::desired::Document;
use crate::io::given;
use crate::io::identity::{self, Identity, open_data_dir, random};
use crate::io::kept::{KeptFile, Saver};
use crate::io::net::{Net, own_addresses};
use crate::io::{INPUTS_MAX, Kept, System, bind, listen, run};
use crate::members::{Members, clean_name};
use crate::node::about::can_run;
use crate::node::burn::Burner;
use crate::node::desk::Desk;
use crate::transfer::elsewhere::{self, Found};
use crate::transfer::lookup::{self, Asked};
use crate::transfer::pulls::Pulls;
use crate::{
    ClusterStatus, Error, GenerateEvent, GenerateRequest, Held, History, Identified, InstanceSpec,
    InstanceState, InstanceStatus, ModelAbout, NodeConfig, NodeId, NodeState, NodeStatus, Peer,
    PullStatus, Result, Versions,
};

/// Calls of this node's handles that wait for the driver.
const CALLS_MAX: usize = 256;
/// What a member has told before it answered arrives within a round trip or two.
const TELLING_MAX: Duration = Duration::from_secs(5);
/// How long a model's header is asked for: a node that takes an instance over has it within half.
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
    /// The data directory cannot be used, or the address cannot be listened on.
    pub async fn start(config: NodeConfig) -> Result<Self> {
        Self::start_as(config, Versions::CURRENT).await
    }

    /// The same for a node that says it speaks and computes in other versions, as its neighbours in
    /// a rolling update do.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_as(mut config: NodeConfig, versions: Versions) -> Result<Self> {
        if config.worker_command.is_empty() {
            return Err(Error::NoWorkerCommand);
        }
        config.name = clean_name(&config.name);
        let lock = open_data_dir(&config.data_dir)?;
        let members = KeptFile::<Members>::new(&config.data_dir, "members.json");
        let desired = KeptFile::<Document>::new(&config.data_dir, "desired.json");
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
            tokio::spawn(given::look_up(config.peers.clone(), system.inputs()));
        }
        let mut daemon = Core::new(config, me, told, publisher, Box::new(system));
        daemon.publish();
        let history = daemon.events();
        let listening = tokio::spawn(listening);
        tokio::spawn(async move {
            let asked = run(daemon, remembered, inbox, events).await;
            // It ends when the daemon has; errors would mean that it has ended otherwise.
            let _ = listening.await;
            kept.desired.close().await;
            kept.members.close().await;
            // Only now may another daemon use the directory and the port.
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

    /// Where it listens, with the port that the system chose.
    pub fn listen_addr(&self) -> SocketAddr {
        self.shared.listen
    }

    /// Where other nodes can call it now; empty if this machine has no network.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        own_addresses(self.shared.listen)
    }

    /// Everything that is known of the cluster now; from memory, at once.
    pub fn status(&self) -> ClusterStatus {
        let mut status = self.shared.status.borrow().as_ref().clone();
        // Those of this node as they are now; others tell of theirs each second.
        let own = status.nodes.iter_mut().find(|node| node.id == status.node);
        if let Some(own) = own {
            own.downloads = self.shared.pulls.list();
        }
        status
    }

    /// The status whenever it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<ClusterStatus>> {
        self.shared.status.clone()
    }

    /// What has happened, now and whenever there is more.
    pub fn events(&self) -> watch::Receiver<History> {
        self.shared.history.clone()
    }

    /// Places a model and starts its workers; returns the instance's id while it is loading. A
    /// model that only another node has is served by that node.
    ///
    /// # Errors
    /// No node has the model, it is unreadable, is served already, or fits on no set of nodes.
    pub async fn serve(&self, spec: InstanceSpec) -> Result<String> {
        let shared = &self.shared;
        let missing = match shared.desk.serve(spec.clone(), Asked::Here).await {
            Err(error @ Error::NotHere(_)) => error,
            outcome => return outcome,
        };
        let found = self.find_elsewhere(&spec.model).await?.ok_or(missing)?;
        let id = elsewhere::serve(shared.pulls.net(), &found, spec).await?;
        let mut watch = self.watch();
        let is_told = |status: &Arc<ClusterStatus>| status.instances.iter().any(|i| i.id == id);
        // Who asks for it next must find it here; the other node has told its members by now.
        let _ = tokio::time::timeout(TELLING_MAX, watch.wait_for(is_told)).await;
        Ok(id)
    }

    /// How a model would be placed now, how fast it would be, and why not otherwise.
    ///
    /// # Errors
    /// No node has the model, it is unreadable, or fits on no set of nodes.
    pub async fn plan(&self, spec: InstanceSpec) -> Result<placement::Plan> {
        let missing = match self.shared.desk.plan(spec.clone(), Asked::Here).await {
            Err(error @ Error::NotHere(_)) => error,
            outcome => return outcome,
        };
        let found = self.find_elsewhere(&spec.model).await?.ok_or(missing)?;
        elsewhere::plan(self.shared.pulls.net(), &found, spec).await
    }

    /// A model that is not on this node, on another one.
    async fn find_elsewhere(&self, model: &str) -> Result<Option<Found>> {
        let pulls = &self.shared.pulls;
        elsewhere::find(pulls.net(), pulls.neighbours(), model).await
    }

    /// Whether this very model, given by name or path, is served: by the content of its file, which
    /// is hashed if one of the same length is served.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub async fn identify(&self, model: &str) -> Result<Identified> {
        let instances = self.status().instances;
        let by_name = instances.iter().find(|one| one.model == model || one.id == model);
        if let Some(served) = by_name.filter(|_| !Path::new(model).is_file()) {
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

    /// What a model is, from its header, whichever node has it.
    ///
    /// # Errors
    /// No node has it, or its file cannot be read.
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
        let about = elsewhere::describe(self.shared.pulls.net(), &found, model).await?;
        Ok(ModelAbout { node: Some(found.holder.name), ..about })
    }

    /// Fetches a model to this node's disk, unless it is there; `model` is a name or a path. The
    /// receiver's last value is of a last stage. What nobody watches is left where it is.
    ///
    /// # Errors
    /// It is no name, or too many models are being fetched.
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
        Ok(elsewhere::pull(self.shared.pulls.clone(), inputs, found, model))
    }

    /// Whether a model, given by name or path, is on this node's disk.
    pub async fn has_model(&self, model: &str) -> bool {
        let (store, model) = (self.shared.store.clone(), model.to_owned());
        let look = tokio::task::spawn_blocking(move || lookup::is_here(&store, &model));
        look.await.unwrap_or(false)
    }

    /// The models on the nodes' disks, wherever they lie, this machine's first.
    pub async fn models(&self) -> Vec<Held> {
        let (store, pulls) = (self.shared.store.clone(), &self.shared.pulls);
        let here = tokio::task::spawn_blocking(move || store.list());
        let others = elsewhere::list(pulls.net(), pulls.neighbours());
        let (here, others) = tokio::join!(here, others);
        let here = here.unwrap_or_default().into_iter();
        let here = here.map(|listed| Held { listed, node: None });
        let others = others.into_iter().flat_map(|(node, listed)| {
            let of = move |listed| Held { listed, node: Some(node.clone()) };
            listed.into_iter().map(of)
        });
        here.chain(others).collect()
    }

    /// Deletes a model of this node's own folder; returns the bytes that this freed.
    ///
    /// # Errors
    /// It is not there, is served, belongs to another program, or cannot be deleted.
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

    /// The memory that is free on the nodes that live, for a choice of size.
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

    /// Waits until an instance, given by its id or its model's name, takes requests: one that is
    /// unloaded does.
    ///
    /// # Errors
    /// It failed or was stopped.
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

    /// Stops an instance, given its id or its model's name.
    ///
    /// # Errors
    /// No such instance is served.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.call(|reply| Call::Stop { name, reply }).await
    }

    /// Asks an instance, given its id or its model's name, for tokens. While it loads or recovers
    /// the request waits.
    ///
    /// # Errors
    /// It is not served, has failed, or too many requests wait for it.
    pub async fn generate(&self, name: &str, request: GenerateRequest) -> Result<GenerateStream> {
        let name = name.to_owned();
        let request = Box::new(request);
        let events = self.call(|reply| Call::Generate { name, request, reply }).await?;
        Ok(GenerateStream { events })
    }

    /// The model's metadata, for its tokenizer and template: from this node's own file if it has
    /// it, else from the owner. Waits a while for an owner that is gone or has just started.
    ///
    /// # Errors
    /// It is not served, or nobody who has it can be reached.
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

    /// Ends all instances and workers of this node and leaves the others to themselves. Identity
    /// and members stay on disk.
    pub async fn shutdown(&self) {
        let (reply, done) = oneshot::channel();
        // An error means that it has been shut down already.
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
