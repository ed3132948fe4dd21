//! The paths from this node to all others, one for each address: when to measure them, the results,
//! and the best path. A pure state machine.
//!
//! A *look* measures the round trip, with 6 KB every 10 s. A *full* measurement sends a mebibyte:
//! the first three times, of which the best counts since other work only slows them, when the round
//! trip has doubled or halved, when the network has changed, and every ten minutes. That is
//! 20 kbit/s a path. With more than 16 paths everything is less
//! frequent, so that a node never spends more than 320 kbit/s.

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
/// A mebibyte fills a path this slow for seconds, and what fills it moves its round trip: it is
/// measured fully once in [`MEASURE_EVERY`], whatever else happens.
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

    /// Looks at all paths to a peer again, after a change between the two nodes.
    pub(crate) fn changed(&mut self, peer: NodeId, now: Duration) {
        for (_, way) in self.ways.iter_mut().filter(|((node, _), _)| *node == peer) {
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
    /// nodes.
    pub(crate) fn unanswered(&self, now: Duration) -> Vec<NodeId> {
        let mut peers: Vec<NodeId> = self.ways.keys().map(|(peer, _)| *peer).collect();
        peers.dedup();
        let ways_of = |peer| self.ways.iter().filter(move |((node, _), _)| *node == peer);
        peers.retain(|peer| ways_of(*peer).all(|(_, way)| way.is_unanswered(now)));
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
mod tests {
    use super::*;

    const PEER: NodeId = NodeId([1; 32]);

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, host, 2], 8751))
    }

    fn found(us: u64, bytes_per_sec: Option<f64>) -> Option<Measurement> {
        let local = [10, 0, 0, 1].into();
        let round_trip = Duration::from_micros(us);
        Some(Measurement { local, round_trip, bytes_per_sec, packet_bytes: None })
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// The first full measurements of a way, up to second 20.
    fn begin(ways: &mut Measurements, us: u64, rate: f64) {
        for now in [0, 10, 20] {
            assert_eq!(ways.due(secs(now)), [(PEER, at(1), Depth::Full)]);
            assert!(ways.measured(PEER, at(1), found(us, Some(rate)), secs(now)));
        }
    }

    #[test]
    fn the_best_way_by_figures_comes_first_and_the_next_when_it_dies() {
        let mut ways = Measurements::default();
        ways.set(PEER, &[at(1), at(2), at(3)], secs(0));
        // Two at a time.
        let first = ways.due(secs(0));
        assert_eq!(first, [(PEER, at(1), Depth::Full), (PEER, at(2), Depth::Full)]);
        assert_eq!(ways.due(secs(0)), []);
        assert!(ways.measured(PEER, at(1), found(300, Some(12e6)), secs(0)), "Wi-Fi");
        assert_eq!(ways.due(secs(0)), [(PEER, at(3), Depth::Full)]);
        assert!(ways.measured(PEER, at(2), found(100, Some(1e9)), secs(0)), "a cable");
        assert!(!ways.measured(PEER, at(3), None, secs(0)), "nobody there");
        assert_eq!(ways.due(secs(1)), [(PEER, at(3), Depth::Full)], "a second try");
        assert!(!ways.measured(PEER, at(3), None, secs(1)));
        let order = |ways: &Measurements| {
            let edges = ways.edges(secs(5));
            edges.iter().map(|edge| (edge.address, edge.is_up)).collect::<Vec<_>>()
        };
        assert_eq!(order(&ways), [(at(2).ip(), true), (at(1).ip(), true)]);
        assert_eq!(ways.best(PEER, secs(5)).unwrap().bytes_per_sec, 1e9);

        ways.changed(PEER, secs(6));
        let again = ways.due(secs(6));
        assert_eq!(again, [(PEER, at(1), Depth::Full), (PEER, at(2), Depth::Full)]);
        assert!(ways.measured(PEER, at(1), found(310, Some(8e6)), secs(6)));
        assert!(ways.measured(PEER, at(2), None, secs(6)), "it is news that it died");
        assert_eq!(ways.unanswered(secs(6)), [], "the other one does answer");
        assert_eq!(order(&ways), [(at(1).ip(), true), (at(2).ip(), false)]);
        assert_eq!(ways.best(PEER, secs(6)).unwrap().bytes_per_sec, 12e6);
        ways.set(PEER, &[at(1)], secs(7));
        assert_eq!(order(&ways), [(at(1).ip(), true)]);
        // The link-local address of the same cable comes first only if it is clearly faster.
        let local = "[fe80::2]:8751".parse().unwrap();
        ways.set(PEER, &[at(1), local], secs(7));
        ways.due(secs(7));
        ways.measured(PEER, local, found(300, Some(13e6)), secs(7));
        assert_eq!(order(&ways), [(at(1).ip(), true), (local.ip(), true)]);
        ways.measured(PEER, local, found(300, Some(1e9)), secs(7));
        assert_eq!(order(&ways), [(local.ip(), true), (at(1).ip(), true)]);
    }

    #[test]
    fn a_way_is_measured_fully_when_it_is_another_one() {
        let mut ways = Measurements::default();
        ways.set(PEER, &[at(1)], secs(0));
        begin(&mut ways, 1000, 1e8);
        let mut look = |now: u64, us: u64| {
            assert_eq!(ways.due(secs(now)), [(PEER, at(1), Depth::Look)]);
            ways.measured(PEER, at(1), found(us, None), secs(now));
            let again = ways.due(secs(now));
            if let [(.., depth)] = again[..] {
                assert_eq!(depth, Depth::Full);
                ways.measured(PEER, at(1), found(us, Some(1e7)), secs(now));
            }
            again.len()
        };
        assert_eq!(look(30, 1500), 0);
        assert_eq!(look(40, 2500), 1, "slower");
        assert_eq!(look(50, 2500), 0);
        assert_eq!(look(60, 900), 1, "faster");
        for now in (70..660).step_by(10) {
            assert_eq!(look(now, 900), 0, "{now}");
        }
        assert_eq!(look(660, 900), 1, "ten minutes later");
    }

    #[test]
    fn the_best_of_the_first_measurements_counts_and_then_the_last() {
        let mut ways = Measurements::default();
        ways.set(PEER, &[at(1)], secs(0));
        let mut rates = Vec::new();
        for (now, rate) in [(0, 1e6), (10, 9e8), (20, 3e8)] {
            ways.due(secs(now));
            ways.measured(PEER, at(1), found(300, Some(rate)), secs(now));
            rates.push(ways.best(PEER, secs(now)).unwrap().bytes_per_sec);
        }
        assert_eq!(rates, [1e6, 9e8, 9e8]);
        ways.doubt(PEER, secs(90));
        assert_eq!(ways.due(secs(90)), [(PEER, at(1), Depth::Full)]);
        ways.measured(PEER, at(1), found(300, Some(2e8)), secs(90));
        assert_eq!(ways.best(PEER, secs(90)).unwrap().bytes_per_sec, 2e8);
        // After a failure everything begins anew.
        ways.due(secs(112));
        ways.measured(PEER, at(1), None, secs(112));
        ways.due(secs(113));
        ways.measured(PEER, at(1), found(300, Some(1e8)), secs(113));
        assert_eq!(ways.best(PEER, secs(113)).unwrap().bytes_per_sec, 1e8);
    }

    #[test]
    fn a_slow_way_is_measured_fully_once_in_ten_minutes() {
        let mut ways = Measurements::default();
        ways.set(PEER, &[at(1)], secs(0));
        let mut full = Vec::new();
        for now in 0..1300 {
            ways.doubt(PEER, secs(now));
            for (peer, address, depth) in ways.due(secs(now)) {
                full.extend((depth == Depth::Full).then_some(now));
                // What fills it moves its round trip, and a look in ten is lost.
                let round_trip = if now % 50 < 20 { 400_000 } else { 30_000 };
                let rate = (depth == Depth::Full).then_some(1e5);
                let found = found(round_trip, rate).filter(|_| now % 100 != 50);
                ways.measured(peer, address, found, secs(now));
            }
        }
        assert_eq!(full.len(), 3, "{full:?}");
        // Away for longer: it may lead through another network.
        for _ in 0..UNANSWERED_MIN {
            ways.changed(PEER, secs(1300));
            ways.due(secs(1300));
            ways.measured(PEER, at(1), None, secs(1300));
        }
        ways.changed(PEER, secs(1301));
        assert_eq!(ways.due(secs(1301)), [(PEER, at(1), Depth::Full)]);
    }

    #[test]
    fn a_way_that_is_in_doubt_is_measured_fully_once_a_minute() {
        let mut ways = Measurements::default();
        ways.set(PEER, &[at(1)], secs(0));
        begin(&mut ways, 300, 1e6);
        let mut full = Vec::new();
        for now in 20..200 {
            if now >= 20 {
                ways.doubt(PEER, secs(now));
            }
            for (peer, address, depth) in ways.due(secs(now)) {
                full.extend((depth == Depth::Full).then_some(now));
                let rate = (depth == Depth::Full).then_some(1e6);
                ways.measured(peer, address, found(300, rate), secs(now));
            }
        }
        assert_eq!(full, [80, 140]);
    }

    #[test]
    fn what_does_not_answer_is_tried_ever_more_seldom() {
        let mut ways = Measurements::default();
        ways.set(PEER, &[at(1)], secs(0));
        let mut tries = 0;
        for now in 0..3600 {
            for (peer, address, _) in ways.due(secs(now)) {
                tries += 1;
                ways.measured(peer, address, None, secs(now));
            }
        }
        assert!((10..20).contains(&tries), "{tries}");
        assert_eq!(ways.edges(secs(3600)), []);
        assert_eq!(ways.unanswered(secs(3600)), [PEER]);
        ways.changed(PEER, secs(3600));
        for (now, expected) in [(3600, &[][..]), (3601, &[]), (3611, &[PEER]), (3631, &[PEER])] {
            ways.due(secs(now));
            ways.measured(PEER, at(1), None, secs(now));
            assert_eq!(ways.unanswered(secs(now)), expected, "it came back in second 3600, {now}");
        }
        // The peer calls over that path: the cable works again.
        ways.came_from(PEER, at(2).ip(), secs(3600));
        assert_eq!(ways.due(secs(3600)), []);
        ways.came_from(PEER, at(1).ip(), secs(3600));
        assert_eq!(ways.due(secs(3600)).len(), 1);
    }

    #[test]
    fn many_ways_cost_no_more_than_some() {
        let mut ways = Measurements::default();
        for node in 0..63 {
            ways.set(NodeId([node; 32]), &[at(1), at(2)], secs(0));
        }
        let (mut looks, mut bytes) = (0, 0_u64);
        for now in 0..3600 {
            for (peer, address, depth) in std::iter::repeat_with(|| ways.due(secs(now)))
                .take_while(|due| !due.is_empty())
                .flatten()
                .collect::<Vec<_>>()
            {
                looks += 1;
                bytes += if depth == Depth::Full { 1 << 20 } else { 6 << 10 };
                let full = (depth == Depth::Full).then_some(1e8);
                ways.measured(peer, address, found(500, full), secs(now));
            }
        }
        assert!(
            looks > 126 && bytes * 8 / 3600 < 700_000,
            "{looks} looks, {bytes} bytes in an hour"
        );
    }
}
