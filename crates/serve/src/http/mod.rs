//! Connections, their limits, access control, and the transport of bodies, errors and event
//! streams.
//!
//! Nothing here depends on a dialect or a node.

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

/// The two addresses of a request's connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub client: std::net::SocketAddr,
    pub server: std::net::SocketAddr,
    /// Another member carries the request, and the addresses say nothing.
    pub is_visit: bool,
}

/// Marks a request on a connection that holds one of the owner's reserved permits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserved;

impl Ends {
    /// Whether both ends are on this machine: the client's address is a loopback address or equals
    /// the server's. No other machine can open a connection from the server's address.
    pub fn is_same_machine(self) -> bool {
        let (client, server) = (self.client.ip().to_canonical(), self.server.ip().to_canonical());
        !self.is_visit && (client.is_loopback() || client == server)
    }
}
