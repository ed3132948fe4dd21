use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Home, LOOPBACK, MINUTE, TIMEOUT, cluster, config, live};

/// Writes bytes and waits until the node hangs up; returns its reply.
async fn poke(address: std::net::SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The node may have hung up before the write is complete.
    let _ = stream.write_all(bytes).await;
    let mut said = Vec::new();
    let _ = timeout(TIMEOUT, stream.read_to_end(&mut said)).await.expect("it hangs up");
    said
}

pub async fn strangers_and_garbage_are_turned_away() {
    let homes = cluster(&["a", "b"]).await;
    let address = homes[0].node.listen_addr();

    let garbage: Vec<u8> =
        (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let lying_length = [0x16, 0x03, 0x01, 0xff, 0xff, 0x01, 0xff, 0xff, 0xff];
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &garbage, &[0xff; 4], &lying_length] {
        let said = poke(address, bytes).await;
        assert!(said.len() < 100, "{said:?}");
    }

    // A stranger has a key but is not a member: it knows the address and takes itself for a member.
    let stranger = tempfile::tempdir().unwrap();
    cluster::id_in(stranger.path()).unwrap();
    let members = homes[1].dir.path().join("members.json");
    std::fs::copy(members, stranger.path().join("members.json")).unwrap();
    let stranger = config(stranger.path(), "stranger", LOOPBACK.parse().unwrap());
    let stranger = cluster::Node::start(stranger).await.unwrap();
    // Sleeps: it calls them meanwhile, and nothing may come of that.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(homes[0].node.status().nodes.len(), 2);
    assert!(stranger.status().nodes[1..].iter().all(|n| n.state == cluster::NodeState::Lost));
    live(&homes[0].node, 2).await;
}

pub async fn many_silent_strangers_do_not_block_members() {
    let (a, b) = (Home::new("a").await, Home::new("b").await);
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(a.node.listen_addr()).await.unwrap());
    }
    // They are closed in silence, so there is room again.
    let start = Instant::now();
    for stream in &mut silent {
        let read = timeout(TIMEOUT, stream.read(&mut [0; 16])).await.expect("it is closed");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    println!("300 silent strangers were closed after {:?}", start.elapsed());
    let code = a.node.invite(MINUTE).await.unwrap().code;
    b.node.join(&code).await.unwrap();
    live(&a.node, 2).await;
}
