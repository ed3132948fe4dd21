//! A member with a modified program: its claims about other nodes are ignored. And a slow member,
//! which does not count as lost.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use protocol::{AnswerToken, GenerateRequest, InstanceSpec, Split, WorkerEvent};
use store::Digest;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::{config, dial, join, stranger_speaking};
use crate::admission::waiting::REQUESTS_MAX;
use crate::desired::{Desired, Document, Entry, Service, Signer};
use crate::instances::WORKERS_BITS;
use crate::io::frames;
use crate::io::net::{Connection, Net};
use crate::wire::{Heartbeat, Message, Purpose, VERSION, Versions, WorkerOrder};
use crate::{GenerateEvent, InstanceState, Node, NodeId, NodeState, PairRequest, Paired};

const PATIENCE: Duration = Duration::from_secs(20);

/// A member that sends any message that the test wants.
struct Member {
    net: Arc<Net>,
    control: Connection,
    _home: TempDir,
}

impl Member {
    async fn of(node: &Node) -> Self {
        let mut member = Self::speaking(node, Versions::CURRENT).await;
        member.say(&heartbeat(1)).await;
        member.hear_seen(1).await;
        member
    }

    /// A member that has sent no message yet.
    async fn speaking(node: &Node, versions: Versions) -> Self {
        let (home, net) = stranger_speaking(versions);
        join(&net, node).await;
        let control = dial(&net, node, Purpose::Control).await.unwrap();
        Self { net, control, _home: home }
    }

    async fn say(&mut self, message: &Message) {
        frames::write(&mut self.control.stream, message).await.unwrap();
    }

    async fn hear(&mut self) -> Message {
        let read = frames::read(&mut self.control.stream, protocol::frame::FRAME_BYTES_MAX);
        timeout(PATIENCE, read).await.expect("a message in time").unwrap()
    }

    /// Waits until the node has processed all messages before this heartbeat.
    async fn hear_seen(&mut self, wanted: u64) {
        loop {
            if matches!(self.hear().await, Message::HeartbeatSeen { seq } if seq == wanted) {
                return;
            }
        }
    }

    /// An entry of the document, signed by this member.
    fn entry(&self, name: &str) -> Entry {
        let net = self.net.clone();
        let signer = Signer::new(move |bytes| net.sign(bytes));
        let mut desired = Desired::new(self.net.id(), Document::default(), signer);
        let spec = InstanceSpec { model: name.to_owned(), ..InstanceSpec::default() };
        let id = format!("i-{name}");
        let (spec, digest) = (spec.into(), Digest([7; 32]));
        let wanted = Service { id, spec, digest, bytes: 9, created_unix_s: 0 };
        desired.serve(name, wanted)
    }
}

fn heartbeat(seq: u64) -> Message {
    Message::Heartbeat(Box::new(Heartbeat {
        seq,
        name: "stranger".to_owned(),
        version: VERSION.to_owned(),
        memory_bytes: 0,
        memory_used_bytes: 0,
        threads: 1,
        numerics: protocol::NUMERICS,
        speed: None,
        device: None,
        instances: Vec::new(),
        sees: Vec::new(),
        document: 0,
        files: Vec::new(),
        kept: Vec::new(),
        cannot_copy: Vec::new(),
        requests: Vec::new(),
    }))
}

/// A node whose workers start and then stay silent.
async fn node(data_dir: &Path) -> Node {
    let worker_command = ["sleep", "600"].map(str::to_owned).to_vec();
    Node::start(crate::NodeConfig { worker_command, ..config(data_dir) }).await.unwrap()
}

fn is_told(node: &Node, of: &str) -> bool {
    node.status().notices.iter().any(|notice| notice.contains("stranger") && notice.contains(of))
}

#[tokio::test]
async fn tokens_of_a_worker_are_believed_from_its_host_alone() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path()).await;
    let mut liar = Member::of(&node).await;
    let model = fixtures::path("models/llama3-tied.gguf").display().to_string();
    let spec = InstanceSpec { model, nodes: Some(1.into()), ..InstanceSpec::default() };
    let id = node.serve(spec).await.unwrap();
    let request = GenerateRequest { prompt: vec![1], max_tokens: 3, ..Default::default() };
    let mut answer = node.generate(&id, request).await.unwrap();

    // The first worker of the first instance, and all events that precede its first answer.
    let worker = (1 << WORKERS_BITS) + 1;
    let token = AnswerToken::from(42);
    let lies = [
        WorkerEvent::Listening { port: 1, more: Vec::new() },
        WorkerEvent::Loading { done_bytes: 1, total_bytes: 2, arrived_bytes: 3 },
        WorkerEvent::Loaded { weight_bytes: 2, kv_bytes: 1, buffer_bytes: 1, load_us: 1 },
        WorkerEvent::Linked { epoch: 1, notes: Vec::new() },
        WorkerEvent::Token { request: 1, answer: token.clone() },
        WorkerEvent::Token { request: 2, answer: token },
        WorkerEvent::Failed { reason: "a lie".to_owned() },
    ];
    liar.say(&Message::Spawned { worker, pid: 666_666 }).await;
    for event in lies {
        liar.say(&Message::Event { worker, event }).await;
    }
    liar.say(&Message::Exited { worker, how: "a lie".to_owned() }).await;
    liar.say(&heartbeat(2)).await;
    liar.hear_seen(2).await;
    let status = node.status();
    let rank = &status.instances[0].ranks[0];
    assert_eq!(status.instances[0].state, InstanceState::Loading);
    assert!(rank.pid != Some(666_666) && rank.total_bytes == 0, "{rank:?}");
    assert!(is_told(&node, "a worker that another node runs"), "{:?}", status.notices);
    node.stop(&id).await.unwrap();
    loop {
        match timeout(PATIENCE, answer.recv()).await.expect("it ends").expect("not in silence") {
            GenerateEvent::Waiting { .. } => {}
            GenerateEvent::Failed { .. } => break,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn what_is_to_be_served_is_believed_from_its_maker_alone() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path()).await;
    let mut liar = Member::of(&node).await;
    // In the node's own name, in that of an absent one, and an own entry with altered content.
    let lie = |claim: NodeId, version: NodeId| {
        let mut entry = liar.entry("lie");
        (entry.claim.node, entry.version.node) = (claim, version);
        entry
    };
    let (me, absent) = (liar.net.id(), NodeId([9; 32]));
    let mut entries = vec![lie(node.id(), me), lie(me, node.id()), lie(absent, absent)];
    entries.push(Entry { name: "renamed".to_owned(), ..liar.entry("lie") });
    liar.say(&Message::Desired(entries.into())).await;
    liar.say(&heartbeat(2)).await;
    liar.hear_seen(2).await;
    assert_eq!(node.status().instances.len(), 0);
    assert!(is_told(&node, "what another node wants served"));
    // It may do so in its own name.
    let entries = vec![liar.entry("mine")];
    liar.say(&Message::Desired(entries.into())).await;
    liar.say(&heartbeat(3)).await;
    liar.hear_seen(3).await;
    let instances = node.status().instances;
    assert_eq!((instances[0].model.as_str(), instances[0].owner), ("mine", me));
}

#[tokio::test]
async fn workers_are_started_for_their_owner_alone() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path()).await;
    let mut liar = Member::of(&node).await;
    let mut claim = liar.entry("m").claim;
    claim.node = node.id();
    let order = WorkerOrder {
        instance: "i-m".to_owned(),
        claim,
        rank: 0,
        numerics: protocol::NUMERICS,
        spec: InstanceSpec::default(),
        split: Split::default(),
        digest: Digest([7; 32]),
        model_bytes: 9,
        memory_bytes: 1,
        bind: [127, 0, 0, 1].into(),
    };
    liar.say(&Message::Spawn { worker: 5, order: Box::new(order) }).await;
    loop {
        match liar.hear().await {
            Message::Exited { worker: 5, how } => {
                break assert!(how.contains("another node's claim"), "{how}");
            }
            Message::Spawned { .. } => panic!("it was started"),
            _ => {}
        }
    }
    assert!(is_told(&node, "an instance that another node owns"));
}

#[tokio::test]
async fn what_came_of_a_number_is_believed_from_the_node_that_was_told_it() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path()).await;
    let (mut asked, mut liar) = (Member::of(&node).await, Member::of(&node).await);
    let request = PairRequest {
        id: NodeId([9; 32]),
        name: "laptop".to_owned(),
        address: [10, 0, 0, 9].into(),
        expires_in_secs: 60,
        at: "a name of its own choice".to_owned(),
    };
    let Message::Heartbeat(mut told) = heartbeat(2) else { unreachable!() };
    told.requests = vec![request; 1000];
    asked.say(&Message::Heartbeat(told)).await;
    asked.hear_seen(2).await;
    let requests = node.status().requests;
    assert_eq!((requests.len(), &*requests[0].at), (REQUESTS_MAX, "stranger"));
    // With several requests, none is chosen without a name.
    assert!(node.accept("123456", None).await.is_err());
    let Message::Heartbeat(mut told) = heartbeat(3) else { unreachable!() };
    told.requests = vec![requests[0].clone()];
    asked.say(&Message::Heartbeat(told)).await;
    asked.hear_seen(3).await;

    let accepting = tokio::spawn({
        let node = node.clone();
        async move { node.accept("123456", Some("laptop")).await }
    });
    let call = loop {
        if let Message::Decide { call, number, .. } = asked.hear().await {
            assert_eq!(number.as_deref(), Some("123456"));
            break call;
        }
    };
    let paired = Paired { node: NodeId([9; 32]), name: "laptop".to_owned(), members: 4 };
    liar.say(&Message::Decided { call, outcome: Ok(Some(paired)) }).await;
    liar.say(&heartbeat(2)).await;
    liar.hear_seen(2).await;
    assert!(!accepting.is_finished());
    asked.say(&Message::Decided { call, outcome: Err("it shows another one".to_owned()) }).await;
    let told = accepting.await.unwrap().unwrap_err().to_string();
    assert_eq!(told, "it shows another one");
}

/// What a version added is sent only to members that speak it.
#[tokio::test]
async fn each_member_is_spoken_to_in_the_version_that_it_speaks() {
    let now = Versions::CURRENT;
    let without_reports = Versions { newest: 12, oldest: 11, ..now };
    for (versions, has_reports) in [(without_reports, false), (now, true)] {
        let home = tempfile::tempdir().unwrap();
        let node = node(home.path()).await;
        let mut member = Member::speaking(&node, versions).await;
        assert_eq!(member.control.protocol, versions.newest);
        member.say(&heartbeat(1)).await;
        let mut reports = 0;
        loop {
            match member.hear().await {
                Message::Report(_) => reports += 1,
                Message::HeartbeatSeen { seq: 1 } => break,
                _ => {}
            }
        }
        assert_eq!(reports > 0, has_reports, "{versions:?}");
    }
}

/// A member's clock and downloads are shown, within limits.
#[tokio::test]
async fn what_a_member_says_of_its_clock_and_downloads_is_shown_within_limits() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path()).await;
    let mut member = Member::of(&node).await;
    let download = serde_json::json!({
        "model": "\u{1b}[31mred", "stage": "pulling", "note": "x".repeat(9000), "file": "a\nb",
        "sha256": "<b>", "file_done_bytes": 1, "file_total_bytes": 2, "done_bytes": 1,
        "total_bytes": 2, "bytes_per_sec": 3.0,
    });
    for (seq, unix_ms) in [(2, 0), (3, u64::MAX)] {
        let report = serde_json::json!({
            "report": { "downloads": vec![&download; 99], "unix_ms": unix_ms },
        });
        member.say(&serde_json::from_value(report).unwrap()).await;
        member.say(&heartbeat(seq)).await;
        member.hear_seen(seq).await;
        let told = node.status().nodes.swap_remove(1);
        let hour_ms = 3_600_000;
        let ahead_ms = told.clock_ahead_ms.unwrap();
        assert!(if unix_ms == 0 { ahead_ms < -hour_ms } else { ahead_ms > hour_ms }, "{ahead_ms}");
        let first = &told.downloads[0];
        assert!(told.downloads.len() < 20 && first.note.len() < 1000 && first.sha256.is_none());
        assert_eq!((first.model.as_str(), first.file.as_str()), ("[31mred", "ab"));
    }
}

/// A heartbeat waits behind a long message, whose bytes count as signs of life.
#[tokio::test]
async fn a_slow_link_with_a_long_message_is_no_silence() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path()).await;
    let mut slow = Member::of(&node).await;
    let long = Message::CancelGenerate { stream: 7 };
    let mut bytes = protocol::frame::encode(&long).unwrap();
    // White space is valid JSON.
    let padded = bytes.len() - 4 + 4000;
    bytes[..4].copy_from_slice(&(padded as u32).to_le_bytes());
    bytes.resize(padded + 4, b' ');
    // Twice as long as the silence of a loss.
    for piece in bytes.chunks(bytes.len().div_ceil(12)) {
        slow.control.stream.write_all(piece).await.unwrap();
        slow.control.stream.flush().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(node.status().nodes[1].state, NodeState::Live);
    }
    slow.say(&heartbeat(2)).await;
    slow.hear_seen(2).await;
}

/// Its confirmations come after the next heartbeats have gone out.
#[tokio::test]
async fn a_round_trip_longer_than_the_interval_of_heartbeats_is_known() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path()).await;
    let mut far = Member::speaking(&node, Versions::CURRENT).await;
    let asked = loop {
        if let Message::Heartbeat(heartbeat) = far.hear().await {
            break heartbeat.seq;
        }
    };
    // Sleeps: that is the length of the path.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    far.say(&Message::HeartbeatSeen { seq: asked }).await;
    far.say(&heartbeat(1)).await;
    far.hear_seen(1).await;
    let round_trip_us = node.status().nodes[1].round_trip_us;
    assert!(round_trip_us.is_some_and(|us| us >= 1_000_000), "{round_trip_us:?}");
}
