//! Keys and values of all heads from one compressed vector a position.

pub(crate) mod wiring;

use crate::arch::Rotation;
use crate::file::limits::WIDTH_MAX;
use crate::file::{Error, Metadata};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one compressed
/// vector a position, shared by all heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Elements of a compressed query, if queries are compressed.
    pub q_rank: Option<usize>,
    /// Elements of a compressed key and value.
    pub kv_rank: usize,
    /// Elements of a head's query without rotation, and with it.
    pub plain_dim: usize,
    pub rope_dim: usize,
}

impl Latent {
    /// The elements of a head's key and value, and the sizes of the compression.
    pub(crate) fn read(metadata: &Metadata<'_>) -> Result<(usize, usize, Self), Error> {
        if metadata.get("attention.key_length_mla").is_none() {
            let what = "a DeepSeek file of the old form, without attention.key_length_mla (convert \
                        it again with a llama.cpp of May 2025 or later)";
            return Err(Error::Unsupported { what: what.to_owned() });
        }
        let size = |name| metadata.size(name, WIDTH_MAX);
        let k_dim = size("attention.key_length_mla")?;
        let rope_dim = match metadata.arch.rotation {
            // GLM-5.3-Flash rotates nothing.
            Rotation::Never => metadata.find_size("rope.dimension_count", WIDTH_MAX)?.unwrap_or(0),
            _ => size("rope.dimension_count")?,
        };
        let Some(plain_dim) = k_dim.checked_sub(rope_dim).filter(|plain| *plain > 0) else {
            let what = format!("{rope_dim} numbers of a key of {k_dim} are rotated");
            return Err(Error::Impossible { what });
        };
        let latent = Self {
            q_rank: metadata.find_size("attention.q_lora_rank", WIDTH_MAX)?,
            kv_rank: size("attention.kv_lora_rank")?,
            plain_dim,
            rope_dim,
        };
        Ok((k_dim, size("attention.value_length_mla")?, latent))
    }
}
