//! What all handshakes of one mesh share.

use super::agreement::Terms;
use crate::rdma::{Addresses, Port, Rdma, RdmaError};
use crate::seal::Cipher;
use crate::{MeshConfig, Preference, Secret};

/// The shared state of a mesh's handshakes.
pub(crate) struct Context {
    pub rank: usize,
    pub instance: [u8; 16],
    pub epoch: u64,
    pub secret: Secret,
    pub terms: Terms,
    pub rdma: Rdma,
    /// The usable RDMA ports, or why there is none.
    pub ports: Result<Vec<Port>, RdmaError>,
}

impl Context {
    pub fn new(config: &MeshConfig, rdma: &Rdma) -> Self {
        // Ranks on one machine use shared memory: its RDMA devices stay closed.
        let local = config.addrs.iter().flatten().all(|addr| addr.ip().is_loopback());
        let ports = match config.preference {
            Preference::Rdma => rdma.ports(),
            Preference::Auto if !local => rdma.ports(),
            Preference::Auto | Preference::Shm | Preference::Tcp => Ok(Vec::new()),
        };
        let terms = Terms {
            ranks: config.addrs.len() as u32,
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
            rdma: rdma.clone(),
            ports,
        }
    }
}
