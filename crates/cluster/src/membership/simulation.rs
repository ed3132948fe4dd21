//! A cluster of state machines on a bad network: lost and late messages, links that fail in one or
//! both directions, frozen, killed and unplugged nodes, jumping clocks. Every run is made from its
//! seed alone.
//!
//! Whatever happened, once it stops every pair must agree on one connection; and what is short
//! enough to be no failure must not be taken for one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fastrand::Rng;

use super::*;

const NODES: usize = 4;
const SEEDS: u64 = 2000;
/// Faults happen in this time, milliseconds.
const TROUBLE_MS: u64 = 30_000;
/// After that, everything has this long to find together again.
const QUIET_MS: u64 = 15_000;
const TICK_MS: u64 = 250;
const DIAL_TIMEOUT_MS: u64 = 3_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Tick(usize),
    Fault,
    Dial {
        from: usize,
        to: usize,
    },
    /// The listener has taken the call; the dialer hears of it.
    Welcome {
        conn: ConnId,
    },
    DialFailed {
        from: usize,
        to: usize,
    },
    Heard {
        at: usize,
        conn: ConnId,
    },
    Closed {
        at: usize,
        conn: ConnId,
    },
    Restart(usize),
}

struct SimNode {
    machine: Membership,
    up: bool,
    boot: u64,
    frozen_until: u64,
    /// How far its clock is ahead.
    ahead_ms: u64,
    /// The connection it believes in, for each peer, by its own effects.
    believed: BTreeMap<NodeId, ConnId>,
    losses: u64,
    dials: u64,
}

struct World {
    seed: u64,
    random: Rng,
    now: u64,
    todo: BinaryHeap<Reverse<(u64, u64, Action)>>,
    next: u64,
    nodes: Vec<SimNode>,
    /// Dialer and listener of each connection, by its number.
    conns: Vec<(usize, usize)>,
    /// Until when messages from one node to another are lost.
    cut_until: [[u64; NODES]; NODES],
    /// Whom a node cannot call (but may be called by): a firewall, for the whole run.
    walled: [[bool; NODES]; NODES],
    faults: Faults,
}

/// Which faults a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Faults {
    None,
    /// Only what must pass for no failure: freezes up to two seconds, jumping clocks, late
    /// messages.
    Harmless,
    All,
}

fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 32])
}

fn number(id: NodeId) -> usize {
    usize::from(id.0[0]) - 1
}

fn member(node: usize) -> Member {
    let address = std::net::SocketAddr::from(([10, 0, 0, node as u8 + 1], 8751));
    Member { id: id(node), name: format!("node-{node}"), addresses: vec![address] }
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let node = |at: usize| SimNode {
            machine: Membership::new(id(at), Duration::ZERO),
            up: true,
            boot: at as u64,
            frozen_until: 0,
            ahead_ms: 0,
            believed: BTreeMap::new(),
            losses: 0,
            dials: 0,
        };
        let mut world = Self {
            seed,
            random: Rng::with_seed(seed),
            now: 0,
            todo: BinaryHeap::new(),
            next: 0,
            nodes: (0..NODES).map(node).collect(),
            conns: Vec::new(),
            cut_until: [[0; NODES]; NODES],
            walled: [[false; NODES]; NODES],
            faults,
        };
        if faults == Faults::All && world.random.u64(..3) == 0 {
            let (from, to) = (world.random.u64(..NODES as u64), world.random.u64(..NODES as u64));
            world.walled[from as usize][to as usize] = true;
        }
        for at in 0..NODES {
            let offset = world.random.u64(..TICK_MS);
            world.later(offset, Action::Tick(at));
            world.step(at, Input::Learned((0..NODES).map(member).collect()));
        }
        if faults != Faults::None {
            // They begin once the mesh stands, so that nothing else explains a loss.
            world.later(5_000, Action::Fault);
        }
        world
    }

    fn later(&mut self, after_ms: u64, action: Action) {
        self.next += 1;
        self.todo.push(Reverse((self.now + after_ms, self.next, action)));
    }

    fn run(&mut self, until: u64) {
        while let Some(Reverse((at, _, _))) = self.todo.peek() {
            if *at > until {
                break;
            }
            let Reverse((at, _, action)) = self.todo.pop().expect("it was there");
            self.now = at;
            self.act(action);
        }
        self.now = until;
    }

    /// What a frozen node should do is done when it wakes up.
    fn act(&mut self, action: Action) {
        let doer = match action {
            Action::Tick(at) | Action::Heard { at, .. } | Action::Closed { at, .. } => Some(at),
            Action::DialFailed { from, .. } => Some(from),
            _ => None,
        };
        if let Some(wake) = doer.map(|at| self.nodes[at].frozen_until).filter(|at| *at > self.now) {
            return self.later(wake - self.now, action);
        }
        match action {
            Action::Tick(at) => self.tick(at),
            Action::Fault => self.fault(),
            Action::Dial { from, to } => self.dial(from, to),
            Action::Welcome { conn } => self.welcome(conn),
            Action::DialFailed { from, to } => self.step(from, Input::DialFailed { peer: id(to) }),
            Action::Heard { at, conn } => self.step(at, Input::Heard { conn }),
            Action::Closed { at, conn } => {
                self.step(at, Input::Closed { conn, reason: String::new() });
            }
            Action::Restart(at) => self.restart(at),
        }
    }

    fn tick(&mut self, at: usize) {
        self.later(TICK_MS, Action::Tick(at));
        if !self.nodes[at].up {
            return;
        }
        self.step(at, Input::Tick);
        for (peer, conn) in self.nodes[at].believed.clone() {
            self.send(at, number(peer), Action::Heard { at: number(peer), conn });
        }
    }

    /// Delivers after a delay that TCP's retransmissions may stretch, or not at all.
    fn send(&mut self, from: usize, to: usize, action: Action) {
        let lost_once = self.random.u64(..30) == 0;
        let delay = 1 + self.random.u64(..40) + if lost_once { 300 } else { 0 };
        if self.now >= self.cut_until[from][to] && self.nodes[to].up {
            self.later(delay, action);
        }
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.now < self.cut_until[from][to] || self.now < self.cut_until[to][from]
    }

    fn dial(&mut self, from: usize, to: usize) {
        if !self.nodes[from].up {
            return;
        }
        let frozen = self.now < self.nodes[to].frozen_until;
        if self.is_cut(from, to) || self.walled[from][to] || frozen {
            return self.later(DIAL_TIMEOUT_MS, Action::DialFailed { from, to });
        }
        if !self.nodes[to].up {
            return self.later(1, Action::DialFailed { from, to });
        }
        self.conns.push((from, to));
        let conn = self.conns.len() as ConnId;
        let (boot, member) = (self.nodes[from].boot, member(from));
        self.step(to, Input::Opened { conn, dialed: false, boot, member });
        if self.nodes[to].believed.get(&id(from)) == Some(&conn) {
            let delay = 1 + self.random.u64(..40);
            self.later(delay, Action::Welcome { conn });
        } else {
            self.later(1, Action::DialFailed { from, to });
        }
    }

    fn welcome(&mut self, conn: ConnId) {
        let (from, to) = self.conns[conn as usize - 1];
        if self.is_cut(from, to) || self.now < self.nodes[from].frozen_until {
            // The listener believes in a connection that the dialer gives up.
            self.later(DIAL_TIMEOUT_MS, Action::DialFailed { from, to });
            return self.later(DIAL_TIMEOUT_MS, Action::Closed { at: to, conn });
        }
        if self.nodes[from].up {
            let (boot, member) = (self.nodes[to].boot, member(to));
            self.step(from, Input::Opened { conn, dialed: true, boot, member });
        }
    }

    fn restart(&mut self, at: usize) {
        let boot = self.random.u64(..);
        let now = self.clock(at);
        let node = &mut self.nodes[at];
        node.machine = Membership::new(id(at), now);
        node.up = true;
        node.boot = boot;
        node.believed.clear();
        self.step(at, Input::Learned((0..NODES).map(member).collect()));
    }

    /// A node stops; `told` is whether its system closes its connections.
    fn stop(&mut self, at: usize, told: bool) {
        self.nodes[at].up = false;
        for (peer, conn) in std::mem::take(&mut self.nodes[at].believed) {
            if told {
                let peer = number(peer);
                self.send(at, peer, Action::Closed { at: peer, conn });
            }
        }
    }

    fn fault(&mut self) {
        let at = self.random.usize(..NODES);
        let other = (at + 1 + self.random.usize(..NODES - 1)) % NODES;
        let for_ms = 1 + self.random.u64(..8_000);
        let kinds = if self.faults == Faults::All { 7 } else { 2 };
        match self.random.u64(..kinds) {
            0 => {
                let limit = if self.faults == Faults::All { for_ms } else { for_ms % 2_000 };
                self.nodes[at].frozen_until = self.now + limit;
            }
            1 => self.nodes[at].ahead_ms += 1_100 + self.random.u64(..3_600_000),
            2 => self.cut_until[at][other] = self.now + for_ms,
            3 => {
                self.cut_until[at][other] = self.now + for_ms;
                self.cut_until[other][at] = self.now + for_ms;
            }
            4 => {
                for node in (0..NODES).filter(|node| *node != at) {
                    self.cut_until[at][node] = self.now + for_ms;
                    self.cut_until[node][at] = self.now + for_ms;
                }
            }
            kind if self.nodes[at].up => {
                self.stop(at, kind == 5);
                self.later(for_ms, Action::Restart(at));
            }
            _ => {}
        }
        // A second freeze right after the first would add up to a long one.
        let pause = 100 + self.random.u64(..if self.faults == Faults::All { 3_000 } else { 500 });
        let pause = if self.faults == Faults::Harmless { pause + 3_000 } else { pause };
        if self.now + pause < TROUBLE_MS {
            self.later(pause, Action::Fault);
        }
    }

    fn clock(&self, at: usize) -> Duration {
        Duration::from_millis(self.now + self.nodes[at].ahead_ms)
    }

    fn step(&mut self, at: usize, event: Input) {
        if !self.nodes[at].up {
            return;
        }
        let now = self.clock(at);
        for effect in self.nodes[at].machine.step(event, now) {
            let seed = self.seed;
            let node = &mut self.nodes[at];
            match effect {
                Effect::Dial { peer, addresses } => {
                    assert_eq!(addresses, member(number(peer)).addresses);
                    node.dials += 1;
                    let delay = 1 + self.random.u64(..40);
                    self.later(delay, Action::Dial { from: at, to: number(peer) });
                }
                Effect::Close { conn, .. } => self.close(at, conn),
                Effect::Up { peer, conn, .. } => {
                    let was = node.believed.insert(peer, conn);
                    assert_eq!(was, None, "seed {seed}: up without down at {at}");
                }
                Effect::Down { peer, conn, .. } => {
                    let was = node.believed.remove(&peer);
                    assert_eq!(was, Some(conn), "seed {seed}: down without up at {at}");
                    node.losses += 1;
                }
                Effect::MembersChanged => {}
            }
        }
    }

    fn close(&mut self, at: usize, conn: ConnId) {
        let (from, to) = self.conns[conn as usize - 1];
        let peer = if at == from { to } else { from };
        self.send(at, peer, Action::Closed { at: peer, conn });
    }

    fn check_whole(&self) {
        let seed = self.seed;
        for at in 0..NODES {
            for peer in (0..NODES).filter(|peer| *peer != at) {
                let (here, there) = (&self.nodes[at], &self.nodes[peer]);
                assert_eq!(
                    here.machine.state(id(peer)),
                    NodeState::Live,
                    "seed {seed}: {at} {peer}"
                );
                let ends = (here.believed.get(&id(peer)), there.believed.get(&id(at)));
                assert!(ends.0.is_some() && ends.0 == ends.1, "seed {seed}: {at} {peer} {ends:?}");
                assert_eq!(here.machine.conn(id(peer)), ends.0.copied(), "seed {seed}");
            }
        }
    }
}

#[test]
fn every_cluster_becomes_whole_again() {
    let mut dials_max = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Faults::All);
        world.run(4_900);
        world.check_whole();
        world.run(TROUBLE_MS + 8_000 + QUIET_MS);
        world.check_whole();
        dials_max = world.nodes.iter().map(|node| node.dials).max().unwrap_or(0).max(dials_max);
    }
    println!("{SEEDS} seeds from 0; at most {dials_max} calls by one node");
    // Three peers, 53 s, a call each 250 ms would be 636: back-off must show.
    assert!(dials_max < 150, "{dials_max} calls");
}

#[test]
fn short_freezes_and_jumping_clocks_lose_nobody() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Faults::Harmless);
        world.run(5_000 - 1);
        world.check_whole();
        let losses = |world: &World| world.nodes.iter().map(|node| node.losses).sum::<u64>();
        let before = losses(&world);
        world.run(TROUBLE_MS + QUIET_MS);
        assert_eq!(losses(&world), before, "seed {seed}: somebody was lost");
        world.check_whole();
    }
    println!("{SEEDS} seeds from 0");
}

#[test]
fn a_dead_node_is_lost_everywhere_in_time() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Faults::None);
        world.run(4_500);
        let (dead, told) = (world.random.usize(..NODES), world.random.u64(..2) == 0);
        world.stop(dead, told);
        world.run(4_500 + if told { 400 } else { 3_700 });
        for at in (0..NODES).filter(|at| *at != dead) {
            let state = world.nodes[at].machine.state(id(dead));
            assert_eq!(state, NodeState::Lost, "seed {seed} {at}");
        }
        // The survivors call it for a minute, ever more slowly.
        let calls = |world: &World| world.nodes.iter().map(|node| node.dials).sum::<u64>();
        let before = calls(&world);
        world.run(64_500);
        let made = calls(&world) - before;
        assert!((30..60).contains(&made), "seed {seed}: {made} calls");
    }
    println!("{SEEDS} seeds from 0");
}
