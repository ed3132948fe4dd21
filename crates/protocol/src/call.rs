//! Assigns a connection at the daemon's port to a worker. A rank that calls another names it in its
//! first bytes, which `link` writes.

/// The rank that a connection is for, and its instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankCall {
    pub instance: [u8; 16],
    pub rank: u32,
}

impl RankCall {
    /// Its encoded length in bytes.
    pub const BYTES: usize = 56;
    /// Its first bytes; no TLS connection starts with them.
    pub const MAGIC: [u8; 8] = *b"sinewlnk";

    /// `instance`: the instance's id.
    pub fn new(instance: &str, rank: usize) -> Self {
        let digest = blake3::hash(instance.as_bytes());
        let instance = std::array::from_fn(|at| digest.as_bytes()[at]);
        Self { instance, rank: rank as u32 }
    }

    /// Reads a call. The bytes are unauthenticated: the ranks authenticate each other in their
    /// handshake.
    pub fn read(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        bytes.starts_with(&Self::MAGIC).then(|| Self {
            rank: u32::from_le_bytes(std::array::from_fn(|at| bytes[20 + at])),
            instance: std::array::from_fn(|at| bytes[40 + at]),
        })
    }
}
