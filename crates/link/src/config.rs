//! The configuration of a mesh, and the check of its numbers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::delay::LATENCY_MAX;
use crate::{HostId, MeshError, Secret};

/// The most ranks in a mesh: a rank holds a link, half a MiB of buffers and a socket for each.
pub const RANKS_MAX: usize = 64;

/// The most addresses of one rank: more than a machine has fast interfaces.
const ADDRS_MAX: usize = 8;

/// The transport that a pair should use. The preferences of the two ranks must be compatible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preference {
    /// Shared memory where both ranks run on one machine and it works, RDMA where both have a
    /// port on one wire and it works, else TCP.
    #[default]
    Auto = 0,
    /// Shared memory or an error.
    Shm = 1,
    /// TCP even on one machine.
    Tcp = 2,
    /// RDMA or an error.
    Rdma = 3,
}

/// Whether TCP frames are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    #[default]
    Sealed = 0,
    /// In the clear, to measure what sealing costs. The handshake is authenticated all the same.
    Plain = 1,
}

/// The members of a mesh and their terms. Every field except `rank`, `peers`, `segments` and `host`
/// must be equal on all ranks.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    pub rank: usize,
    /// The listening addresses, by rank. A rank may have several, one for each cable; the dialer
    /// uses the first that answers. The entry of this rank is ignored.
    pub addrs: Vec<Vec<SocketAddr>>,
    /// The largest TCP segment towards an address, for paths that drop larger ones.
    pub segments: Vec<(IpAddr, u16)>,
    /// The ranks that this one links with; each must list this one too. `None`: all others.
    pub peers: Option<Vec<usize>>,
    pub instance: [u8; 16],
    /// The number of this mesh among those of the instance; ranks of an older epoch are refused.
    pub epoch: u64,
    pub secret: Secret,
    pub preference: Preference,
    pub encryption: Encryption,
    pub host: HostId,
    /// Delays every message by this long ([`crate::Delay`]); only with all ranks on one machine.
    pub latency: Duration,
    /// The time limit for the whole mesh.
    pub deadline: Duration,
}

impl MeshConfig {
    pub(crate) fn is_peer(&self, rank: usize) -> bool {
        let among = |peers: &Vec<usize>| peers.contains(&rank);
        rank != self.rank && self.peers.as_ref().is_none_or(among)
    }
}

/// # Errors
/// A number is out of range.
pub(crate) fn validate(config: &MeshConfig) -> Result<(), MeshError> {
    let (ranks, rank) = (config.addrs.len(), config.rank);
    if !(1..=RANKS_MAX).contains(&ranks) {
        let limit = format!("1 to {RANKS_MAX}");
        return Err(MeshError::Config { what: "number of ranks", value: ranks as u64, limit });
    }
    if rank >= ranks {
        let limit = format!("the ranks 0 to {}", ranks - 1);
        return Err(MeshError::Config { what: "rank", value: rank as u64, limit });
    }
    if let Some(stray) = config.peers.iter().flatten().find(|peer| **peer >= ranks) {
        let limit = format!("the ranks 0 to {}", ranks - 1);
        return Err(MeshError::Config { what: "rank to link with", value: *stray as u64, limit });
    }
    for (at, addrs) in config.addrs.iter().enumerate().filter(|(at, _)| *at != rank) {
        if !(1..=ADDRS_MAX).contains(&addrs.len()) {
            let (what, value) = ("number of addresses of a rank", addrs.len() as u64);
            let limit = format!("1 to {ADDRS_MAX} (rank {at})");
            return Err(MeshError::Config { what, value, limit });
        }
    }
    if config.latency > LATENCY_MAX {
        let limit = format!("0 to {}", LATENCY_MAX.as_micros());
        let value = config.latency.as_micros().min(u64::MAX.into()) as u64;
        return Err(MeshError::Config { what: "link latency in us", value, limit });
    }
    Ok(())
}
