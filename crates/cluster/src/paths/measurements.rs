//! The paths from this node to all others, one for each address: when to measure them, the results,
//! and the best path. A pure state machine.
//!
//! A *look* measures the round trip, with 6 KB every 10 s. A *full* measurement sends a mebibyte,
//! and less over a slow path. A path is measured fully three times at first (the best counts, since
//! other work only slows them), when the round trip has doubled or halved, when the network has
//! changed, and every ten minutes. That is 20 kbit/s a path. With more than 16 paths everything is
//! less frequent, so that a node never spends more than 320 kbit/s.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use placement::LinkSpeed;

use crate::NodeId;
use crate::edge::{Depth, Edge, Measurement};
use crate::link_local::is_link_local;

const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Full measurements of a new path, if there are not very many. A busy machine may take its fastest
/// cable for its slowest.
const FIRST_ONES: u8 = 3;
/// A full measurement fills a path this slow, and what fills it moves its round trip: it is made
/// once in [`MEASURE_EVERY`], whatever else happens.
const SLOW_BYTES_PER_SEC: f64 = 5e5;
const MEASURE_EVERY: Duration = Duration::from_secs(600);
/// Minimum interval between full measurements of a path in doubt.
const DOUBT_EVERY: Duration = Duration::from_secs(60);
/// Retry of a path that does not answer: after `SECOND_TRY`, then after [`LOOK_EVERY`], then at
/// growing intervals.
const SECOND_TRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// A path that answers neither for this long nor in [`UNANSWERED_MIN`] tries may lead to a closed
/// port; one that is full, or whose peer has just come back, answers sooner.
const UNANSWERED_AFTER: Duration = Duration::from_secs(10);
const UNANSWERED_MIN: u32 = 3;
/// With more paths, the budget of this many is shared.
const WAYS_AT_FULL_RATE: u32 = 16;
/// Concurrent measurements: more would disturb each other.
const AT_ONCE: usize = 2;
/// Bytes of a typical message: a row of activations.
const MESSAGE_BYTES: f64 = 16384.0;
/// A link-local path must be faster by this factor to come first.
const LINK_LOCAL_HANDICAP: f64 = 1.25;
/// Differences below this are noise.
const ROUND_TRIP_FLOOR: Duration = Duration::from_micros(200);

#[derive(Debug, Default)]
pub(crate) struct Measurements {
    ways: BTreeMap<(NodeId, SocketAddr), Way>,
}

#[derive(Debug, Default)]
struct Way {
    /// Time of the next measurement; `None` while one runs.
    due: Option<Duration>,
    /// Whether the next or running measurement is a full one.
    wants_full: bool,
    found: Option<(Measurement, Duration)>,
    /// Round trip and time of the last full measurement.
    full: Option<(Duration, Duration)>,
    bytes_per_sec: f64,
    /// Full measurements so far, of the first ones.
    first_ones: u8,
    failures: u32,
    /// Failures since the last change between the two nodes, and the time of the first.
    failures_since: u32,
    failing_since: Option<Duration>,
    /// It was unanswered while the peer was connected, and has not answered since.
    is_closed: bool,
}

impl Measurements {
    /// Sets the addresses of a peer: new ones are measured at once, others are dropped.
    pub(crate) fn set(&mut self, peer: NodeId, addresses: &[SocketAddr], now: Duration) {
        self.ways.retain(|(node, at), _| *node != peer || addresses.contains(at));
        for address in addresses {
            let new = || Way { due: Some(now), wants_full: true, ..Way::default() };
            self.ways.entry((peer, *address)).or_insert_with(new);
        }
    }

    /// Drops the paths to nodes that are not members.
    pub(crate) fn retain(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.ways.retain(|(node, _), _| is_member(*node));
    }

    /// Looks at all paths to a peer again, after a change between the two nodes. `was_here`: the
    /// peer was connected until then, so a path without an answer leads to a closed port.
    pub(crate) fn changed(&mut self, peer: NodeId, was_here: bool, now: Duration) {
        for (_, way) in self.ways.iter_mut().filter(|((node, _), _)| *node == peer) {
            way.is_closed |= was_here && way.is_unanswered(now);
            way.due = way.due.map(|due| due.min(now));
            (way.failures_since, way.failing_since) = (0, None);
        }
    }

    /// A peer has reached this node from one of its addresses. If that address did not answer
    /// before, it is tried again now.
    pub(crate) fn came_from(&mut self, peer: NodeId, address: IpAddr, now: Duration) {
        let is_it = |at: &(NodeId, SocketAddr)| at.0 == peer && at.1.ip() == address;
        for (_, way) in self.ways.iter_mut().filter(|(at, way)| is_it(at) && way.failures > 0) {
            way.failures = way.failures.min(2);
            way.due = way.due.map(|due| due.min(now));
        }
    }

    /// The figures of a peer seem outdated: its paths are measured fully, unless that happened just
    /// before.
    pub(crate) fn doubt(&mut self, peer: NodeId, now: Duration) {
        for (_, way) in self.ways.iter_mut().filter(|((node, _), _)| *node == peer) {
            let is_new = way.full.is_none_or(|(_, at)| now.saturating_sub(at) < DOUBT_EVERY);
            if is_new || way.is_full_enough(now) {
                continue;
            }
            if let Some(due) = way.due {
                (way.wants_full, way.due) = (true, Some(due.min(now)));
            }
        }
    }

    /// Starts and returns the measurements that are due.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(NodeId, SocketAddr, Depth)> {
        let busy = self.ways.values().filter(|way| way.due.is_none()).count();
        let mut due: Vec<_> = self.ways.iter_mut().filter(|(_, way)| way.is_due(now)).collect();
        due.sort_by_key(|(_, way)| way.due);
        let chosen = due.into_iter().take(AT_ONCE.saturating_sub(busy));
        let begin = |((peer, address), way): (&(NodeId, SocketAddr), &mut Way)| {
            way.due = None;
            (*peer, *address, if way.wants_full { Depth::Full } else { Depth::Look })
        };
        chosen.map(begin).collect()
    }

    /// Records the result of a measurement; `None` if the path did not answer. Returns whether
    /// anything has changed.
    pub(crate) fn measured(
        &mut self,
        peer: NodeId,
        address: SocketAddr,
        found: Option<Measurement>,
        now: Duration,
    ) -> bool {
        let slower = self.pace();
        let Some(way) = self.ways.get_mut(&(peer, address)) else { return false };
        let was_up = way.is_up();
        let Some(found) = found else {
            way.failures = way.failures.saturating_add(1);
            way.failures_since = way.failures_since.saturating_add(1);
            way.failing_since.get_or_insert(now);
            let wait = match way.failures {
                1 => SECOND_TRY,
                more => LOOK_EVERY * 2_u32.saturating_pow(more.min(8) - 2),
            };
            way.due = Some(now + wait.min(RETRY_MAX) * slower);
            // A path that answers again may lead through another network.
            let may_be_full = way.failures < UNANSWERED_MIN && way.is_full_enough(now);
            (way.wants_full, way.first_ones) = (!may_be_full, 0);
            return was_up;
        };
        (way.failures, way.failures_since, way.failing_since) = (0, 0, None);
        way.is_closed = false;
        if let Some(bytes_per_sec) = found.bytes_per_sec {
            way.bytes_per_sec = match way.first_ones {
                1..FIRST_ONES => way.bytes_per_sec.max(bytes_per_sec),
                _ => bytes_per_sec,
            };
            way.first_ones = match bytes_per_sec < SLOW_BYTES_PER_SEC {
                true => FIRST_ONES,
                false => FIRST_ONES.min(way.first_ones + 1),
            };
            way.full = Some((found.round_trip, now));
            way.wants_full = slower == 1 && way.first_ones < FIRST_ONES;
            way.found = Some((found, now));
            way.due = Some(now + LOOK_EVERY * slower);
            return true;
        }
        let is_old = way.full.is_none_or(|full| is_old(full, found.round_trip, now, slower));
        way.wants_full = is_old && !way.is_full_enough(now);
        way.found = Some((found, now));
        way.due = Some(if way.wants_full { now } else { now + LOOK_EVERY * slower });
        !was_up
    }

    /// All paths that have ever answered, sorted by peer and cost; paths that are down come last.
    pub(crate) fn edges(&self, now: Duration) -> Vec<Edge> {
        let mut edges: Vec<Edge> = self
            .ways
            .iter()
            .filter_map(|((peer, address), way)| {
                let (found, at) = way.found?;
                way.full?;
                Some(Edge {
                    peer: *peer,
                    address: address.ip(),
                    local: found.local,
                    round_trip_us: found.round_trip.as_secs_f64() * 1e6,
                    bytes_per_sec: way.bytes_per_sec,
                    age_secs: now.saturating_sub(at).as_secs(),
                    is_up: way.is_up(),
                    is_rdma: false,
                    packet_bytes: found.packet_bytes,
                })
            })
            .collect();
        edges.sort_by(|a, b| {
            let order = |edge: &Edge| (edge.peer, !edge.is_up);
            let by_cost = cost(a).total_cmp(&cost(b));
            order(a).cmp(&order(b)).then(by_cost)
        });
        edges
    }

    /// The peers without an answer at any address for a while since the last change between the two
    /// nodes, or before it, and none since.
    pub(crate) fn unanswered(&self, now: Duration) -> Vec<NodeId> {
        let mut peers: Vec<NodeId> = self.ways.keys().map(|(peer, _)| *peer).collect();
        peers.dedup();
        let ways_of = |peer| self.ways.iter().filter(move |((node, _), _)| *node == peer);
        peers.retain(|peer| ways_of(*peer).all(|(_, way)| way.is_closed || way.is_unanswered(now)));
        peers
    }

    /// The speed of the best path to a peer.
    pub(crate) fn best(&self, peer: NodeId, now: Duration) -> Option<LinkSpeed> {
        let edges = self.edges(now);
        let best = edges.iter().find(|edge| edge.peer == peer && edge.is_up)?;
        let message_secs = best.round_trip_us / 2e6;
        Some(LinkSpeed { message_secs, bytes_per_sec: best.bytes_per_sec })
    }

    /// The factor by which all intervals are longer.
    fn pace(&self) -> u32 {
        (self.ways.len() as u32).div_ceil(WAYS_AT_FULL_RATE).max(1)
    }
}

impl Way {
    fn is_up(&self) -> bool {
        self.failures == 0 && self.full.is_some()
    }

    /// Whether a slow path was measured fully not long ago.
    fn is_full_enough(&self, now: Duration) -> bool {
        let is_new = |(_, at)| now.saturating_sub(at) < MEASURE_EVERY;
        self.bytes_per_sec < SLOW_BYTES_PER_SEC && self.full.is_some_and(is_new)
    }

    fn is_unanswered(&self, now: Duration) -> bool {
        let is_old = |since| now.saturating_sub(since) >= UNANSWERED_AFTER;
        self.failures_since >= UNANSWERED_MIN && self.failing_since.is_some_and(is_old)
    }

    fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| now >= due)
    }
}

/// Time of a typical message, by which paths are sorted. One cable often has two addresses, whose
/// figures differ by noise. The handicap then prefers the address that is valid elsewhere too.
fn cost(edge: &Edge) -> f64 {
    let message_secs = edge.round_trip_us / 2e6 + MESSAGE_BYTES / edge.bytes_per_sec.max(1.0);
    let handicap = if is_link_local(edge.address) { LINK_LOCAL_HANDICAP } else { 1.0 };
    message_secs * handicap
}

/// Whether a full measurement is outdated.
fn is_old(full: (Duration, Duration), round_trip: Duration, now: Duration, slower: u32) -> bool {
    let (then, at) = full;
    let (then, round_trip) = (then.max(ROUND_TRIP_FLOOR), round_trip.max(ROUND_TRIP_FLOOR));
    now.saturating_sub(at) >= MEASURE_EVERY * slower
        || round_trip > then * 2
        || round_trip * 2 < then
}

#[cfg(test)]
mod tests;
