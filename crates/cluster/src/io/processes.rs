//! The worker processes of a node: how they are started, spoken to and ended.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::{FileCheck, ModelSource, RankCall, WorkerCommand, WorkerSpec};
use store::Store;
use tokio::sync::{mpsc, watch};

use crate::NodeConfig;
use crate::context::{ProcessId, Start};
use crate::core::Event;
use crate::io::net::Net;
use crate::io::worker::{WorkerNews, WorkerProcess};
use crate::transfer::model_file::OVERWRITTEN;
use crate::transfer::relay::Relay;

/// All worker processes; those that are being started come in as soon as they run.
#[derive(Clone, Default)]
pub(crate) struct Processes(Arc<Mutex<HashMap<ProcessId, Running>>>);

struct Running {
    process: WorkerProcess,
    /// How other ranks call it.
    call: RankCall,
    /// Closes the relay when it is dropped.
    _relay: watch::Sender<()>,
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

    /// Hands a connection to the worker that is called; of several that have that rank, one leaves.
    pub(crate) fn call(&self, call: RankCall, connection: TcpStream) {
        let all = self.all();
        let called = all.iter().filter(|(_, running)| running.call == call);
        if let Some((_, running)) = called.max_by_key(|(process, _)| **process) {
            running.process.call(connection);
        }
    }

    /// Dropping the handle ends the worker's input, and it leaves by itself.
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

/// Starts a worker and reports what it does, until it is gone.
pub(super) async fn run_worker(
    start: Start,
    config: NodeConfig,
    net: Arc<Net>,
    store: Arc<Store>,
    processes: Processes,
    inputs: mpsc::Sender<Event>,
) {
    let process = start.process;
    let (speak, may_speak) = watch::channel(false);
    let news = (may_speak, processes.clone(), inputs.clone());
    let spawned = spawn(start, config, net, store, news).await;
    let started = spawned.map(|running| {
        let pid = running.process.pid();
        processes.all().insert(process, running);
        pid
    });
    // The driver is gone only if the whole node is; then the handles end the workers.
    if inputs.send(Event::WorkerStarted { process, started }).await.is_err() {
        return processes.end(process, false);
    }
    // It has been heard of; one that was not started has nobody to tell.
    let _ = speak.send(true);
}

async fn spawn(
    start: Start,
    config: NodeConfig,
    net: Arc<Net>,
    store: Arc<Store>,
    (may_speak, processes, inputs): (watch::Receiver<bool>, Processes, mpsc::Sender<Event>),
) -> io::Result<Running> {
    if let Some(refusal) = start.refusal {
        return Err(io::Error::other(refusal));
    }
    let label = format!("{}/{}", start.order.instance, start.order.rank);
    let (model, relay) = model(&start, net, store, inputs.clone()).await?;
    let number = start.process;
    let tell = move |news| {
        if matches!(news, WorkerNews::Exited { .. }) {
            processes.end(number, false);
        }
        Event::Worker { process: number, news }
    };
    let mut process = WorkerProcess::spawn(&config.worker_command, label, may_speak, inputs, tell)?;
    let call = RankCall::new(&start.order.instance, start.order.rank);
    process.send(WorkerCommand::Open(Box::new(spec(start, &config, model))));
    Ok(Running { process, call, _relay: relay })
}

/// This machine's own file if it has one with the right content now, checked as it is read; and a
/// relay to all who have it, for what is missing or damaged here.
async fn model(
    start: &Start,
    net: Arc<Net>,
    store: Arc<Store>,
    inputs: mpsc::Sender<Event>,
) -> io::Result<(ModelSource, watch::Sender<()>)> {
    let (digest, bytes) = (start.order.digest, start.order.model_bytes);
    let (served, kept) = (start.served.clone(), store.clone());
    let find = tokio::task::spawn_blocking(move || {
        let found = store.find(&digest, bytes);
        let is_lost = found.is_none() && served.is_some_and(|file| file.intact().is_none());
        if is_lost { Err(io::Error::other(OVERWRITTEN)) } else { Ok(found) }
    });
    let found = find.await.map_err(io::Error::other)??;
    let me = net.id();
    let relay = Relay::open(net, start.wanted.clone(), inputs).await?;
    let (address, token) = (relay.address()?, relay.token());
    let (model, relay) = match found {
        Some(path) => {
            let check = kept.tree(&digest, bytes).map(|_| {
                let (digest, tree) = (digest.to_string(), kept.tree_path(&digest));
                Box::new(FileCheck { digest, tree, relay: address, token })
            });
            let doubt = move || kept.doubt(&digest, bytes);
            (ModelSource::File { path, check }, relay.instead_of(me, Arc::new(doubt)))
        }
        None => (ModelSource::Peer { relay: address, token }, relay),
    };
    let (open, mut closed) = watch::channel(());
    tokio::spawn(async move {
        tokio::select! {
            () = relay.run() => {}
            _ = closed.changed() => {}
        }
    });
    Ok((model, open))
}

/// Whether the ranks that know a node by this address call its worker at the node's port.
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
    }
}
