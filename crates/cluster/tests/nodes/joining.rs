use std::time::Duration;

use cluster::{Error, Node, NodeState, PairWith};

use crate::support::{Home, LOOPBACK, MINUTE, cluster, config, live, until};

pub async fn a_code_joins_both_sides_for_good() {
    let (a, b) = (Home::new("a").await, Home::new("b").await);
    let invite = a.node.invite(MINUTE).await.unwrap();
    let joined = b.node.join(&invite.code).await.unwrap();
    assert_eq!((joined.by, joined.by_name.as_str(), joined.members), (a.node.id(), "a", 2));
    live(&a.node, 2).await;
    live(&b.node, 2).await;

    // Both restart, and need no code to find each other.
    let (listen_a, listen_b) = (a.node.listen_addr(), b.node.listen_addr());
    a.node.shutdown().await;
    until(&b.node, "the loss of a", |s| s.nodes[1].state == NodeState::Lost).await;
    b.node.shutdown().await;
    let a = Node::start(config(a.dir.path(), "a", listen_a)).await.unwrap();
    let b = Node::start(config(b.dir.path(), "b", listen_b)).await.unwrap();
    live(&a, 2).await;
    live(&b, 2).await;
    assert_eq!(a.status().nodes[1].name, "b");
}

pub async fn wrong_codes_are_refused_for_the_right_reason() {
    let (a, b, c) = (Home::new("a").await, Home::new("b").await, Home::new("c").await);
    let refused = async |code: &str| b.node.join(code).await.unwrap_err().to_string();

    let code = a.node.invite(MINUTE).await.unwrap().code;
    let typo =
        format!("{}{}", &code[..code.len() - 1], if code.ends_with('0') { '1' } else { '0' });
    assert!(refused(&typo).await.contains("wrong, missing or too many"));
    assert!(refused("hello").await.contains("sinew-"));

    c.node.join(&code).await.unwrap();
    assert!(refused(&code).await.contains("used already"));

    let code = a.node.invite(Duration::ZERO).await.unwrap().code;
    assert!(refused(&code).await.contains("expired"));

    let own = b.node.invite(MINUTE).await.unwrap().code;
    assert!(refused(&own).await.contains("own code"));

    // A machine cloned from another's image has its key.
    let twin = tempfile::tempdir().unwrap();
    std::fs::copy(a.dir.path().join("identity.key"), twin.path().join("identity.key")).unwrap();
    let twin = Node::start(config(twin.path(), "twin", LOOPBACK.parse().unwrap())).await.unwrap();
    let code = a.node.invite(MINUTE).await.unwrap().code;
    let refused_twin = twin.join(&code).await.unwrap_err().to_string();
    assert!(refused_twin.contains("one is a copy of the other"), "{refused_twin}");
    for (peer, expected) in [
        (a.node.listen_addr(), "has the identity of this one"),
        (twin.listen_addr(), "this node's own address"),
    ] {
        let asked = twin.pair(PairWith { node: None, peer: Some(peer) }).await;
        let refused = asked.unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    twin.shutdown().await;

    // Wrong codes are counted: after ten of them even a valid one has to wait.
    let wrong = a.node.invite(MINUTE).await.unwrap().code;
    for _ in 0..63 {
        a.node.invite(MINUTE).await.unwrap();
    }
    // Of more than 64 codes the oldest one is dropped.
    let good = a.node.invite(MINUTE).await.unwrap().code;
    for _ in 0..10 {
        assert!(refused(&wrong).await.contains("unknown here"));
    }
    assert!(refused(&good).await.contains("10 wrong codes"));

    a.node.shutdown().await;
    let unreachable = b.node.join(&good).await.unwrap_err();
    assert!(matches!(unreachable, Error::Unreachable { .. }), "{unreachable}");
    assert_eq!(b.node.status().nodes.len(), 1);
}

pub async fn a_third_node_is_introduced_to_all() {
    let homes = cluster(&["a", "b", "c"]).await;
    for home in &homes {
        let status = home.node.status();
        assert_eq!(status.nodes.len(), 3);
        assert_eq!(status.nodes[0].id, home.node.id());
        let others = || status.nodes[1..].iter();
        until(&home.node, "round trips", |s| {
            s.nodes[1..].iter().all(|node| node.round_trip_us.is_some())
        })
        .await;
        assert!(others().all(|node| node.memory_bytes == 1 << 30), "{status:#?}");
    }
}

pub async fn a_copied_home_is_refused() {
    let homes = cluster(&["a", "b"]).await;
    let copy = tempfile::tempdir().unwrap();
    for file in ["identity.key", "members.json"] {
        std::fs::copy(homes[1].dir.path().join(file), copy.path().join(file)).unwrap();
    }
    let twin = Node::start(config(copy.path(), "b", "127.0.0.1:0".parse().unwrap())).await.unwrap();
    assert_eq!(twin.id(), homes[1].node.id());
    until(&twin, "the notice", |s| s.notices.iter().any(|n| n.contains("identity.key"))).await;
    live(&homes[0].node, 2).await;
    live(&homes[1].node, 2).await;

    // When the original goes, the copy is a node like any other.
    homes[1].node.shutdown().await;
    live(&twin, 2).await;
    assert_eq!(twin.status().notices, [""; 0]);
}

pub async fn a_second_cluster_is_not_merged() {
    let first = cluster(&["a", "b"]).await;
    let second = cluster(&["c", "d"]).await;
    let code = first[0].node.invite(MINUTE).await.unwrap().code;
    let error = second[0].node.join(&code).await.unwrap_err();
    assert!(matches!(error, Error::AlreadyMember { members: 2 }), "{error}");
    // A member that lost its connections may use another code of its own cluster.
    first[1].node.join(&code).await.unwrap();
    assert_eq!(first[0].node.status().nodes.len(), 2);
}
