//! One layer of the tower: attention of every patch to every patch, and a feed-forward block.

use std::sync::Arc;

use kernels::{
    Activation, AttendShape, CacheKind, KvCache, PAGE_POSITIONS, Pool, RopeAngles, RopeStyle,
    Segment, activate, add, attend, gated, rope,
};

use crate::TowerError;
use crate::config::Config;
use crate::linear::{CHUNK, Linear, Work};
use crate::norm::Norm;
use crate::places::Rotation;
use crate::weights::Weights;

/// The weights of a layer.
pub(crate) struct Layer {
    attention_norm: Norm,
    q: Linear,
    k: Linear,
    v: Linear,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    v_norm: Option<Norm>,
    out: Linear,
    attention_after: Option<Norm>,
    feed_forward_norm: Norm,
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    feed_forward_after: Option<Norm>,
    activation: Activation,
}

/// The rows of a picture between layers, and what all layers share.
pub(crate) struct Rows {
    width: usize,
    /// `[rows, width]`: the residual stream.
    pub x: Vec<f32>,
    /// `[rows, width]`.
    q: Vec<f32>,
    /// `[rows, width]`.
    attended: Vec<f32>,
    kv: KvCache,
    segment: Segment,
    shape: AttendShape,
    /// For each chunk of rows, the angles of each table.
    angles: Vec<Vec<RopeAngles>>,
    rotated_from: Vec<usize>,
    style: RopeStyle,
    head_dim: usize,
}

impl Rows {
    /// Rows of zeros at `places`.
    pub fn new(pool: &Pool, config: &Config, places: &[[u32; 3]]) -> Result<Self, TowerError> {
        let (rows, width, heads) = (places.len(), config.width, config.heads);
        let head_dim = config.head_dim();
        let pages = rows.div_ceil(PAGE_POSITIONS);
        let kv = KvCache::new(heads, head_dim, head_dim, pages, CacheKind::F32)
            .map_err(|source| TowerError::Memory { patches: rows, source })?;
        let table: Arc<[u32]> = (0..pages as u32).collect();
        let heads: Vec<u32> = (0..heads as u32).collect();
        let scale = match config.projector.plain_values {
            true => 1.0,
            false => 1.0 / (head_dim as f32).sqrt(),
        };
        let shape = AttendShape::new(&heads, head_dim, head_dim, scale);
        let rotation = Rotation::new(config);
        let (tables, style) = rotation
            .map_or((Vec::new(), RopeStyle::Neox), |rotation| (rotation.tables, rotation.style));
        let angles = places.chunks(CHUNK).map(|places| {
            let of_table = |(table, _): &(kernels::RopeTable, usize)| {
                let mut angles = RopeAngles::new();
                angles.load_places(pool, table, places);
                angles
            };
            tables.iter().map(of_table).collect()
        });
        Ok(Self {
            width,
            x: vec![0.0; rows * width],
            q: vec![0.0; rows * width],
            attended: vec![0.0; rows * width],
            kv,
            segment: Segment { table, first_pos: 0, rows, sees_to: Some(rows) },
            shape,
            angles: angles.collect(),
            rotated_from: tables.iter().map(|(_, first)| *first).collect(),
            style,
            head_dim,
        })
    }

    /// Bytes for a picture of `rows` patches.
    pub fn bytes(config: &Config, rows: usize) -> usize {
        let head_dim = config.head_dim();
        let page = KvCache::page_bytes(config.heads, head_dim, head_dim, CacheKind::F32);
        let angles = 2 * head_dim / 2 * size_of::<f32>();
        rows * (3 * config.width * size_of::<f32>() + angles) + rows.div_ceil(PAGE_POSITIONS) * page
    }

    fn rotate(&self, pool: &Pool, chunk: usize, x: &mut [f32]) {
        let heads = self.width / self.head_dim;
        for (angles, first) in self.angles[chunk].iter().zip(&self.rotated_from) {
            rope(pool, x, heads, (self.head_dim, *first), angles, self.style);
        }
    }
}

impl Layer {
    /// Loads layer `at`.
    pub fn load(weights: &Weights<'_>, config: &Config, at: usize) -> Result<Self, TowerError> {
        let name = |part: &str| format!("v.blk.{at}.{part}");
        for part in config.projector.layer_tensors {
            weights.source.directory().tensor(&name(&format!("{part}.weight")))?;
        }
        let (width, eps, head_dim) = (config.width, config.eps, config.head_dim());
        let rms = config.projector.rms_norms;
        let norm = |part: &str| weights.norm(&name(part), width, rms, eps);
        let find_norm = |part: &str, len| weights.find_norm(&name(part), len, rms, eps);
        let linear = |part: &str, rows, cols| weights.linear(&name(part), rows, cols);
        let fused = name("attn_qkv");
        let is_fused = weights.has(&format!("{fused}.weight"));
        let qkv = |part: usize, alone: &str| match is_fused {
            true => {
                let rows = part * width..(part + 1) * width;
                weights.linear_rows(&fused, 3 * width, rows, width)
            }
            false => linear(alone, width, width),
        };
        // llama.cpp's converter of 2026 gives Llama 4's second norm the name of another one.
        let is_misnamed = config.projector.has_class && !weights.has(&name("ln2.weight"));
        let is_gated = weights.has(&name("ffn_gate.weight"));
        let hidden = config.feed_forward;
        let is_exchanged = weights.columns(&name("ffn_up.weight"))? != width;
        let [up, down] = if is_exchanged { ["ffn_down", "ffn_up"] } else { ["ffn_up", "ffn_down"] };
        let gate = || linear("ffn_gate", hidden, width);
        Ok(Self {
            attention_norm: norm("ln1")?,
            q: qkv(0, "attn_q")?,
            k: qkv(1, "attn_k")?,
            v: qkv(2, "attn_v")?,
            q_norm: find_norm("attn_q_norm", head_dim)?,
            k_norm: find_norm("attn_k_norm", head_dim)?,
            v_norm: config.projector.plain_values.then(|| Norm::plain(head_dim, eps)),
            out: linear("attn_out", width, width)?,
            attention_after: if is_misnamed { None } else { find_norm("attn_post_norm", width)? },
            feed_forward_norm: norm(if is_misnamed { "attn_post_norm" } else { "ln2" })?,
            gate: if is_gated { Some(gate()?) } else { None },
            up: linear(up, hidden, width)?,
            down: linear(down, width, hidden)?,
            feed_forward_after: find_norm("ffn_post_norm", width)?,
            activation: config.activation,
        })
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let linears = [&self.q, &self.k, &self.v, &self.out, &self.up, &self.down];
        let linears = linears.into_iter().chain(&self.gate).map(Linear::bytes);
        let optional = [&self.q_norm, &self.k_norm, &self.v_norm, &self.attention_after];
        let optional = optional.into_iter().chain([&self.feed_forward_after]).flatten();
        let norms = [&self.attention_norm, &self.feed_forward_norm].into_iter().chain(optional);
        linears.chain(norms.map(Norm::bytes)).sum()
    }

    /// Updates the residual stream of all rows.
    pub fn run(&self, work: &mut Work<'_>, rows: &mut Rows) {
        let len = CHUNK * rows.width;
        for chunk in 0..rows.x.len().div_ceil(len) {
            self.prepare(work, rows, chunk);
        }
        let Rows { kv, shape, segment, q, attended, .. } = rows;
        attend(work.pool, kv, shape, std::slice::from_ref(segment), None, q, attended);
        for (x, attended) in rows.x.chunks_mut(len).zip(rows.attended.chunks(len)) {
            self.add_attention(work, attended, x);
            self.add_feed_forward(work, x);
        }
    }

    /// Queries, keys and values of a chunk.
    fn prepare(&self, work: &mut Work<'_>, rows: &mut Rows, chunk: usize) {
        let (pool, len, first) = (work.pool, CHUNK * rows.width, chunk * CHUNK);
        let range = chunk * len..rows.x.len().min((chunk + 1) * len);
        let mut normed = vec![0.0; range.len()];
        self.attention_norm.apply(pool, &rows.x[range.clone()], &mut normed);
        let head = |work: &mut Work<'_>, linear: &Linear, norm: &Option<Norm>| {
            let mut x = linear.rows(work, &normed);
            if let Some(norm) = norm {
                norm.apply_in_place(pool, &mut x);
            }
            x
        };
        let mut q = head(work, &self.q, &self.q_norm);
        let mut k = head(work, &self.k, &self.k_norm);
        let v = head(work, &self.v, &self.v_norm);
        rows.rotate(pool, chunk, &mut q);
        rows.rotate(pool, chunk, &mut k);
        rows.kv.store(pool, &rows.segment.table, first, &k, &v);
        rows.q[range].copy_from_slice(&q);
    }

    fn add_attention(&self, work: &mut Work<'_>, attended: &[f32], x: &mut [f32]) {
        let mut out = self.out.rows(work, attended);
        if let Some(norm) = &self.attention_after {
            norm.apply_in_place(work.pool, &mut out);
        }
        add(work.pool, x, &out);
    }

    fn add_feed_forward(&self, work: &mut Work<'_>, x: &mut [f32]) {
        let pool = work.pool;
        let mut normed = vec![0.0; x.len()];
        self.feed_forward_norm.apply(pool, x, &mut normed);
        let mut hidden = self.up.rows(work, &normed);
        match &self.gate {
            Some(gate) => {
                let mut gate = gate.rows(work, &normed);
                gated(pool, self.activation, &mut gate, &hidden);
                hidden = gate;
            }
            None => activate(pool, self.activation, &mut hidden),
        }
        let mut out = self.down.rows(work, &hidden);
        if let Some(norm) = &self.feed_forward_after {
            norm.apply_in_place(pool, &mut out);
        }
        add(pool, x, &out);
    }
}
