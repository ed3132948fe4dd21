//! The values of an architecture's switches.

/// The pairing of a head's rotated elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: (0, 1), (2, 3), ... GGUF's `norm` (Llama, Mistral).
    Interleaved,
    /// Halves: (0, n/2), (1, n/2 + 1), ... GGUF's `neox` (Qwen, Gemma, gpt-oss).
    Neox,
}

/// The matrices stacked in one tensor, row below row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fused {
    Nothing,
    /// Gate and up, in `ffn_up` (GLM-4).
    FeedForward,
    /// Gate and up in `ffn_up`, and q, k and v in `attn_qkv` (Phi-3).
    All,
}

/// The layers that rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    Always,
    /// All but the last of every this many (SmolLM3).
    AllButEvery(usize),
    /// All, unless the file says `rope.scaling.finetuned = false` (Granite 4).
    UnlessUntrained,
    /// Those with a window. In files without windows, all (EXAONE 4).
    InWindows,
    Never,
}

/// The layers that scale queries by an attention temperature, which grows with the position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TemperatureRule {
    /// All, in files with `attention.temperature_scale` (Mistral 3).
    FromFile,
    /// Those without rotation, by these constants (Llama 4).
    Unrotated { scale: f32, length: u32 },
}

/// The place of attention's gates in a file. Their sigmoid multiplies the heads' outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatedAttention {
    Never,
    /// `attn_q` holds each head's query and then its gate (Qwen3-Next).
    InQueries,
    /// In `attn_gate` (Muse Glimmer, Kimi K3).
    Apart,
}

/// The effect of the file's `logit_scale` on logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitScale {
    /// Granite.
    Divides,
    /// Cohere.
    Multiplies,
}

/// The factor of attention scores, in files without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionScale {
    /// `1 / sqrt(numbers of a key)`.
    InverseRoot,
    One,
}

/// The treatment of values before they are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    Plain,
    /// Each head's values are normalised, without a gain. A layer without `attn_v` uses its keys,
    /// before their own norm (Gemma 4).
    Normalised,
}

/// The source of an indexer's queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexerKind {
    /// From the compressed query of latent attention, and rotated in this style. A layer without an
    /// indexer uses the choice of the last layer with one (DeepSeek V3.2, GLM-5).
    Latent(RopeStyle),
    /// From the residual stream, in the layers that have one (MiniMax M3).
    Blocks,
    /// As `Latent`, not rotated, over pools of neighbouring keys. Positions after the last pool are
    /// visible too (GLM-5.3-Flash).
    Pools,
    /// From the residual stream, over the means of neighbouring keys, which are then normalised and
    /// rotated. Positions after the last mean are visible too (Qwen3.8-Flash-Next).
    Means,
    /// From the compressed query, over entries compressed like the layer's own: layers see a window
    /// and blocks before it (DeepSeek V4).
    Compressed,
}

/// How halves of layers mix several residual streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// By weights and a matrix of streams (manifold-constrained hyper-connections, arXiv
    /// 2512.24880; DeepSeek V4).
    Matrix,
    /// By gates on their elements, which replace a half's norm (Qwen3.8-Flash-Next).
    Gates,
}

/// The recurrence of layers with a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrenceKind {
    /// Gated delta nets (arXiv 2412.06464).
    GatedDelta(HeadOrder),
    /// The same with a decay for each element of the key (Kimi Delta Attention, arXiv 2510.26692).
    KimiDelta,
    /// State space duality (Mamba-2, arXiv 2405.21060).
    Mamba,
    /// A short convolution between two gates (LFM2).
    ShortConvolution,
}

/// The key head of each value head in a gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// The value heads of a key head are adjacent (Qwen3-Next).
    Grouped,
    /// Value head `j` has key head `j mod key heads` (Qwen3.5, as converted).
    Tiled,
}

/// The activation of a feed-forward block, between its two products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Silu,
    /// The same, but the gate is limited before it and not after (DeepSeek V4).
    LimitedFirst,
    /// The tanh approximation of the Gaussian error unit (Gemma).
    Gelu,
    /// The Gaussian error unit as it is defined (BERT).
    ExactGelu,
    /// SiLU with soft limits on the gate and on the other half, read from the file (Kimi K3).
    Situ,
    /// The square of positive values, 0 for others (Nemotron-H), without a gate.
    SquaredRelu,
    /// gpt-oss's gate, with both its inputs limited.
    ClampedSwiglu {
        alpha: f32,
        limit: f32,
    },
}

/// The function from router logits to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts (Mixtral, Qwen, DeepSeek-V2).
    Softmax,
    /// Each expert's sigmoid (DeepSeek-V3, GLM-4.5, MiniMax-M2).
    Sigmoid,
    /// The largest logits, then softmax over only those (gpt-oss).
    SoftmaxOfChosen,
    /// One expert at a time, weighted among the logits near its own (SparseMixer, Phi-3.5-MoE).
    SparseMixer,
    /// The largest logits, then the sigmoid of only those (Llama 4).
    SigmoidOfChosen,
    /// The root of each expert's softplus (DeepSeek V4).
    SqrtSoftplus,
}

/// The norm of queries and keys. All but two variants precede the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    Never,
    /// Head by head.
    Heads,
    /// Head by head, in files with these norms.
    HeadsIfPresent,
    /// Head by head, after the rotation (Hunyuan).
    HeadsAfterRotation,
    /// All heads as one vector.
    Whole,
    /// Head by head without a gain, after the rotation, in layers that rotate. Models of 128
    /// experts have none (Llama 4).
    L2AfterRotation,
}

/// The tensors of a layer's norms, before and after each of its halves.
#[derive(Debug)]
pub struct Norms {
    pub attention: Option<&'static str>,
    pub after_attention: Option<&'static str>,
    /// Of the residual stream with the half's output (BERT).
    pub after_attention_sum: Option<&'static str>,
    pub feed_forward: Option<&'static str>,
    pub after_feed_forward: Option<&'static str>,
    pub after_feed_forward_sum: Option<&'static str>,
}

/// The kind of the norms of the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    RootMeanSquare,
    /// Layer norms, with biases where the file has them (Cohere, Phi-3.5-MoE).
    Layer,
}

/// The layers that see only a sliding window, in files that have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// None, whatever the file contains.
    Never,
    Always,
    /// All but the last of every this many, unless the file has its own pattern.
    AllButEvery(usize),
    /// All but the first of every this many (ModernBERT).
    AllButEveryFirst(usize),
    /// All but the last of every `every` layers see the current chunk of `size` positions. A window
    /// of 0 in the file turns chunks off (Llama 4).
    ChunksButEvery {
        every: usize,
        size: usize,
    },
}

/// The rotation of layers with a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LocalRope {
    /// The same as all others.
    Same,
    /// With the same base, but not stretched (OLMo 3).
    Unscaled,
    /// With this base, or the file's, not stretched (Gemma 3).
    Base(f32),
    /// A separate base, not stretched, for the layers that do not compress, whatever their windows
    /// (DeepSeek V4).
    Uncompressed,
}

/// Whether an architecture has experts, and the defaults for its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertKind {
    Never,
    /// In files with experts (Mixtral is a `llama`).
    IfPresent(ExpertDefaults),
    Always(ExpertDefaults),
}

/// The defaults for missing metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertDefaults {
    pub gating: Gating,
    pub normalised: bool,
    /// There is a shared expert, even if the file has no key for it (Llama 4).
    pub shared: bool,
    /// A shared expert has its own gate (Qwen2-MoE).
    pub shared_gate: bool,
    /// The weights multiply an expert's input instead of its output (Llama 4).
    pub weighs_inputs: bool,
}
