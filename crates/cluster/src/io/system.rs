//! The `Outside` of a real daemon: sockets, processes and files. Each runs in its own task, which
//! reports to the driver.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gguf::{Directory, Source};
use protocol::WorkerCommand;
use store::{Digest, ModelFile, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::join;
use super::lobby::{Line, Lobby};
use super::processes::{Processes, run_worker};
use super::slabs;
use crate::context::ServedFile;
use crate::context::sources::Sources;
use crate::context::{
    Announcement, Attempt, Done, HeaderOf, Outside, Prepared, ProcessId, Reply, Start,
};
use crate::core::Event;
use crate::desired::{Document, Service, Signer};
use crate::edge::{Depth, Measurement};
use crate::io::announcer::Announcer;
use crate::io::kept::Saver;
use crate::io::machine::{self, Thermometer};
use crate::io::net::{DialError, Net};
use crate::io::on_thread::on_thread;
use crate::io::tls::Pin as Key;
use crate::io::{probe, prompts};
use crate::members::Members;
use crate::membership::ConnId;
use crate::secrets::code::JoinCode;
use crate::transfer::prepare;
use crate::transfer::pulls::Pulls;
use crate::transfer::swarm::Swarm;
use crate::wire::{Message, Purpose, Verdict, Versions};
use crate::{
    CheckText, Error, FleetKey, GenerateEvent, InstanceSpec, Joined, LINK_ADDRESSES_MAX,
    NodeConfig, NodeId, PromptsLimit, PullStatus,
};

/// A header has a few megabytes; a slow network needs seconds for them.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// The state of a node on its disk.
pub(crate) struct Kept {
    pub members: Arc<Saver<Members>>,
    pub desired: Arc<Saver<Document>>,
}

/// The state that the listener needs to admit connections.
pub(crate) type Admitting =
    (Arc<Lobby>, watch::Receiver<BTreeSet<NodeId>>, Option<FleetKey>, Processes);

pub(crate) struct System {
    config: NodeConfig,
    net: Arc<Net>,
    store: Arc<Store>,
    pulls: Arc<Pulls>,
    members: Arc<Saver<Members>>,
    desired: Arc<Saver<Document>>,
    started: Instant,
    inputs: mpsc::Sender<Event>,
    /// Connections that await the daemon's decision.
    lobby: Arc<Lobby>,
    lines: HashMap<ConnId, Line>,
    processes: Processes,
    announcer: Option<Announcer>,
    /// All members, for the tasks that serve them.
    belonging: watch::Sender<BTreeSet<NodeId>>,
    thermometer: Arc<Mutex<Thermometer>>,
    /// Never changes; dropping it ends the tasks.
    closing: watch::Sender<()>,
}

impl System {
    pub(crate) fn new(
        config: NodeConfig,
        net: Arc<Net>,
        pulls: Arc<Pulls>,
        kept: &Kept,
        inputs: mpsc::Sender<Event>,
    ) -> Self {
        if config.prompts.limit == PromptsLimit::Off
            && let Err(why) = prompts::remove(&config.prompts)
        {
            warn!(folder = %config.prompts.folder.display(), %why, "prompts stay on disk");
        }
        // No worker runs yet.
        kept.desired.look(|document| {
            slabs::sweep(&slabs::folder(&config), |model| {
                let mut served = document.entries.iter().filter_map(|entry| entry.wanted.as_ref());
                served.any(|wanted| wanted.digest.to_string() == model)
            });
        });
        let announces = config.announce.then(|| Announcer::start(net.listen(), inputs.clone()));
        Self {
            announcer: announces.flatten(),
            config,
            net,
            store: pulls.store(),
            pulls,
            members: kept.members.clone(),
            desired: kept.desired.clone(),
            started: Instant::now(),
            inputs,
            lobby: Arc::default(),
            lines: HashMap::new(),
            processes: Processes::default(),
            belonging: watch::channel(BTreeSet::new()).0,
            thermometer: Arc::new(Mutex::new(Thermometer::new())),
            closing: watch::channel(()).0,
        }
    }

    /// The lobby, the members, the fleet key, and the workers, which other ranks call.
    pub(crate) fn admission(&self) -> Admitting {
        let fleet_key = self.config.fleet_key.clone();
        (self.lobby.clone(), self.belonging.subscribe(), fleet_key, self.processes.clone())
    }

    /// The sender of events to the driver.
    pub(crate) fn inputs(&self) -> mpsc::Sender<Event> {
        self.inputs.clone()
    }

    /// Closes when the daemon ends.
    pub(crate) fn closing(&self) -> watch::Receiver<()> {
        self.closing.subscribe()
    }

    /// Runs a task that ends with the daemon.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(Box::pin(task));
    }

    /// Boxed, so that it is compiled once and not for each type of task.
    fn spawn_boxed(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let mut closing = self.closing.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = task => {}
                _ = closing.changed() => {}
            }
        });
    }

    /// Runs a task that ends with the daemon, and sends the event that it returns.
    fn report(&self, task: impl Future<Output = Option<Event>> + Send + 'static) {
        let inputs = self.inputs.clone();
        self.spawn(async move {
            if let Some(event) = task.await {
                // Sending fails only if the whole node has ended.
                let _ = inputs.send(event).await;
            }
        });
    }
}

impl Outside for System {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn downloads(&self) -> Vec<PullStatus> {
        self.pulls.list()
    }

    fn random(&mut self) -> [u8; 32] {
        crate::io::identity::random()
    }

    fn signer(&self) -> Signer {
        let net = self.net.clone();
        Signer::new(move |bytes| net.sign(bytes))
    }

    fn versions(&self) -> Versions {
        self.net.versions()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.net.addresses()
    }

    fn dial(&mut self, peer: NodeId, addresses: Vec<SocketAddr>) {
        let (net, lobby) = (self.net.clone(), self.lobby.clone());
        self.report(async move {
            Some(match net.dial(addresses, Key::Node(peer), Purpose::Control).await {
                Ok(connection) => Event::Connected(lobby.enter(connection, true)),
                Err(error) => Event::DialFailed { peer, error },
            })
        });
    }

    fn keep(&mut self, conn: ConnId) {
        let Some((connection, dialed)) = self.lobby.leave(conn) else { return };
        let welcome = (!dialed).then(|| self.net.about());
        let (line, carrying) = Line::new(conn, connection, welcome, self.inputs.clone());
        self.lines.insert(conn, line);
        self.spawn(carrying);
    }

    fn refuse(&mut self, conn: ConnId, reason: String, verdict: Option<Verdict>) {
        if let Some((mut connection, false)) = self.lobby.leave(conn) {
            self.spawn(async move { connection.refuse_with(reason, verdict).await });
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.lobby.leave(conn);
        if let Some(line) = self.lines.remove(&conn) {
            self.spawn(line.finish());
        }
    }

    fn send(&mut self, conn: ConnId, message: Message) {
        let Some(line) = self.lines.get(&conn) else { return };
        if !line.send(message) {
            self.lines.remove(&conn);
            let reason = "it does not take its messages".to_owned();
            self.report(async move { Some(Event::Closed { conn, reason }) });
        }
    }

    fn announce(&mut self, announcement: Announcement) {
        if let Some(announcer) = &mut self.announcer {
            announcer.announce(announcement);
        }
    }

    fn unite(&mut self, peer: Option<NodeId>, addresses: Vec<SocketAddr>, members: Members) {
        if let Some(key) = self.config.fleet_key.clone() {
            self.report(join::fleet::unite(self.net.clone(), key, peer, addresses, members));
        }
    }

    fn pair(&mut self, attempt: Attempt) {
        let (net, saver) = (self.net.clone(), self.members.clone());
        self.report(join::number::ask(net, saver, self.inputs.clone(), attempt));
    }

    fn keep_members(&mut self, members: Members) {
        let ids = members.members.iter().map(|member| member.id).collect();
        self.belonging.send_replace(ids);
        self.members.set(members);
        self.spawn(self.members.clone().save());
    }

    fn when_members_kept(&mut self, done: Done) {
        let saver = self.members.clone();
        self.spawn(async move { done(saver.try_save().await) });
    }

    fn keep_desired(&mut self, document: Document) {
        self.desired.set(document);
        self.spawn(self.desired.clone().save());
    }

    fn when_desired_kept(&mut self, done: Done) {
        let saver = self.desired.clone();
        self.spawn(async move { done(saver.try_save().await) });
    }

    fn locate(&mut self, digest: Digest, wanted: Service) {
        let store = self.store.clone();
        self.report(async move {
            let look = on_thread(move || locate(&store, &wanted));
            // A thread that panicked has found nothing.
            let path = look.await.ok().flatten().map(|found| found.path);
            Some(Event::Located { digest, path })
        });
    }

    fn open(&mut self, wanted: Service) {
        let (store, id) = (self.store.clone(), wanted.id.clone());
        let check = self.config.check_text;
        self.report(async move {
            let open = on_thread(move || open(&store, &wanted, check));
            let opened = open.await.unwrap_or_else(|error| Err(error.to_string()));
            Some(Event::Opened { id, opened: opened.map(Box::new) })
        });
    }

    fn copy(&mut self, wanted: Service, from: Sources) {
        let swarm = Swarm::new(self.net.clone(), from, self.inputs.clone());
        let (pulls, digest) = (self.pulls.clone(), wanted.digest);
        let desired = self.desired.clone();
        let is_wanted = move || {
            desired.look(|document| document.entries.iter().any(|entry| entry.wants(&digest)))
        };
        let is_optional = wanted.spec.copies_if_room;
        let room = if is_optional { hub::DiskRoom::Ample } else { hub::DiskRoom::Enough };
        self.report(async move {
            let (name, job) = pulls.begin_copy(&wanted.spec.model);
            let copied = pulls.copy((&name, &job), &swarm, room, is_wanted).await;
            Some(Event::Copied { digest, copied })
        });
    }

    fn start_worker(&mut self, start: Start) {
        let (config, pulls) = (self.config.clone(), self.pulls.clone());
        let (processes, inputs) = (self.processes.clone(), self.inputs.clone());
        // Not `spawn`: the task of a worker must run until the worker's end.
        tokio::spawn(run_worker(start, config, pulls, processes, inputs));
    }

    fn command(&mut self, process: ProcessId, mut command: WorkerCommand) {
        if let WorkerCommand::Connect { endpoints, segments, .. } = &mut command {
            for addresses in endpoints.iter_mut() {
                *addresses = self.net.reach(std::mem::take(addresses));
                addresses.truncate(LINK_ADDRESSES_MAX + 1);
            }
            let limit = |at: &SocketAddr| Some((at.ip(), self.net.segments.of(at.ip())?));
            *segments = endpoints.iter().flatten().filter_map(limit).collect();
        }
        self.processes.send(process, command);
    }

    fn end_worker(&mut self, process: ProcessId, at_once: bool) {
        self.processes.end(process, at_once);
    }

    fn watch_client(&mut self, stream: u64, events: mpsc::UnboundedSender<GenerateEvent>) {
        self.report(async move {
            events.closed().await;
            Some(Event::Abandoned { stream })
        });
    }

    fn ask_to_join(&mut self, code: JoinCode, reply: Reply<Joined>) {
        let (net, saver) = (self.net.clone(), self.members.clone());
        self.report(async move {
            // A node that cannot save its membership must not join, nor use up the code.
            if let Err(error) = saver.check_room().await {
                let _ = reply.send(Err(error));
                return None;
            }
            match join::code::ask(&net, code).await {
                Ok((by, members, connection)) => {
                    let (kept, is_kept) = oneshot::channel();
                    tokio::spawn(join::code::confirm(connection, is_kept));
                    Some(Event::JoinDone { kept, by, members, reply })
                }
                Err(error) => {
                    // The caller may have stopped waiting.
                    let _ = reply.send(Err(error));
                    None
                }
            }
        });
    }

    fn read_header(&mut self, path: PathBuf, of: HeaderOf, reply: Reply<Arc<Directory>>) {
        self.spawn(async move {
            let open = on_thread(move || ServedFile::open(&path)).await;
            let opened = open.map_err(|error| error.to_string());
            let opened = opened.and_then(|file| file.map_err(|error| error.to_string()));
            let HeaderOf { model, owner } = of;
            let failed = |why| Error::Header { model, owner, why };
            let _ = reply.send(opened.map(|file| file.directory().clone()).map_err(failed));
        });
    }

    fn fetch_header(&mut self, from: Sources, of: HeaderOf, reply: Reply<Arc<Directory>>) {
        let swarm = Swarm::new(self.net.clone(), from, self.inputs.clone());
        self.spawn(async move {
            let fetched = timeout(HEADER_TIMEOUT, swarm.open()).await;
            let fetched = fetched.unwrap_or_else(|elapsed| Err(elapsed.into()));
            let HeaderOf { model, owner } = of;
            let failed =
                |error: std::io::Error| Error::Header { model, owner, why: error.to_string() };
            let _ = reply.send(fetched.map(|file| file.directory().clone()).map_err(failed));
        });
    }

    fn measure_reading(&mut self) {
        let (threads, measure) = (self.config.threads, self.config.measure);
        let device = self.config.device.device.as_ref().map(|(worker, _)| worker.clone());
        let folder = self.config.data_dir.clone();
        self.report(async move {
            let measure = move || {
                let speed = measure(threads, device.as_ref())?;
                let is_cpu = device.is_none();
                let disk = is_cpu.then(|| records::measure_disk(&folder).ok()).flatten();
                Some(placement::Speed { disk_bytes_per_sec: disk, ..speed })
            };
            let measured = on_thread(measure).await;
            measured.ok().flatten().map(Event::ReadSpeed)
        });
    }

    fn measure_way(&mut self, peer: NodeId, address: SocketAddr, depth: Depth) {
        let net = self.net.clone();
        self.report(async move {
            let found = measure_way(&net, peer, address, depth).await;
            let dead = |error: &DialError| debug!(peer = %peer.short(), %address, %error, "an address does not answer");
            Some(Event::Measured { peer, address, found: found.inspect_err(dead).ok() })
        });
    }

    fn sense(&mut self) {
        let (thermometer, processes) = (self.thermometer.clone(), self.processes.clone());
        self.report(async move {
            let read = on_thread(move || {
                let mut thermometer = thermometer.lock().unwrap_or_else(PoisonError::into_inner);
                Event::Sensed(machine::read(), thermometer.read(&processes.pids()))
            });
            read.await.ok()
        });
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.processes.end_all();
    }
}

/// The file with the wanted content, if this machine has it. Blocks on the disk; the first look at
/// a file reads all of it.
fn locate(store: &Store, wanted: &Service) -> Option<ModelFile> {
    let path = store.find(&wanted.digest, wanted.bytes)?;
    let name = wanted.spec.model.clone();
    Some(ModelFile { name, path, digest: wanted.digest, bytes: wanted.bytes })
}

/// Reads everything from the disk that resuming an instance needs.
fn open(store: &Store, wanted: &Service, check: CheckText) -> Result<Prepared, String> {
    let found = locate(store, wanted).ok_or_else(|| {
        let (model, bytes) = (&wanted.spec.model, wanted.bytes);
        format!("the file of {model} ({bytes} bytes) is not on this node any more")
    })?;
    let (spec, created_unix_s) = (InstanceSpec::clone(&wanted.spec), wanted.created_unix_s);
    prepare::prepare(spec, found, created_unix_s, check, true)
}

/// Calls a peer at one address and measures the path.
async fn measure_way(
    net: &Arc<Net>,
    peer: NodeId,
    address: SocketAddr,
    depth: Depth,
) -> Result<Measurement, DialError> {
    let pin = Key::Node(peer);
    let mut connection = match depth {
        Depth::Look => net.dial(vec![address], pin, Purpose::Probe).await?,
        Depth::Full => net.dial_to_measure(address, pin).await?,
    };
    if connection.about.boot == net.boot() {
        return Err(io::Error::other("it is this node itself").into());
    }
    let packet_bytes = net.segments.packet_bytes(address.ip());
    let local = connection.local;
    let round_trip = probe::round_trip(&mut connection.stream).await?;
    let bytes_per_sec = match depth {
        Depth::Look => None,
        Depth::Full => {
            let has_steps = probe::has_steps(connection.protocol);
            Some(probe::rate(&mut connection.stream, round_trip, has_steps).await?)
        }
    };
    Ok(Measurement { local, round_trip, bytes_per_sec, packet_bytes })
}
