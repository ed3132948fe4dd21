//! The peers that a user names with `--peer`.

use std::net::SocketAddr;

/// The address of a member. A DNS name may change its address, or have none for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    Address(SocketAddr),
    Name { host: String, port: u16 },
}

/// The fixed addresses among the peers.
pub(crate) fn addresses(peers: &[Peer]) -> Vec<SocketAddr> {
    let address = |peer: &Peer| match peer {
        Peer::Address(address) => Some(*address),
        Peer::Name { .. } => None,
    };
    peers.iter().filter_map(address).collect()
}
