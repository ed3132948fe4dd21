//! Nodes with one fleet key become one cluster by themselves.

use std::time::{Duration, Instant};

use cluster::{FleetKey, Peer};

use crate::support::{Home, live, until};

const FLEET: usize = 16;

async fn with(key: &FleetKey, name: &str) -> Home {
    Home::with(name, |config| {
        config.announce = true;
        config.fleet_key = Some(key.clone());
    })
    .await
}

pub async fn sixteen_started_at_once_are_one_cluster_and_others_are_not_in_it() {
    let (key, other) = (FleetKey::generate(), FleetKey::generate());
    let stranger = with(&other, "stranger").await;
    let begin = Instant::now();
    let mut homes = Vec::new();
    for at in 0..FLEET {
        homes.push(with(&key, &format!("fleet-{at}")).await);
    }
    for home in &homes {
        live(&home.node, FLEET).await;
    }
    println!("{FLEET} nodes were one cluster after {:.1} s", begin.elapsed().as_secs_f64());
    assert_eq!(stranger.node.status().nodes.len(), 1);

    // One is removed: the key does not bring it back.
    let out = homes.pop().unwrap();
    homes[0].node.remove(&out.node.id().to_string()).await.unwrap();
    until(&out.node, "a node alone", |status| status.nodes.len() == 1).await;
    // Sleeps: it calls the others again meanwhile, and nothing may come of that.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(out.node.status().nodes.len(), 1);
    for home in &homes {
        live(&home.node, FLEET - 1).await;
    }
}

/// A node as a given peer.
fn at(home: &Home) -> Peer {
    Peer::Address(home.node.listen_addr())
}

pub async fn a_fleet_without_announcements_meets_at_given_addresses() {
    let key = FleetKey::generate();
    let with = async |name, peers| {
        Home::with(name, |config| {
            config.peers = peers;
            config.fleet_key = Some(key.clone());
        })
        .await
    };
    let a = with("a", vec![]).await;
    let (b, c) = (with("b", vec![at(&a)]).await, with("c", vec![at(&a)]).await);
    for home in [&a, &b, &c] {
        live(&home.node, 3).await;
    }
    // Another key at the same address changes nothing.
    let stranger = Home::with("stranger", |config| {
        config.peers = vec![at(&a)];
        config.fleet_key = Some(FleetKey::generate());
    })
    .await;
    // Sleeps: it calls meanwhile, and nothing may come of that.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(stranger.node.status().nodes.len(), 1);
    assert_eq!(a.node.status().nodes.len(), 3);

    // Two clusters of the fleet become one, because one node of one of them was given an address.
    let d = with("d", vec![]).await;
    let e = with("e", vec![at(&d)]).await;
    live(&d.node, 2).await;
    let f = with("f", vec![at(&a), at(&e)]).await;
    for home in [&a, &b, &c, &d, &e, &f] {
        live(&home.node, 6).await;
    }
}
