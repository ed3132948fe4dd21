//! The further devices of this machine. Each is a separate node within this process: it has its own
//! identity, memory and workers, and follows the machine's first node into its cluster.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use cluster::{Node, NodeConfig, Peer};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::error::CliError;

/// Both ends of the join are in this process.
const INVITE_TTL: Duration = Duration::from_secs(60);
/// Pause before a failed join is retried.
const RETRY: Duration = Duration::from_secs(5);

/// Nodes beside the machine's first one.
pub struct DeviceNodes {
    nodes: Vec<Node>,
    following: Vec<JoinHandle<()>>,
}

impl DeviceNodes {
    /// Starts a node for each configuration, and keeps it in the cluster of `first`.
    ///
    /// # Errors
    /// A node does not start.
    pub async fn start(first: &Node, configs: &[NodeConfig]) -> Result<Self, CliError> {
        let mut device_nodes = Self { nodes: Vec::new(), following: Vec::new() };
        for config in configs {
            let mut config = config.clone();
            // Ports may differ from the remembered ones.
            config.peers.push(Peer::Address(here(first.listen_addr())));
            let node = Node::start(config).await?;
            device_nodes.following.push(tokio::spawn(follow(first.clone(), node.clone())));
            device_nodes.nodes.push(node);
        }
        Ok(device_nodes)
    }

    pub async fn shutdown(self) {
        self.following.iter().for_each(JoinHandle::abort);
        for node in self.nodes {
            node.shutdown().await;
        }
    }
}

/// The address for calls from this machine.
fn here(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// Brings `node` into the cluster of `first` whenever it is not a member.
async fn follow(first: Node, node: Node) {
    let mut watch = first.watch();
    loop {
        match bring(&first, &node).await {
            Ok(()) => {
                if watch.changed().await.is_err() {
                    return;
                }
            }
            Err(cluster::Error::ShutDown) => return,
            Err(error) => {
                warn!(name = node.name(), %error, "a device's node does not join this machine's");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn bring(first: &Node, node: &Node) -> cluster::Result<()> {
    if knows(first, node) {
        return Ok(());
    }
    // Each publishes its remembered members only after its first answer.
    for node in [first, first, node, node] {
        node.pairing().await?;
    }
    if knows(first, node) {
        return Ok(());
    }
    if node.status().nodes.len() > 1 {
        node.leave().await?;
    }
    let invite = first.invite(INVITE_TTL).await?;
    node.join(&invite.code).await?;
    info!(name = node.name(), "a device's node has joined this machine's");
    Ok(())
}

fn knows(first: &Node, node: &Node) -> bool {
    first.status().nodes.iter().any(|known| known.id == node.id())
}
