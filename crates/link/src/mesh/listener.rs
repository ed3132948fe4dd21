//! The listening end of a rank.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use super::HANDSHAKES_MAX;
use crate::MeshError;
use crate::rdma::Rdma;

/// Connections that another component has accepted for a rank, the oldest first.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<VecDeque<TcpStream>>>);

impl Calls {
    /// Hands a connection to the rank. When the queue is full, the oldest untaken one is closed.
    pub fn push(&self, call: TcpStream) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push_back(call);
        if calls.len() > HANDSHAKES_MAX {
            calls.pop_front();
        }
    }

    pub(super) fn next(&self) -> Option<TcpStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The sockets on which a rank listens, and the devices it may use. It outlives epochs: each builds
/// its mesh on it.
pub struct Listener {
    pub(super) sockets: Vec<TcpListener>,
    pub(super) calls: Calls,
    addrs: Vec<SocketAddr>,
    pub(super) rdma: Rdma,
}

impl Listener {
    /// Listens on `addr`; port 0 takes a free one.
    pub fn bind(addr: SocketAddr) -> Result<Self, MeshError> {
        Self::bind_all(&[addr])
    }

    /// Listens on all of `addrs`; see [`Self::bind`].
    pub fn bind_all(addrs: &[SocketAddr]) -> Result<Self, MeshError> {
        let mut listener = Self::of_calls(Calls::default());
        addrs.iter().try_for_each(|addr| listener.also_bind(*addr))?;
        Ok(listener)
    }

    /// A listener without sockets: it takes the connections pushed into `calls`.
    pub fn of_calls(calls: Calls) -> Self {
        Listener { sockets: Vec::new(), calls, addrs: Vec::new(), rdma: Rdma::system() }
    }

    /// Adds one address.
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

    /// The addresses of this listener.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.addrs.clone()
    }
}
