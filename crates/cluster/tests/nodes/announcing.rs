//! Nodes that find each other by announcements.

use cluster::NodeState;

use crate::support::{Home, LOOPBACK, cluster, config, live, started, until};

async fn announced(name: &str) -> Home {
    Home::with(name, |config| config.announce = true).await
}

pub async fn who_is_near_is_shown_and_members_are_found_at_new_addresses() {
    let (a, b) = (announced("near-a").await, announced("near-b").await);
    for (node, other) in [(&a.node, &b.node), (&b.node, &a.node)] {
        until(node, "a neighbour", |status| {
            status.nearby.iter().any(|near| {
                near.id == other.id() && near.address == other.listen_addr() && near.nodes == 1
            })
        })
        .await;
        assert_eq!(node.status().nodes.len(), 1, "nobody joins uninvited");
    }
    b.join(&a.node).await;
    until(&a.node, "no stranger", |s| s.nearby.iter().all(|n| n.id != b.node.id())).await;

    // Both are switched off, and return at addresses that neither remembers.
    let before = (a.node.listen_addr(), b.node.listen_addr());
    a.node.shutdown().await;
    b.node.shutdown().await;
    let start = async |home: &Home, name| {
        let mut config = config(home.dir.path(), name, LOOPBACK.parse().unwrap());
        config.announce = true;
        started(config).await
    };
    let (a, b) = (start(&a, "near-a").await, start(&b, "near-b").await);
    assert!(a.listen_addr() != before.0 && b.listen_addr() != before.1);
    live(&a, 2).await;
    live(&b, 2).await;
}

pub async fn members_tell_each_other_where_a_third_has_gone() {
    let homes = cluster(&["a", "b", "c"]).await;
    // Two return at other addresses; only the third knows both, and there are no announcements.
    for home in &homes[1..] {
        home.node.shutdown().await;
    }
    until(&homes[0].node, "two losses", |status| {
        status.nodes.iter().filter(|node| node.state == NodeState::Lost).count() == 2
    })
    .await;
    let mut back = Vec::new();
    for (home, name) in homes[1..].iter().zip(["b", "c"]) {
        let config = config(home.dir.path(), name, LOOPBACK.parse().unwrap());
        back.push(started(config).await);
    }
    for node in &back {
        live(node, 3).await;
    }
}
