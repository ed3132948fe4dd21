//! The bytes that a device takes for tensors, caches and activations.

use gguf::TensorType;
use protocol::CacheType;

/// A kind of device. A test in `engine` compares these figures with actual allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Device {
    /// Sinew's own engine.
    #[default]
    Cpu,
    /// Any device of ggml's libraries: an upper bound, as devices differ in their padding.
    Ggml,
}

/// The CPU packs rows of weights and cached elements in groups of this size.
const CPU_LANES: usize = 16;

/// The alignment of the CPU's activations: a cache line.
const CPU_LINE_BYTES: usize = 64;

/// Padding after each array on ggml's devices: CUDA pads rows to 512 elements, others align to 256
/// bytes.
const GGML_PAD_BYTES: u64 = 2048;

/// Temporary results of an operation, beside its inputs and outputs.
const GGML_TEMPORARIES: u64 = 2;

/// A worker's partly filled chunks, and the driver's own memory.
const GGML_RESERVE_BYTES: u64 = 64 << 20;

/// ggml's devices round a cache to this many positions.
const GGML_POSITIONS: u64 = 256;

/// Elements of an eight-bit cache that share a scale.
const CACHE_BLOCK: usize = 32;

impl Device {
    /// Bytes of a weight matrix.
    pub fn matrix_bytes(self, ty: TensorType, rows: usize, cols: usize) -> u64 {
        let row = ty.row_bytes(cols) as u64;
        match self {
            Self::Cpu => rows.next_multiple_of(CPU_LANES) as u64 * row,
            Self::Ggml => rows as u64 * row + GGML_PAD_BYTES,
        }
    }

    /// Bytes of `rows` rows of `width` activations.
    pub fn rows_bytes(self, rows: usize, width: usize) -> u64 {
        let numbers = (rows as u64).saturating_mul(width as u64);
        let bytes = numbers.saturating_mul(size_of::<f32>() as u64);
        match self {
            Self::Cpu => bytes.saturating_add(CPU_LINE_BYTES as u64),
            Self::Ggml => bytes.saturating_mul(1 + GGML_TEMPORARIES).saturating_add(GGML_PAD_BYTES),
        }
    }

    /// Bytes of a step beside its activations, for `rows` rows over a cache of `positions`.
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

    /// The allocated positions of a cache with this many.
    pub(crate) fn positions(self, positions: u64) -> u64 {
        match self {
            Self::Cpu => positions,
            Self::Ggml => positions.next_multiple_of(GGML_POSITIONS),
        }
    }

    /// The default cache type, where the CPU uses `of_cpu`.
    pub fn cache_type(self, of_cpu: CacheType) -> CacheType {
        match self {
            Self::Cpu => of_cpu,
            Self::Ggml => CacheType::F16,
        }
    }

    /// Whether the device supports this cache type.
    pub fn has_cache(self, cache_type: CacheType, (k_dim, v_dim): (usize, usize)) -> bool {
        match (self, cache_type) {
            (Self::Ggml, CacheType::I16) => false,
            (Self::Ggml, CacheType::Q8_0) => {
                k_dim.is_multiple_of(CACHE_BLOCK) && v_dim.is_multiple_of(CACHE_BLOCK)
            }
            _ => true,
        }
    }

    /// Whether the device supports encoders.
    pub fn has_encoders(self) -> bool {
        self == Self::Cpu
    }

    /// Whether the device supports indexers.
    pub fn has_indexers(self) -> bool {
        self == Self::Cpu
    }

    /// Whether the device supports layers with a state.
    pub fn has_states(self) -> bool {
        self == Self::Cpu
    }

    /// Bytes of one cached position of one head; `cache_type` must not be `Auto`.
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
