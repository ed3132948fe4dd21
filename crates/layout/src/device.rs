//! How many bytes a device takes for what it is given to hold.

use gguf::TensorType;
use protocol::CacheType;

/// A kind of device. A test of `engine` holds these figures against what is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Device {
    /// Sinew's own engine.
    #[default]
    Cpu,
    /// Any device of ggml's libraries: no less than it takes, as devices differ in what they want
    /// behind an array.
    Ggml,
}

/// The CPU packs rows of weights and numbers of cached values by so many.
const CPU_LANES: usize = 16;

/// Where the CPU's activations begin: on a cache line.
const CPU_LINE_BYTES: usize = 64;

/// Behind each array of ggml's devices: CUDA pads rows to 512 numbers, others align to 256 bytes.
const GGML_PAD_BYTES: u64 = 2048;

/// An operation's own results, beside the activations that it reads and writes.
const GGML_TEMPORARIES: u64 = 2;

/// A worker's chunks that are not full, and what its driver takes for itself.
const GGML_RESERVE_BYTES: u64 = 64 << 20;

/// Positions that ggml's devices round a cache to.
const GGML_POSITIONS: u64 = 256;

/// Numbers of a cache of eight bits that have a scale in common.
const CACHE_BLOCK: usize = 32;

impl Device {
    /// Of a weight matrix.
    pub fn matrix_bytes(self, ty: TensorType, rows: usize, cols: usize) -> u64 {
        let row = ty.row_bytes(cols) as u64;
        match self {
            Self::Cpu => rows.next_multiple_of(CPU_LANES) as u64 * row,
            Self::Ggml => rows as u64 * row + GGML_PAD_BYTES,
        }
    }

    /// Of room for `rows` rows of `width` activations.
    pub fn rows_bytes(self, rows: usize, width: usize) -> u64 {
        let numbers = (rows as u64).saturating_mul(width as u64);
        let bytes = numbers.saturating_mul(size_of::<f32>() as u64);
        match self {
            Self::Cpu => bytes.saturating_add(CPU_LINE_BYTES as u64),
            Self::Ggml => bytes.saturating_mul(1 + GGML_TEMPORARIES).saturating_add(GGML_PAD_BYTES),
        }
    }

    /// Of what a step takes beside its activations, for `rows` rows over a cache of `positions`.
    pub(crate) fn step_bytes(self, rows: usize, positions: u64) -> u64 {
        match self {
            Self::Cpu => 0,
            // Two masks in half precision (with windows and without), each up to a power of two.
            Self::Ggml => {
                let masks = (rows as u64).saturating_mul(positions).saturating_mul(2 * 2 * 2);
                masks.saturating_add(GGML_RESERVE_BYTES)
            }
        }
    }

    /// The positions of a cache that was asked to have so many.
    pub(crate) fn positions(self, positions: u64) -> u64 {
        match self {
            Self::Cpu => positions,
            Self::Ggml => positions.next_multiple_of(GGML_POSITIONS),
        }
    }

    /// The cache where none was asked for and the CPU takes `of_cpu`.
    pub fn cache_type(self, of_cpu: CacheType) -> CacheType {
        match self {
            Self::Cpu => of_cpu,
            Self::Ggml => CacheType::F16,
        }
    }

    /// Whether it can have such a cache.
    pub fn has_cache(self, cache_type: CacheType, (k_dim, v_dim): (usize, usize)) -> bool {
        match (self, cache_type) {
            (Self::Ggml, CacheType::I16) => false,
            (Self::Ggml, CacheType::Q8_0) => {
                k_dim.is_multiple_of(CACHE_BLOCK) && v_dim.is_multiple_of(CACHE_BLOCK)
            }
            _ => true,
        }
    }

    /// Whether it has layers that see what an indexer chooses.
    pub fn has_indexers(self) -> bool {
        self == Self::Cpu
    }

    /// Whether it has layers that carry a state.
    pub fn has_states(self) -> bool {
        self == Self::Cpu
    }

    /// Of one cached position of one head; `cache_type` must not be `Auto`.
    pub fn position_bytes(self, cache_type: CacheType, k_dim: usize, v_dim: usize) -> u64 {
        let v_dim = match self {
            Self::Cpu => v_dim.next_multiple_of(CPU_LANES),
            Self::Ggml => v_dim,
        };
        let bytes = match cache_type {
            CacheType::F32 => 4 * (k_dim + v_dim),
            CacheType::F16 => 2 * (k_dim + v_dim),
            // Keys in pairs, and the scales of both.
            CacheType::I16 | CacheType::Auto => {
                2 * (k_dim.next_multiple_of(2) + v_dim) + 2 * size_of::<f32>()
            }
            CacheType::Q8_0 => {
                k_dim + v_dim + 2 * (k_dim.div_ceil(CACHE_BLOCK) + v_dim.div_ceil(CACHE_BLOCK))
            }
        };
        bytes as u64
    }
}
