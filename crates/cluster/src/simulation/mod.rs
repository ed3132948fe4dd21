//! Whole clusters on simulated networks, clocks, disks and worker processes; the seed determines
//! the run.
//!
//! Each node is an unchanged [`Core`], so all state machines and the code between them are those of
//! real nodes; only the [`Outside`] is simulated. Clients send requests to any node and know the
//! whole answer.
//!
//! - **Safety**: under all faults at once no invariant breaks, see [`checks`].
//! - **Liveness**: after the faults, all served models work again within [`runs::WHOLE_MAX_MS`],
//!   and every stream has ended or continues.
//!
//! `SEEDS=100000 cargo test --release -p cluster --lib simulation` runs that many seeds;
//! `SEEDS=7..8` runs one of them, and `TRACE=1` prints what happens.

mod checks;
mod clients;
mod extremes;
mod faults;
mod network;
mod outside;
mod replicas;
mod runs;
mod workers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use fastrand::Rng;
use store::Digest;
use tokio::sync::watch;

use self::outside::{Act, Shared, SimulatedOutside};
use crate::context::{Context, Done, Opened, Prepared};
use crate::core::{Call, Core, Event, TICK};
use crate::desired::Document;
use crate::members::{Member, Members};
use crate::membership::ConnId;
use crate::wire::Message;
use crate::{ClusterStatus, GenerateRequest, NodeConfig, NodeId};

const MS: u64 = 1000;
/// A scheduled event of the world.
enum Todo {
    /// An event for a daemon from its own machine.
    Event {
        node: usize,
        life: u64,
        event: Box<Event>,
    },
    Tick {
        node: usize,
        life: u64,
    },
    Deadline {
        node: usize,
        life: u64,
    },
    /// The document is on disk.
    Written {
        node: usize,
        life: u64,
        document: Option<Document>,
        done: Option<Done>,
    },
    /// A call arrives.
    Knock {
        from: usize,
        life: u64,
        to: usize,
    },
    /// A caller stops waiting for the answer to its handshake.
    HungUp {
        wire: u64,
    },
    /// Messages to one end of a wire are due.
    Pump {
        wire: u64,
        to: usize,
    },
    /// A frozen node continues.
    Thaw {
        node: usize,
    },
    Worker {
        pid: u32,
        what: workers::What,
    },
    /// Workers check their links.
    Health,
    /// Maybe a fault, maybe a client.
    Trouble,
}

/// One machine.
struct Machine {
    daemon: Option<Core>,
    shared: Arc<Shared>,
    /// Counts its daemons.
    life: u64,
    /// World time at which the present daemon's clock was zero; jumps of the clock lower it.
    clock_zero: i64,
    disk: Document,
    disk_free_at: u64,
    files: Vec<Digest>,
    memory_bytes: u64,
    conns: u64,
    frozen: Option<Range<u64>>,
    /// Events that arrived while it was frozen.
    backlog: Vec<Todo>,
    has_power: bool,
    deadline_at: u64,
}

struct World {
    seed: u64,
    random: Rng,
    /// Microseconds.
    now: u64,
    machines: Vec<Machine>,
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    todo: BTreeMap<u64, Todo>,
    next: u64,
    network: network::Network,
    processes: BTreeMap<u32, workers::Process>,
    pids: u32,
    clients: Vec<clients::Client>,
    faults: faults::Faults,
    checks: checks::Checks,
    model: Prepared,
    is_traced: bool,
    /// A node that sends extremes, and what its daemon has said.
    liar: Option<usize>,
    said: extremes::Said,
    /// Nodes that were removed, and are not remembered after a restart.
    removed: BTreeSet<usize>,
}

fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 32])
}

fn number(id: NodeId) -> usize {
    usize::from(id.0[0]) - 1
}

fn address(node: usize) -> SocketAddr {
    ([10, 0, 0, node as u8 + 1], 7000).into()
}

fn digest(model: usize) -> Digest {
    Digest([model as u8 + 100; 32])
}

/// The configuration of a simulated node.
fn config(node: usize, memory_bytes: u64) -> NodeConfig {
    NodeConfig {
        prompts: crate::PromptsConfig::off(),
        data_dir: PathBuf::new(),
        name: format!("n{node}"),
        listen: address(node),
        link_addresses: Vec::new(),
        peers: Vec::new(),
        device_nodes: Vec::new(),
        worker_command: Vec::new(),
        memory_bytes,
        threads: 1,
        fleet_key: None,
        announce: false,
        cpus: Vec::new(),
        device: Default::default(),
        measure: |_, _| Some(slow()),
        check_text: |_| Ok(Vec::new()),
        places: Default::default(),
        hub: Default::default(),
    }
}

/// What an owner of state gets on a node that stands still, for tests of one owner.
pub(crate) fn context(memory_bytes: u64) -> Context {
    let outside = Box::new(SimulatedOutside::new(Arc::new(Shared::new(0, 1))));
    Context::new(config(0, memory_bytes), (id(0), 1, address(0)), Document::default(), outside)
}

impl World {
    fn new(seed: u64, model: &Prepared, mode: faults::Mode) -> Self {
        let mut random = Rng::with_seed(seed);
        // Small clusters cover most of the cases, and are cheapest.
        let nodes = 3 + random.usize(..6).min(random.usize(..6));
        let mut world = Self {
            seed,
            now: 0,
            machines: Vec::new(),
            heap: BinaryHeap::new(),
            todo: BTreeMap::new(),
            next: 0,
            network: network::Network::new(nodes),
            processes: BTreeMap::new(),
            pids: 0,
            clients: Vec::new(),
            faults: faults::Faults::new(mode, &mut random),
            checks: checks::Checks::default(),
            model: model.clone(),
            is_traced: std::env::var_os("TRACE").is_some(),
            liar: None,
            said: extremes::Said::default(),
            removed: BTreeSet::new(),
            random,
        };
        for node in 0..nodes {
            let files = (0..2).filter(|model| node == *model || world.random.bool());
            let files = files.map(digest).collect();
            world.machines.push(Machine {
                daemon: None,
                shared: Arc::default(),
                life: 0,
                clock_zero: 0,
                disk: Document::default(),
                disk_free_at: 0,
                files,
                memory_bytes: 1 << 30,
                conns: 0,
                frozen: None,
                backlog: Vec::new(),
                has_power: true,
                deadline_at: u64::MAX,
            });
        }
        for node in 0..nodes {
            world.start(node);
        }
        world.after(100 * MS, Todo::Health);
        world.after(100 * MS, Todo::Trouble);
        world
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:>9.3} {}", self.now as f64 / 1e6, what());
        }
    }

    fn after(&mut self, us: u64, todo: Todo) {
        self.next += 1;
        self.heap.push(Reverse((self.now + us, self.next)));
        self.todo.insert(self.next, todo);
    }

    fn nodes(&self) -> Range<usize> {
        0..self.machines.len()
    }

    fn is_frozen(&self, node: usize) -> bool {
        self.machines[node].frozen.as_ref().is_some_and(|time| time.contains(&self.now))
    }

    fn is_up(&self, node: usize) -> bool {
        self.machines[node].daemon.is_some()
    }

    /// Starts a daemon from its disk.
    fn start(&mut self, node: usize) {
        self.trace(|| format!("n{node} starts"));
        let members = self.nodes().filter(|node| !self.removed.contains(node));
        let members: Vec<usize> = members.collect();
        let machine = &mut self.machines[node];
        machine.life += 1;
        (machine.has_power, machine.frozen, machine.deadline_at) = (true, None, u64::MAX);
        machine.clock_zero = self.now as i64;
        machine.shared = Arc::new(Shared::new(node, self.random.u64(..)));
        let config = config(node, machine.memory_bytes);
        let me = (id(node), self.random.u64(..), address(node));
        let (status, _) = watch::channel(Arc::new(ClusterStatus::empty(me.0)));
        let outside = Box::new(SimulatedOutside::new(machine.shared.clone()));
        let kept = (machine.disk.clone(), Vec::new());
        machine.daemon = Some(Core::new(config, me, kept, status, outside));
        let life = machine.life;
        let member = |node| Member {
            id: id(node),
            name: format!("n{node}"),
            addresses: vec![address(node)],
            admitted: 0,
        };
        let members = members.into_iter().filter(|other| *other != node).map(member).collect();
        let others = Members { members, removed: Vec::new() };
        self.step(node, |daemon| daemon.start(others));
        let first = self.random.u64(..250 * MS);
        self.after(first, Todo::Tick { node, life });
    }

    /// The daemon ends abruptly; with `power` its machine stays on, and its system closes the
    /// connections.
    fn crash(&mut self, node: usize, power: bool) {
        self.trace(|| format!("n{node} crashes, power {power}"));
        self.machines[node].daemon = None;
        self.machines[node].has_power = power;
        self.machines[node].backlog.clear();
        self.machines[node].frozen = None;
        self.lose_clients(node);
        self.lose_processes(node);
        self.close_wires(node, power);
    }

    /// Runs `act` on a daemon, and then the recorded calls.
    fn step(&mut self, node: usize, act: impl FnOnce(&mut Core)) {
        let machine = &mut self.machines[node];
        let Some(daemon) = &mut machine.daemon else { return };
        machine.shared.set_now((self.now as i64 - machine.clock_zero) as u64);
        act(daemon);
        daemon.settle();
        daemon.host.ctx.take_changed();
        let acts = machine.shared.take_acts();
        for act in acts {
            self.perform(node, act);
        }
        self.hear_clients(node);
        self.await_deadline(node);
    }

    fn await_deadline(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        let Some(daemon) = &machine.daemon else { return };
        let Some(due) = daemon.next_deadline() else { return };
        let wait = due.saturating_sub(daemon.now());
        let at = self.now + wait.as_micros() as u64 + 1;
        if wait < TICK && (at < machine.deadline_at || machine.deadline_at <= self.now) {
            machine.deadline_at = at;
            let life = machine.life;
            self.after(at - self.now, Todo::Deadline { node, life });
        }
    }

    fn run(&mut self, until_ms: u64) {
        while let Some(Reverse((at, _))) = self.heap.peek() {
            if *at > until_ms * MS {
                break;
            }
            let Some(Reverse((at, key))) = self.heap.pop() else { break };
            self.now = at;
            let todo = self.todo.remove(&key).expect("it was put there");
            self.happen(todo);
        }
        self.now = until_ms * MS;
    }

    fn happen(&mut self, todo: Todo) {
        let local = match &todo {
            Todo::Event { node, life, .. }
            | Todo::Tick { node, life }
            | Todo::Deadline { node, life }
            | Todo::Written { node, life, .. } => Some((*node, *life)),
            _ => None,
        };
        if let Some((node, life)) = local {
            if self.machines[node].life != life || !self.is_up(node) {
                return;
            }
            if self.is_frozen(node) {
                return self.machines[node].backlog.push(todo);
            }
        }
        match todo {
            Todo::Event { node, event, .. } => self.step(node, |daemon| daemon.input(*event)),
            Todo::Tick { node, life } => {
                self.step(node, Core::tick);
                self.check_node(node);
                self.after(250 * MS, Todo::Tick { node, life });
            }
            Todo::Deadline { node, .. } => {
                self.machines[node].deadline_at = u64::MAX;
                self.step(node, Core::tick_instances);
            }
            Todo::Written { node, document, done, .. } => {
                if let Some(document) = document {
                    self.machines[node].disk = document;
                }
                if let Some(done) = done {
                    done(Ok(()));
                }
            }
            Todo::Knock { from, life, to } => self.knock(from, life, to),
            Todo::HungUp { wire } => self.hang_up(wire),
            Todo::Pump { wire, to } => self.pump(wire, to),
            Todo::Thaw { node } => {
                if !self.is_frozen(node) {
                    for todo in std::mem::take(&mut self.machines[node].backlog) {
                        self.happen(todo);
                    }
                }
            }
            Todo::Worker { pid, what } => self.worker(pid, what),
            Todo::Health => {
                self.check_links();
                self.after(250 * MS, Todo::Health);
            }
            Todo::Trouble => {
                self.trouble();
                self.after(100 * MS, Todo::Trouble);
            }
        }
    }

    fn tell(&mut self, node: usize, after_us: u64, event: Event) {
        let (life, event) = (self.machines[node].life, Box::new(event));
        self.after(after_us, Todo::Event { node, life, event });
    }

    /// Performs a recorded call of a daemon.
    fn perform(&mut self, node: usize, act: Act) {
        let life = self.machines[node].life;
        match act {
            Act::Dial(peer) if number(peer) >= self.machines.len() => {
                let error = crate::context::DialError::NoAddress;
                self.tell(node, 1000 * MS, Event::DialFailed { peer, error });
            }
            Act::Dial(peer) => {
                let latency = self.latency();
                self.after(latency, Todo::Knock { from: node, life, to: number(peer) });
            }
            Act::Keep(conn) => self.keep(node, conn),
            Act::Refuse(conn, reason, verdict) => self.refuse(node, conn, reason, verdict),
            Act::Close(conn) => self.close(node, conn),
            Act::Send(conn, message) => self.send(node, conn, message),
            Act::Write(document, done) => {
                // In order: an earlier document never replaces a later one.
                let us = 500 + self.random.u64(..20 * MS);
                let machine = &mut self.machines[node];
                machine.disk_free_at = machine.disk_free_at.max(self.now) + us;
                let us = machine.disk_free_at - self.now;
                self.after(us, Todo::Written { node, life, document, done });
            }
            Act::Locate(digest) => {
                let has = self.machines[node].files.contains(&digest);
                let path = has.then(|| PathBuf::from("m.gguf"));
                let us = self.random.u64(..50 * MS);
                self.tell(node, us, Event::Located { digest, path });
            }
            Act::Open(wanted) => {
                let opened = if self.machines[node].files.contains(&wanted.digest) {
                    let mut prepared = self.model.clone();
                    prepared.found.digest = wanted.digest;
                    prepared.spec = crate::InstanceSpec::clone(&wanted.spec);
                    Ok(Box::new(prepared))
                } else {
                    Err("the file is not on this node any more".to_owned())
                };
                let us = self.random.u64(..50 * MS);
                self.tell(node, us, Event::Opened { id: wanted.id, opened });
            }
            Act::Start(start) => self.start_process(node, *start),
            Act::Command(key, command) => self.command(node, key, command),
            Act::End(key) => self.end_process(node, key),
            Act::MeasureReading => self.tell(node, 100 * MS, Event::ReadSpeed(slow())),
            Act::MeasureWay(peer, way) => {
                let placement::LinkSpeed { message_secs, bytes_per_sec } =
                    placement::LinkSpeed::LOOPBACK;
                let found = crate::edge::Measurement {
                    packet_bytes: None,
                    local: address(node).ip(),
                    round_trip: std::time::Duration::from_secs_f64(message_secs * 2.0),
                    bytes_per_sec: Some(bytes_per_sec),
                };
                let us = self.random.u64(..300 * MS);
                self.tell(node, us, Event::Measured { peer, address: way, found: Some(found) });
            }
        }
    }
}

/// So slow that a model of a few kilobytes is worth all nodes.
fn slow() -> crate::Speed {
    let rates = crate::Rates {
        read_bytes_per_sec: 1e3,
        quantised_ops_per_sec: 1e5,
        float_ops_per_sec: 1e5,
    };
    crate::Speed::alone(rates, 0.0)
}
