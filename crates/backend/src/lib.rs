//! [`Backend`]: the coarse operations of a transformer, and [`Cpu`], their reference.
//!
//! Model code is written once over this trait and reads as if for a single device. The operations
//! are those that a decoder is made of, not a general tensor library: a backend is free to fuse,
//! to keep its data where it likes, and to lay weights out as its hardware wants them. It knows
//! nothing of ranks: where a partial sum leaves for the other ranks, the model hands
//! [`Backend::host`] to its collective.
//!
//! Results must not depend on how many rows a call has, on threads, or on where a shard's borders
//! fall: that is what makes every split give the same bits as one node.

mod cpu;
mod mixture;
mod routing;

pub use cpu::Cpu;
pub use kernels::{
    Activation, AttendShape, CacheKind, PAGE_POSITIONS, Parts, RopeStyle, RopeTable, Segment, isa,
    sigmoid_in_place as sigmoid,
};
pub use mixture::{Expert, ExpertBias, Mixture, MixtureParts};
pub use routing::{Gating, Route, Routes, RoutingRule};

use std::ops::Range;

use gguf::TensorType;
use kernels::KvCache;

/// Why a backend cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
}

/// The shape of one layer's key/value cache on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    pub heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    /// Pages of [`PAGE_POSITIONS`] positions each.
    pub pages: usize,
    pub kind: CacheKind,
}

impl KvShape {
    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.pages * KvCache::page_bytes(self.heads, self.k_dim, self.v_dim, self.kind)
    }
}

/// A device that can run a decoder. All activations are f32, row-major `[rows, width]`.
pub trait Backend {
    /// A weight matrix `[rows, cols]` in the device's own layout.
    type Matrix: Send;
    /// Matrices that are being loaded.
    type Loader;
    /// A learned vector: a norm's gain, a bias.
    type Vector: Send;
    /// Activations `[rows, width]`; it remembers how many rows are in use.
    type Rows: Send;
    /// The keys and values of one layer.
    type Kv: Send;

    /// Begins `count` matrices of `rows` by `cols` numbers stored as `ty`, which come one after the
    /// other: the experts or heads of one tensor, or its only matrix.
    ///
    /// # Errors
    /// The type is not supported, or there is no memory.
    fn start_matrices(
        &mut self,
        ty: TensorType,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Self::Loader, BackendError>;

    /// Adds the next whole rows in the file's own row layout.
    ///
    /// # Errors
    /// There are more rows than announced, or not whole ones.
    fn push_rows(&mut self, loader: &mut Self::Loader, bytes: &[u8]) -> Result<(), BackendError>;

    /// Ends them: as many as were begun.
    ///
    /// # Errors
    /// Rows are missing.
    fn finish_matrices(&mut self, loader: Self::Loader) -> Result<Vec<Self::Matrix>, BackendError>;

    /// Bytes that a matrix takes on the device.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    fn vector(&mut self, values: &[f32]) -> Self::Vector;

    /// Room for `rows_max` rows of `width` numbers.
    fn rows(&mut self, rows_max: usize, width: usize) -> Self::Rows;

    /// # Errors
    /// There is no memory.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, BackendError>;

    /// Turns rows of `cols` numbers, stored as `ty` in the file's own layout, into f32.
    ///
    /// # Errors
    /// The type is not supported, or `bytes` are not as many rows as `out` has room for.
    fn dequantize(
        &mut self,
        ty: TensorType,
        cols: usize,
        bytes: &[u8],
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Copies values in; `values.len()` must be a whole number of rows.
    fn upload(&mut self, values: &[f32], out: &mut Self::Rows);

    /// The rows in use, in host memory.
    fn host<'a>(&mut self, x: &'a Self::Rows) -> &'a [f32];

    /// Prepares the rotations of a step's rows, one position a row, by each of `tables`, for all
    /// its layers.
    fn set_positions(&mut self, tables: &[RopeTable], positions: &[u32]);

    /// Keeps only the rows `kept`, ascending.
    fn keep(&mut self, x: &mut Self::Rows, kept: &[usize]);

    /// Keeps only the rotations of the rows `kept`, ascending, until positions are set again.
    fn keep_positions(&mut self, kept: &[usize]);

    /// `out = x / rms(x) * gain`, over each whole row.
    fn rms_norm(&mut self, x: &Self::Rows, gain: &Self::Vector, eps: f32, out: &mut Self::Rows);

    /// The same in place, over each run of as many numbers as `gain` has: heads or whole rows.
    fn rms_norm_in_place(&mut self, x: &mut Self::Rows, gain: &Self::Vector, eps: f32);

    /// Copies the columns `cols` of every row.
    fn columns(&mut self, x: &Self::Rows, cols: Range<usize>, out: &mut Self::Rows);

    /// Puts head `h` of `b` after head `h` of `a`, for heads of `a_dim` and `b_dim` numbers.
    fn join_heads(
        &mut self,
        a: (&Self::Rows, usize),
        b: (&Self::Rows, usize),
        out: &mut Self::Rows,
    );

    /// `x += bias` for each row.
    fn add_bias(&mut self, x: &mut Self::Rows, bias: &Self::Vector);

    /// `x *= factor`.
    fn scale(&mut self, x: &mut Self::Rows, factor: f32);

    /// `x = cap * tanh(x / cap)`.
    fn soft_cap(&mut self, x: &mut Self::Rows, cap: f32);

    /// `out = x Wᵀ` for each matrix; all over the same `x`.
    fn linear(&mut self, x: &Self::Rows, outs: &mut [(&Self::Matrix, &mut Self::Rows)]);

    /// As [`Backend::linear`], for one matrix, and where its weights are quantised, with
    /// activations of about 16 bits instead of 8.
    fn linear_fine(&mut self, x: &Self::Rows, matrix: &Self::Matrix, out: &mut Self::Rows);

    /// A product of its own for each head: head `h` of `out` is that of `x` times `matrices[h]`ᵀ.
    fn linear_heads(&mut self, x: &Self::Rows, matrices: &[Self::Matrix], out: &mut Self::Rows);

    /// Partial sums of a row-parallel product: `out` gets `parts` times the rows of `x`, part by
    /// part, each the sum of one subtree of leaves in the order of `sumtree`; no rows without
    /// parts.
    fn linear_parts(
        &mut self,
        x: &Self::Rows,
        matrix: &Self::Matrix,
        parts: Option<&Parts>,
        out: &mut Self::Rows,
    );

    /// Rotates each head of every row by its position and table `table`, as set by
    /// [`Self::set_positions`].
    fn rope(&mut self, x: &mut Self::Rows, head_dim: usize, style: RopeStyle, table: usize);

    /// Writes keys and values of the batch's rows into the cache.
    fn store(&mut self, kv: &mut Self::Kv, batch: &[Segment], k: &Self::Rows, v: &Self::Rows);

    /// Causal attention of every row over its own sequence's positions.
    fn attend(
        &mut self,
        kv: &Self::Kv,
        shape: &AttendShape,
        batch: &[Segment],
        q: &Self::Rows,
        out: &mut Self::Rows,
    );

    /// `gate = activation(gate) * up`.
    fn gated(&mut self, activation: Activation, gate: &mut Self::Rows, up: &Self::Rows);

    /// Partial sums of a mixture of experts: `out` gets `parts.part_ends.len()` times the rows of
    /// `x`. In each leaf, a row's experts are added in their order, each times its weight; then
    /// the leaves, in the order of `sumtree`. Only the experts in `routes` are read.
    fn mixture(
        &mut self,
        x: &Self::Rows,
        routes: &Routes,
        mixture: &Mixture<Self>,
        parts: Option<&MixtureParts>,
        out: &mut Self::Rows,
    );

    /// `x += y`, `y` in host memory.
    fn add(&mut self, x: &mut Self::Rows, y: &[f32]);
}
