//! The decoder: one rank's weights and the forward pass.

use std::sync::Arc;

use backend::{
    AttendShape, Backend, CacheKind, KvShape, PAGE_POSITIONS, Parts, RopeTable, Segment,
};
use gguf::Source;

use crate::loader::{Loader, Progress};
use crate::shard::Cuts;
use crate::{Config, Leaves, ModelError, Shard, Split, names};

/// The row-parallel products: where partial sums leave for the other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    Attention,
    FeedForward,
}

/// What joins the ranks' partial sums.
pub trait Reduce {
    type Error: From<ModelError>;

    /// `sums` holds this rank's subtrees, `[parts, rows * width]` f32; `total` gets everybody's
    /// sum, `[rows * width]`, the same bits on every rank.
    ///
    /// # Errors
    /// Another rank is late or lost.
    fn all_reduce(
        &mut self,
        product: Product,
        sums: &[f32],
        total: &mut [f32],
    ) -> Result<(), Self::Error>;
}

/// What one step computes.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Runs of consecutive positions, each of one sequence.
    pub segments: &'a [Segment<'a>],
    /// The position of every row.
    pub positions: &'a [u32],
    /// Rows whose logits are wanted, at most `Capacity::outputs_max`.
    pub outputs: &'a [usize],
}

struct Layer<B: Backend> {
    attention_norm: B::Vector,
    q: B::Matrix,
    k: B::Matrix,
    v: B::Matrix,
    q_norm: Option<B::Vector>,
    k_norm: Option<B::Vector>,
    attention_output: B::Matrix,
    feed_forward_norm: B::Vector,
    gate: B::Matrix,
    up: B::Matrix,
    down: B::Matrix,
}

/// Buffers of one step, made once: the token loop allocates nothing.
struct Scratch<B: Backend> {
    /// The residual stream, `[rows, width]`.
    x: B::Rows,
    /// A norm's result, `[rows, width]`.
    h: B::Rows,
    q: B::Rows,
    k: B::Rows,
    v: B::Rows,
    attended: B::Rows,
    gate: B::Rows,
    up: B::Rows,
    hidden: B::Rows,
    /// Partial sums, `[parts * rows, width]`.
    sums: B::Rows,
    /// A reduced sum in host memory, `[rows * width]`.
    total: Vec<f32>,
    /// The picked rows before and after the last norm, `[outputs, width]`.
    picked: B::Rows,
    normed: B::Rows,
    /// This rank's slice of the logits, `[outputs, vocab slice]`.
    logits: B::Rows,
}

/// One rank of a model.
pub struct Model<B: Backend> {
    config: Config,
    shard: Shard,
    layers: Vec<Layer<B>>,
    output_norm: B::Vector,
    output: B::Matrix,
    kv: Vec<B::Kv>,
    attend: AttendShape,
    rope: RopeTable,
    attention_parts: Option<Parts>,
    feed_forward_parts: Option<Parts>,
    scratch: Scratch<B>,
    weight_bytes: u64,
    kv_bytes: u64,
    rows_max: usize,
}

/// How large a model's working memory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Rows of the largest step.
    pub rows_max: usize,
    /// Rows of one step whose logits may be wanted.
    pub outputs_max: usize,
    /// Pages of the key/value cache, of `PAGE_POSITIONS` positions each.
    pub kv_pages: usize,
}

impl<B: Backend> Model<B> {
    /// Loads rank `rank`'s slice of a model.
    ///
    /// # Errors
    /// The file is no complete model of a supported kind, it cannot be read, or memory is short.
    pub fn load(
        backend: &mut B,
        source: &Arc<dyn Source>,
        split: &Split,
        rank: usize,
        capacity: Capacity,
        progress: Progress<'_>,
    ) -> Result<Self, ModelError> {
        let config = Config::read(source.directory())?;
        let shard = Shard::new(&cuts(&config, source.as_ref())?, split, rank);
        let mut loader = Loader { backend, source: source.as_ref(), progress, device_bytes: 0 };
        let layers = (0..config.layers)
            .map(|layer| Layer::load(&mut loader, &config, &shard, layer))
            .collect::<Result<Vec<_>, _>>()?;
        let output_norm = loader.vector(names::OUTPUT_NORM, config.width)?;
        // A model without an output matrix uses its embedding as one.
        let tied = source.directory().find_tensor(names::OUTPUT).is_none();
        let output = if tied { names::EMBEDDING } else { names::OUTPUT };
        let vocab = shard.vocab.clone();
        let output = loader.rows(output, config.width, config.vocab, vocab)?;
        let rope = rope_table(&mut loader, &config)?;
        let weight_bytes = loader.device_bytes;

        let kv_shape = KvShape {
            heads: shard.kv_heads.len(),
            k_dim: config.k_dim,
            v_dim: config.v_dim,
            pages: capacity.kv_pages,
            kind: CacheKind::F16,
        };
        let kv = (0..config.layers)
            .map(|_| backend.kv(kv_shape))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| ModelError::Backend { name: "key/value cache".into(), source })?;
        let position_bytes = kv_shape.heads * (config.k_dim + config.v_dim) * size_of::<u16>();
        let kv_positions = capacity.kv_pages * PAGE_POSITIONS;
        Ok(Self {
            attend: attend_shape(&config, &shard),
            rope,
            attention_parts: shard.attention.parts(rank),
            feed_forward_parts: shard.feed_forward.parts(rank),
            scratch: Scratch::new(backend, &config, &shard, capacity),
            weight_bytes,
            kv_bytes: (config.layers * kv_positions * position_bytes) as u64,
            rows_max: capacity.rows_max,
            layers,
            output_norm,
            output,
            kv,
            config,
            shard,
        })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The leaves of a row-parallel product, from which the ranks' reduction is planned.
    pub fn leaves(&self, product: Product) -> &Leaves {
        match product {
            Product::Attention => &self.shard.attention,
            Product::FeedForward => &self.shard.feed_forward,
        }
    }

    /// Bytes of this rank's weights in memory.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Bytes of this rank's key/value cache.
    pub fn kv_bytes(&self) -> u64 {
        self.kv_bytes
    }

    /// Runs one step and returns this rank's slice of the logits of the wanted rows,
    /// `[outputs, shard.vocab.len()]` f32, row-major.
    ///
    /// `embeddings` are those of the batch's tokens, `[rows, width]` f32.
    ///
    /// # Errors
    /// Those of `reduce`.
    pub fn forward<R: Reduce>(
        &mut self,
        backend: &mut B,
        reduce: &mut R,
        batch: &Batch<'_>,
        embeddings: &[f32],
    ) -> Result<&[f32], R::Error> {
        debug_assert!(batch.positions.len() <= self.rows_max);
        backend.upload(embeddings, &mut self.scratch.x);
        backend.set_positions(&self.rope, batch.positions);
        for at in 0..self.layers.len() {
            self.attention(backend, reduce, batch, at)?;
            self.feed_forward(backend, reduce, at)?;
        }
        Ok(self.logits(backend, batch.outputs))
    }

    /// `x += attention(norm(x))`
    fn attention<R: Reduce>(
        &mut self,
        backend: &mut B,
        reduce: &mut R,
        batch: &Batch<'_>,
        at: usize,
    ) -> Result<(), R::Error> {
        let (layer, kv, s) = (&self.layers[at], &mut self.kv[at], &mut self.scratch);
        let eps = self.config.rms_eps;
        backend.rms_norm(&s.x, &layer.attention_norm, eps, &mut s.h);
        let outs = &mut [(&layer.q, &mut s.q), (&layer.k, &mut s.k), (&layer.v, &mut s.v)];
        backend.linear(&s.h, outs);
        if let (Some(q_norm), Some(k_norm)) = (&layer.q_norm, &layer.k_norm) {
            backend.head_norm(&mut s.q, q_norm, eps);
            backend.head_norm(&mut s.k, k_norm, eps);
        }
        let (k_dim, style) = (self.config.k_dim, self.config.rope.style);
        backend.rope(&mut s.q, k_dim, style);
        backend.rope(&mut s.k, k_dim, style);
        backend.store(kv, batch.segments, &s.k, &s.v);
        backend.attend(kv, &self.attend, batch.segments, &s.q, &mut s.attended);
        let (output, parts) = (&layer.attention_output, self.attention_parts.as_ref());
        backend.linear_parts(&s.attended, output, parts, &mut s.sums);
        self.reduce_into_x(backend, reduce, Product::Attention, batch.positions.len())
    }

    /// `x += down(silu(gate(norm(x))) * up(norm(x)))`
    fn feed_forward<R: Reduce>(
        &mut self,
        backend: &mut B,
        reduce: &mut R,
        at: usize,
    ) -> Result<(), R::Error> {
        let (layer, s) = (&self.layers[at], &mut self.scratch);
        backend.rms_norm(&s.x, &layer.feed_forward_norm, self.config.rms_eps, &mut s.h);
        backend.linear(&s.h, &mut [(&layer.gate, &mut s.gate), (&layer.up, &mut s.up)]);
        backend.silu_mul(&s.gate, &s.up, &mut s.hidden);
        let parts = self.feed_forward_parts.as_ref();
        backend.linear_parts(&s.hidden, &layer.down, parts, &mut s.sums);
        let rows = backend.host(&s.x).len() / self.config.width;
        self.reduce_into_x(backend, reduce, Product::FeedForward, rows)
    }

    /// The point where partial sums meet: `x += total over all ranks`.
    fn reduce_into_x<R: Reduce>(
        &mut self,
        backend: &mut B,
        reduce: &mut R,
        product: Product,
        rows: usize,
    ) -> Result<(), R::Error> {
        let s = &mut self.scratch;
        let total = &mut s.total[..rows * self.config.width];
        reduce.all_reduce(product, backend.host(&s.sums), total)?;
        backend.add(&mut s.x, total);
        Ok(())
    }

    fn logits(&mut self, backend: &mut B, outputs: &[usize]) -> &[f32] {
        let s = &mut self.scratch;
        backend.pick(&s.x, outputs, &mut s.picked);
        backend.rms_norm(&s.picked, &self.output_norm, self.config.rms_eps, &mut s.normed);
        backend.linear(&s.normed, &mut [(&self.output, &mut s.logits)]);
        backend.host(&s.logits)
    }
}

impl<B: Backend> Layer<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let name = |name| names::layer(layer, name);
        let (width, heads, kv_heads) = (config.width, config.heads, config.kv_heads);
        let (k_dim, v_dim, hidden) = (config.k_dim, config.v_dim, config.feed_forward);
        let scale = |heads: &std::ops::Range<usize>, dim| heads.start * dim..heads.end * dim;
        let q_rows = scale(&shard.heads, k_dim);
        let (k_rows, v_rows) = (scale(&shard.kv_heads, k_dim), scale(&shard.kv_heads, v_dim));
        let attended = shard.attention.columns(shard.rank);
        let ffn = shard.feed_forward.columns(shard.rank);
        let norm = |loader: &mut Loader<'_, B>, which, len| -> Result<_, ModelError> {
            let wanted = config.arch.qk_norm;
            wanted.then(|| loader.vector(&names::layer(layer, which), len)).transpose()
        };
        Ok(Self {
            attention_norm: loader.vector(&name("attn_norm"), width)?,
            q: loader.rows(&name("attn_q"), width, heads * k_dim, q_rows)?,
            k: loader.rows(&name("attn_k"), width, kv_heads * k_dim, k_rows)?,
            v: loader.rows(&name("attn_v"), width, kv_heads * v_dim, v_rows)?,
            q_norm: norm(loader, "attn_q_norm", k_dim)?,
            k_norm: norm(loader, "attn_k_norm", k_dim)?,
            attention_output: loader.columns(
                &name("attn_output"),
                heads * v_dim,
                width,
                attended,
            )?,
            feed_forward_norm: loader.vector(&name("ffn_norm"), width)?,
            gate: loader.rows(&name("ffn_gate"), width, hidden, ffn.clone())?,
            up: loader.rows(&name("ffn_up"), width, hidden, ffn.clone())?,
            down: loader.columns(&name("ffn_down"), hidden, width, ffn)?,
        })
    }
}

impl<B: Backend> Scratch<B> {
    fn new(backend: &mut B, config: &Config, shard: &Shard, capacity: Capacity) -> Self {
        let (width, rank) = (config.width, shard.rank);
        let count = |leaves: &Leaves| leaves.parts(rank).map_or(0, |parts| parts.count());
        let parts = count(&shard.attention).max(count(&shard.feed_forward));
        let hidden = shard.feed_forward.columns(rank).len();
        let mut rows = |width| backend.rows(capacity.rows_max, width);
        Self {
            x: rows(width),
            h: rows(width),
            q: rows(shard.heads.len() * config.k_dim),
            k: rows(shard.kv_heads.len() * config.k_dim),
            v: rows(shard.kv_heads.len() * config.v_dim),
            attended: rows(shard.heads.len() * config.v_dim),
            gate: rows(hidden),
            up: rows(hidden),
            hidden: rows(hidden),
            sums: backend.rows(capacity.rows_max * parts, width),
            total: vec![0.0; capacity.rows_max * width],
            picked: backend.rows(capacity.outputs_max, width),
            normed: backend.rows(capacity.outputs_max, width),
            logits: backend.rows(capacity.outputs_max, shard.vocab.len()),
        }
    }
}

/// The sizes that decide where this model may be cut.
fn cuts(config: &Config, source: &dyn Source) -> Result<Cuts, ModelError> {
    let longest_block = |name: &str| -> Result<usize, ModelError> {
        (0..config.layers).try_fold(1, |longest, layer| {
            let tensor = source.directory().tensor(&names::layer(layer, name))?;
            Ok(longest.max(tensor.ty.block_len()))
        })
    };
    Ok(Cuts {
        heads: config.heads,
        kv_heads: config.kv_heads,
        v_dim: config.v_dim,
        feed_forward: config.feed_forward,
        vocab: config.vocab,
        attention_block: longest_block("attn_output")?,
        feed_forward_block: longest_block("ffn_down")?,
    })
}

fn attend_shape(config: &Config, shard: &Shard) -> AttendShape {
    let group = config.heads / config.kv_heads;
    let kv_of_head = shard.heads.clone().map(|head| (head / group - shard.kv_heads.start) as u32);
    let kv_of_head: Vec<u32> = kv_of_head.collect();
    let scale = 1.0 / (config.k_dim as f32).sqrt();
    AttendShape::new(&kv_of_head, config.k_dim, config.v_dim, scale)
}

fn rope_table<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
) -> Result<RopeTable, ModelError> {
    let rope = &config.rope;
    let pairs = rope.dims / 2;
    let stretched = loader.source.directory().find_tensor(names::ROPE_FACTORS).is_some();
    let mut factors = match stretched {
        true => loader.floats(names::ROPE_FACTORS, pairs)?,
        false => vec![1.0; pairs],
    };
    factors.iter_mut().for_each(|factor| *factor *= rope.linear_factor);
    Ok(RopeTable::new(rope.dims, rope.base, Some(&factors), 1.0))
}
