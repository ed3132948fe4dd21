use gguf::{Directory, Error};
use protocol::CacheType;

/// What a model's cache of keys and values is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    pub layers: u64,
    /// Heads of keys and values of a layer.
    pub heads: u64,
    pub k_dim: u64,
    pub v_dim: u64,
    /// Whether the weights that fill it are floats.
    pub floats: bool,
}

impl Cache {
    /// Reads the sizes of a model of `layers` layers from its file's directory.
    ///
    /// # Errors
    /// A key that every model has is missing.
    pub(crate) fn of(directory: &Directory, layers: u64) -> Result<Self, Error> {
        let arch = directory.str("general.architecture")?;
        let key = |name: &str| format!("{arch}.{name}");
        let width = directory.u64(&key("embedding_length"))?;
        let heads = directory.u64(&key("attention.head_count"))?.max(1);
        let kv_heads = directory.find_u64(&key("attention.head_count_kv"))?.unwrap_or(heads);
        let k_dim = directory.find_u64(&key("attention.key_length"))?.unwrap_or(width / heads);
        let v_dim = directory.find_u64(&key("attention.value_length"))?.unwrap_or(k_dim);
        let filled_by = ["attn_k", "attn_qkv", "attn_kv_a_mqa"]
            .iter()
            .find_map(|name| directory.find_tensor(&format!("blk.0.{name}.weight")));
        let floats = filled_by.is_some_and(|tensor| tensor.ty.block_len() == 1);
        Ok(Self { layers, heads: kv_heads, k_dim, v_dim, floats })
    }

    /// Bytes of one position over all layers.
    pub fn bytes_per_token(&self, cache_type: CacheType) -> u64 {
        const BLOCK: u64 = 32;
        const SCALE_BYTES: u64 = 2;
        const INT_SCALES_BYTES: u64 = 8;
        let numbers = self.k_dim.saturating_add(self.v_dim);
        let bytes = match cache_type {
            CacheType::F32 => numbers.saturating_mul(4),
            CacheType::Auto if self.floats => numbers.saturating_mul(4),
            CacheType::Auto | CacheType::I16 => {
                numbers.saturating_mul(2).saturating_add(INT_SCALES_BYTES)
            }
            CacheType::F16 => numbers.saturating_mul(2),
            CacheType::Q8_0 => {
                let blocks = self.k_dim.div_ceil(BLOCK) + self.v_dim.div_ceil(BLOCK);
                numbers.saturating_add(SCALE_BYTES * blocks)
            }
        };
        self.layers.saturating_mul(self.heads).saturating_mul(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_the_type() {
        // Llama-3.2-1B.
        let quantised = Cache { layers: 16, heads: 8, k_dim: 64, v_dim: 64, floats: false };
        let odd = Cache { layers: 1, heads: 1, k_dim: 20, v_dim: 40, floats: true };
        let absurd = Cache { k_dim: u64::MAX, v_dim: u64::MAX, ..odd };
        for (cache, cache_type, expected) in [
            (quantised, CacheType::Auto, 33_792),
            (quantised, CacheType::I16, 33_792),
            (quantised, CacheType::F16, 32_768),
            (quantised, CacheType::Q8_0, 17_408),
            (quantised, CacheType::F32, 65_536),
            (odd, CacheType::Auto, 240),
            (odd, CacheType::I16, 128),
            (odd, CacheType::Q8_0, 66),
            (absurd, CacheType::Q8_0, u64::MAX),
        ] {
            assert_eq!(cache.bytes_per_token(cache_type), expected, "{cache:?} {cache_type:?}");
        }
    }
}
