//! Serves the status page and the API in front of a scripted cluster, to look at and to point
//! clients at: `cargo run -p serve --example status_page [PORT [fail]]`. With `fail`, answers
//! are lost midway.

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use cluster::{InstanceState, InstanceStatus, NodeId, NodeState, NodeStatus, RankStatus};
use protocol::{FinishReason, Transport};
use serve::{ServeConfig, start};
use support::double::{Act, Double};
use support::server::ADMIN;

const GIB: u64 = 1 << 30;

/// Pieces of an answer that a page must show as it is.
const ANSWER: [&str; 6] = [
    "Three machines share this answer: ",
    "each holds a slice of every layer, ",
    "and after each layer they add their parts together.\n\n",
    "Nothing here is markup: <img src=x onerror=alert(1)> is text. ",
    "So is [a link](javascript:alert(1)).\n\n",
    "The more machines you add, the faster it gets, as long as the wires keep up.",
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).map_or(Ok(8750), |port| port.parse())?;
    let mut script = Vec::new();
    for piece in ANSWER {
        script.extend([Act::Say(piece), Act::Pause(Duration::from_millis(500))]);
    }
    let fails = std::env::args().nth(2).is_some_and(|word| word == "fail");
    let lost = Act::Failed("node mac-mini was lost and nothing can take its place");
    script.push(if fails { lost } else { Act::Done(FinishReason::Stop) });
    let double = Double::new(&script);
    fill(&double);
    let config = ServeConfig::new(([127, 0, 0, 1], port).into(), ADMIN);
    let running = start(Arc::clone(&double) as Arc<dyn serve::Cluster>, config).await?;
    println!("http://{} (admin token {ADMIN})", running.addr());
    std::future::pending::<()>().await;
    Ok(())
}

/// A cluster in the middle of things: four nodes in three states, three instances in three.
fn fill(double: &Double) {
    let nodes = nodes();
    let mut status = double.status.lock().expect("no panic holds it");
    status.node = nodes[0].id;
    status.instances = instances(&nodes);
    status.nodes = nodes;
    status.notices =
        vec!["raspberry has been away for 12 minutes. Its memory is not counted".to_owned()];
}

fn nodes() -> Vec<NodeStatus> {
    let node =
        |number: u8, name: &str, state, memory_gib, used_gib, threads, round_trip_us| NodeStatus {
            id: NodeId([number * 37; 32]),
            name: name.to_owned(),
            address: ([192, 168, 1, 10 + number], 8751).into(),
            state,
            version: "0.1.0".to_owned(),
            memory_bytes: memory_gib * GIB,
            memory_used_bytes: used_gib * GIB,
            threads,
            round_trip_us,
            measured: true,
            machine: cluster::Machine::default(),
            sensors: cluster::Sensors::default(),
            edges: Vec::new(),
        };
    vec![
        node(1, "desk", NodeState::Live, 64, 24, 16, None),
        node(2, "mac-mini", NodeState::Live, 24, 21, 10, Some(310)),
        node(3, "old-laptop-in-the-kitchen", NodeState::Suspect, 16, 6, 8, Some(4_200)),
        node(4, "raspberry", NodeState::Lost, 8, 0, 4, Some(1_900)),
    ]
}

/// Each as: id, model, state, tokens per second, and its ranks as node, share, GiB loaded, GiB.
fn instances(nodes: &[NodeStatus]) -> Vec<InstanceStatus> {
    type Rank = (usize, u32, u64, u64);
    let instance = |id: &str, model: &str, state, rate, ranks: &[Rank]| {
        let ranks = ranks.iter().enumerate();
        let ranks = ranks.map(|(rank, (node, share, loaded_gib, total_gib))| RankStatus {
            rank,
            node: nodes[*node].id,
            node_name: nodes[*node].name.clone(),
            pid: Some(4000 + rank as u32),
            share: *share,
            loaded_bytes: loaded_gib * GIB,
            total_bytes: total_gib * GIB,
            kv_bytes: GIB,
            buffer_bytes: GIB / 16,
            stats: None,
        });
        InstanceStatus {
            id: id.to_owned(),
            model: model.to_owned(),
            owner: nodes[0].id,
            state,
            epoch: 3,
            context_tokens: 32_768,
            created_unix_s: 0,
            transport: Transport::Tcp,
            ranks: ranks.collect(),
            requests_running: 2,
            requests_waiting: 0,
            has_generated: true,
            last_decode_tokens_per_sec: rate,
            stats: None,
            placement: vec![],
            prediction: None,
            notes: Vec::new(),
        }
    };
    let (loading, ready) = (InstanceState::Loading, InstanceState::Ready);
    let reason = "node old-laptop-in-the-kitchen has been silent for 3 s".to_owned();
    let recovering = InstanceState::Recovering { reason };
    let llama = "bartowski/Llama-3.3-70B-Instruct:q4_k_m";
    vec![
        instance("tiny-1", "tiny/qwen3", ready, Some(31.94), &[(0, 5, 12, 12), (1, 3, 7, 7)]),
        instance("llama-1", llama, loading, None, &[(0, 4, 9, 20), (1, 3, 14, 15), (2, 1, 1, 5)]),
        instance("phi-1", "phi-4", recovering, Some(12.0), &[(0, 1, 4, 4), (2, 1, 0, 4)]),
    ]
}
