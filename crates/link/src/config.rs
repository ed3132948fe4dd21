//! What the ranks of a mesh are told before they meet.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::delay::LATENCY_MAX;
use crate::{HostId, MeshError, Secret};

/// Ranks in a mesh at most: a rank holds a link, half a MiB of buffers and a socket for each.
pub const RANKS_MAX: usize = 64;

/// Addresses of one rank at most: more than a machine has fast interfaces.
const ADDRS_MAX: usize = 8;

/// Which transport a pair should use. Both ranks of a pair must be able to agree.
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

/// Who meets, and on what terms. Everything but `rank`, `peers`, `segments` and `host` must be the
/// same on all ranks.
#[derive(Debug, Clone)]
pub struct MeshConfig {
    pub rank: usize,
    /// Where each rank listens, by rank: one address or several, as of several cables, of which the
    /// first that answers is used. This rank's own are not looked at.
    pub addrs: Vec<Vec<SocketAddr>>,
    /// The largest TCP segments on the ways to some of them, where larger ones vanish.
    pub segments: Vec<(IpAddr, u16)>,
    /// The ranks that this one links with, of which each must have this one among its own. `None`:
    /// all others.
    pub peers: Option<Vec<usize>>,
    pub instance: [u8; 16],
    /// Counts the meshes of this instance; a rank of an older one is refused.
    pub epoch: u64,
    pub secret: Secret,
    pub preference: Preference,
    pub encryption: Encryption,
    pub host: HostId,
    /// Delays every message by this long ([`crate::Delay`]); only with all ranks on one machine.
    pub latency: Duration,
    /// How long to wait for all ranks together.
    pub deadline: Duration,
}

impl MeshConfig {
    pub(crate) fn is_peer(&self, rank: usize) -> bool {
        let among = |peers: &Vec<usize>| peers.contains(&rank);
        rank != self.rank && self.peers.as_ref().is_none_or(among)
    }
}

/// # Errors
/// A number is outside what a mesh can have.
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
