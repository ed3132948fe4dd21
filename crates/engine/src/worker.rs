//! The worker process: one rank, driven by its daemon over standard input and output.
//!
//! Three threads: one reads commands, one writes events, and the main thread loads, links and
//! computes. The reader also handles urgent commands: it raises the running epoch's abort flag when
//! the daemon ends the epoch, and ends the process when the daemon is gone.

use std::io::{self, BufReader, BufWriter, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use backend::{Backend, BackendError, Cpu, Ggml};
use gguf::Source;
use layout::Holding;
use link::{Calls, Listener};
use protocol::frame::{self, FrameError};
use protocol::{
    FailureKind, ModelSource, Secret, WorkerCommand, WorkerEvent, WorkerSpec, ring_peers,
};
use store::{CheckedFile, PeerFile, RelayAddress};

use crate::called::CommandInput;
use crate::comm::{Comm, Meeting};
use crate::leader::Leader;
use crate::loading::Loading;
use crate::pulse::{BEAT, Pulse};
use crate::rank::{RankOptions, outline};
use crate::{EngineError, Rank};

/// The time for the ranks of a new epoch to find each other; all of them have loaded.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// The interval at which an idle leader checks the other ranks.
const IDLE_CHECK: Duration = Duration::from_millis(250);

/// The time for a failed worker's last events: a live daemon reads them at once, and a frozen one
/// must not keep the weights in memory.
const LAST_EVENTS_MAX: Duration = Duration::from_secs(5);

/// A command, and for `Connect` the abort flag of its epoch.
struct Order {
    command: WorkerCommand,
    abort: Arc<AtomicBool>,
}

/// Runs until the daemon closes standard input.
///
/// # Errors
/// The shard cannot be loaded or computed; the daemon has got the reason.
pub fn run() -> Result<(), EngineError> {
    offer_itself_first();
    let calls = Calls::default();
    let orders = read_commands(calls.clone());
    let pulse = Pulse::new();
    let events = write_events(pulse.clone());
    let result = serve(&orders, &events, calls, pulse);
    if let Err(error) = &result {
        report(&events, WorkerEvent::Failed { reason: error.to_string() });
    }
    // The writer ends when the last sender is dropped and everything is written.
    let Events { sender, written } = events;
    drop(sender);
    let _ = written.recv_timeout(LAST_EVENTS_MAX);
    result
}

/// When memory runs out, Linux should kill the loading worker, not the daemon, which restarts it
/// and reports the reason. 1000 is the highest score, whatever the model's size.
fn offer_itself_first() {
    // Other systems have no such file.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Takes the first command and serves on its device.
fn serve(
    orders: &Receiver<Order>,
    events: &Events,
    calls: Calls,
    pulse: Pulse,
) -> Result<(), EngineError> {
    let Ok(Order { command: WorkerCommand::Open(spec), .. }) = orders.recv() else {
        return Err(EngineError::Protocol("the first command must be open".to_owned()));
    };
    // The only code that distinguishes kinds of devices.
    match spec.device.clone() {
        None => {
            let cpu = |spec: &WorkerSpec| Cpu::new(spec.threads, &spec.cpus);
            Worker::open(spec, events, (calls, pulse), cpu)?.serve(orders)
        }
        Some(device) => {
            let ggml =
                |spec: &WorkerSpec| Ggml::open(&device.libraries, &device.name, spec.threads);
            Worker::open(spec, events, (calls, pulse), ggml)?.serve(orders)
        }
    }
}

struct Worker<'a, B: Backend> {
    spec: WorkerSpec,
    rank: Rank<B>,
    listener: Listener,
    /// Addresses that could not be bound, as notes.
    notes: Vec<String>,
    events: &'a Events,
    pulse: Pulse,
}

impl<'a, B: Backend> Worker<'a, B> {
    /// Listens and loads.
    fn open(
        spec: Box<WorkerSpec>,
        events: &'a Events,
        (calls, pulse): (Calls, Pulse),
        device: impl FnOnce(&WorkerSpec) -> Result<B, BackendError>,
    ) -> Result<Self, EngineError> {
        let (listener, notes) = listen(&spec, calls)?;
        let mut more = listener.addrs();
        let port = spec.bind.map_or(0, |_| more.remove(0).port());
        report(events, WorkerEvent::Listening { port, more });
        let started = Instant::now();
        let sender = events.sender.clone();
        let loading = Loading::begin(move |done_bytes, total_bytes, arrived_bytes| {
            // The writer thread never ends before the process.
            let _ = sender.send(WorkerEvent::Loading { done_bytes, total_bytes, arrived_bytes });
        });
        let source = open_source(&spec.model, &loading)?;
        let rank = load(device(&spec)?, &spec, source, &loading)?;
        drop(loading);
        report(
            events,
            WorkerEvent::Loaded {
                weight_bytes: rank.weight_bytes(),
                kv_bytes: rank.kv_bytes(),
                buffer_bytes: rank.buffer_bytes(),
                load_us: started.elapsed().as_micros() as u64,
            },
        );
        Ok(Self { spec: *spec, rank, listener, notes, events, pulse })
    }

    /// Links and serves, epoch by epoch.
    fn serve(&mut self, orders: &Receiver<Order>) -> Result<(), EngineError> {
        let mut next = orders.recv().ok();
        while let Some(order) = next {
            next = match order.command {
                WorkerCommand::Connect { epoch, endpoints, ring, secret, segments } => {
                    let peers = ring.then(|| {
                        ring_peers(
                            self.spec.split.shares.len(),
                            &self.spec.split.stages,
                            self.spec.rank,
                        )
                    });
                    let meeting = self.meeting(epoch, endpoints, peers, secret);
                    let meeting = Meeting { segments, ..meeting };
                    match self.epoch(&meeting, order.abort.clone(), orders) {
                        Ok(order) => order,
                        Err(error) if error.ends_epoch_only() => {
                            self.lost(epoch, &error, &order.abort);
                            orders.recv().ok()
                        }
                        Err(error) => return Err(error),
                    }
                }
                WorkerCommand::Generate { request, .. } => {
                    let reason = "the ranks are not linked".to_owned();
                    let kind = FailureKind::Lost;
                    report(self.events, WorkerEvent::Rejected { request, kind, reason });
                    orders.recv().ok()
                }
                // Nothing is running that could be cancelled or disconnected; the reader takes
                // calls.
                WorkerCommand::Cancel { .. }
                | WorkerCommand::Disconnect
                | WorkerCommand::Called
                | WorkerCommand::CalledBy { .. } => orders.recv().ok(),
                WorkerCommand::Open(_) => {
                    return Err(EngineError::Protocol("a worker is opened once".to_owned()));
                }
            };
        }
        Ok(())
    }

    /// The parameters of an epoch's links.
    fn meeting(
        &self,
        epoch: u64,
        endpoints: Vec<Vec<SocketAddr>>,
        peers: Option<Vec<usize>>,
        secret: Secret,
    ) -> Meeting {
        Meeting {
            instance: self.spec.instance.clone(),
            epoch,
            rank: self.spec.rank,
            stage: self.rank.stage(),
            endpoints,
            segments: Vec::new(),
            peers,
            secret: secret.0,
            options: self.spec.spec.options.clone(),
            latency: Duration::from_micros(self.spec.link_latency_us),
            is_pinned: !self.spec.cpus.is_empty(),
            message_bytes_max: self.rank.message_bytes_max(),
            deadline: CONNECT_DEADLINE,
        }
    }

    /// Runs one epoch: links with the other ranks, then leads or follows until it ends. Returns the
    /// command that ended it; `None` if the daemon is gone.
    fn epoch(
        &mut self,
        meeting: &Meeting,
        abort: Arc<AtomicBool>,
        orders: &Receiver<Order>,
    ) -> Result<Option<Order>, EngineError> {
        let leaves = |product| self.rank.leaves(product);
        let mut comm = Comm::connect(meeting, &self.listener, leaves, abort)?;
        let notes = [&self.notes[..], self.rank.notes(), comm.notes()].concat();
        report(self.events, WorkerEvent::Linked { epoch: meeting.epoch, notes });
        if self.spec.rank == 0 {
            return self.lead(&mut comm, orders);
        }
        let tell = |stats| report(self.events, WorkerEvent::RankStats(Box::new(stats)));
        match self.rank.follow(&mut comm, Some(tell))? {}
    }

    /// Rank 0: takes requests between steps, and waits for one when it is idle.
    fn lead(
        &mut self,
        comm: &mut Comm,
        orders: &Receiver<Order>,
    ) -> Result<Option<Order>, EngineError> {
        let (events, pulse) = (self.events, self.pulse.clone());
        let mut leader = Leader::new(&mut self.rank, comm);
        loop {
            let wait = if leader.is_idle() { IDLE_CHECK } else { Duration::ZERO };
            match orders.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) if leader.is_idle() => leader.check_ranks()?,
                Err(RecvTimeoutError::Timeout) => {
                    pulse.step(|| leader.step(|event| report(events, event)))?;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Ok(Order { command: WorkerCommand::Generate { request, generate }, .. }) => {
                    if let Err(refused) = leader.add(request, *generate) {
                        let (kind, reason) = (refused.kind(), refused.to_string());
                        report(events, WorkerEvent::Rejected { request, kind, reason });
                    }
                }
                Ok(Order { command: WorkerCommand::Cancel { request }, .. }) => {
                    leader.cancel(request).into_iter().for_each(|event| report(events, event));
                }
                Ok(order) => return Ok(Some(order)),
            }
            if let Some(news) = leader.cache_news() {
                report(events, news);
            }
            if let Some(stats) = leader.stats(Instant::now()) {
                report(events, WorkerEvent::Stats(Box::new(stats)));
            }
            if let Some(stats) = leader.rank_stats(Instant::now()) {
                report(events, WorkerEvent::RankStats(Box::new(stats)));
            }
        }
    }

    /// Reports that an epoch ended because of another rank, unless the daemon ended it.
    fn lost(&self, epoch: u64, error: &EngineError, abort: &AtomicBool) {
        if abort.load(Ordering::Acquire) {
            return;
        }
        let (rank, reason) = (error.rank(), error.reason());
        let unreached = error.unreached();
        report(self.events, WorkerEvent::Lost { epoch, rank, reason, unreached });
    }
}

/// Accepts calls from its node's daemon, and listens on all addresses of the spec; the first must
/// succeed.
fn listen(spec: &WorkerSpec, calls: Calls) -> Result<(Listener, Vec<String>), EngineError> {
    let mut listener = Listener::of_calls(calls);
    spec.bind.map_or(Ok(()), |ip| listener.also_bind(SocketAddr::new(ip, 0)))?;
    let mut notes = Vec::new();
    for ip in spec.bind_more.iter().filter(|ip| Some(**ip) != spec.bind) {
        if let Err(error) = listener.also_bind(SocketAddr::new(*ip, 0)) {
            let rank = spec.rank;
            notes.push(format!("rank {rank} goes without the link address {ip}: {error}"));
        }
    }
    Ok((listener, notes))
}

fn open_source(model: &ModelSource, loading: &Loading) -> Result<Arc<dyn Source>, EngineError> {
    let relay = |address: SocketAddr, token: &Secret| RelayAddress {
        address,
        token: token.0,
        arrived: loading.arrivals(),
    };
    Ok(match model {
        ModelSource::File { path, check: None } => Arc::new(checkpoint::open(path)?),
        ModelSource::File { path, check: Some(check) } => {
            let digest = check.digest.parse();
            let digest = digest.map_err(|_| EngineError::Protocol("a digest".to_owned()))?;
            let relay = relay(check.relay, &check.token);
            match CheckedFile::open(path, digest, &check.tree, relay.clone()) {
                Ok(file) => Arc::new(file),
                // The header itself is damaged.
                Err(here) => Arc::new(PeerFile::connect(&relay).map_err(|there| {
                    EngineError::Peer(io::Error::other(format!("{there}. And here: {here}")))
                })?),
            }
        }
        ModelSource::Peer { relay: address, token } => {
            let file = PeerFile::connect(&relay(*address, token));
            Arc::new(file.map_err(EngineError::Peer)?)
        }
    })
}

fn load<B: Backend>(
    device: B,
    spec: &WorkerSpec,
    source: Arc<dyn Source>,
    loading: &Loading,
) -> Result<Rank<B>, EngineError> {
    let options = RankOptions {
        rank: spec.rank,
        options: spec.spec.options.clone(),
        split: spec.split.clone(),
        threads: spec.threads,
        cpus: spec.cpus.clone(),
        prompts: spec.prompts.clone(),
        experts: spec.experts.clone(),
    };
    loading.expect(share_of_file(&options, source.as_ref())?);
    let mut rank = Rank::load(device, source, &options, &mut |bytes| loading.add(bytes))?;
    if B::COMPILES {
        rank.try_out()?;
    }
    Ok(rank)
}

/// The number of bytes that this rank will load.
fn share_of_file(options: &RankOptions, source: &dyn Source) -> Result<u64, EngineError> {
    let outline = outline(source, &options.draft())?;
    let layout = options.layout(&outline.config)?;
    Ok(Holding::new(&outline, &layout, options.rank).file_bytes())
}

/// The reader thread. The process ends with standard input, whatever it is doing.
fn read_commands(calls: Calls) -> Receiver<Order> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut input = BufReader::new(CommandInput::new());
        let mut abort = Arc::new(AtomicBool::new(false));
        loop {
            let command = match frame::read_command(&mut input) {
                Ok(command) => command,
                Err(FrameError::Closed) => std::process::exit(0),
                Err(error) => {
                    eprintln!("the daemon's commands cannot be read: {error}");
                    std::process::exit(1);
                }
            };
            if matches!(command, WorkerCommand::Called | WorkerCommand::CalledBy { .. }) {
                input.get_mut().call(&command).into_iter().for_each(|call| calls.push(call));
                continue;
            }
            if matches!(command, WorkerCommand::Connect { .. } | WorkerCommand::Disconnect) {
                abort.store(true, Ordering::Release);
                abort = Arc::new(AtomicBool::new(false));
            }
            if sender.send(Order { command, abort: abort.clone() }).is_err() {
                return; // The main thread has failed and is telling the daemon why.
            }
        }
    });
    receiver
}

/// The sending end of events.
struct Events {
    sender: Sender<WorkerEvent>,
    /// Disconnected after the sender is dropped and all events are written.
    written: Receiver<()>,
}

/// The writer thread, so that the step loop never waits for a pipe. Without events it sends signs
/// of life, until a step hangs.
fn write_events(pulse: Pulse) -> Events {
    let (sender, receiver) = channel::<WorkerEvent>();
    let (writing, written) = channel();
    std::thread::spawn(move || {
        let _writing = writing;
        let mut output = BufWriter::new(io::stdout().lock());
        let mut first = WorkerEvent::Alive;
        loop {
            // The tokens of one step are written together.
            let waiting = std::iter::once(first).chain(receiver.try_iter());
            if write_together(&mut output, waiting).is_err() {
                std::process::exit(0); // The daemon is gone.
            }
            first = match receiver.recv_timeout(BEAT) {
                Ok(event) => event,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => match pulse.hangs(Instant::now()) {
                    None => WorkerEvent::Alive,
                    Some(reason) => WorkerEvent::Failed { reason },
                },
            };
            if matches!(first, WorkerEvent::Failed { .. }) {
                let _ = write_together(&mut output, std::iter::once(first));
                return; // The daemon ends a failed worker that stays.
            }
        }
    });
    Events { sender, written }
}

fn write_together(
    output: &mut impl Write,
    events: impl Iterator<Item = WorkerEvent>,
) -> Result<(), FrameError> {
    for event in events {
        output.write_all(&frame::encode_event(&event)?)?;
    }
    Ok(output.flush()?)
}

fn report(events: &Events, event: WorkerEvent) {
    // The writer thread never ends before the process.
    let _ = events.sender.send(event);
}
