//! [`Backend`]: the coarse operations of a transformer; [`Cpu`], their reference; and [`Ggml`], the
//! devices of ggml's libraries.
//!
//! Model code is written once over this trait and reads as if for a single device. The operations
//! are those of a decoder, not a general tensor library: a backend is free to fuse them, to place
//! its data, and to choose the layout of weights for its hardware. It may only record operations,
//! and run them when [`Backend::host`] or [`Backend::synchronise`] needs a result; earlier failures
//! are reported there. It knows nothing of ranks: the model passes partial sums from `host` to its
//! collective.
//!
//! [`Cpu`]'s results must not depend on the number of rows of a call, on threads, or on the borders
//! of shards: therefore every split gives the same bits as one node. [`Ggml`]'s results do depend
//! on them.

mod arena;
mod cpu;
mod ggml;
mod group_norm;
mod mixture;
mod operands;
mod routing;

pub use self::ggml::Ggml;
pub use arena::{
    Arena, ArenaCounts, ArenaError, ExpertShape, InPlace, MatrixShape, PackedWeights, SlabSource,
    StreamedLayer,
};
pub use cpu::Cpu;
use gguf::TensorType;
pub use group_norm::GroupNorm;
pub use kernels::{
    Activation, AttentionRange, Begin, CacheKind, Choice, Compression, EntryShape, Indexer,
    MatrixMix, PACKING, PAGE_POSITIONS, Parts, RecurrentShape, RecurrentWeights, RopeStyle,
    RopeTable, Rule, Segment, StateSegment, StreamMix, Temperature, exact_gelu, isa, portable,
    soft_cap, softmax,
};
pub use mixture::{Expert, ExpertBias, Mixture, MixtureParts};
use operands::refused;
pub use operands::{
    AttentionShape, BackendError, Factors, Half, IndexKeys, KvShape, Place, RecurrentInputs,
    RoutingVectors, Seen, SegmentKey, SharedExpert, StateRoom,
};
pub use routing::{Gating, RoutingRule};
use routing::{Route, Routes};
use std::ops::Range;

/// A device that can run a decoder. Activations are f32, row-major `[rows, width]`.
pub trait Backend {
    /// Whether the first step of a kind compiles kernels: a rank then runs a trial first.
    const COMPILES: bool = false;

    /// A weight matrix `[rows, cols]` in the device's own layout.
    type Matrix: PackedWeights;
    /// Matrices being loaded.
    type Loader: Factors;
    /// A learned vector: a norm's gain, a bias.
    type Vector: Send;
    /// Activations `[rows, width]`, with their number of rows in use.
    type Rows: Send;
    /// The keys and values of one layer.
    type Kv: Send;
    /// The attention of a layer, prepared from an [`AttentionShape`].
    type Attention: Send;
    /// The entries of blocks of positions of one layer.
    type Entries: Send;
    /// The positions, or entries, chosen for a step's rows, in layers with an indexer.
    type Chosen: Send;
    /// The experts of a step's rows.
    type Routes: Send;
    /// The states of one layer.
    type States: Send;
    /// The recurrence of a layer, prepared from a [`RecurrentShape`] and its weights.
    type Recurrent: Send;

    /// Checks that the device supports layers with a state.
    ///
    /// # Errors
    /// It does not.
    fn check_recurrence(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Checks that the device supports the routing by `rule`.
    ///
    /// # Errors
    /// It does not.
    fn check_routing(&self, _rule: &RoutingRule) -> Result<(), BackendError> {
        Ok(())
    }

    /// Checks that the device supports layers with an indexer.
    ///
    /// # Errors
    /// It does not.
    fn check_indexer(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Checks that the device can multiply with such matrices, as far as known before loading.
    ///
    /// # Errors
    /// It cannot.
    fn check_matrix(&self, _: TensorType, _: usize, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    /// Starts `count` matrices of `rows` by `cols` elements stored as `ty`: the experts or heads of
    /// one tensor, or its only matrix.
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

    /// Ends them and returns the same number of matrices.
    ///
    /// # Errors
    /// Rows are missing.
    fn finish_matrices(&mut self, loader: Self::Loader) -> Result<Vec<Self::Matrix>, BackendError>;

    /// Bytes of a matrix on the device.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    fn vector(&mut self, values: &[f32]) -> Self::Vector;

    /// A buffer for `rows_max` rows of `width` elements.
    fn rows(&mut self, rows_max: usize, width: usize) -> Self::Rows;

    /// Their bytes on the device.
    fn rows_bytes(&self, x: &Self::Rows) -> usize;

    /// The device's default kind of cache, where [`Cpu`] takes `of_cpu`, as exact as the weights.
    fn cache_kind(&self, of_cpu: CacheKind) -> CacheKind;

    /// # Errors
    /// There is no memory, or no cache of this kind.
    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, BackendError>;

    /// Bytes of a cache on the device.
    fn kv_bytes(&self, shape: &KvShape) -> usize;

    /// # Errors
    /// There is no memory.
    fn entries(&mut self, shape: EntryShape) -> Result<Self::Entries, BackendError> {
        let _ = shape;
        refused("check_indexer")
    }

    /// Their bytes on the device.
    fn entries_bytes(&self, shape: &EntryShape) -> usize {
        let _ = shape;
        refused("check_indexer")
    }

    fn attention(&mut self, shape: &AttentionShape) -> Self::Attention;

    /// A buffer for the choices of rows, each of `groups` groups of heads and `pages` pages.
    fn chosen(&mut self, rows_max: usize, groups: usize, pages: usize) -> Self::Chosen;

    /// Its bytes.
    fn chosen_bytes(&self, rows_max: usize, groups: usize, pages: usize) -> usize;

    fn routes(&mut self) -> Self::Routes;

    /// # Errors
    /// There is no memory, or the device does not support such layers.
    fn states(
        &mut self,
        shape: &RecurrentShape,
        room: StateRoom,
    ) -> Result<Self::States, BackendError>;

    /// Bytes of a layer's states on the device.
    fn states_bytes(&self, shape: &RecurrentShape, room: StateRoom) -> usize;

    fn recurrent(&mut self, shape: RecurrentShape, weights: RecurrentWeights) -> Self::Recurrent;

    /// Converts rows of `cols` elements, stored as `ty` in the file's own layout, to f32.
    ///
    /// # Errors
    /// The type is not supported, or the number of rows in `bytes` differs from that of `out`.
    fn dequantize(
        &mut self,
        ty: TensorType,
        cols: usize,
        bytes: &[u8],
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Sets `rows` rows in use and lets `fill` write them, `[rows, width]` f32, in host memory.
    ///
    /// # Errors
    /// An error of `fill`.
    fn write<E>(
        &mut self,
        out: &mut Self::Rows,
        rows: usize,
        fill: impl FnOnce(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E>;

    /// The rows in use, in host memory, after all earlier operations.
    ///
    /// # Errors
    /// The device failed, now or since the last call.
    fn host<'a>(&mut self, x: &'a mut Self::Rows) -> Result<&'a [f32], BackendError>;

    /// Waits for all earlier operations.
    ///
    /// # Errors
    /// As [`Backend::host`].
    fn synchronise(&mut self) -> Result<(), BackendError>;

    /// Ends half a layer. A device may record the operations since the last such call or
    /// [`Backend::host`], and replay them when the same `segment` comes again: only positions and
    /// pages differ.
    fn end_segment(&mut self, segment: SegmentKey);

    /// Prepares a step's rotations with each of `tables`, one position a row, for all layers.
    fn set_positions(&mut self, tables: &[RopeTable], positions: &[u32]);

    /// [`Self::set_positions`] for places in pictures, on the CPU alone.
    fn set_places(&mut self, _: &[RopeTable], _: &[[u32; 3]]) {
        refused("COMPILES")
    }

    /// Keeps only the rows `kept`, ascending.
    fn keep(&mut self, x: &mut Self::Rows, kept: &[usize]);

    /// Keeps only the rotations of the rows `kept`, ascending, until positions are set again.
    fn keep_positions(&mut self, kept: &[usize]);

    /// `out = x / rms(x) * gain`, over each whole row.
    fn rms_norm(&mut self, x: &Self::Rows, gain: &Self::Vector, eps: f32, out: &mut Self::Rows);

    /// Subtracts each row's mean, then acts like [`Backend::rms_norm`].
    fn layer_norm(&mut self, x: &Self::Rows, gain: &Self::Vector, eps: f32, out: &mut Self::Rows);

    /// [`Backend::rms_norm`] in place, over each run of the length of `gain`: heads or whole rows.
    fn rms_norm_in_place(&mut self, x: &mut Self::Rows, gain: &Self::Vector, eps: f32);

    /// Copies the columns `cols` of every row.
    fn columns(&mut self, x: &Self::Rows, cols: Range<usize>, out: &mut Self::Rows);

    /// Appends head `h` of `b` to head `h` of `a`, for heads of `a_dim` and `b_dim` elements.
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

    /// Like [`Backend::linear`], for one matrix; if its weights are quantised, with activations of
    /// about 16 bits instead of 8.
    fn linear_int16(&mut self, x: &Self::Rows, matrix: &Self::Matrix, out: &mut Self::Rows);

    /// A separate product for each head: head `h` of `out` is that of `x` times `matrices[h]`ᵀ.
    fn linear_heads(&mut self, x: &Self::Rows, matrices: &[Self::Matrix], out: &mut Self::Rows);

    /// Partial sums of a row-parallel product: `out` gets the rows of `x` for each of `parts`, part
    /// by part, each the sum of one subtree of leaves in the order of `sumtree`; no rows without
    /// parts.
    fn linear_parts(
        &mut self,
        x: &Self::Rows,
        matrix: &Self::Matrix,
        parts: Option<&Parts>,
        out: &mut Self::Rows,
    );

    /// Rotates each head of every row by its position with table `table`.
    fn rope(&mut self, x: &mut Self::Rows, head_dim: usize, style: RopeStyle, table: usize);

    /// The same for the last elements of each head.
    fn rope_last(&mut self, x: &mut Self::Rows, head_dim: usize, style: RopeStyle, table: usize) {
        let _ = (x, head_dim, style, table);
        refused("check_indexer")
    }

    /// Multiplies each row by the temperature of its position, set by [`Self::set_positions`].
    fn scale_by_temperature(&mut self, x: &mut Self::Rows, temperature: &Temperature);

    /// Writes keys and values of the batch's rows into the cache; `k` and `v` become undefined.
    fn store(&mut self, kv: &mut Self::Kv, batch: &[Segment], k: &Self::Rows, v: &Self::Rows);

    /// Copies page `from` of the cache over page `to`, in the order of the other operations.
    fn copy_page(&mut self, kv: &mut Self::Kv, from: u32, to: u32);

    /// The content of an existing place, to be read or replaced, if the device can give it.
    fn content<'a>(&mut self, _: Place<'a, Self>, _: u32) -> Option<&'a mut [u8]> {
        None
    }

    /// Chooses the visible positions of every row, from the products of an indexer's queries
    /// `[rows, heads * dim]` with the cached keys, and its heads' weights `[rows, heads]`.
    fn choose(
        &mut self,
        keys: IndexKeys<'_, Self>,
        indexer: &Indexer,
        batch: &[Segment],
        q: &Self::Rows,
        weights: &Self::Rows,
        out: &mut Self::Chosen,
    ) {
        let _ = (keys, indexer, batch, q, weights, out);
        refused("check_indexer")
    }

    /// Keeps only the choices of the rows `kept`, ascending.
    fn keep_chosen(&mut self, chosen: &mut Self::Chosen, kept: &[usize]) {
        let _ = (chosen, kept);
        refused("check_indexer")
    }

    /// Causal attention of every row over the visible part of its own sequence.
    fn attend(
        &mut self,
        kv: &Self::Kv,
        shape: &Self::Attention,
        batch: &[Segment],
        seen: Seen<'_, Self>,
        q: &Self::Rows,
        out: &mut Self::Rows,
    );

    /// Makes entries of the blocks that end in the batch's rows, from their keys and their weights;
    /// and stores the inputs of the next ones in the pages of `windows`. `batch`: the same segments
    /// with the tables of entries.
    fn compress(
        &mut self,
        entries: &mut Self::Entries,
        compression: &Compression,
        rows: [&Self::Rows; 2],
        windows: &[Segment],
        batch: &[Segment],
    ) {
        let _ = (entries, compression, rows, windows, batch);
        refused("check_indexer")
    }

    /// Computes the weights of residual streams from each row's `numbers`, in place.
    fn weigh_streams(&mut self, mix: &StreamMix, numbers: &mut Self::Rows) {
        let _ = (mix, numbers);
        refused("check_indexer")
    }

    /// `out` = a half's input from the streams `x`, which are already gated if gates mix them.
    fn read_streams(
        &mut self,
        mix: &StreamMix,
        x: &Self::Rows,
        weights: &Self::Rows,
        out: &mut Self::Rows,
    ) {
        let _ = (mix, x, weights, out);
        refused("check_indexer")
    }

    /// Updates the streams `x` with the output `given` of half a layer.
    fn give_streams(
        &mut self,
        mix: &StreamMix,
        x: &mut Self::Rows,
        given: &Self::Rows,
        weights: &Self::Rows,
    ) {
        let _ = (mix, x, given, weights);
        refused("check_indexer")
    }

    /// `out` = the input of half a layer, or of the head, from the residual stream `x` and the
    /// first `banks.1` banked streams: their sum, weighted by the softmax of their products with
    /// `score`, each divided by its root mean square.
    fn read_banks(
        &mut self,
        banks: (&Self::Rows, usize),
        x: &Self::Rows,
        score: &Self::Vector,
        eps: f32,
        out: &mut Self::Rows,
    ) {
        let _ = (banks, x, score, eps, out);
        refused("check_recurrence")
    }

    /// Moves the residual stream `x` to place `at` of `banks`, `[rows, places * width]`; `x`
    /// becomes zero.
    fn bank(&mut self, x: &mut Self::Rows, banks: &mut Self::Rows, at: usize) {
        let _ = (x, banks, at);
        refused("check_recurrence")
    }

    /// Updates the states of the batch's sequences with their rows, and writes each row's output to
    /// `out`, `[rows, v_heads * v_dim]`.
    fn recur(
        &mut self,
        states: &mut Self::States,
        layer: &Self::Recurrent,
        batch: &[StateSegment],
        inputs: RecurrentInputs<'_, Self::Rows>,
        out: &mut Self::Rows,
    ) {
        let _ = (states, layer, batch, inputs, out);
        refused("check_recurrence")
    }

    /// The sums of squares of this rank's heads, zeros for those of others: `out` gets `[parts *
    /// rows, heads_all]`; every part except the first is zero.
    fn group_squares(
        &mut self,
        x: &Self::Rows,
        norm: &GroupNorm,
        parts: usize,
        out: &mut Self::Rows,
    ) {
        let _ = (x, norm, parts, out);
        refused("check_recurrence")
    }

    /// `out` = an n-gram's `value` gated by its key times its query, `[rows, streams * width]`.
    fn gate_ngrams(
        &mut self,
        keys_and_queries: [&Self::Rows; 2],
        value: &Self::Rows,
        out: &mut Self::Rows,
    ) {
        let _ = (keys_and_queries, value, out);
        refused("check_recurrence")
    }

    /// Scales each group by the `squares` of all heads, `[rows, heads_all]`.
    fn group_norm(
        &mut self,
        x: &mut Self::Rows,
        squares: &Self::Rows,
        norm: &GroupNorm,
        gain: &Self::Vector,
        eps: f32,
    ) {
        let _ = (x, squares, norm, gain, eps);
        refused("check_recurrence")
    }

    /// `x = activation(x)`.
    fn activate(&mut self, activation: Activation, x: &mut Self::Rows);

    /// Multiplies each head of `x`, of `head_dim` elements, by the sigmoid of its `gate`,
    /// `[rows, heads]`, which becomes undefined.
    fn gate_heads(&mut self, x: &mut Self::Rows, gate: &mut Self::Rows, head_dim: usize);

    /// `gate = activation(gate) * up`. Afterwards the content of `up` is undefined.
    fn gated(&mut self, activation: Activation, gate: &mut Self::Rows, up: &Self::Rows);

    /// Routes each row to experts: by its `logits`, `[rows, rule.experts]`, and to the shared one.
    fn route(
        &mut self,
        rule: &RoutingRule,
        logits: &Self::Rows,
        vectors: RoutingVectors<'_, Self::Vector>,
        shared: SharedExpert<'_, Self::Rows>,
        routes: &mut Self::Routes,
    );

    /// Partial sums of a mixture of experts: `out` gets the rows of `x` for each of
    /// `parts.part_ends`. In each leaf, a row's experts are added in their order, each times its
    /// weight; then the leaves, in the order of `sumtree`. Only the experts in `routes` are read.
    fn mixture(
        &mut self,
        x: &Self::Rows,
        routes: &Self::Routes,
        mixture: &Mixture<Self>,
        parts: Option<&MixtureParts>,
        out: &mut Self::Rows,
    );

    /// `x += y`.
    fn add(&mut self, x: &mut Self::Rows, y: &Self::Rows);
}
