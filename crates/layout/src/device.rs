//! How many bytes a device takes for what it is given to hold.

use gguf::TensorType;
use protocol::CacheType;

/// A kind of device. A test of `engine` holds these figures against what is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Device {
    #[default]
    Cpu,
}

/// The CPU packs rows of weights and numbers of cached values by so many.
const CPU_LANES: usize = 16;

/// Where the CPU's activations begin: on a cache line.
const CPU_LINE_BYTES: usize = 64;

impl Device {
    /// Of a weight matrix.
    pub fn matrix_bytes(self, ty: TensorType, rows: usize, cols: usize) -> u64 {
        let Self::Cpu = self;
        rows.next_multiple_of(CPU_LANES) as u64 * ty.row_bytes(cols) as u64
    }

    /// Of room for `rows` rows of `width` activations.
    pub fn rows_bytes(self, rows: usize, width: usize) -> u64 {
        let Self::Cpu = self;
        let numbers = (rows as u64).saturating_mul(width as u64);
        numbers.saturating_mul(size_of::<f32>() as u64).saturating_add(CPU_LINE_BYTES as u64)
    }

    /// Of one cached position of one head; `cache_type` must not be `Auto`.
    pub fn position_bytes(self, cache_type: CacheType, k_dim: usize, v_dim: usize) -> u64 {
        const BLOCK: usize = 32;
        let Self::Cpu = self;
        let v_dim = v_dim.next_multiple_of(CPU_LANES);
        let bytes = match cache_type {
            CacheType::F32 => 4 * (k_dim + v_dim),
            CacheType::F16 => 2 * (k_dim + v_dim),
            // Keys in pairs, and the scales of both.
            CacheType::I16 | CacheType::Auto => {
                2 * (k_dim.next_multiple_of(2) + v_dim) + 2 * size_of::<f32>()
            }
            CacheType::Q8_0 => k_dim + v_dim + 2 * (k_dim.div_ceil(BLOCK) + v_dim.div_ceil(BLOCK)),
        };
        bytes as u64
    }
}
