//! A recurrent layer: its rule, its heads on this rank and its learned parameters.

use crate::simd::LANES;

/// The most positions of a convolution; models have 3 or 4, or 10 over n-gram embeddings.
pub const TAPS_MAX: usize = 16;

/// The recurrence of a rank's heads in one layer.
#[derive(Debug, Clone)]
pub struct RecurrentShape {
    pub rule: Rule,
    pub k_heads: usize,
    pub v_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    /// For each value head, its key head: `[v_heads]`.
    pub k_of_v: Vec<u32>,
    /// Positions of the convolution, including the row's own (1 = no history), at most
    /// [`TAPS_MAX`].
    pub taps: usize,
    /// A bound of decays, below 0, in layers of [`Rule::DeltaByChannel`] that have one.
    pub decay_bound: Option<f32>,
}

/// The update rule of a state from one row to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Gated delta rule, one decay a head (Qwen3.5). q and k: convolution, SiLU, then
    /// `x / sqrt(sum x² + 1e-6)` for each head, q also `/ sqrt(k_dim)`; v: convolution, SiLU.
    ///
    /// `g = exp(a * softplus(decay + dt))`, `beta = sigmoid(beta)`; `S <- g S`;
    /// `S += k (x) (beta (v - S^T k))`; `out = S^T q`.
    Delta,
    /// The same with a decay for each element of the key (Kimi Linear): `decay` is
    /// `[rows, v_heads * k_dim]`, `dt` is `[v_heads * k_dim]`, `a` is `[v_heads]`.
    ///
    /// With a bound (Kimi K3), `g = exp(bound * sigmoid(-a * (decay + dt)))`.
    DeltaByChannel,
    /// Mamba-2 (Nemotron-H, Granite 4): q is C, k is B and v is x, each after convolution and SiLU,
    /// with no normalisation.
    ///
    /// `dt' = softplus(decay + dt)`; `S <- exp(dt' a) S + k (x) (dt' v)`;
    /// `out = S^T q + skip * v`.
    Mamba,
    /// Short convolution (LFM2). There is no S: `u = k * v`, `out = q * conv(u)`, element by
    /// element and without SiLU. q, k and v are equally wide; `k_of_v` is not used.
    Convolution,
}

/// Learned parameters of one layer's heads on this rank.
///
/// `conv_*`: `[channels, taps]` f32, row-major as in the file; tap `taps - 1` is the row's own
/// position. `bias_*`: empty or `[channels]`. [`Rule::Convolution`] has only `conv_v` and `bias_v`.
/// `a`, `skip`: `[v_heads]`, `dt`: `[v_heads]` or as in the rule; only Mamba has `skip`.
#[derive(Debug, Clone, Default)]
pub struct RecurrentWeights {
    pub conv_q: Vec<f32>,
    pub conv_k: Vec<f32>,
    pub conv_v: Vec<f32>,
    pub bias_q: Vec<f32>,
    pub bias_k: Vec<f32>,
    pub bias_v: Vec<f32>,
    pub a: Vec<f32>,
    pub dt: Vec<f32>,
    pub skip: Vec<f32>,
}

/// A layer's shape and learned parameters, in the kernels' layout.
pub struct RecurrentLayer {
    pub(super) shape: RecurrentShape,
    pub(super) q: Filter,
    pub(super) k: Filter,
    pub(super) v: Filter,
    pub(super) a: Vec<f32>,
    pub(super) dt: Vec<f32>,
    pub(super) skip: Vec<f32>,
}

impl RecurrentShape {
    /// Elements of a row's q, and of its k.
    pub(super) fn k_width(&self) -> usize {
        self.k_heads * self.k_dim
    }

    /// Elements of a row's v.
    pub(super) fn v_width(&self) -> usize {
        self.v_heads * self.v_dim
    }

    /// Elements of a row's decay.
    pub(super) fn decay_width(&self) -> usize {
        match self.rule {
            Rule::Delta | Rule::Mamba => self.v_heads,
            Rule::DeltaByChannel => self.v_heads * self.k_dim,
            Rule::Convolution => 0,
        }
    }

    /// Elements of a row's beta.
    pub(super) fn beta_width(&self) -> usize {
        match self.rule {
            Rule::Delta | Rule::DeltaByChannel => self.v_heads,
            Rule::Mamba | Rule::Convolution => 0,
        }
    }

    fn check(&self) {
        let by_channel = self.rule == Rule::DeltaByChannel;
        assert!(by_channel || self.decay_bound.is_none(), "no other rule bounds its decays");
        assert!((1..=TAPS_MAX).contains(&self.taps), "{} taps; 1 to {TAPS_MAX} work", self.taps);
        if self.v_heads == 0 {
            return;
        }
        assert!(self.k_dim > 0 && self.v_dim > 0, "heads of no numbers");
        if self.rule == Rule::Convolution {
            assert_eq!(self.k_width(), self.v_width(), "k and v must be equally wide");
        } else {
            assert_eq!(self.k_of_v.len(), self.v_heads, "each value head has one key head");
            let most = self.k_of_v.iter().max().map_or(0, |&most| most as usize);
            assert!(most < self.k_heads, "key head {most} of {}", self.k_heads);
        }
    }
}

impl RecurrentLayer {
    /// Converts a layer's learned parameters to the kernels' layout. A rank without value heads
    /// needs none.
    ///
    /// # Panics
    /// If the shape is impossible, or the weights do not match it.
    pub fn new(shape: RecurrentShape, weights: RecurrentWeights) -> Self {
        shape.check();
        if shape.v_heads == 0 {
            let [q, k, v] = [(); 3].map(|()| Filter::default());
            return Self { shape, q, k, v, a: vec![], dt: vec![], skip: vec![] };
        }
        let convolution = shape.rule == Rule::Convolution;
        let (k_heads, gates) = if convolution { (0, 0) } else { (shape.k_heads, shape.v_heads) };
        // The channels of a short convolution have no heads.
        let (v_heads, v_dim) =
            if convolution { (1, shape.v_width()) } else { (shape.v_heads, shape.v_dim) };
        let skips = if shape.rule == Rule::Mamba { gates } else { 0 };
        let RecurrentWeights { conv_q, conv_k, conv_v, bias_q, bias_k, bias_v, a, dt, skip } =
            weights;
        assert_eq!(a.len(), gates, "one `a` for each value head");
        assert_eq!(dt.len(), shape.decay_width(), "one `dt` for each decay");
        assert_eq!(skip.len(), skips, "one `skip` for each value head of Mamba");
        let q = Filter::new(k_heads, shape.k_dim, shape.taps, &conv_q, &bias_q);
        let k = Filter::new(k_heads, shape.k_dim, shape.taps, &conv_k, &bias_k);
        let v = Filter::new(v_heads, v_dim, shape.taps, &conv_v, &bias_v);
        Self { shape, q, k, v, a, dt, skip }
    }

    /// The shape that the layer was made with.
    pub fn shape(&self) -> &RecurrentShape {
        &self.shape
    }
}

/// A convolution's weights by head: `[heads, blocks, taps, 16]`, biases `[heads, blocks, 16]`, with
/// zeros after a head's last channel.
#[derive(Default)]
pub(super) struct Filter {
    blocks: usize,
    taps: usize,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Filter {
    /// `weights`: `[heads * dim, taps]`; `bias`: empty or `[heads * dim]`.
    fn new(heads: usize, dim: usize, taps: usize, weights: &[f32], bias: &[f32]) -> Self {
        let channels = heads * dim;
        assert_eq!(weights.len(), channels * taps, "convolution of {channels} x {taps}");
        assert!(bias.is_empty() || bias.len() == channels, "{} biases", bias.len());
        let blocks = dim.div_ceil(LANES);
        let mut filter = Self {
            blocks,
            taps,
            weights: vec![0.0; heads * blocks * taps * LANES],
            bias: vec![0.0; heads * blocks * LANES],
        };
        for channel in 0..channels {
            let (block, lane) = (channel % dim / LANES, channel % dim % LANES);
            let block = channel / dim * blocks + block;
            for tap in 0..taps {
                filter.weights[(block * taps + tap) * LANES + lane] = weights[channel * taps + tap];
            }
            if !bias.is_empty() {
                filter.bias[block * LANES + lane] = bias[channel];
            }
        }
        filter
    }

    /// Weights `[blocks, taps, 16]` and biases `[blocks, 16]` of one head, from `block` on.
    pub fn head(&self, head: usize, block: usize) -> (&[f32], &[f32]) {
        let range = head * self.blocks + block..(head + 1) * self.blocks;
        let vector = self.taps * LANES;
        (
            &self.weights[range.start * vector..range.end * vector],
            &self.bias[range.start * LANES..range.end * LANES],
        )
    }
}
