//! How a daemon knows for which of its workers a connection at its port is: a rank that calls
//! another says so in its first bytes, which `link` writes.

/// Which rank of which instance is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankCall {
    pub instance: [u8; 16],
    pub rank: u32,
}

impl RankCall {
    /// So many bytes say it.
    pub const BYTES: usize = 56;
    /// What they begin with; no TLS connection does.
    pub const MAGIC: [u8; 8] = *b"sinewlnk";

    /// `instance`: its id.
    pub fn new(instance: &str, rank: usize) -> Self {
        let digest = blake3::hash(instance.as_bytes());
        let instance = std::array::from_fn(|at| digest.as_bytes()[at]);
        Self { instance, rank: rank as u32 }
    }

    /// Anybody may have written this: the ranks prove to each other who they are.
    pub fn read(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        bytes.starts_with(&Self::MAGIC).then(|| Self {
            rank: u32::from_le_bytes(std::array::from_fn(|at| bytes[20 + at])),
            instance: std::array::from_fn(|at| bytes[40 + at]),
        })
    }
}
