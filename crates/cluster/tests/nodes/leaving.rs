//! Nodes that leave the cluster, or are removed from it.

use cluster::{Error, InstanceState, NodeState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Home, MINUTE, ask, cluster, live, ready, streaming, until};

async fn alone(home: &Home) {
    until(&home.node, "a node alone", |status| status.nodes.len() == 1).await;
}

/// Waits until a node knows `count` members, live or lost.
async fn of(home: &Home, count: usize) {
    until(&home.node, "fewer members", |status| status.nodes.len() == count).await;
}

pub async fn who_is_removed_is_cut_off_and_needs_a_new_invitation() {
    let homes = cluster(&["a", "b", "c"]).await;
    let [a, b, c] = homes.as_slice() else { unreachable!() };
    let wrong = a.node.remove("z").await.unwrap_err().to_string();
    assert!(wrong.contains("There are: ") && wrong.contains("b (") && wrong.contains("c ("));
    assert!(matches!(a.node.remove("a").await, Err(Error::OwnName { .. })));

    let parted = a.node.remove("c").await.unwrap();
    assert_eq!((parted.node, parted.name.as_str()), (c.node.id(), "c"));
    assert_eq!((parted.told, parted.untold), (1, 0));
    of(a, 2).await;
    of(b, 2).await;
    alone(c).await;
    assert!(c.node.status().notices[0].contains("sinew invite"), "{:?}", c.node.status());
    assert!(matches!(c.node.leave().await, Err(Error::Alone)));
    live(&b.node, 2).await;

    c.join(&b.node).await;
    for home in &homes {
        live(&home.node, 3).await;
        assert_eq!(home.node.status().notices, [""; 0]);
    }
}

/// A way to another node's API carries bytes both ways, to members alone, and ends with them.
pub async fn a_visit_lasts_as_long_as_its_sender_is_a_member() {
    let homes = cluster(&["a", "b"]).await;
    let [a, b] = homes.as_slice() else { unreachable!() };
    let wrong = a.node.visit("a").await.map(drop).unwrap_err().to_string();
    assert!(wrong.contains("a is this node"), "{wrong}");
    assert!(a.node.visit("z").await.is_err());
    let mut visits = b.node.visits().expect("the first call has them");
    assert!(b.node.visits().is_none());
    let mut near = a.node.visit("b").await.unwrap();
    near.write_all(b"ping").await.unwrap();
    near.flush().await.unwrap();
    let mut far = visits.recv().await.unwrap();
    let mut bytes = [0; 4];
    far.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");
    far.write_all(b"pong").await.unwrap();
    near.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"pong");
    b.node.remove("a").await.unwrap();
    assert_eq!(far.read(&mut bytes).await.unwrap_or(0), 0, "its sender is no member any more");
    let away = a.node.visit("b").await.map(drop).unwrap_err().to_string();
    assert!(away.contains('b'), "{away}");
}

pub async fn a_removal_reaches_who_was_away() {
    let mut homes = cluster(&["a", "b", "c", "d"]).await;
    homes[1].node.shutdown().await;
    homes[2].node.shutdown().await;
    until(&homes[0].node, "two losses", |status| {
        status.nodes.iter().filter(|node| node.state == NodeState::Lost).count() == 2
    })
    .await;
    let id = homes[2].node.id().to_string();
    let parted = homes[0].node.remove(&id[..8]).await.unwrap();
    assert_eq!((parted.told, parted.untold), (1, 1));
    of(&homes[3], 3).await;
    // Both return; the removed one calls the one that has not received the removal.
    homes[2].start().await;
    homes[1].start().await;
    alone(&homes[2]).await;
    for at in [0, 1, 3] {
        of(&homes[at], 3).await;
        live(&homes[at].node, 3).await;
    }
}

pub async fn a_node_leaves_while_it_runs_and_while_it_does_not() {
    let homes = cluster(&["a", "b", "c"]).await;
    let parted = homes[2].node.leave().await.unwrap();
    assert_eq!((parted.node, parted.told, parted.untold), (homes[2].node.id(), 2, 0));
    alone(&homes[2]).await;
    assert_eq!(homes[2].node.status().notices, [""; 0], "it was its own wish");

    until(&homes[1].node, "the leaving", |status| status.nodes.len() == 2).await;
    homes[1].node.shutdown().await;
    let dir = homes[1].dir.path();
    // A worker that another test is just starting holds this program's open files.
    let parted = loop {
        match cluster::leave(dir).await {
            Err(Error::DataDirInUse { .. }) => tokio::task::yield_now().await,
            parted => break parted.unwrap(),
        }
    };
    assert_eq!((parted.node, parted.told, parted.untold), (homes[1].node.id(), 1, 0));
    alone(&homes[0]).await;
    assert!(matches!(homes[0].node.leave().await, Err(Error::Alone)));

    // Each of them may join another cluster now.
    let code = homes[2].node.invite(MINUTE).await.unwrap().code;
    homes[0].node.join(&code).await.unwrap();
    live(&homes[2].node, 2).await;
}

pub async fn a_model_goes_on_without_a_node_that_was_removed() {
    let homes = cluster(&["a", "b"]).await;
    let id = ready(&homes[0]).await;
    let mut stream = streaming(&homes[0].node, &id).await;
    homes[0].node.remove("b").await.unwrap();
    let why = stream.pause().await;
    assert!(why.contains("node b") && why.contains("removed"), "{why}");
    alone(&homes[1]).await;
    until(&homes[1].node, "nothing served", |status| status.instances.is_empty()).await;
    until(&homes[0].node, "the model", |status| {
        let instance = &status.instances[0];
        instance.state == InstanceState::Ready && instance.ranks.len() == 1
    })
    .await;
    stream.go_on().await;
    ask(&homes[0].node, &id, 7).await;
}
