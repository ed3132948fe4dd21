//! The network between nodes. A connection is a wire with two ends. Its messages arrive in order,
//! once, and late if packets are lost below it; or it breaks, and messages under way are lost.
//! Messages without guarantees (heartbeats, the document) may also arrive twice, out of order or
//! not at all.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::wire::Verdict;

/// How long a call waits for an answer of the other machine.
const CONNECT_MS: u64 = 3000;
/// How long it waits for the answer to its handshake.
const HANDSHAKE_MS: u64 = 5000;

pub(super) struct Network {
    /// The times in which nothing passes from one node to another.
    cut: Vec<Vec<Range<u64>>>,
    wires: BTreeMap<u64, Wire>,
    /// By node and its number of the connection: the wire, and the index of its end.
    ends: BTreeMap<(usize, ConnId), (u64, usize)>,
    last: u64,
    /// Whether packets are lost and late.
    pub(super) is_bad: bool,
}

struct Wire {
    /// The caller's end first.
    ends: [End; 2],
}

struct End {
    node: usize,
    life: u64,
    /// `None` until the handshake is answered.
    conn: Option<ConnId>,
    is_open: bool,
    /// Packets on their way to this end, with their arrival times.
    queue: VecDeque<(u64, Packet)>,
}

#[derive(Clone)]
enum Packet {
    Welcome,
    Refused(String, Option<Verdict>),
    Message(Box<Message>),
    Closed(&'static str),
}

impl Network {
    pub(super) fn new(nodes: usize) -> Self {
        let cut = vec![vec![0..0; nodes]; nodes];
        let (wires, ends) = Default::default();
        Self { cut, wires, ends, last: 0, is_bad: false }
    }

    pub(super) fn cut(&mut self, from: usize, to: usize, time: Range<u64>) {
        let known = &mut self.cut[from][to];
        *known = if known.end > time.start { known.start..known.end.max(time.end) } else { time };
    }

    pub(super) fn heal(&mut self) {
        self.is_bad = false;
        self.cut.iter_mut().flatten().for_each(|cut| *cut = 0..0);
    }

    /// The present cut between two nodes, if there is one.
    pub(super) fn is_cut(&self, from: usize, to: usize, now: u64) -> Option<&Range<u64>> {
        Some(&self.cut[from][to]).filter(|cut| cut.contains(&now))
    }

    fn is_pair_cut(&self, a: usize, b: usize, now: u64) -> bool {
        self.is_cut(a, b, now).is_some() || self.is_cut(b, a, now).is_some()
    }
}

impl World {
    pub(super) fn latency(&mut self) -> u64 {
        let is_late = self.network.is_bad && self.random.u64(..50) == 0;
        100 + self.random.u64(..if is_late { 1500 * MS } else { 2 * MS })
    }

    /// A call arrives at a machine.
    pub(super) fn knock(&mut self, from: usize, life: u64, to: usize) {
        if self.machines[from].life != life {
            return;
        }
        let error = crate::io::net::DialError::NoAddress;
        let failed = Event::DialFailed { peer: id(to), error };
        let unheard = self.network.is_pair_cut(from, to, self.now) || !self.machines[to].has_power;
        if unheard || self.is_frozen(to) {
            return self.tell(from, CONNECT_MS * MS, failed);
        }
        if !self.is_up(to) {
            return self.tell(from, MS, failed);
        }
        self.network.last += 1;
        let wire = self.network.last;
        let end = |node: usize| End {
            node,
            life: self.machines[node].life,
            conn: None,
            is_open: true,
            queue: VecDeque::new(),
        };
        let ends = [end(from), end(to)];
        self.network.wires.insert(wire, Wire { ends });
        self.after(HANDSHAKE_MS * MS, Todo::HungUp { wire });
        self.open(wire, 1);
    }

    /// Notifies an end's daemon of the connection.
    fn open(&mut self, wire: u64, at: usize) {
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        let (node, peer) = (found.ends[at].node, found.ends[1 - at].node);
        let machine = &mut self.machines[node];
        machine.conns += 1;
        let conn = machine.conns;
        found.ends[at].conn = Some(conn);
        self.network.ends.insert((node, conn), (wire, at));
        let Some(daemon) = &self.machines[peer].daemon else { return };
        let opened = Opened {
            conn,
            dialed: at == 0,
            peer: id(peer),
            boot: daemon.host.ctx.boot,
            name: format!("n{peer}"),
            addresses: vec![address(peer)],
            path: crate::instance::Path { ours: address(node).ip(), theirs: address(peer).ip() },
            protocol: crate::Versions::CURRENT.newest,
        };
        self.step(node, |daemon| daemon.input(Event::Connected(opened)));
    }

    pub(super) fn hang_up(&mut self, wire: u64) {
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        let (from, to) = (found.ends[0].node, found.ends[1].node);
        if found.ends[0].conn.is_none() && found.ends[0].is_open {
            found.ends[0].is_open = false;
            let life = found.ends[0].life;
            self.put(wire, 1, Packet::Closed("its daemon closed the connection"));
            if self.machines[from].life == life {
                let error = crate::io::net::DialError::NoAddress;
                self.tell(from, 0, Event::DialFailed { peer: id(to), error });
            }
        }
    }

    /// Sends a packet to an end of a wire.
    fn put(&mut self, wire: u64, to: usize, packet: Packet) {
        let at = self.now + self.latency();
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        let queue = &mut found.ends[to].queue;
        let at = queue.back().map_or(at, |(last, _)| at.max(*last));
        queue.push_back((at, packet));
        self.after(at - self.now, Todo::Pump { wire, to });
    }

    /// Delivers the packets that have arrived at an end.
    pub(super) fn pump(&mut self, wire: u64, to: usize) {
        loop {
            let Some(found) = self.network.wires.get(&wire) else { return };
            let [end, other] = [&found.ends[to], &found.ends[1 - to]];
            let Some((at, _)) = end.queue.front() else { return };
            let (node, peer, at) = (end.node, other.node, *at);
            if at > self.now {
                return;
            }
            // Lost packets are retransmitted, and arrive late.
            let wait_until = match self.network.is_cut(peer, node, self.now) {
                Some(cut) => Some(cut.end + self.random.u64(..500 * MS)),
                None if self.is_frozen(node) => self.machines[node].frozen.as_ref().map(|f| f.end),
                None if !self.machines[node].has_power => Some(self.now + 1000 * MS),
                None => None,
            };
            if let Some(until) = wait_until {
                return self.after(until + 1 - self.now, Todo::Pump { wire, to });
            }
            let found = self.network.wires.get_mut(&wire).expect("it was there");
            let Some((_, packet)) = found.ends[to].queue.pop_front() else { return };
            self.deliver(wire, to, packet);
        }
    }

    fn deliver(&mut self, wire: u64, to: usize, packet: Packet) {
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        let end = &mut found.ends[to];
        let (node, conn) = (end.node, end.conn);
        if self.machines[node].life != end.life || self.machines[node].daemon.is_none() {
            // The end is gone; the system resets the connection.
            if !matches!(packet, Packet::Closed(_)) && found.ends[1 - to].is_open {
                found.ends[to].is_open = false;
                self.put(wire, 1 - to, Packet::Closed("its connection broke"));
            }
            return;
        }
        if !end.is_open {
            return;
        }
        match (packet, conn) {
            (Packet::Welcome, _) => self.open(wire, to),
            (Packet::Message(message), Some(conn)) => {
                let message = *message;
                self.step(node, |daemon| daemon.input(Event::Received { conn, message }));
            }
            (Packet::Closed(reason), Some(conn)) => {
                end.is_open = false;
                let reason = reason.to_owned();
                self.step(node, |daemon| daemon.input(Event::Closed { conn, reason }));
            }
            (Packet::Refused(reason, verdict), _) => {
                end.is_open = false;
                let peer = id(found.ends[1 - to].node);
                let error = crate::io::net::DialError::Refused { reason, verdict };
                self.step(node, |daemon| daemon.input(Event::DialFailed { peer, error }));
            }
            (Packet::Closed(_), None) => {
                end.is_open = false;
                let peer = id(found.ends[1 - to].node);
                let error = crate::io::net::DialError::NoAddress;
                self.step(node, |daemon| daemon.input(Event::DialFailed { peer, error }));
            }
            (Packet::Message(_), None) => {}
        }
    }

    fn end_of(&self, node: usize, conn: ConnId) -> Option<(u64, usize)> {
        self.network.ends.get(&(node, conn)).copied()
    }

    pub(super) fn keep(&mut self, node: usize, conn: ConnId) {
        if let Some((wire, 1)) = self.end_of(node, conn) {
            self.put(wire, 0, Packet::Welcome);
        }
    }

    pub(super) fn refuse(
        &mut self,
        node: usize,
        conn: ConnId,
        reason: String,
        verdict: Option<Verdict>,
    ) {
        self.trace(|| format!("n{node} refuses: {reason}"));
        if let Some((wire, at)) = self.end_of(node, conn) {
            self.put(wire, 1 - at, Packet::Refused(reason, verdict));
            self.shut(wire, at);
        }
    }

    pub(super) fn close(&mut self, node: usize, conn: ConnId) {
        if let Some((wire, at)) = self.end_of(node, conn)
            && self.shut(wire, at)
        {
            self.put(wire, 1 - at, Packet::Closed("its daemon closed the connection"));
        }
    }

    fn shut(&mut self, wire: u64, at: usize) -> bool {
        let Some(found) = self.network.wires.get_mut(&wire) else { return false };
        std::mem::replace(&mut found.ends[at].is_open, false)
    }

    pub(super) fn send(&mut self, node: usize, conn: ConnId, message: Message) {
        let Some((wire, at)) = self.end_of(node, conn) else { return };
        let is_open = self.network.wires.get(&wire).is_some_and(|wire| wire.ends[at].is_open);
        if !is_open {
            return;
        }
        self.check_sent(node, &message);
        if self.liar == Some(node) {
            self.said.note(&message);
        }
        let message = Box::new(message);
        let promises_nothing = matches!(
            *message,
            Message::Heartbeat(_)
                | Message::HeartbeatSeen { .. }
                | Message::Desired(_)
                | Message::Members(_)
        );
        if promises_nothing && self.network.is_bad {
            match self.random.u64(..40) {
                0 => return,
                1 => self.put(wire, 1 - at, Packet::Message(message.clone())),
                2 => return self.overtake(wire, 1 - at, Packet::Message(message)),
                _ => {}
            }
        }
        self.put(wire, 1 - at, Packet::Message(message));
    }

    /// Delivers a message before an earlier one.
    fn overtake(&mut self, wire: u64, to: usize, packet: Packet) {
        let Some(found) = self.network.wires.get_mut(&wire) else { return };
        let queue = &mut found.ends[to].queue;
        match queue.front().cloned() {
            Some((at, Packet::Message(_))) => {
                queue.push_front((at, packet));
            }
            _ => self.put(wire, to, packet),
        }
    }

    /// A daemon is gone. Its system closes its connections, unless the machine has lost power.
    pub(super) fn close_wires(&mut self, node: usize, power: bool) {
        let mine = |(_, wire): &(&u64, &Wire)| wire.ends.iter().any(|end| end.node == node);
        let wires: Vec<u64> = self.network.wires.iter().filter(mine).map(|(id, _)| *id).collect();
        for wire in wires {
            let found = &self.network.wires[&wire];
            let at = usize::from(found.ends[1].node == node);
            if self.shut(wire, at) && power {
                self.put(wire, 1 - at, Packet::Closed("its daemon ended"));
            }
        }
        let gone = |wire: &Wire| wire.ends.iter().all(|end| !end.is_open);
        self.network.wires.retain(|_, wire| !gone(wire));
        let wires = &self.network.wires;
        self.network.ends.retain(|_, (wire, _)| wires.contains_key(wire));
    }
}
