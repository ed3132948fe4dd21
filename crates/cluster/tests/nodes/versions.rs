//! Clusters of nodes of two versions, as during a rolling update.

use cluster::{InstanceState, Node, Versions};

use crate::support::{Home, MINUTE, ask, cluster, config, instance, live, ready, until};

/// The version after this one, with other numerics.
const NEXT: Versions = Versions {
    newest: Versions::CURRENT.newest + 1,
    oldest: Versions::CURRENT.newest,
    numerics: Versions::CURRENT.numerics + 1,
};

/// The version before this one, with the same numerics.
const BEFORE: Versions = Versions {
    newest: Versions::CURRENT.newest - 1,
    oldest: Versions::CURRENT.newest - 2,
    numerics: Versions::CURRENT.numerics,
};

pub async fn a_node_of_the_version_before_takes_part_in_all() {
    let new = Home::new("new").await;
    let dir = tempfile::tempdir().unwrap();
    let settings = config(dir.path(), "old", "127.0.0.1:0".parse().unwrap());
    let old = Node::start_as(settings, BEFORE).await.unwrap();
    let code = new.node.invite(MINUTE).await.unwrap().code;
    old.join(&code).await.unwrap();
    live(&new.node, 2).await;
    live(&old, 2).await;
    let id = ready(&new).await;
    assert_eq!(instance(&new.node, &id).ranks.len(), 2);
    ask(&old, "counter", 40).await;
    assert_eq!(new.node.status().notices, [""; 0]);
}

pub async fn a_rolling_update_serves_on_and_says_what_it_waits_for() {
    let homes = cluster(&["a", "b"]).await;
    let id = ready(&homes[0]).await;
    let restarted = async |at: usize, name: &str| {
        let listen = homes[at].node.listen_addr();
        homes[at].node.shutdown().await;
        Node::start_as(config(homes[at].dir.path(), name, listen), NEXT).await.unwrap()
    };
    let b = restarted(1, "b").await;
    let told =
        |s: &cluster::ClusterStatus| s.notices.iter().any(|n| n.contains("wait for b (sinew"));
    until(&homes[0].node, "the other version to be told", told).await;
    // An instance on both versions continues on the nodes of its own version.
    until(&homes[0].node, "the model on one node", |status| {
        let found = status.instances.iter().find(|one| one.id == id);
        found.is_some_and(|one| one.ranks.len() == 1 && one.state == InstanceState::Ready)
    })
    .await;
    ask(&homes[0].node, "counter", 50).await;
    ask(&b, "counter", 60).await;

    let a = restarted(0, "a").await;
    until(&a, "the model on both nodes again", |status| {
        let found = status.instances.iter().find(|one| one.id == id);
        found.is_some_and(|one| one.ranks.len() == 2 && one.state == InstanceState::Ready)
    })
    .await;
    ask(&b, "counter", 70).await;
    assert!(!told(&a.status()), "{:?}", a.status().notices);
}
