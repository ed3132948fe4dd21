//! The members that a person named with `--peer`.

use std::net::SocketAddr;

/// The address of a member. A name may mean another address tomorrow, and none today.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    Address(SocketAddr),
    Name { host: String, port: u16 },
}

/// The addresses among them, which never change.
pub(crate) fn addresses(peers: &[Peer]) -> Vec<SocketAddr> {
    let address = |peer: &Peer| match peer {
        Peer::Address(address) => Some(*address),
        Peer::Name { .. } => None,
    };
    peers.iter().filter_map(address).collect()
}
