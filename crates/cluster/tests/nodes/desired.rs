//! What is to be served outlives the nodes that serve it.

use cluster::{Error, InstanceState, Node};
use tokio::time::timeout;

use crate::support::{
    Home, TIMEOUT, ask, cluster, instance, is_alive, live, model, pid, ready, serve, until,
};

/// Waits until a model is served by this node, and ready.
async fn served_by(asked: &Node, owner: &Node) {
    until(asked, "the model", |status| {
        let is_it =
            |i: &cluster::InstanceStatus| i.owner == owner.id() && i.state == InstanceState::Ready;
        status.instances.len() == 1 && is_it(&status.instances[0])
    })
    .await;
}

/// Puts a model into the folder of a node that is not asked to serve it.
fn copy(home: &Home) {
    model(&home.dir.path().join("models"), "counter");
}

pub async fn a_model_comes_back_after_restarts_and_what_was_stopped_does_not() {
    let mut homes = cluster(&["a", "b"]).await;
    let id = ready(&homes[0]).await;
    // One node, the other, both.
    for restarted in [&[0][..], &[1], &[0, 1]] {
        for at in restarted {
            homes[*at].node.shutdown().await;
        }
        for at in restarted {
            homes[*at].start().await;
        }
        let (a, b) = (&homes[0].node, &homes[1].node);
        live(a, 2).await;
        served_by(a, a).await;
        timeout(TIMEOUT, a.wait_ready(&id)).await.unwrap().unwrap();
        ask(a, "counter", 3).await;
        served_by(b, a).await;
        ask(b, &id, 4).await;
    }
    // It is stopped from the other node while its owner is away.
    homes[0].node.shutdown().await;
    homes[1].node.stop("counter").await.unwrap();
    homes[1].start().await;
    homes[0].start().await;
    for home in &homes {
        live(&home.node, 2).await;
        until(&home.node, "the end", |status| status.instances.is_empty()).await;
        let gone = home.node.generate("counter", crate::support::prompt(1, 1)).await.unwrap_err();
        assert!(matches!(gone, Error::NotServed { .. }), "{gone}");
    }
}

pub async fn another_node_takes_over_and_keeps_it() {
    let mut homes = cluster(&["a", "b", "c"]).await;
    copy(&homes[1]);
    let id = ready(&homes[0]).await;
    let left = pid(&homes[0].node, &id, 2);
    // It looks for files every now and then.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    homes[0].node.shutdown().await;
    let (b, c) = (&homes[1].node, &homes[2].node);
    served_by(c, b).await;
    ask(c, &id, 5).await;
    assert_eq!(instance(b, &id).ranks.len(), 2);
    assert!(!is_alive(left), "the former owner's worker holds no memory");
    // The former owner is back, and takes nothing back; all agree.
    homes[0].start().await;
    live(&homes[0].node, 3).await;
    for home in &homes {
        served_by(&home.node, &homes[1].node).await;
        ask(&home.node, "counter", 6).await;
    }
}

pub async fn one_name_is_one_instance_when_halves_meet() {
    let mut homes = cluster(&["a", "b"]).await;
    homes[1].node.shutdown().await;
    ready(&homes[0]).await;
    homes[0].node.shutdown().await;
    homes[1].start().await;
    ready(&homes[1]).await;
    homes[0].start().await;
    for home in &homes {
        live(&home.node, 2).await;
        until(&home.node, "one instance", |s| s.instances.len() == 1).await;
    }
    let owner = homes[0].node.status().instances[0].owner;
    let owner = homes.iter().find(|home| home.node.id() == owner).unwrap();
    for home in &homes {
        served_by(&home.node, &owner.node).await;
        ask(&home.node, "counter", 7).await;
    }
}

pub async fn a_model_whose_only_file_is_away_says_what_is_missing() {
    let homes = cluster(&["a", "b"]).await;
    let id = ready(&homes[0]).await;
    homes[0].node.shutdown().await;
    let b = &homes[1].node;
    let reason = |status: &cluster::ClusterStatus| match &status.instances[0].state {
        InstanceState::Recovering { reason } => reason.clone(),
        _ => String::new(),
    };
    until(b, "the reason", |s| reason(s).contains("no other node has its file")).await;
    assert!(reason(&b.status()).contains("Bring a back"), "{}", reason(&b.status()));
    assert_eq!(instance(b, &id).model, "counter");
    // It is put where it is looked for.
    copy(&homes[1]);
    served_by(b, b).await;
    ask(b, &id, 8).await;
    assert!(b.serve(serve(&homes[1].dir.path().join("models/counter.gguf"))).await.is_err());
}

pub async fn a_damaged_document_is_told_and_is_no_reason_not_to_start() {
    let mut homes = cluster(&["a", "b"]).await;
    ready(&homes[0]).await;
    homes[0].node.shutdown().await;
    let path = homes[0].dir.path().join("desired.json");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    homes[0].start().await;
    let a = &homes[0].node;
    assert!(a.status().notices[0].contains("desired.damaged"), "{:?}", a.status().notices);
    // The other one knows.
    served_by(a, a).await;
    ask(a, "counter", 9).await;
}
