//! Layers with a state passed from position to position instead of a cache: gated delta nets
//! (Qwen3.5, Qwen3-Next), Kimi delta attention, Mamba-2 and LFM2's short convolution.
//!
//! A value head has a state S, `[k_dim, v_dim]`, and its key head's q and k. The head reads and
//! writes S once a row; sources: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024);
//! Kimi Team, "Kimi Linear" (2025); Dao and Gu, "Transformers are SSMs" (2024).
//!
//! # The order of operations
//!
//! A row's output depends only on its sequence's inputs up to it: not on how they were cut into
//! steps, on speculation, checkpoints, other heads, threads or the machine. The order is fixed:
//!
//! * **Convolution** of a channel: from the bias (or zero), the taps are added by `fma`, the oldest
//!   position first; positions before the sequence are zeros. Then x * sigmoid(x) (not LFM2).
//! * **Length** of a q or k of the delta rules: 16 lanes, each the `fma` sum of the squares of
//!   every 16th element, are added by halves. The factor 1 / sqrt(sum + 1e-6) is rounded, for q
//!   multiplied by 1 / sqrt(k_dim) and rounded again, and each element is multiplied by it.
//! * **Gates**: softplus(decay + dt), times a, and its exponential, g. With a bound the sigmoid of
//!   (decay + dt) * -a, times the bound, and its exponential.
//! * **A row** of the delta rules decays the state first, S\[i\] = g * S\[i\], each rounded. Then
//!   d = beta * (v - S^T k), S\[i\] = fma(k\[i\], d, S\[i\]) and out = S^T q. Mamba's d is dt' * v,
//!   and fma(skip, v, S^T q) its output.
//! * **Sums over i**, the elements of a key, are `fma` sums from zero: S^T q of the delta rules is
//!   one, from the first i to the last; the others are two, over even and odd i, which are added.
//!   (A third and a fourth sum would not fit the registers of AVX2.)
//!
//! # How it runs
//!
//! A first job prepares the columns of each head for all rows, a second one updates the state row
//! by row: 16 or 32 columns of S at a time, which stay in the first-level cache.

mod convolve;
mod gates;
mod layer;
mod rows;
mod state;
mod step;
mod sweep;
mod tasks;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

pub use layer::{RecurrentLayer, RecurrentShape, RecurrentWeights, Rule, TAPS_MAX};
pub use state::{Begin, StateSegment, States};
pub use step::{RecurrentRows, RecurrentScratch, recur};
