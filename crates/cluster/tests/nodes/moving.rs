//! Working models move to better places.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cluster::{InstanceSpec, InstanceState, Node, NodeConfig};
use tokio::time::timeout;

use crate::support::{
    Ended, Home, Streaming, TIMEOUT, ask, cluster, instance, live, model, poll, serve, until,
};

/// Sends one request after another until it ends; every answer must be complete.
struct Asking {
    over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<u32>,
}

impl Asking {
    /// Returns once there are tokens.
    async fn start(node: &Node) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (node, is_over) = (node.clone(), over.clone());
        let mut stream = Streaming::start(&node, "counter", 1000, 200).await;
        let task = tokio::spawn(async move {
            for answers in 1.. {
                let ended = stream.end().await;
                assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
                if is_over.load(Ordering::Relaxed) {
                    return answers;
                }
                stream = Streaming::start(&node, "counter", 1000 + answers, 200).await;
            }
            unreachable!("the loop has no end")
        });
        Self { over, task }
    }

    async fn end(self) -> u32 {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.expect("every answer is whole")
    }
}

/// Serves a model on three nodes of a cluster.
async fn on_three(home: &Home) -> String {
    let spec = serve(&model(home.dir.path(), "counter"));
    let id = home.node.serve(InstanceSpec { nodes: Some(3.into()), ..spec }).await.unwrap();
    ready_on(&home.node, &id, 3).await;
    id
}

/// Waits until a model works on `nodes` nodes.
async fn ready_on(asked: &Node, id: &str, nodes: usize) {
    let is_it = |i: &cluster::InstanceStatus| {
        i.id == id && i.ranks.len() == nodes && i.state == InstanceState::Ready
    };
    until(asked, &format!("{nodes} ranks"), |s| s.instances.iter().any(is_it)).await;
}

pub async fn a_model_grows_back_to_all_nodes_by_itself() {
    let mut homes = cluster(&["a", "b", "c"]).await;
    let (a, b) = (homes[0].node.clone(), homes[1].node.clone());
    let id = on_three(&homes[0]).await;
    ready_on(&b, &id, 3).await;
    let asking = [Asking::start(&a).await, Asking::start(&b).await];
    let mut epochs = vec![instance(&a, &id).epoch];
    homes[2].node.shutdown().await;
    ready_on(&a, &id, 2).await;
    epochs.push(instance(&a, &id).epoch);
    homes[2].start().await;
    ready_on(&a, &id, 3).await;
    let status = instance(&a, &id);
    epochs.push(status.epoch);
    assert!(epochs.is_sorted_by(|before, after| before < after), "{epochs:?}");
    assert!(status.ranks.iter().any(|rank| rank.node == homes[2].node.id()), "{status:#?}");
    for asking in asking {
        assert!(asking.end().await > 1);
    }
    // Its former place holds no memory.
    let used = |node: &Node| node.status().nodes[0].memory_used_bytes;
    let planned: Vec<u64> = homes.iter().map(|home| used(&home.node)).collect();
    assert!(planned.iter().all(|bytes| *bytes < 2 * (64 << 20)), "one worker each: {planned:?}");
    ask(&homes[2].node, &id, 5).await;
}

/// Waits until another node's status shows nothing left on a node.
async fn empty(asked: &Node, node: &Home) {
    let id = node.node.id();
    until(asked, "an empty node", |status| {
        let found = status.nodes.iter().find(|one| one.id == id).unwrap();
        let is_left = status.instances.iter().any(|one| one.is_held_by(id));
        found.drained && !is_left && found.memory_used_bytes == 0
    })
    .await;
}

pub async fn a_drained_node_loses_its_ranks_without_a_failed_request() {
    let mut homes = cluster(&["a", "b", "c"]).await;
    let (a, b) = (homes[0].node.clone(), homes[1].node.clone());
    let id = on_three(&homes[0]).await;
    ready_on(&b, &id, 3).await;
    // Clients at the owner, and at the drained node.
    let asking = [Asking::start(&a).await, Asking::start(&b).await];
    a.drain("b").await.unwrap();
    empty(&a, &homes[1]).await;
    empty(&b, &homes[1]).await;
    ready_on(&a, &id, 2).await;
    // It stays drained after a restart, and reports that.
    for asking in asking {
        asking.end().await;
    }
    homes[1].start().await;
    live(&a, 3).await;
    empty(&homes[1].node, &homes[1]).await;
    let path = model(homes[1].dir.path(), "another");
    let refused = homes[1].node.serve(serve(&path)).await.unwrap_err().to_string();
    assert!(refused.contains("sinew undrain b"), "{refused}");
    let unknown = a.drain("nobody").await.unwrap_err().to_string();
    assert!(unknown.contains("no node is called \"nobody\"") && unknown.contains("c ("));
    let id = b.id().to_string();
    for refused in [a.drain(&id[..3]).await, a.undrain(&id[..3]).await] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("3 digits of an id are too few"), "{refused}");
    }
    homes[1].node.undrain(&id[..8]).await.unwrap();
    until(&a, "the word", |status| status.nodes.iter().all(|node| !node.drained)).await;
    let other = homes[1].node.serve(serve(&path)).await.unwrap();
    timeout(TIMEOUT, homes[1].node.wait_ready(&other)).await.unwrap().unwrap();
}

pub async fn a_drained_owner_leaves_its_model_to_another_without_a_failed_request() {
    let homes = cluster(&["a", "b", "c"]).await;
    let (a, c) = (homes[0].node.clone(), homes[2].node.clone());
    let id = on_three(&homes[0]).await;
    ready_on(&c, &id, 3).await;
    let refused = a.drain("a").await.unwrap_err().to_string();
    assert!(refused.contains("no other node has the file of counter"), "{refused}");
    assert!(!a.status().nodes[0].drained, "nothing was changed");
    a.stop(&id).await.unwrap();

    model(&homes[1].dir.path().join("models"), "counter");
    let id = on_three(&homes[0]).await;
    ready_on(&c, &id, 3).await;
    let asking = [Asking::start(&a).await, Asking::start(&c).await];
    // The node searches for files at intervals.
    poll("b to be found to have the file", async || c.drain("a").await.ok()).await;
    empty(&c, &homes[0]).await;
    assert_eq!(instance(&c, &id).owner, homes[1].node.id());
    ready_on(&c, &id, 2).await;
    for asking in asking {
        asking.end().await;
    }
    ask(&a, &id, 7).await;
}

pub async fn a_node_that_the_others_cannot_do_without_is_not_drained() {
    let small = |config: &mut NodeConfig| config.memory_bytes = 100 << 20;
    let (a, b) = (Home::with("a", small).await, Home::with("b", small).await);
    b.join(&a.node).await;
    let spec = serve(&model(a.dir.path(), "counter"));
    let (context_tokens, cache_tokens) = (Some(4096), Some(21 * 4096));
    let id = a.node.serve(InstanceSpec { context_tokens, cache_tokens, ..spec }).await.unwrap();
    ready_on(&b.node, &id, 2).await;
    for asked in [&a.node, &b.node] {
        let refused = asked.drain("b").await.unwrap_err().to_string();
        let says = ["counter does not fit on the 1 others", "node a would need 0.13 GiB", "stop a"];
        assert!(says.iter().all(|words| refused.contains(words)), "{refused}");
    }
    ask(&a.node, &id, 3).await;
}
