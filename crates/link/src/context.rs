//! What a rank brings to every greeting of one mesh.

use crate::agreement::Terms;
use crate::rdma::{Addresses, Port, Rdma, RdmaError};
use crate::seal::Cipher;
use crate::{MeshConfig, Preference, Secret};

/// What all greetings of one mesh share.
pub(crate) struct Context {
    pub rank: usize,
    pub instance: [u8; 16],
    pub epoch: u64,
    pub secret: Secret,
    /// But for the number of links, which differs from peer to peer.
    pub terms: Terms,
    /// By rank.
    links: Vec<usize>,
    ways: Vec<usize>,
    pub rdma: Rdma,
    /// The ports in the terms, or why there is none.
    pub ports: Result<Vec<Port>, RdmaError>,
}

impl Context {
    pub fn new(config: &MeshConfig, rdma: &Rdma) -> Self {
        // Ranks on one machine have shared memory: no need to wake its devices up.
        let local = config.addrs.iter().flatten().all(|addr| addr.ip().is_loopback());
        let ports = match config.preference {
            Preference::Rdma => rdma.ports(),
            Preference::Auto if !local => rdma.ports(),
            Preference::Auto | Preference::Shm | Preference::Tcp => Ok(Vec::new()),
        };
        let terms = Terms {
            ranks: config.addrs.len() as u32,
            links: 1,
            preference: config.preference,
            encryption: config.encryption,
            latency_us: config.latency.as_micros() as u32,
            host: config.host,
            aes_is_fast: Cipher::aes_is_fast(),
            rdma: ports.as_ref().map_or(Addresses::NONE, |ports| Addresses::of(ports)),
        };
        Context {
            rank: config.rank,
            instance: config.instance,
            epoch: config.epoch,
            secret: config.secret.clone(),
            terms,
            links: (0..config.addrs.len()).map(|peer| config.links_with(peer)).collect(),
            ways: (0..config.addrs.len()).map(|peer| config.ways_with(peer)).collect(),
            rdma: rdma.clone(),
            ports,
        }
    }

    /// Links between this rank and `peer`, unless they share memory.
    pub fn links_with(&self, peer: usize) -> usize {
        self.links.get(peer).copied().unwrap_or(1)
    }

    /// Connections that this rank and `peer` may try.
    pub fn ways_with(&self, peer: usize) -> usize {
        self.ways.get(peer).copied().unwrap_or(1)
    }

    /// What this rank brings to a greeting with `peer`.
    pub fn terms_for(&self, peer: usize) -> Terms {
        Terms { links: self.links_with(peer) as u32, ..self.terms }
    }
}
