//! The network, the nodes and their users.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fastrand::Rng;

use super::super::*;

pub const NODES: usize = 4;
/// Faults happen in this time, in milliseconds.
pub const TROUBLE_MS: u64 = 30_000;
/// Time to recover after the faults.
pub const QUIET_MS: u64 = 15_000;
const TICK_MS: u64 = 250;
const DIAL_TIMEOUT_MS: u64 = 3_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    Tick(usize),
    Fault,
    Dial {
        from: usize,
        to: usize,
        /// Whether the called addresses include its present one.
        found: bool,
    },
    /// The listener has accepted the call; the reply is on its way to the dialer.
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
    /// A node's list arrives, by its number in `World::told`.
    Told {
        at: usize,
        conn: ConnId,
        told: usize,
    },
    /// A node is admitted; the answer reaches it unless it is lost.
    Join {
        by: usize,
        at: usize,
    },
    Joined {
        at: usize,
        told: usize,
    },
    Announce(usize),
}

pub struct SimNode {
    pub machine: Membership,
    /// Its list on disk, read at the start.
    pub disk: Members,
    /// Number of its network, which determines its address.
    pub place: u8,
    pub up: bool,
    pub boot: u64,
    pub frozen_until: u64,
    /// How far its clock is ahead.
    pub ahead_ms: u64,
    /// Its connection to each peer, by its own effects.
    pub believed: BTreeMap<NodeId, ConnId>,
    pub losses: u64,
    pub dials: u64,
}

pub struct World {
    pub seed: u64,
    pub random: Rng,
    pub now: u64,
    pub todo: BinaryHeap<Reverse<(u64, u64, Action)>>,
    pub next: u64,
    pub nodes: Vec<SimNode>,
    pub told: Vec<Members>,
    /// Whether announcements are received.
    pub multicast: bool,
    /// Removals by users: time, actor, removed node.
    pub removals: Vec<(u64, usize, usize)>,
    /// Admissions by users: time, admitted node.
    pub admissions: Vec<(u64, usize)>,
    /// Dialer and listener of each connection, by its number.
    pub conns: Vec<(usize, usize)>,
    /// End of the cut from one node to another, during which messages are lost.
    pub cut_until: [[u64; NODES]; NODES],
    /// Nodes that a node cannot call, but that may call it: a firewall, for the whole run.
    pub walled: [[bool; NODES]; NODES],
    pub faults: Faults,
}

/// The kinds of faults in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    None,
    /// Only faults that must not count as failures: freezes up to two seconds, jumping clocks, late
    /// messages.
    Harmless,
    All,
    /// All faults, and users who move machines to other networks, remove nodes and admit them.
    Changes,
}

pub fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 32])
}

pub fn number(id: NodeId) -> usize {
    usize::from(id.0[0]) - 1
}

pub fn address(node: usize, place: u8) -> SocketAddr {
    SocketAddr::from(([10, place, 0, node as u8 + 1], 8751))
}

pub fn member(node: usize, place: u8) -> Member {
    let address = address(node, place);
    Member { id: id(node), name: format!("node-{node}"), addresses: vec![address], admitted: 0 }
}

/// All nodes at their first addresses.
fn everybody() -> Members {
    Members { members: (0..NODES).map(|at| member(at, 0)).collect(), removed: Vec::new() }
}

impl World {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let node = |at: usize| SimNode {
            machine: Membership::new(id(at), Duration::ZERO),
            disk: everybody(),
            place: 0,
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
            told: Vec::new(),
            multicast: seed.is_multiple_of(2),
            removals: Vec::new(),
            admissions: Vec::new(),
            conns: Vec::new(),
            cut_until: [[0; NODES]; NODES],
            walled: [[false; NODES]; NODES],
            faults,
        };
        if world.is_rough() && world.random.u64(..3) == 0 {
            let (from, to) = (world.random.u64(..NODES as u64), world.random.u64(..NODES as u64));
            world.walled[from as usize][to as usize] = true;
        }
        for at in 0..NODES {
            let offset = world.random.u64(..TICK_MS);
            world.later(offset, Action::Tick(at));
            if faults == Faults::Changes && world.multicast {
                world.later(offset, Action::Announce(at));
            }
            world.step(at, Input::Learned { members: everybody(), by: None });
        }
        if faults != Faults::None {
            // Faults begin once the mesh is complete, so that nothing else explains a loss.
            world.later(5_000, Action::Fault);
        }
        world
    }

    pub fn later(&mut self, after_ms: u64, action: Action) {
        self.next += 1;
        self.todo.push(Reverse((self.now + after_ms, self.next, action)));
    }

    /// Whether faults may lose a node.
    fn is_rough(&self) -> bool {
        matches!(self.faults, Faults::All | Faults::Changes)
    }

    pub fn run(&mut self, until: u64) {
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

    /// Runs an action. A frozen node's action waits until it wakes up.
    fn act(&mut self, action: Action) {
        let doer = match action {
            Action::Tick(at) | Action::Heard { at, .. } | Action::Closed { at, .. } => Some(at),
            Action::DialFailed { from, .. } => Some(from),
            Action::Told { at, .. } | Action::Joined { at, .. } => Some(at),
            Action::Join { by, .. } => Some(by),
            _ => None,
        };
        if let Some(wake) = doer.map(|at| self.nodes[at].frozen_until).filter(|at| *at > self.now) {
            return self.later(wake - self.now, action);
        }
        match action {
            Action::Tick(at) => self.tick(at),
            Action::Fault => self.fault(),
            Action::Dial { from, to, found } => self.dial(from, to, found),
            Action::Told { at, conn, told } => self.hear(at, conn, told),
            Action::Join { by, at } => self.join(by, at),
            Action::Joined { at, told } => self.joined(at, told),
            Action::Announce(at) => self.announce(at),
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
        // Another address may answer, in any state of the connection.
        let now = self.clock(at);
        for peer in self.nodes[at].machine.quiet(now) {
            let to = number(peer);
            let answers = self.is_rough() && self.random.bool() && !self.is_frozen(to);
            if answers {
                let address = address(to, self.nodes[to].place);
                self.step(at, Input::OtherWay { peer, address });
            }
        }
    }

    fn is_frozen(&self, at: usize) -> bool {
        self.now < self.nodes[at].frozen_until
    }

    /// Delivers after a delay that TCP's retransmissions may stretch, or not at all.
    fn send(&mut self, from: usize, to: usize, action: Action) {
        let lost_once = self.random.u64(..30) == 0;
        let delay = 1 + self.random.u64(..40) + if lost_once { 300 } else { 0 };
        if self.now >= self.cut_until[from][to] && self.nodes[to].up {
            self.later(delay, action);
        }
    }

    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.now < self.cut_until[from][to] || self.now < self.cut_until[to][from]
    }

    fn dial(&mut self, from: usize, to: usize, found: bool) {
        if !self.nodes[from].up {
            return;
        }
        let frozen = self.is_frozen(to);
        if self.is_cut(from, to) || self.walled[from][to] || frozen || !found {
            return self.later(DIAL_TIMEOUT_MS, Action::DialFailed { from, to });
        }
        if !self.nodes[to].up {
            return self.later(1, Action::DialFailed { from, to });
        }
        self.conns.push((from, to));
        let conn = self.conns.len() as ConnId;
        let (boot, member) = (self.nodes[from].boot, member(from, self.nodes[from].place));
        self.step(to, Input::Opened { conn, dialed: false, boot, member });
        if self.nodes[to].believed.get(&id(from)) == Some(&conn) {
            let delay = 1 + self.random.u64(..40);
            self.later(delay, Action::Welcome { conn });
        } else {
            self.later(1, Action::DialFailed { from, to });
            let (by, listener) = (id(to), &self.nodes[to].machine);
            if !listener.is_member(id(from)) {
                let (removed, alone) = (listener.removed_under(id(from)), listener.is_alone());
                self.step(from, Input::Disowned { by, removed, alone });
            }
        }
    }

    fn welcome(&mut self, conn: ConnId) {
        let (from, to) = self.conns[conn as usize - 1];
        if self.is_cut(from, to) || self.now < self.nodes[from].frozen_until {
            // The listener keeps a connection that the dialer gives up.
            self.later(DIAL_TIMEOUT_MS, Action::DialFailed { from, to });
            return self.later(DIAL_TIMEOUT_MS, Action::Closed { at: to, conn });
        }
        if self.nodes[from].up {
            let (boot, member) = (self.nodes[to].boot, member(to, self.nodes[to].place));
            self.step(from, Input::Opened { conn, dialed: true, boot, member });
        }
    }

    pub fn restart(&mut self, at: usize) {
        let boot = self.random.u64(..);
        let now = self.clock(at);
        let node = &mut self.nodes[at];
        node.machine = Membership::new(id(at), now);
        node.up = true;
        node.boot = boot;
        node.believed.clear();
        let members = node.disk.clone();
        self.step(at, Input::Learned { members, by: None });
    }

    /// Stops a node; `told` is whether its system closes its connections.
    pub fn stop(&mut self, at: usize, told: bool) {
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
        let kinds = match self.faults {
            Faults::None | Faults::Harmless => 2,
            Faults::All => 7,
            Faults::Changes => 14,
        };
        match self.random.u64(..kinds) {
            0 => {
                let limit = if self.is_rough() { for_ms } else { for_ms % 2_000 };
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
            7.. => self.change(at, other),
            kind if self.nodes[at].up => {
                self.stop(at, kind == 5);
                self.later(for_ms, Action::Restart(at));
            }
            _ => {}
        }
        // A second freeze right after the first would add up to a long one.
        let pause = 100 + self.random.u64(..if self.is_rough() { 3_000 } else { 500 });
        let pause = if self.faults == Faults::Harmless { pause + 3_000 } else { pause };
        if self.now + pause < TROUBLE_MS {
            self.later(pause, Action::Fault);
        }
    }

    fn clock(&self, at: usize) -> Duration {
        Duration::from_millis(self.now + self.nodes[at].ahead_ms)
    }

    pub fn step(&mut self, at: usize, event: Input) {
        if !self.nodes[at].up {
            return;
        }
        let now = self.clock(at);
        for effect in self.nodes[at].machine.step(event, now) {
            let seed = self.seed;
            let node = &mut self.nodes[at];
            match effect {
                Effect::Dial { peer, addresses } => {
                    node.dials += 1;
                    let to = number(peer);
                    let found = addresses.contains(&address(to, self.nodes[to].place));
                    assert!(found || self.faults == Faults::Changes, "seed {seed}");
                    let delay = 1 + self.random.u64(..40);
                    self.later(delay, Action::Dial { from: at, to, found });
                }
                Effect::Close { conn, .. } => self.close(at, conn),
                Effect::Up { peer, conn, .. } => {
                    let was = node.believed.insert(peer, conn);
                    assert_eq!(was, None, "seed {seed}: up without down at {at}");
                    self.tell(at, number(peer), conn);
                }
                Effect::Down { peer, conn, .. } => {
                    let was = node.believed.remove(&peer);
                    assert_eq!(was, Some(conn), "seed {seed}: down without up at {at}");
                    node.losses += 1;
                }
                Effect::MembersChanged => {
                    for (peer, conn) in node.believed.clone() {
                        self.tell(at, number(peer), conn);
                    }
                    self.nodes[at].disk = self.document(at);
                }
                Effect::Parted => node.disk = Members::default(),
            }
        }
    }

    fn close(&mut self, at: usize, conn: ConnId) {
        let (from, to) = self.conns[conn as usize - 1];
        let peer = if at == from { to } else { from };
        self.send(at, peer, Action::Closed { at: peer, conn });
    }

    /// Checks that every two nodes are connected.
    pub fn check_whole(&self) {
        self.check_connected(&(0..NODES).collect::<Vec<_>>());
    }

    pub fn check_connected(&self, nodes: &[usize]) {
        let seed = self.seed;
        for &at in nodes {
            for peer in nodes.iter().copied().filter(|peer| *peer != at) {
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
