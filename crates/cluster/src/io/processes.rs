//! The worker processes of a node: start, commands, end.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::{FileCheck, ModelSource, PromptCache, RankCall, WorkerCommand, WorkerSpec};
use tokio::sync::{mpsc, watch};

use crate::NodeConfig;
use crate::context::WorkerNews;
use crate::context::{ProcessId, Start};
use crate::core::Event;
use crate::io::net::Net;
use crate::io::on_thread::on_thread;
use crate::io::prompts;
use crate::io::slabs;
use crate::io::worker::WorkerProcess;
use crate::transfer::model_file::OVERWRITTEN;
use crate::transfer::prompts::PromptsDoor;
use crate::transfer::pulls::Pulls;
use crate::transfer::relay::Relay;

/// All running worker processes. A process is inserted once it has started.
#[derive(Clone, Default)]
pub(crate) struct Processes(Arc<Mutex<HashMap<ProcessId, Running>>>);

struct Running {
    process: WorkerProcess,
    /// The header with which other ranks call it.
    call: RankCall,
    /// Dropping it closes the doors at which the worker asks for what this node lacks.
    _doors: watch::Sender<()>,
}

impl Processes {
    fn all(&self) -> MutexGuard<'_, HashMap<ProcessId, Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Process ids of all workers.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.all().values().map(|running| running.process.pid()).collect()
    }

    pub(super) fn send(&self, process: ProcessId, command: WorkerCommand) {
        if let Some(running) = self.all().get_mut(&process) {
            running.process.send(command);
        }
    }

    /// Hands a connection to the called worker. Of several workers with that rank, the newest gets
    /// it: the others are ending.
    pub(crate) fn call(&self, call: RankCall, connection: TcpStream) {
        let all = self.all();
        let called = all.iter().filter(|(_, running)| running.call == call);
        if let Some((_, running)) = called.max_by_key(|(process, _)| **process) {
            running.process.call(connection);
        }
    }

    /// Dropping the handle closes the worker's input, and the worker exits.
    pub(super) fn end(&self, process: ProcessId, at_once: bool) {
        let Some(mut running) = self.all().remove(&process) else { return };
        if at_once {
            running.process.kill();
        }
    }

    pub(super) fn end_all(&self) {
        self.all().clear();
    }
}

/// Starts a worker and reports its events until it exits.
pub(super) async fn run_worker(
    start: Start,
    config: NodeConfig,
    pulls: Arc<Pulls>,
    processes: Processes,
    inputs: mpsc::Sender<Event>,
) {
    let process = start.process;
    let (speak, may_speak) = watch::channel(false);
    let news = (may_speak, processes.clone(), inputs.clone());
    let spawned = spawn(start, config, pulls, news).await;
    let started = spawned.map(|running| {
        let pid = running.process.pid();
        processes.all().insert(process, running);
        pid
    });
    // Sending fails only if the whole node has ended; the handles then end the workers.
    if inputs.send(Event::WorkerStarted { process, started }).await.is_err() {
        return processes.end(process, false);
    }
    // `WorkerStarted` is delivered, so events may follow. A failed start has no receiver.
    let _ = speak.send(true);
}

async fn spawn(
    start: Start,
    config: NodeConfig,
    pulls: Arc<Pulls>,
    (may_speak, processes, inputs): (watch::Receiver<bool>, Processes, mpsc::Sender<Event>),
) -> io::Result<Running> {
    if let Some(refusal) = start.refusal {
        return Err(io::Error::other(refusal));
    }
    let label = format!("{}/{}", start.order.instance, start.order.rank);
    let mut prompts = prompts(&config, pulls.net(), start.order.digest.to_string()).await;
    let (model, relay) = model(&start, &pulls, inputs.clone()).await?;
    let records = PromptsDoor::open(pulls, start.order.digest).await?;
    if let Some(prompts) = &mut prompts {
        prompts.members = Some(records.relay()?);
    }
    let experts = slabs::cache(&config, &start.order);
    let number = start.process;
    let tell = move |news| {
        if matches!(news, WorkerNews::Exited { .. }) {
            processes.end(number, false);
        }
        Event::Worker { process: number, news }
    };
    let mut process = WorkerProcess::spawn(&config.worker_command, label, may_speak, inputs, tell)?;
    let call = RankCall::new(&start.order.instance, start.order.rank);
    let spec = WorkerSpec { prompts, experts, ..spec(start, &config, model) };
    process.send(WorkerCommand::Open(Box::new(spec)));
    let (open, mut closed) = watch::channel(());
    tokio::spawn(async move {
        tokio::select! {
            () = relay.run() => {}
            () = records.run() => {}
            _ = closed.changed() => {}
        }
    });
    Ok(Running { process, call, _doors: open })
}

/// This machine's own file if it has the right content, checked while reading; and a relay to all
/// holders of the file, for data that is missing or damaged here.
async fn model(
    start: &Start,
    pulls: &Pulls,
    inputs: mpsc::Sender<Event>,
) -> io::Result<(ModelSource, Relay)> {
    let (net, store) = (pulls.net().clone(), pulls.store());
    let (digest, bytes) = (start.order.digest, start.order.model_bytes);
    let (served, kept) = (start.served.clone(), store.clone());
    let find = on_thread(move || {
        let found = store.find(&digest, bytes);
        let is_lost = found.is_none() && served.is_some_and(|file| file.intact().is_none());
        if is_lost { Err(io::Error::other(OVERWRITTEN)) } else { Ok(found) }
    });
    let found = find.await.map_err(io::Error::other)??;
    let me = net.id();
    let relay = Relay::open(net, start.wanted.clone(), inputs).await?;
    let (address, token) = (relay.address()?, relay.token());
    Ok(match found {
        Some(path) => {
            let check = kept.tree(&digest, bytes).map(|_| {
                let (digest, tree) = (digest.to_string(), kept.tree_path(&digest));
                Box::new(FileCheck { digest, tree, relay: address, token })
            });
            let doubt = move || kept.doubt(&digest, bytes);
            (ModelSource::File { path, check }, relay.instead_of(me, Arc::new(doubt)))
        }
        None => (ModelSource::Peer { relay: address, token }, relay),
    })
}

/// Whether ranks that call this node at `ordered` reach its worker through the node's port.
fn is_called_at_node(config: &NodeConfig, ordered: IpAddr) -> bool {
    let listen = config.listen.ip();
    listen.is_unspecified() || listen == ordered
}

fn spec(start: Start, config: &NodeConfig, model: ModelSource) -> WorkerSpec {
    let order = start.order;
    WorkerSpec {
        instance: order.instance,
        rank: order.rank,
        spec: order.spec,
        split: order.split,
        model,
        threads: config.threads,
        cpus: config.cpus.clone(),
        device: config.device.device.as_ref().map(|(device, _)| device.clone()),
        link_latency_us: 0,
        bind: (!is_called_at_node(config, order.bind)).then_some(order.bind),
        bind_more: config.link_addresses.clone(),
        prompts: None,
        experts: None,
    }
}

/// Where a worker keeps prompts. Devices of ggml do not give their caches away.
async fn prompts(config: &NodeConfig, net: &Net, digest: String) -> Option<PromptCache> {
    if config.device.device.is_some() {
        return None;
    }
    let (own, key) = (config.prompts.clone(), net.prompts_key());
    let folder = on_thread(move || prompts::folder(&own, key, &digest));
    folder.await.ok().flatten()
}
