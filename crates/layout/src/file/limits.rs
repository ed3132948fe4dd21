//! Limits on the numbers in a file. They are far above any published model; a file beyond them is
//! broken or hostile.

pub(crate) const LAYERS_MAX: u64 = 1024;
pub(crate) const WIDTH_MAX: u64 = 1 << 20;
pub(crate) const VOCAB_MAX: u64 = 1 << 24;
pub(crate) const CONTEXT_MAX: u64 = 1 << 30;

/// Positions of a convolution. Published models have 3 or 4, or 10 over n-gram embeddings; this is
/// the kernels' limit.
pub(crate) const TAPS_MAX: u64 = 16;
