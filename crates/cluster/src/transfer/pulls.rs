//! Downloads of models to this node's disk. Each model is fetched once for all callers, on its own
//! thread, and only while a caller waits. Fetched data is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hub::{DiskRoom, Hub, HubError, Name, Nearby, Plan, Progress, Room, Settings, Stage};
use store::{ModelFile, Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::api::pull::PULLS_MAX;
use crate::io::net::Net;
use crate::io::on_thread::on_thread;
use crate::transfer::about::can_run;
use crate::transfer::asks::{Having, Neighbour};
use crate::transfer::copies;
use crate::transfer::holders::{self, Holders};
use crate::transfer::lookup::{Asked, Here, find, look};
use crate::transfer::swarm::Swarm;
use crate::transfer::unfinished::Unfinished;
use crate::{
    CheckText, ClusterStatus, Error, NodeConfig, NodeState, PullStage, PullStatus, Result,
};

/// Interval at which a waiting node checks whether the fetching node is done.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time over which a rate is averaged.
const RATE_OVER: Duration = Duration::from_secs(3);

/// All downloads of this node.
pub(crate) struct Pulls {
    settings: Settings,
    store: Arc<Store>,
    net: Arc<Net>,
    cluster: watch::Receiver<Arc<ClusterStatus>>,
    check_text: CheckText,
    /// Announced and fetched models, by their names on the hub.
    towards: Mutex<BTreeMap<String, Having>>,
    running: Mutex<BTreeMap<String, Arc<Job>>>,
    unfinished: Unfinished,
}

/// A download.
#[derive(Debug)]
pub(crate) struct Job {
    pub told: watch::Sender<PullStatus>,
    stopped: AtomicBool,
}

impl Job {
    fn new(status: PullStatus) -> Self {
        Self { told: watch::Sender::new(status), stopped: AtomicBool::new(false) }
    }

    /// Whether a caller waits for it, and nobody has stopped it.
    fn is_wanted(&self) -> bool {
        self.told.receiver_count() > 0 && !self.stopped.load(Ordering::Relaxed)
    }
}

/// Entry of a model in `running`. Dropping it removes the entry, also in a panic.
struct Running<'a> {
    pulls: &'a Pulls,
    key: String,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.pulls.lock().remove(&self.key);
    }
}

/// Entry of a model in `towards`, which other members query. Dropping it removes the entry.
struct Announced<'a> {
    pulls: &'a Pulls,
    name: &'a str,
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.pulls.set_towards(self.name, None);
    }
}

impl fmt::Debug for Pulls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulls").field("running", &self.list()).finish_non_exhaustive()
    }
}

impl Pulls {
    /// # Errors
    /// The names of unfinished downloads cannot be read.
    pub fn new(
        config: &NodeConfig,
        store: Arc<Store>,
        net: Arc<Net>,
        cluster: watch::Receiver<Arc<ClusterStatus>>,
    ) -> Result<Arc<Self>> {
        let (settings, check_text) = (config.hub.clone(), config.check_text);
        let unfinished = Unfinished::open(&config.data_dir)?;
        let (running, towards) = (Mutex::default(), Mutex::default());
        let of = Self { settings, store, net, cluster, check_text, towards, running, unfinished };
        Ok(Arc::new(of))
    }

    pub fn unfinished(&self) -> &Unfinished {
        &self.unfinished
    }

    pub fn net(&self) -> &Arc<Net> {
        &self.net
    }

    pub fn store(&self) -> Arc<Store> {
        self.store.clone()
    }

    /// This node's answer to members about a model that is not on its disk, by its name on the hub.
    pub fn told(&self, name: &str) -> Having {
        let towards = self.towards.lock().unwrap_or_else(PoisonError::into_inner);
        towards.get(name).copied().unwrap_or(Having::No)
    }

    /// The other members that are connected.
    pub fn neighbours(&self) -> Vec<Neighbour> {
        let status = self.cluster.borrow();
        let others = status.nodes.iter().filter(|node| node.id != status.node);
        let connected = others.filter(|node| node.state != NodeState::Lost);
        connected
            .map(|node| Neighbour { id: node.id, name: node.name.clone(), address: node.address })
            .collect()
    }

    /// Waits until no other member fetches the plan's model. Returns its holders, or `None` if this
    /// node is to fetch it.
    fn agree(&self, plan: &Plan, job: &Job) -> std::result::Result<Option<Holders>, HubError> {
        let runtime = Handle::current();
        let mut mine = Having::Wanting;
        loop {
            self.set_towards(&plan.name, Some(mine));
            let asked = holders::survey(&self.net, self.neighbours(), &plan.name, &plan.files[0]);
            let survey = runtime.block_on(asked);
            if !survey.holders.is_empty() {
                let net = self.net.clone();
                return Ok(Some(Holders::new(net, &plan.name, survey.holders, runtime)));
            }
            match survey.ahead {
                // No other member is ahead, even after this node has announced `Fetching`.
                None if mine == Having::Fetching => return Ok(None),
                None => mine = Having::Fetching,
                // Both announce `Fetching`: the lower id continues.
                Some(other) if mine == Having::Fetching && other.id > self.net.id() => {
                    return Ok(None);
                }
                Some(other) => {
                    mine = Having::Wanting;
                    self.set_towards(&plan.name, Some(mine));
                    job.told.send_modify(|status| {
                        status.stage = PullStage::Waiting;
                        status.note =
                            format!("node {} fetches it; it comes from there", other.name);
                    });
                    std::thread::sleep(LOOK_AGAIN);
                }
            }
            if !job.is_wanted() {
                return Err(HubError::Cancelled);
            }
        }
    }

    fn set_towards(&self, name: &str, told: Option<Having>) {
        let mut towards = self.towards.lock().unwrap_or_else(PoisonError::into_inner);
        match told {
            Some(told) => towards.insert(name.to_owned(), told),
            None => towards.remove(name),
        };
    }

    /// Fetches a model, or joins a running download. `room` is the memory that the model should fit
    /// into. With `update`, files that have changed on the hub are fetched again.
    ///
    /// # Errors
    /// The name is invalid, or too many downloads are running.
    pub fn start(
        self: &Arc<Self>,
        model: &str,
        room: Option<Room>,
        update: bool,
    ) -> Result<watch::Receiver<PullStatus>> {
        let name = match look(&self.store, model) {
            Here::Whole(..) if update => Some(named(model)?),
            // The file is here and only needs hashing.
            Here::Whole(..) => None,
            // A damaged file is useless, and is fetched again.
            Here::Damaged(why) => Some(Name::parse(model).map_err(|_| Error::Unusable(why))?),
            Here::Missing(
                error @ (StoreError::NotAFile { .. } | StoreError::SomethingElse { .. }),
            ) => {
                return Err(Error::Unusable(error.to_string()));
            }
            Here::Missing(missing) => {
                Some(Name::parse(model).map_err(|error| no_name(&missing, &error))?)
            }
        };
        let key = name.as_ref().map_or_else(|| model.to_owned(), Name::to_string);
        let mut running = self.lock();
        if let Some(job) = running.get(&key) {
            return Ok(job.told.subscribe());
        }
        if running.len() >= PULLS_MAX {
            let text = format!("{PULLS_MAX} models are being fetched already. Try again later");
            return Err(Error::Unusable(text));
        }
        let job = Arc::new(Job::new(begin(model)));
        let receiver = job.told.subscribe();
        running.insert(key.clone(), job.clone());
        drop(running);
        let (pulls, model) = (self.clone(), model.to_owned());
        drop(on_thread(move || {
            let running = Running { pulls: &pulls, key };
            let outcome = pulls.run((&model, update), name, room.as_ref(), &job);
            // Callers must not join a download that has ended.
            drop(running);
            match &outcome {
                Ok(note) => info!(model, note, "a model is on this node's disk"),
                Err(why) => warn!(model, why, "a model could not be fetched"),
            }
            job.told.send_modify(|status| match outcome {
                Ok(note) => {
                    (status.stage, status.note) = (PullStage::Done, note);
                    status.done_bytes = status.total_bytes;
                }
                Err(why) => (status.stage, status.note) = (PullStage::Failed, why),
            });
        }));
        Ok(receiver)
    }

    /// The name of a copy from members, and its progress channel.
    pub fn begin_copy(&self, model: &str) -> (String, Arc<Job>) {
        let path = Path::new(model);
        let stem =
            path.file_stem().filter(|_| path.is_absolute()).map(|stem| stem.to_string_lossy());
        let name = stem.map_or_else(|| model.to_owned(), std::borrow::Cow::into_owned);
        let name = gguf::part_name(path).map_or(name, |(name, _, _)| name);
        let mut status = begin(&name);
        (status.stage, status.note) = (PullStage::Pulling, "a copy, from other nodes".to_owned());
        (name, Arc::new(Job::new(status)))
    }

    /// Copies a model while it is wanted, listed among the downloads; returns its path.
    ///
    /// # Errors
    /// Those of [`copies::copy`].
    pub async fn copy(
        &self,
        (name, job): (&str, &Arc<Job>),
        swarm: &Swarm,
        room: DiskRoom,
        is_wanted: impl Fn() -> bool,
    ) -> std::io::Result<PathBuf> {
        let key = format!("copy of {name}");
        self.lock().insert(key.clone(), job.clone());
        let _running = Running { pulls: self, key };
        let mut rate = Rate::new();
        let tell = |done: u64, total: u64| {
            let bytes_per_sec = rate.of(done);
            job.told.send_modify(|status| {
                (status.done_bytes, status.total_bytes) = (done, total);
                (status.file_done_bytes, status.file_total_bytes) = (done, total);
                status.bytes_per_sec = bytes_per_sec;
            });
            is_wanted() && !job.stopped.load(Ordering::Relaxed)
        };
        copies::copy(swarm, self.store.clone(), name, room, tell).await
    }

    /// Progress of all downloads.
    pub fn list(&self) -> Vec<PullStatus> {
        self.lock().values().map(|job| job.told.borrow().clone()).collect()
    }

    /// Stops the download that [`Self::list`] shows under this name, whoever waits for it. What has
    /// come is kept.
    ///
    /// # Errors
    /// There is none.
    pub fn stop(&self, model: &str) -> Result<()> {
        let running = self.lock();
        match running.values().find(|job| job.told.borrow().model == model) {
            Some(job) => {
                job.stopped.store(true, Ordering::Relaxed);
                Ok(())
            }
            None => Err(Error::NotHere(format!("this node downloads no model named {model}"))),
        }
    }

    /// Fetches and hashes; returns a note for the user, or the reason of the failure.
    fn run(
        &self,
        (model, update): (&str, bool),
        name: Option<Name>,
        room: Option<&Room>,
        job: &Job,
    ) -> std::result::Result<String, String> {
        let sender = &job.told;
        let hashed = |done: u64| {
            sender.send_modify(|status| {
                status.stage = PullStage::Hashing;
                status.done_bytes = status.done_bytes.max(done);
            });
        };
        let here = |found: ModelFile| {
            let path = found.path.display();
            Ok(format!("it is on this machine already: {path}"))
        };
        let Some(name) = name else {
            return find(&self.store, model, Asked::Here, &hashed)
                .map_or_else(|e| Err(e.to_string()), here);
        };
        let models = self.store.models_dir();
        if let Some(why) = self.settings.offline {
            let (name, models) = (model.to_owned(), models.to_path_buf());
            return Err(HubError::Offline { name, why, models }.to_string());
        }
        let hub = Hub::new(self.settings.clone());
        let (rate, why) = (Mutex::new(Rate::new()), Mutex::new(String::new()));
        let watch = |progress: &Progress| {
            if !job.is_wanted() {
                return ControlFlow::Break(());
            }
            let rate = rate.lock().unwrap_or_else(PoisonError::into_inner).of(progress.all_done);
            let why = why.lock().unwrap_or_else(PoisonError::into_inner).clone();
            sender.send_modify(|status| note(status, progress, rate, &why));
            ControlFlow::Continue(())
        };
        let text = |error: HubError| error.to_string();
        let mut plan = hub.plan(&name, room, &watch).map_err(text)?;
        match look(&self.store, &plan.name) {
            Here::Whole(..) if !update => {
                let found = find(&self.store, &plan.name, Asked::Here, &hashed);
                return found.map_or_else(|error| Err(error.to_string()), here);
            }
            Here::Whole(..) | Here::Damaged(_) => plan.is_doubted = true,
            // The files exist under their names, but no model is found: their content is checked.
            Here::Missing(_) => plan.is_doubted = plan.is_there(models),
        }
        if let Some(passed) = self.store.passed_by(model) {
            plan.why = format!("{}; {passed}", plan.why);
        }
        plan.why.clone_into(&mut why.lock().unwrap_or_else(PoisonError::into_inner));
        let _wanted = Announced { pulls: self, name: &plan.name };
        let check = |header: &gguf::Directory| can_run(header, self.check_text).map(drop);
        let pulled = self.agree(&plan, job).and_then(|holders| {
            let nearby = holders.as_ref().map(|holders| holders as &dyn Nearby);
            hub.check_header(&plan, models, nearby, &check, &watch)?;
            hub.fetch_near(&plan, models, nearby, &watch)
        });
        let pulled = pulled.map_err(text)?;
        self.store.refresh();
        sender.send_modify(|status| status.done_bytes = 0);
        let path = pulled.path.to_string_lossy();
        self.store.resolve_watched(&path, &hashed).map_err(|error| error.to_string())?;
        Ok(pulled.why)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Job>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses a name of the hub.
fn named(model: &str) -> Result<Name> {
    Name::parse(model).map_err(|error| Error::Unusable(error.to_string()))
}

/// The error for text that is neither a file nor a valid name.
fn no_name(missing: &StoreError, error: &HubError) -> Error {
    match error {
        HubError::Unknown { near, .. } => Error::NotHere(format!(
            "{missing}. Or give a name to download: org/repo, or a short one from: sinew list \
             --catalogue{near}"
        )),
        _ => Error::NotHere(missing.to_string()),
    }
}

fn begin(model: &str) -> PullStatus {
    PullStatus {
        model: model.to_owned(),
        stage: PullStage::Looking,
        note: String::new(),
        file: String::new(),
        sha256: None,
        file_done_bytes: 0,
        file_total_bytes: 0,
        done_bytes: 0,
        total_bytes: 0,
        bytes_per_sec: 0.0,
    }
}

fn note(status: &mut PullStatus, progress: &Progress, rate: f64, why: &str) {
    (status.stage, status.note) = match &progress.stage {
        Stage::Manifest => (PullStage::Looking, String::new()),
        Stage::Waiting(what) => (PullStage::Waiting, what.clone()),
        Stage::Pulling | Stage::Done => (PullStage::Pulling, why.to_owned()),
        Stage::Verifying => (PullStage::Verifying, why.to_owned()),
    };
    status.file.clone_from(&progress.file);
    status.sha256.clone_from(&progress.sha256);
    (status.file_done_bytes, status.file_total_bytes) = (progress.done, progress.total);
    (status.done_bytes, status.total_bytes) = (progress.all_done, progress.all_total);
    status.bytes_per_sec = rate;
}

/// Bytes per second over the last seconds.
#[derive(Debug)]
struct Rate {
    since: Instant,
    from: Option<u64>,
    last: f64,
}

impl Rate {
    fn new() -> Self {
        Self { since: Instant::now(), from: None, last: 0.0 }
    }

    fn of(&mut self, done: u64) -> f64 {
        let elapsed = self.since.elapsed();
        let from = *self.from.get_or_insert(done);
        let now = done.saturating_sub(from) as f64 / elapsed.as_secs_f64().max(1e-3);
        if elapsed >= RATE_OVER {
            (self.since, self.from, self.last) = (Instant::now(), Some(done), now);
        }
        if self.last > 0.0 { self.last } else { now }
    }
}
