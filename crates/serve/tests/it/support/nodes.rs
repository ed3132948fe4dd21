//! The status of a scripted cluster.

use std::sync::Arc;

use cluster::{
    ClusterStatus, InstanceState, InstanceStatus, NodeId, NodeState, NodeStatus, RankStatus,
};
use protocol::Transport;

const GIB: u64 = 1 << 30;

/// Two nodes that serve one model.
pub fn two_nodes() -> ClusterStatus {
    let node = |number: u8, name: &str, round_trip_us| NodeStatus {
        id: NodeId([number; 32]),
        name: name.to_owned(),
        address: format!("192.168.1.{number}:8751").parse().unwrap(),
        state: NodeState::Live,
        drained: false,
        version: "0.1.0".to_owned(),
        memory_bytes: 24 * GIB,
        memory_used_bytes: 6 * GIB,
        threads: 8,
        device: None,
        round_trip_us,
        measured: true,
        machine: cluster::Machine::default(),
        sensors: cluster::Sensors::default(),
        edges: Vec::new(),
        uncalled: Vec::new(),
        downloads: Vec::new(),
        clock_ahead_ms: None,
    };
    let rank = |rank: usize, name: &str| RankStatus {
        rank,
        node: NodeId([rank as u8 + 1; 32]),
        node_name: name.to_owned(),
        pid: Some(4000 + rank as u32),
        share: 4,
        percent: 50.0,
        memory_bytes: 6 * GIB,
        loaded_bytes: 5 * GIB,
        total_bytes: 5 * GIB,
        kv_bytes: GIB,
        buffer_bytes: GIB / 16,
        stats: None,
    };
    ClusterStatus {
        unsettled: None,
        node: NodeId([1; 32]),
        nodes: vec![node(1, "desk", None), node(2, "mac-mini", Some(310))],
        instances: vec![InstanceStatus {
            id: "tiny-1".to_owned(),
            model: "tiny/qwen3".to_owned(),
            digest: None,
            model_bytes: 0,
            file_nodes: Vec::new(),
            owner: NodeId([1; 32]),
            state: InstanceState::Ready,
            epoch: 1,
            context_tokens: 1024,
            created_unix_s: 1_790_000_000,
            transport: Transport::Tcp,
            ranks: vec![rank(0, "desk"), rank(1, "mac-mini")],
            requests_running: 0,
            requests_waiting: 0,
            has_generated: true,
            last_decode_tokens_per_sec: Some(21.5),
            stats: None,
            placement: vec![],
            prediction: None,
            notes: Vec::new(),
            replica_of: None,
            replicas_wanted: None,
            keep_alive: None,
            idle_since_unix_s: None,
            unloads_at_unix_s: None,
        }],
        notices: vec![],
        requests: Vec::new(),
        nearby: Vec::new(),
        presets: Arc::default(),
    }
}
