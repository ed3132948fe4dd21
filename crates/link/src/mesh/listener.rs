//! Where a rank is met.

use std::net::{SocketAddr, TcpListener};

use crate::MeshError;
use crate::rdma::Rdma;

/// The sockets on which a rank is met, and the devices it may use. It outlives epochs: each builds
/// its mesh on it.
pub struct Listener {
    pub(super) sockets: Vec<TcpListener>,
    addrs: Vec<SocketAddr>,
    pub(super) rdma: Rdma,
}

impl Listener {
    /// Listens on `addr`; port 0 takes a free one.
    pub fn bind(addr: SocketAddr) -> Result<Self, MeshError> {
        Self::bind_all(&[addr])
    }

    /// Listens on all of `addrs`, as [`Self::bind`] on one.
    pub fn bind_all(addrs: &[SocketAddr]) -> Result<Self, MeshError> {
        let mut listener =
            Listener { sockets: Vec::new(), addrs: Vec::new(), rdma: Rdma::system() };
        addrs.iter().try_for_each(|addr| listener.also_bind(*addr))?;
        Ok(listener)
    }

    /// Listens on one address more.
    pub fn also_bind(&mut self, addr: SocketAddr) -> Result<(), MeshError> {
        let bound = TcpListener::bind(addr).and_then(|socket| {
            socket.set_nonblocking(true)?;
            self.addrs.push(socket.local_addr()?);
            self.sockets.push(socket);
            Ok(())
        });
        bound.map_err(|source| MeshError::Bind { addr, source })
    }

    /// Uses these RDMA devices instead of the machine's own.
    pub fn with_rdma(self, rdma: Rdma) -> Self {
        Listener { rdma, ..self }
    }

    /// Where this listener can be reached.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.addrs.clone()
    }
}
