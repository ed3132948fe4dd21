//! Speeds of RDMA between nodes, as measured by their ranks when they link. There are no probes in
//! the background: repeated opening of RDMA devices has hung kernels, and ranks have them open
//! anyway. So a pair's speed is known from the first model that it serves together.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use placement::LinkSpeed;

use crate::edge::Edge;
use crate::{NodeId, RankStatus};

#[derive(Debug, Default)]
pub(crate) struct RdmaLinks {
    ways: BTreeMap<(NodeId, NodeId), Way>,
}

#[derive(Debug)]
struct Way {
    speed: LinkSpeed,
    measured_at: Duration,
    /// Whether ranks use it now.
    is_up: bool,
}

impl RdmaLinks {
    /// Takes over the link figures of all instances' ranks; returns whether anything is new.
    pub(crate) fn note(&mut self, instances: &[Vec<RankStatus>], now: Duration) -> bool {
        let told = told(instances);
        let mut is_news = false;
        for (nodes, way) in &mut self.ways {
            is_news |= std::mem::replace(&mut way.is_up, told.contains_key(nodes)) != way.is_up;
        }
        for (nodes, speed) in told {
            // A new measurement has different figures.
            if self.ways.get(&nodes).is_none_or(|way| way.speed != speed) {
                self.ways.insert(nodes, Way { speed, measured_at: now, is_up: true });
                is_news = true;
            }
        }
        is_news
    }

    /// The edges of one node. RDMA has no addresses of its own; `address_of` gives those of nodes.
    pub(crate) fn edges(
        &self,
        from: NodeId,
        now: Duration,
        address_of: impl Fn(NodeId) -> IpAddr,
    ) -> Vec<Edge> {
        let its = self.ways.iter().filter(|((node, _), _)| *node == from);
        let edge = |((_, peer), way): (&(NodeId, NodeId), &Way)| Edge {
            peer: *peer,
            address: address_of(*peer),
            local: address_of(from),
            round_trip_us: way.speed.message_secs * 2e6,
            bytes_per_sec: way.speed.bytes_per_sec,
            age_secs: now.saturating_sub(way.measured_at).as_secs(),
            is_up: way.is_up,
            is_rdma: true,
            packet_bytes: None,
        };
        its.map(edge).collect()
    }

    pub(crate) fn speed(&self, from: NodeId, to: NodeId) -> Option<LinkSpeed> {
        self.ways.get(&(from, to)).map(|way| way.speed)
    }
}

/// Speeds by the nodes of the two ends. A stage with several links measures its slowest one.
fn told(instances: &[Vec<RankStatus>]) -> BTreeMap<(NodeId, NodeId), LinkSpeed> {
    let mut told = BTreeMap::new();
    for ranks in instances {
        for (rank, stats) in ranks.iter().filter_map(|rank| Some((rank, rank.stats.as_ref()?))) {
            let (Some(ns), Some(bytes)) = (stats.exchange_ns, stats.link_bytes_per_sec) else {
                continue;
            };
            let speed = LinkSpeed { message_secs: ns as f64 / 1e9, bytes_per_sec: bytes as f64 };
            let rdma = stats.links.iter().filter(|link| link.is_rdma);
            let peers = rdma.filter_map(|link| ranks.get(link.peer));
            told.extend(peers.map(|peer| ((rank.node, peer.node), speed)));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use protocol::{LinkStats, RankStats};

    use super::*;

    const NODES: [NodeId; 2] = [NodeId([1; 32]), NodeId([2; 32])];

    /// The status of two linked ranks, with the figures of their link.
    fn linked(is_rdma: bool, exchange_ns: u64) -> Vec<RankStatus> {
        let rank = |at: usize| RankStatus {
            rank: at,
            node: NODES[at],
            node_name: String::new(),
            pid: None,
            share: 1,
            percent: 50.0,
            memory_bytes: 0,
            loaded_bytes: 0,
            total_bytes: 0,
            kv_bytes: 0,
            buffer_bytes: 0,
            stats: Some(RankStats {
                exchange_ns: Some(exchange_ns),
                link_bytes_per_sec: Some(5_000_000_000),
                links: vec![LinkStats { peer: 1 - at, is_rdma, ..LinkStats::default() }],
                ..RankStats::default()
            }),
        };
        vec![rank(0), rank(1)]
    }

    #[test]
    fn what_ranks_measure_is_known_of_their_nodes_until_it_is_measured_anew() {
        let mut ways = RdmaLinks::default();
        let secs = Duration::from_secs;
        let [a, b] = NODES;
        assert!(!ways.note(&[linked(false, 9000)], secs(0)));
        assert_eq!(ways.speed(a, b), None);
        assert!(ways.note(&[linked(true, 9000)], secs(1)));
        assert!(!ways.note(&[linked(true, 9000)], secs(2)));
        assert_eq!(ways.speed(b, a).unwrap().bytes_per_sec, 5e9);
        // The model is stopped: the figures stay.
        assert!(ways.note(&[], secs(5)));
        let edges = ways.edges(a, secs(6), |_| [10, 0, 0, 1].into());
        let shown = |edge: &Edge| (edge.peer, edge.is_up, edge.age_secs, edge.is_rdma);
        assert_eq!(edges.iter().map(shown).collect::<Vec<_>>(), [(b, false, 5, true)]);
        assert!((edges[0].round_trip_us - 18.0).abs() < 1e-9);
        assert!(ways.note(&[linked(true, 8000)], secs(7)));
        assert_eq!(ways.edges(a, secs(7), |_| [10, 0, 0, 1].into())[0].age_secs, 0);
    }
}
