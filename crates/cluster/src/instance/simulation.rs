//! Simulates an instance whose workers are killed, whose links break and whose nodes come and go;
//! the seed determines the run. Every request ends exactly once, and after the faults the next
//! request is answered without a user's help.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use fastrand::Rng;

use super::tests::{done, fixed, request, split};
use super::*;

const NODES: usize = 3;
const SEEDS: u64 = 2000;
const TROUBLE_MS: u64 = 60_000;
/// Back-off (20 s), the pause after giving up (30 s), loading, linking.
const QUIET_MS: u64 = 90_000;

/// A worker process as its node sees it.
#[derive(Debug, Default)]
struct Process {
    rank: usize,
    loaded: bool,
    epoch: u64,
    linked: bool,
}

#[derive(Debug, Default)]
struct Host {
    up: bool,
    /// Counts connections: messages over an older one are lost with it.
    session: u64,
    workers: BTreeMap<WorkerId, Process>,
}

struct World {
    seed: u64,
    random: Rng,
    now: u64,
    machine: Instance,
    hosts: Vec<Host>,
    /// Events on their way: time, order, node, session, event.
    todo: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, (usize, u64, Input)>,
    next: u64,
    open: BTreeSet<RequestId>,
    ended: u64,
    answered: u64,
    epochs: Vec<u64>,
    needs_two: bool,
}

fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 32])
}

fn rank(node: usize) -> Rank {
    Rank::new(id(node), format!("n{node}"), 10, Path::LOOPBACK)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let needs_two = random.u64(..2) == 0;
        let machine =
            Instance::new(fixed(), (0..NODES).map(rank).collect(), split(NODES), Duration::ZERO);
        let hosts = (0..NODES).map(|_| Host { up: true, ..Host::default() }).collect();
        let mut world = Self {
            seed,
            random,
            now: 0,
            machine,
            hosts,
            todo: BinaryHeap::new(),
            events: BTreeMap::new(),
            next: 0,
            open: BTreeSet::new(),
            ended: 0,
            answered: 0,
            epochs: Vec::new(),
            needs_two,
        };
        let effects = world.machine.take_effects();
        world.perform(effects);
        world
    }

    /// Queues an event on a node's present connection.
    fn tell(&mut self, node: usize, after_ms: u64, event: Input) {
        self.next += 1;
        let session = self.hosts[node].session;
        self.events.insert(self.next, (node, session, event));
        self.todo.push(Reverse((self.now + after_ms, self.next)));
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    fn step(&mut self, event: Input) {
        let now = self.time();
        let effects = self.machine.step(event, now);
        self.perform(effects);
        if let Some(deadline) = self.machine.deadline() {
            let spins = deadline <= now && matches!(self.machine.phase, Phase::Ready);
            assert!(!spins, "seed {}: it would keep the driver busy", self.seed);
        }
    }

    fn run(&mut self, until: u64, mut fault: impl FnMut(&mut Self)) {
        let mut tick = self.now;
        while self.now < until {
            let event = self.todo.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let deadline = self.machine.deadline().map_or(u64::MAX, |at| at.as_millis() as u64);
            self.now = event.min(deadline.max(self.now)).min(tick + 250).min(until);
            if event == self.now {
                let Reverse((_, key)) = self.todo.pop().expect("it was there");
                let (node, session, event) = self.events.remove(&key).expect("it was there");
                if self.hosts[node].up && self.hosts[node].session == session {
                    self.note(node, &event);
                    self.step(event);
                }
                continue;
            }
            if self.now == tick + 250 {
                tick = self.now;
                fault(self);
            }
            self.step(Input::Tick);
            let next = self.machine.deadline().map(|at| at > self.time());
            assert_ne!(next, Some(false), "seed {}: due again at once", self.seed);
        }
    }

    /// Updates a worker with an event that its owner has received.
    fn note(&mut self, node: usize, event: &Input) {
        if let Input::FromWorker { worker, event: WorkerEvent::Loaded { .. } } = event
            && let Some(process) = self.hosts[node].workers.get_mut(worker)
        {
            process.loaded = true;
        }
    }

    /// Runs effects in order, followed by their consequences, as the driver does.
    fn perform(&mut self, effects: Vec<Effect>) {
        let mut todo = VecDeque::from(effects);
        while let Some(effect) = todo.pop_front() {
            match effect {
                Effect::Spawn { node, worker, order } => {
                    self.spawn(number(node), worker, order.rank)
                }
                Effect::End { node, worker, .. } => {
                    if self.hosts[number(node)].up {
                        self.kill(number(node), worker);
                    }
                }
                Effect::Send { node, worker, command } => {
                    self.command(number(node), worker, command)
                }
                Effect::Emit { request, event } => self.emitted(request, &event),
                Effect::LetGo { .. } => unreachable!("nothing moves"),
                Effect::Replan => todo.extend(self.replan()),
                Effect::Reorder(_) => unreachable!("fewer nodes than a ring needs"),
                Effect::Part(_) => self.machine.cannot_part("two are all there are"),
            }
        }
    }

    fn replan(&mut self) -> Vec<Effect> {
        let up: Vec<usize> = (0..NODES).filter(|node| self.hosts[*node].up).collect();
        let now = self.time();
        if self.needs_two && up.len() < 2 {
            self.machine.give_up("two nodes are needed", now)
        } else {
            let split = split(up.len());
            self.machine.replace(up.into_iter().map(rank).collect(), split, now)
        }
    }

    fn spawn(&mut self, node: usize, worker: WorkerId, rank: usize) {
        assert!(self.hosts[node].up, "seed {}: spawned on a lost node", self.seed);
        if let Some(process) = self.hosts[node].workers.get(&worker) {
            // The worker reports its past progress again, and continues.
            let after_ms = if process.loaded { 5 } else { 20 + self.random.u64(..3000) };
            return self.tell_loaded(node, worker, after_ms);
        }
        self.hosts[node].workers.insert(worker, Process { rank, ..Process::default() });
        self.tell(node, 2, Input::Spawned { worker, pid: 1 });
        let load_ms = 20 + self.random.u64(..3000);
        self.tell_loaded(node, worker, load_ms);
    }

    fn tell_loaded(&mut self, node: usize, worker: WorkerId, after_ms: u64) {
        let listening = WorkerEvent::Listening { port: 1, more: Vec::new() };
        let loaded =
            WorkerEvent::Loaded { weight_bytes: 1, kv_bytes: 1, buffer_bytes: 1, load_us: 1 };
        self.tell(node, after_ms, Input::FromWorker { worker, event: listening });
        self.tell(node, after_ms, Input::FromWorker { worker, event: loaded });
    }

    fn command(&mut self, node: usize, worker: WorkerId, command: WorkerCommand) {
        assert!(self.hosts[node].up, "seed {}: spoke to a lost node", self.seed);
        let Some(process) = self.hosts[node].workers.get_mut(&worker) else { return };
        match command {
            WorkerCommand::Connect { epoch, endpoints, .. } => {
                process.epoch = epoch;
                process.linked = false;
                let last = self.epochs.last().copied().unwrap_or(0);
                assert!(epoch >= last, "seed {}: epoch {epoch} after {last}", self.seed);
                self.epochs.push(epoch);
                self.link(epoch, endpoints.len());
            }
            WorkerCommand::Disconnect => {
                process.epoch = 0;
                process.linked = false;
            }
            WorkerCommand::Generate { request, .. } => {
                let epoch = self.epochs.last().copied();
                assert_eq!(Some(process.epoch), epoch, "seed {}: not linked", self.seed);
                // The report of a link that has just broken may still be on its way.
                if process.linked {
                    let after = 1 + self.random.u64(..400);
                    self.tell(node, after, Input::FromWorker { worker, event: done(request) });
                }
            }
            WorkerCommand::Cancel { .. } | WorkerCommand::Open(_) => {}
            WorkerCommand::Called | WorkerCommand::CalledBy { .. } => {}
        }
    }

    /// Links are up when the workers of all ranks share an epoch.
    fn link(&mut self, epoch: u64, ranks: usize) {
        let mut found = Vec::new();
        for (node, host) in self.hosts.iter().enumerate() {
            let in_epoch = host.workers.iter().filter(|(_, process)| process.epoch == epoch);
            found.extend(in_epoch.map(|(worker, _)| (node, *worker)));
        }
        if found.len() == ranks {
            for (node, worker) in found {
                self.hosts[node].workers.get_mut(&worker).expect("found above").linked = true;
                self.tell(
                    node,
                    3,
                    Input::FromWorker {
                        worker,
                        event: WorkerEvent::Linked { epoch, notes: Vec::new() },
                    },
                );
            }
        }
    }

    fn kill(&mut self, node: usize, worker: WorkerId) {
        let Some(dead) = self.hosts[node].workers.remove(&worker) else { return };
        let delay = self.random.u64(..80);
        let how = "was killed by signal 9".to_owned();
        self.tell(node, delay, Input::Exited { worker, how });
        if dead.linked {
            self.break_links(dead.epoch, dead.rank);
        }
    }

    /// The other ranks of an epoch detect that one is gone.
    fn break_links(&mut self, epoch: u64, gone: usize) {
        let mut tells = Vec::new();
        for (node, host) in self.hosts.iter_mut().enumerate() {
            for (worker, process) in &mut host.workers {
                if process.linked && process.epoch == epoch && process.rank != gone {
                    process.linked = false;
                    tells.push((node, *worker));
                }
            }
        }
        for (node, worker) in tells {
            let (rank, reason) = (Some(gone), "its link closed".to_owned());
            let delay = 1 + self.random.u64(..5);
            let lost = WorkerEvent::Lost { epoch, rank, reason, unreached: Vec::new() };
            self.tell(node, delay, Input::FromWorker { worker, event: lost });
        }
    }

    fn node_down(&mut self, node: usize, daemon_died: bool) {
        self.hosts[node].up = false;
        self.hosts[node].session += 1;
        if daemon_died {
            self.hosts[node].workers.clear();
        }
        for process in self.hosts[node].workers.values_mut() {
            (process.epoch, process.linked) = (0, false);
        }
        self.step(Input::NodeDown { node: id(node), reason: "its daemon ended".to_owned() });
    }

    fn node_up(&mut self, node: usize) {
        self.hosts[node].up = true;
        self.step(Input::NodeUp { node: id(node), path: Path::LOOPBACK });
    }

    /// Once each tick: maybe a fault, maybe a request.
    fn trouble(&mut self) {
        let node = self.random.usize(..NODES);
        match self.random.u64(..60) {
            0 if node > 0 && self.hosts[node].up => {
                let daemon_died = self.random.u64(..2) == 0;
                self.node_down(node, daemon_died);
            }
            1 | 2 => {
                let worker = self.hosts[node].workers.keys().next_back().copied();
                if let (Some(worker), true) = (worker, self.hosts[node].up) {
                    self.kill(node, worker);
                }
            }
            3 => self.break_links(self.machine.epoch, 0),
            4..8 if !self.hosts[node].up => self.node_up(node),
            8..30 => drop(self.ask()),
            _ => {}
        }
    }

    fn ask(&mut self) -> bool {
        let now = self.time();
        let Ok(request) = self.machine.submit(request(), now) else { return false };
        self.open.insert(request);
        let effects = self.machine.take_effects();
        self.perform(effects);
        true
    }

    fn emitted(&mut self, request: RequestId, event: &GenerateEvent) {
        match event {
            GenerateEvent::Waiting { .. } | GenerateEvent::Began(_) | GenerateEvent::Tokens(_) => {
                assert!(self.open.contains(&request), "seed {}: it had ended", self.seed);
            }
            GenerateEvent::Done(_) | GenerateEvent::Failed { .. } => {
                assert!(self.open.remove(&request), "seed {}: it ended twice", self.seed);
                self.ended += 1;
                self.answered += u64::from(matches!(event, GenerateEvent::Done(_)));
            }
        }
    }
}

fn number(id: NodeId) -> usize {
    usize::from(id.0[0]) - 1
}

#[test]
fn every_request_ends_once_and_nothing_needs_a_person() {
    let (mut ended, mut answered, mut epochs) = (0, 0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.run(TROUBLE_MS, World::trouble);
        for node in 1..NODES {
            if !world.hosts[node].up {
                world.node_up(node);
            }
        }
        // A request makes an instance that has given up try again.
        world.run(TROUBLE_MS + QUIET_MS, |world| {
            if world.now.is_multiple_of(10_000) && world.now < TROUBLE_MS + QUIET_MS {
                world.ask();
            }
        });
        let state = world.machine.status().state;
        assert_eq!(state, InstanceState::Ready, "seed {seed}");
        assert!(world.open.is_empty(), "seed {seed}: {:?} never ended", world.open);
        let before = world.answered;
        assert!(world.ask(), "seed {seed}");
        world.run(TROUBLE_MS + QUIET_MS + 1000, |_| {});
        assert_eq!(world.answered, before + 1, "seed {seed}");
        ended += world.ended;
        answered += world.answered;
        epochs += world.machine.epoch;
    }
    println!("{SEEDS} seeds from 0: {ended} requests, {answered} answered, {epochs} epochs");
    assert!(answered < ended && epochs > 3 * SEEDS, "there was no trouble");
}
