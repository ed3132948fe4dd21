//! Operands besides activations and weights.

use kernels::{AttentionRange, CacheKind, Segment};

use crate::Backend;

/// Why a backend cannot do an operation.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
    #[error(transparent)]
    Ggml(#[from] ::ggml::Error),
    #[error("there is no device {name} here; there is: {found} (sinew doctor gpu)")]
    NoDevice { name: String, found: String },
    #[error("{device} has no operation for {what}")]
    Unsupported { device: String, what: String },
    #[error("weights do not come as they were announced: {what}")]
    Rows { what: String },
    #[error(transparent)]
    Experts(#[from] crate::ArenaError),
    #[error("the device failed: {what}; its worker has to start anew")]
    Device { what: String },
}

/// Matrices being loaded, which may have factors.
pub trait Factors {
    /// Multiplies the weights of each matrix by its own of `factors`.
    ///
    /// # Errors
    /// The device or the type has none.
    ///
    /// # Panics
    /// If there is not one for each matrix.
    fn set_factors(&mut self, factors: &[f32]) -> Result<(), BackendError>;
}

/// The shape of one layer's key/value cache on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    pub heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    /// Pages of [`PAGE_POSITIONS`](crate::PAGE_POSITIONS) positions each.
    pub pages: usize,
    pub kind: CacheKind,
}

/// The number of states of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateRoom {
    /// One for each sequence at once.
    pub slots: usize,
    /// Copies from which sequences can continue.
    pub checkpoints: usize,
    /// Rows kept by a slot while their tokens are speculated.
    pub kept_rows: usize,
}

/// The inputs of a layer with a state for a step's rows; see [`kernels::RecurrentRows`]. Unused
/// ones have no columns.
#[derive(Debug, Clone, Copy)]
pub struct RecurrentInputs<'a, R> {
    pub q: &'a R,
    pub k: &'a R,
    pub v: &'a R,
    pub decay: &'a R,
    pub beta: &'a R,
}

/// The attention of a rank's heads in one layer.
#[derive(Debug, Clone)]
pub struct AttentionShape {
    /// For each head of the rank, its head in the rank's cache.
    pub kv_of_head: Vec<u32>,
    pub k_dim: usize,
    pub v_dim: usize,
    /// The factor of every score (usually `1 / sqrt(k_dim)`).
    pub scale: f32,
    /// The earlier positions that a query attends to.
    pub range: AttentionRange,
    /// Scores become `cap * tanh(score / cap)` (Gemma 2).
    pub soft_cap: Option<f32>,
    /// One logit a head that takes part in the softmax without a value (gpt-oss).
    pub sinks: Option<Vec<f32>>,
    /// Whether a value is the start of its key.
    pub values_in_keys: bool,
}

/// The expert of every row besides the routed ones.
#[derive(Debug, Clone, Copy)]
pub enum SharedExpert<'a, R> {
    Absent,
    /// With weight 1.
    Full,
    /// With the sigmoid of these values, `[rows, 1]`, as weights.
    Gated(&'a R),
}

/// A layer's learned vectors for its choice of experts, `[rule.experts]` each.
#[derive(Debug)]
pub struct RoutingVectors<'a, V> {
    /// A bias on the choice but not on the weights.
    pub choice_bias: Option<&'a V>,
    /// Factors of the final weights.
    pub scales: Option<&'a V>,
    /// The experts of each row, `[rows, rule.used]`, if its token chooses them and not its scores.
    pub experts: Option<&'a [u32]>,
}

/// The two halves of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Half {
    Attention,
    FeedForward,
}

/// A segment's half layer, and its number of rows; in a model's last layer, only `outputs` of them
/// continue after their keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SegmentKey {
    pub layer: usize,
    pub half: Half,
    pub rows: usize,
    pub outputs: usize,
}

/// The keys that an indexer chooses from.
pub enum IndexKeys<'a, B: Backend + ?Sized> {
    Positions(&'a B::Kv),
    /// Entries of blocks of positions.
    Entries(&'a B::Entries),
}

/// A place of a cache: what one page holds of a text, or one checkpoint.
pub enum Place<'a, B: Backend + ?Sized> {
    /// Keys and values.
    Page(&'a mut B::Kv),
    /// Entries of blocks.
    Entries(&'a mut B::Entries),
    /// The rows that a page keeps for entries after it.
    Rows(&'a mut B::Entries),
    Checkpoint(&'a mut B::States),
}

/// The visible positions of rows.
pub struct Seen<'a, B: Backend + ?Sized> {
    /// Only these, of positions, or of entries if there are any.
    pub chosen: Option<&'a B::Chosen>,
    /// The entries of blocks that ended before a row, besides its window; with the batch's segments
    /// and the tables of entries.
    pub entries: Option<(&'a B::Entries, &'a [Segment])>,
}

impl<B: Backend + ?Sized> Seen<'_, B> {
    /// All positions of the layer's range.
    pub const ALL: Self = Self { chosen: None, entries: None };
}

/// Devices without an operation refuse models that need it before they are loaded.
pub(crate) fn refused(check: &str) -> ! {
    unreachable!("{check} refuses models with such layers")
}
