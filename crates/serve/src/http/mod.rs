//! Connections, their limits, who may ask, and how bodies, errors and event streams travel.
//!
//! Nothing here knows a dialect or a node.

mod admission;
pub(crate) mod body;
mod bounds;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod guard;
mod hosts;
pub(crate) mod keys;
pub(crate) mod listener;
pub(crate) mod owner;
pub(crate) mod stream;
pub(crate) mod tls;
mod wire;

/// The two ends of the connection on which a request came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub client: std::net::SocketAddr,
    pub server: std::net::SocketAddr,
}

/// Marks a request whose connection has one of the permits that are kept for the owner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserved;

impl Ends {
    /// Whether both are on this machine: it calls itself by a loopback address, or by the one that
    /// it is called at. No other machine can open a connection from that one.
    pub fn is_same_machine(self) -> bool {
        let (client, server) = (self.client.ip().to_canonical(), self.server.ip().to_canonical());
        client.is_loopback() || client == server
    }
}
