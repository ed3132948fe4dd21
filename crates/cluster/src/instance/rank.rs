use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use protocol::RankStats;

use super::failures::Recent;
use super::limits::{AWAY_MAX, AWAY_MIN, LOAD_SILENCE_MAX, LOAD_STALL_MAX};
use crate::wire::WorkerId;
use crate::{NodeId, RankStatus};

/// A rank of an instance with one stage: its node, and its last report.
pub(crate) struct RankPace<'a> {
    pub node: &'a str,
    pub stats: Option<&'a RankStats>,
}

/// The addresses at which one node reaches another, the fastest first, by its own measurements.
pub(crate) type Routes = BTreeMap<(NodeId, NodeId), Vec<IpAddr>>;

/// Deaths of a worker, without the instance being ready in between, before it is given up.
const FAILURES_MAX: u32 = 3;

/// Assumed speed of loading, from a good disk or another node: about 1 GB/s.
const LOAD_BYTES_PER_SEC: u64 = 1 << 30;

/// The addresses of the connection between the owner and a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    /// The owner's address, as that node sees it.
    pub ours: IpAddr,
    /// The node's address, as the owner sees it.
    pub theirs: IpAddr,
}

impl Path {
    /// The path from a node to itself.
    pub(crate) const LOOPBACK: Self =
        Self { ours: IpAddr::V4(Ipv4Addr::LOCALHOST), theirs: IpAddr::V4(Ipv4Addr::LOCALHOST) };
}

/// Each rank's part of all weights, in per cent; of the shares, where weights are unknown.
pub(super) fn percents(ranks: &[Rank], shares: &[u32]) -> Vec<f64> {
    let mut parts: Vec<f64> = ranks.iter().map(|rank| rank.weight_bytes as f64).collect();
    if parts.contains(&0.0) {
        parts = shares.iter().map(|share| f64::from(*share)).collect();
    }
    let whole: f64 = parts.iter().sum();
    parts.iter().map(|part| 100.0 * part / whole.max(1.0)).collect()
}

/// One rank: a node, and the worker there that holds its share of the model.
#[derive(Debug)]
pub(crate) struct Rank {
    pub node: NodeId,
    pub node_name: String,
    pub memory_bytes: u64,
    /// Planned; 0 if unknown.
    pub weight_bytes: u64,
    pub(super) worker: Option<Worker>,
    path: Path,
    /// Since when the node is unreachable.
    away_since: Option<Duration>,
    respawn_at: Duration,
    /// Deaths of its workers.
    recent: Recent,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub id: WorkerId,
    pub bind: IpAddr,
    pub pid: Option<u32>,
    pub port: Option<u16>,
    /// Further listen addresses.
    pub more: Vec<SocketAddr>,
    pub loaded: bool,
    pub loaded_bytes: u64,
    pub total_bytes: u64,
    /// Of other machines.
    pub arrived_bytes: u64,
    pub kv_bytes: u64,
    pub buffer_bytes: u64,
    pub linked: bool,
    /// Its last report in this epoch.
    pub stats: Option<RankStats>,
    /// Addresses of other ranks that do not answer it, and addresses of its own that it could not
    /// bind.
    pub notes: Vec<String>,
    /// An `Effect::End` is out.
    pub ending: bool,
    pub heard_at: Duration,
    /// Time of its start, or of its last progress with loading.
    pub progressed_at: Duration,
    /// Another rank has blamed it, and it has been silent since.
    pub is_suspect: bool,
    /// It counts as frozen if it stays silent until then.
    pub must_speak_by: Option<Duration>,
    /// The cause of its end, if known in advance.
    pub last_words: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Respawn,
    GiveUp { failures: u32 },
}

impl Rank {
    pub(crate) fn new(node: NodeId, node_name: String, memory_bytes: u64, path: Path) -> Self {
        Self {
            node,
            node_name,
            memory_bytes,
            weight_bytes: 0,
            worker: None,
            path,
            away_since: None,
            respawn_at: Duration::ZERO,
            recent: Recent::default(),
        }
    }

    pub(super) fn node_up(&mut self, path: Path) {
        self.path = path;
        self.away_since = None;
    }

    /// The node is unreachable. Its worker may still run, but its state is unknown.
    pub(super) fn node_down(&mut self, now: Duration) {
        self.away_since = Some(now);
        self.worker = self.worker.take().filter(|worker| !worker.ending);
        if let Some(worker) = &mut self.worker {
            *worker = Worker::new(worker.id, worker.bind, now);
        }
    }

    pub(super) fn worker_exited(&mut self, now: Duration) -> Verdict {
        self.worker = None;
        self.respawn_at = now + self.recent.backoff(now);
        match self.recent.in_a_row() {
            failures @ FAILURES_MAX.. => Verdict::GiveUp { failures },
            _ => Verdict::Respawn,
        }
    }

    pub(super) fn ready(&mut self) {
        self.recent.succeeded();
    }

    pub(super) fn answered(&mut self) {
        self.recent.clear();
    }

    pub(super) fn forgive(&mut self, now: Duration) {
        self.recent.clear();
        self.respawn_at = now;
    }

    pub(super) fn is_node_up(&self) -> bool {
        self.away_since.is_none()
    }

    /// Whether the model should be placed on other nodes. A node that returns still holds its
    /// share, which the others would have to load. So the wait lasts as long as that would take,
    /// within limits, and a loss costs at most about twice the better choice.
    pub(super) fn is_away_for_long(&self, now: Duration) -> bool {
        let load = Duration::from_secs(self.memory_bytes / LOAD_BYTES_PER_SEC);
        self.is_away_since(now, load.clamp(AWAY_MIN, AWAY_MAX))
    }

    pub(super) fn is_away_since(&self, now: Duration, limit: Duration) -> bool {
        self.away_since.is_some_and(|since| now.saturating_sub(since) >= limit)
    }

    pub(super) fn is_spawn_due(&self, now: Duration) -> bool {
        self.worker.is_none() && self.is_node_up() && now >= self.respawn_at
    }

    pub(super) fn respawn_at(&self) -> Option<Duration> {
        (self.worker.is_none() && self.is_node_up()).then_some(self.respawn_at)
    }

    pub(super) fn is_loaded(&self) -> bool {
        let loaded = |w: &Worker| w.loaded && w.port.is_some() && !w.ending;
        self.is_node_up() && self.worker.as_ref().is_some_and(loaded)
    }

    pub(super) fn is_overdue(&self, now: Duration) -> bool {
        let overdue = |w: &Worker| !w.ending && w.must_speak_by.is_some_and(|by| now >= by);
        self.is_node_up() && self.worker.as_ref().is_some_and(overdue)
    }

    /// Why its worker should be ended while it loads, if so. Before the process exists, its node
    /// may be hashing a large file.
    pub(super) fn fails_to_load(&self, now: Duration) -> Option<String> {
        let worker = self.worker.as_ref().filter(|w| !w.loaded && !w.ending)?;
        let silent = now.saturating_sub(worker.heard_at);
        let stalled = now.saturating_sub(worker.progressed_at);
        let limit = if worker.pid.is_some() { LOAD_STALL_MAX } else { LOAD_STALL_MAX * 8 };
        let secs = |limit: Duration| limit.as_secs();
        match worker.pid {
            _ if !self.is_node_up() => None,
            Some(_) if silent >= LOAD_SILENCE_MAX => {
                Some(format!("it froze: it said nothing for {} s", secs(LOAD_SILENCE_MAX)))
            }
            _ if stalled >= limit => {
                Some(format!("it made no progress for {} s while loading", secs(limit)))
            }
            _ => None,
        }
    }

    pub(crate) fn with_weights(self, weight_bytes: u64) -> Self {
        Self { weight_bytes, ..self }
    }

    pub(super) fn status(&self, rank: usize, share: u32, percent: f64) -> RankStatus {
        let of = |value: fn(&Worker) -> u64| self.worker.as_ref().map_or(0, value);
        RankStatus {
            rank,
            node: self.node,
            node_name: self.node_name.clone(),
            pid: self.worker.as_ref().and_then(|worker| worker.pid),
            share,
            percent,
            memory_bytes: self.memory_bytes,
            loaded_bytes: of(|worker| worker.loaded_bytes),
            total_bytes: of(|worker| worker.total_bytes),
            kv_bytes: of(|worker| worker.kv_bytes),
            buffer_bytes: of(|worker| worker.buffer_bytes),
            stats: self.worker.as_ref().and_then(|worker| worker.stats.clone()),
        }
    }

    pub(super) fn pace(&self) -> RankPace<'_> {
        RankPace { node: &self.node_name, stats: self.stats() }
    }

    /// Its worker's last report in this epoch.
    pub(super) fn stats(&self) -> Option<&RankStats> {
        self.worker.as_ref()?.stats.as_ref()
    }
}

impl Worker {
    /// Notes how far its loading is: bytes in memory, and those that have come from elsewhere.
    pub(super) fn loads(&mut self, (done, arrived): (u64, u64), total: u64, now: Duration) {
        if done > self.loaded_bytes || arrived > self.arrived_bytes {
            self.progressed_at = now;
        }
        (self.loaded_bytes, self.arrived_bytes, self.total_bytes) = (done, arrived, total);
    }

    pub(super) fn new(id: WorkerId, bind: IpAddr, now: Duration) -> Self {
        Self {
            id,
            bind,
            pid: None,
            port: None,
            more: Vec::new(),
            loaded: false,
            loaded_bytes: 0,
            total_bytes: 0,
            arrived_bytes: 0,
            kv_bytes: 0,
            buffer_bytes: 0,
            linked: false,
            stats: None,
            notes: Vec::new(),
            ending: false,
            heard_at: now,
            progressed_at: now,
            is_suspect: false,
            must_speak_by: None,
            last_words: None,
        }
    }

    pub(super) fn loaded(&mut self, weight_bytes: u64, kv_bytes: u64, buffer_bytes: u64) {
        self.loaded = true;
        (self.kv_bytes, self.buffer_bytes) = (kv_bytes, buffer_bytes);
        (self.loaded_bytes, self.total_bytes) = (weight_bytes, weight_bytes);
    }
}

/// The listen address of a rank's worker: the one by which its peers know its node. If rank 0 has
/// several such addresses, it listens on all.
pub(super) fn bind_address(ranks: &[Rank], at: usize) -> IpAddr {
    if at > 0 {
        return ranks[at].path.theirs;
    }
    let mut seen = ranks[1..].iter().map(|rank| rank.path.ours);
    let first = seen.next().unwrap_or(Path::LOOPBACK.ours);
    if seen.all(|ip| ip == first) { first } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The addresses at which a rank dials each rank: first the link addresses of its node, then the
/// address of the control connection. Entries that it must not use are [`NOWHERE`].
pub(super) fn endpoints(ranks: &[Rank], viewer: usize, routes: &Routes) -> Vec<Vec<SocketAddr>> {
    let addresses = |rank: &Rank| {
        let worker = rank.worker.as_ref()?;
        let ip = if worker.bind.is_unspecified() { ranks[viewer].path.ours } else { worker.bind };
        let first = SocketAddr::new(ip, worker.port?);
        let by_speed = routes.get(&(ranks[viewer].node, rank.node));
        Some(in_order(worker, first, by_speed.map_or(&[], Vec::as_slice)))
    };
    ranks.iter().map(|rank| addresses(rank).unwrap_or_else(|| vec![NOWHERE])).collect()
}

/// Addresses from the user come first; they have their own sockets. Then the measured ones, the
/// fastest first; then the one of the control connection, and the others.
fn in_order(worker: &Worker, first: SocketAddr, by_speed: &[IpAddr]) -> Vec<SocketAddr> {
    let (own, all): (Vec<_>, Vec<_>) =
        worker.more.iter().partition(|address| Some(address.port()) != worker.port);
    let place = |address: &SocketAddr| {
        let measured = by_speed.iter().position(|ip| *ip == address.ip());
        (measured.unwrap_or(usize::MAX), *address != first)
    };
    let mut shared: Vec<SocketAddr> = all.into_iter().chain([first]).collect();
    shared.sort_by_key(place);
    let mut addresses: Vec<SocketAddr> = own;
    addresses.extend(shared);
    addresses.dedup();
    addresses.truncate(crate::LINK_ADDRESSES_MAX + 1);
    addresses
}

/// The endpoint list needs one entry a rank; a rank never dials its own.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Progress of loading, as text for the user.
pub(super) fn progress(ranks: &[Rank]) -> String {
    let workers = || ranks.iter().filter_map(|rank| rank.worker.as_ref());
    // Other nodes may report numbers of any size.
    let total: u128 = workers().map(|worker| u128::from(worker.total_bytes)).sum();
    let done: u128 = workers().map(|worker| u128::from(worker.loaded_bytes)).sum();
    match (done * 100).checked_div(total) {
        Some(percent) => format!("loading: {percent} % of the weights are in memory"),
        None => "loading: workers are starting".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::super::tests::{B, brief, ms, ready};
    use super::*;

    #[test]
    fn named_addresses_come_first_then_the_fastest_then_the_one_that_all_else_takes() {
        let at = |host: u8, port: u16| SocketAddr::from(([10, 0, host, 2], port));
        let mut worker = Worker::new(1, at(1, 0).ip(), Duration::ZERO);
        worker.port = Some(9);
        worker.more = vec![at(7, 8), at(1, 9), at(2, 9), at(3, 9)];
        let first = at(1, 9);
        assert_eq!(in_order(&worker, first, &[]), [at(7, 8), at(1, 9), at(2, 9), at(3, 9)]);
        let by_speed = [at(3, 0).ip(), at(2, 0).ip()];
        assert_eq!(in_order(&worker, first, &by_speed), [at(7, 8), at(3, 9), at(2, 9), at(1, 9)]);
    }

    #[test]
    fn a_node_that_holds_much_is_waited_for_longer() {
        for (gib, wait_ms) in [(0, 2000), (5, 5000), (500, 10_000)] {
            let mut instance = ready();
            instance.ranks[1].memory_bytes = gib << 30;
            instance.step(Input::NodeDown { node: B, reason: "power cut".to_owned() }, ms(10));
            assert_eq!(brief(&instance.step(Input::Tick, ms(wait_ms))), "");
            assert_eq!(brief(&instance.step(Input::Tick, ms(10 + wait_ms))), "replan");
        }
    }

    #[test]
    fn where_the_others_do_not_suffice_the_lost_node_has_ten_seconds() {
        let mut instance = ready();
        instance.step(Input::NodeDown { node: B, reason: "power cut".to_owned() }, ms(10));
        assert_eq!(brief(&instance.step(Input::Tick, ms(2010))), "replan");
        assert_eq!(brief(&instance.give_up("too small", ms(2011))), "");
        assert_eq!(brief(&instance.step(Input::Tick, ms(4000))), "");
        assert_eq!(brief(&instance.step(Input::Tick, ms(4011))), "replan");
        instance.give_up("too small", ms(4012));
        assert!(!instance.lacks_nodes());
        assert_eq!(brief(&instance.step(Input::Tick, ms(10_010))), "replan");
        instance.give_up("too small", ms(10_011));
        assert!(instance.lacks_nodes());
    }
}
