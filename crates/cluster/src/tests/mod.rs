//! Visitors that speak a node's protocol but must not get far.

mod owners;
/// Its silent workers are `sleep`.
#[cfg(unix)]
mod validation;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use protocol::frame::FrameError;
use rustls::pki_types::ServerName;
use store::Digest;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::id::fingerprint;
use crate::io::frames;
use crate::io::identity::Identity;
use crate::io::net::{Connection, DialError, Net};
use crate::io::tls::{Pin, client_config};
use crate::wire::{
    About, HandshakeReply, Hello, JOIN_BYTES_MAX, JoinAnswer, JoinKept, JoinRequest, Message,
    PROTOCOL, Purpose, Versions,
};
use crate::{Node, NodeConfig, Rates, Speed};

const BULK: Purpose = Purpose::Bulk { digest: Digest([7; 32]) };

fn config(data_dir: &Path) -> NodeConfig {
    NodeConfig {
        prompts: crate::PromptsConfig::off(),
        data_dir: data_dir.to_path_buf(),
        name: "host".to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        link_addresses: Vec::new(),
        peers: Vec::new(),
        device_nodes: Vec::new(),
        worker_command: vec!["false".to_owned()],
        memory_bytes: 1 << 30,
        threads: 1,
        fleet_key: None,
        announce: false,
        cpus: Vec::new(),
        device: Default::default(),
        measure: |_, _| {
            let rates = Rates {
                read_bytes_per_sec: 1.0,
                quantised_ops_per_sec: 1.0,
                float_ops_per_sec: 1.0,
            };
            Some(Speed::alone(rates, 0.0))
        },
        check_text: |_| Ok(Vec::new()),
        places: Default::default(),
        hub: Default::default(),
    }
}

async fn node(data_dir: &Path) -> Node {
    Node::start(config(data_dir)).await.unwrap()
}

/// An unknown key, and its connections.
fn stranger() -> (TempDir, Arc<Net>) {
    stranger_speaking(Versions::CURRENT)
}

/// The same, with other versions.
fn stranger_speaking(versions: Versions) -> (TempDir, Arc<Net>) {
    let home = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(home.path()).unwrap();
    let listen = "127.0.0.1:1".parse().unwrap();
    (home, Arc::new(Net::new(identity, "stranger".to_owned(), 1, listen).speaking(versions)))
}

async fn dial(net: &Arc<Net>, node: &Node, purpose: Purpose) -> Result<Connection, DialError> {
    net.dial(vec![node.listen_addr()], Pin::Node(node.id()), purpose).await
}

/// Makes a node a member of the cluster.
async fn join(member: &Arc<Net>, node: &Node) {
    // As in the previous version, which sends nothing after its admission.
    drop(join_by(member, node, &invited(node).await, false).await);
}

async fn invited(node: &Node) -> String {
    node.invite(Duration::from_secs(60)).await.unwrap().code
}

/// Joins by a code; returns the connection of the join.
async fn join_by(member: &Arc<Net>, node: &Node, code: &str, confirms: bool) -> Connection {
    let secret = crate::secrets::code::JoinCode::decode(code).unwrap().secret.to_vec();
    let pin = Pin::Fingerprint(fingerprint(node.id()));
    let address = vec![node.listen_addr()];
    let mut joining = member.dial(address, pin, Purpose::Join).await.unwrap();
    frames::write(&mut joining.stream, &JoinRequest { secret, confirms }).await.unwrap();
    let answer = frames::read::<JoinAnswer>(&mut joining.stream, JOIN_BYTES_MAX).await.unwrap();
    assert!(matches!(answer, JoinAnswer::Accepted(told) if told.members.len() >= 2));
    joining
}

#[tokio::test]
async fn one_that_dies_before_it_keeps_its_membership_is_no_member_and_may_try_again() {
    let home = tempfile::tempdir().unwrap();
    let (node, (_member_home, member)) = (node(home.path()).await, stranger());
    let code = invited(&node).await;
    drop(join_by(&member, &node, &code, true).await);
    let mut watch = node.watch();
    let is_alone = watch.wait_for(|status| status.nodes.len() == 1);
    tokio::time::timeout(Duration::from_secs(10), is_alone).await.unwrap().unwrap();
    // The code is valid again.
    let mut joining = join_by(&member, &node, &code, true).await;
    frames::write(&mut joining.stream, &JoinKept {}).await.unwrap();
    drop(joining);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(node.status().nodes.len(), 2);
}

fn refusal(outcome: Result<Connection, DialError>) -> String {
    match outcome {
        Err(DialError::Refused { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was let in"),
    }
}

#[tokio::test]
async fn a_stranger_may_only_ask_to_join() {
    let home = tempfile::tempdir().unwrap();
    let (node, (_stranger_home, stranger)) = (node(home.path()).await, stranger());
    assert!(refusal(dial(&stranger, &node, Purpose::Control).await).contains("no member"));
    assert!(refusal(dial(&stranger, &node, BULK).await).contains("only members"));

    let mut joining = dial(&stranger, &node, Purpose::Join).await.unwrap();
    assert_eq!(joining.about.addresses, [], "a stranger learns no addresses");
    let request = JoinRequest { secret: vec![0; 10], confirms: false };
    frames::write(&mut joining.stream, &request).await.unwrap();
    let answer = frames::read::<JoinAnswer>(&mut joining.stream, JOIN_BYTES_MAX).await.unwrap();
    let JoinAnswer::Refused { reason } = answer else { panic!("it was let in") };
    assert!(reason.contains("unknown here"), "{reason}");
    assert_eq!(node.status().nodes.len(), 1);

    // Anything but a join request ends the visit.
    let mut joining = dial(&stranger, &node, Purpose::Join).await.unwrap();
    joining.stream.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
    let ended = frames::read::<JoinAnswer>(&mut joining.stream, JOIN_BYTES_MAX).await;
    assert!(matches!(ended, Err(FrameError::Closed | FrameError::Io(_))), "{ended:?}");
}

#[tokio::test]
async fn a_member_gets_only_what_is_served_and_must_follow_the_protocol() {
    let home = tempfile::tempdir().unwrap();
    let (node, (_member_home, member)) = (node(home.path()).await, stranger());
    join(&member, &node).await;

    let mut control = dial(&member, &node, Purpose::Control).await.unwrap();
    assert!(refusal(dial(&member, &node, BULK).await).contains("that are served"));
    let first = frames::read::<Message>(&mut control.stream, JOIN_BYTES_MAX).await.unwrap();
    assert!(matches!(first, Message::Members(told) if told.members.len() == 2));
    frames::write(&mut control.stream, &"nonsense").await.unwrap();
    loop {
        match frames::read::<Message>(&mut control.stream, JOIN_BYTES_MAX).await {
            Ok(_) => {}
            Err(FrameError::Closed | FrameError::Io(_)) => break,
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn another_protocol_version_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path()).await;
    let other = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(other.path()).unwrap();
    let tcp = TcpStream::connect(node.listen_addr()).await.unwrap();
    let config = client_config(&identity, Pin::Node(node.id()));
    let name = ServerName::IpAddress(node.listen_addr().ip().into());
    let mut stream = TlsConnector::from(config).connect(name, tcp).await.unwrap();
    let about = About {
        padding: String::new(),
        protocol: PROTOCOL + 2,
        protocol_oldest: PROTOCOL + 1,
        version: "7.0.0".to_owned(),
        name: "newer".to_owned(),
        boot: 1,
        addresses: Vec::new(),
    };
    let hello = Hello { node: about, purpose: Purpose::Control };
    frames::write(&mut stream, &hello).await.unwrap();
    let handshake = frames::read::<HandshakeReply>(&mut stream, JOIN_BYTES_MAX).await.unwrap();
    let HandshakeReply::Refused { reason, .. } = handshake else { panic!("it was let in") };
    let ours = env!("CARGO_PKG_VERSION");
    assert!(reason.contains("7.0.0") && reason.contains(ours), "{reason}");
}
