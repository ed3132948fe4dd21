//! What the switches of an architecture can be.

/// Which numbers of a head form a rotated pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: (0, 1), (2, 3), ... GGUF's `norm` (Llama, Mistral).
    Interleaved,
    /// Halves: (0, n/2), (1, n/2 + 1), ... GGUF's `neox` (Qwen, Gemma, gpt-oss).
    Neox,
}

/// Which matrices are stacked in one tensor, row below row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fused {
    Nothing,
    /// Gate and up, in `ffn_up` (GLM-4).
    FeedForward,
    /// Gate and up in `ffn_up`, and q, k and v in `attn_qkv` (Phi-3).
    All,
}

/// Which layers rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    Always,
    /// All but one in so many, the last of them (SmolLM3).
    AllButEvery(usize),
    /// All, unless the file says `rope.scaling.finetuned = false` (Granite 4).
    UnlessUntrained,
    /// Those with a window. In files without windows, all (EXAONE 4).
    InWindows,
    Never,
}

/// Which layers scale queries by an attention temperature, which grows with the position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TemperatureRule {
    /// All, in files with `attention.temperature_scale` (Mistral 3).
    FromFile,
    /// Those without rotation, by these constants (Llama 4).
    Unrotated { scale: f32, length: u32 },
}

/// Where a file has the gates of attention. Their sigmoid multiplies the heads' outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatedAttention {
    Never,
    /// `attn_q` holds each head's query and then its gate (Qwen3-Next).
    InQueries,
    /// In `attn_gate` (Muse Glimmer, Kimi K3).
    Apart,
}

/// What the file's `logit_scale` does to logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitScale {
    /// Granite.
    Divides,
    /// Cohere.
    Multiplies,
}

/// What attention scores are multiplied by, in files that do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionScale {
    /// `1 / sqrt(numbers of a key)`.
    InverseRoot,
    One,
}

/// What becomes of values before they are cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    Plain,
    /// Each head's are normalised, without a gain; a layer without `attn_v` takes its keys for
    /// them, as they are before their own norm (Gemma 4).
    Normalised,
}

/// How an indexer's queries and keys are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexerKind {
    /// From the compressed query of latent attention, and rotated in this style. Layers without an
    /// indexer follow the choice of the last one before them (DeepSeek V3.2, GLM-5).
    Latent(RopeStyle),
    /// From the residual stream, in the layers that have one (MiniMax M3).
    Blocks,
    /// As `Latent`, not rotated, over pools of neighbouring keys, and what is after the last pool
    /// is seen too (GLM-5.3-Flash).
    Pools,
    /// From the residual stream, over the means of neighbouring keys, which are normalised and
    /// rotated then; what is after the last of them is seen too (Qwen3.8-Flash-Next).
    Means,
    /// From the compressed query, over entries that are compressed as the layer's own are: layers
    /// see a window and blocks before it (DeepSeek V4).
    Compressed,
}

/// How halves of layers mix several residual streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// By weights and a matrix of streams (manifold-constrained hyper-connections, arXiv
    /// 2512.24880; DeepSeek V4).
    Matrix,
    /// By gates on their numbers, which take the place of a half's norm (Qwen3.8-Flash-Next).
    Gates,
}

/// How layers with a state compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrenceKind {
    /// Gated delta nets (arXiv 2412.06464).
    GatedDelta(HeadOrder),
    /// The same with a decay for each number of the key (Kimi Delta Attention, arXiv 2510.26692).
    KimiDelta,
    /// State space duality (Mamba-2, arXiv 2405.21060).
    Mamba,
    /// A short convolution between two gates (LFM2).
    ShortConvolution,
}

/// Which key head a value head of a gated delta net belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// Those of a key head stand together (Qwen3-Next).
    Grouped,
    /// Value head `j` has key head `j mod key heads` (Qwen3.5, as it is converted).
    Tiled,
}

/// What a feed-forward block does between its two products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Silu,
    /// The same, but a limit is put on the gate before it and not after (DeepSeek V4).
    LimitedFirst,
    Gelu,
    /// SiLU with soft limits on the gate and on its other half, which the file names (Kimi K3).
    Situ,
    /// The square of what is above 0 (Nemotron-H), without a gate.
    SquaredRelu,
    /// gpt-oss's gate, with both its inputs limited.
    ClampedSwiglu {
        alpha: f32,
        limit: f32,
    },
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts (Mixtral, Qwen, DeepSeek-V2).
    Softmax,
    /// Each expert's sigmoid (DeepSeek-V3, GLM-4.5, MiniMax-M2).
    Sigmoid,
    /// The largest logits, then softmax over those alone (gpt-oss).
    SoftmaxOfChosen,
    /// One expert at a time, weighted among the logits near its own (SparseMixer, Phi-3.5-MoE).
    SparseMixer,
    /// The largest logits, then the sigmoid of those alone (Llama 4).
    SigmoidOfChosen,
    /// The root of each expert's softplus (DeepSeek V4).
    SqrtSoftplus,
}

/// How queries and keys are normalised. All but two do so before the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    Never,
    /// Head by head.
    Heads,
    /// Head by head in the files that have the norms.
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
    pub feed_forward: Option<&'static str>,
    pub after_feed_forward: Option<&'static str>,
}

/// The kind of the norms of the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    RootMeanSquare,
    /// Layer norms, with biases where the file has them (Cohere, Phi-3.5-MoE).
    Layer,
}

/// Which layers see only the positions of a sliding window, in files that name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// None, whatever the file names.
    Never,
    Always,
    /// All but the last of so many, unless the file has a pattern of its own.
    AllButEvery(usize),
    /// All but the last of `every` layers see the current chunk of `size` positions. A file turns
    /// chunks off by a window of 0 (Llama 4).
    ChunksButEvery {
        every: usize,
        size: usize,
    },
}

/// How layers with a window rotate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LocalRope {
    /// As all others.
    Same,
    /// With the others' base, but not stretched (OLMo 3).
    Unscaled,
    /// With this base, or the one that the file names, not stretched (Gemma 3).
    Base(f32),
    /// Not by their windows, but those that do not compress: with a base of their own, not
    /// stretched (DeepSeek V4).
    Uncompressed,
}

/// Whether an architecture has experts, and what its files leave unsaid about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertKind {
    Never,
    /// In the files that say so (Mixtral is a `llama`).
    IfPresent(ExpertDefaults),
    Always(ExpertDefaults),
}

/// What holds unless the file says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertDefaults {
    pub gating: Gating,
    pub normalised: bool,
    /// There is a shared expert, also where the file has no key for it (Llama 4).
    pub shared: bool,
    /// A shared expert has a gate of its own (Qwen2-MoE).
    pub shared_gate: bool,
    /// The weights multiply an expert's input instead of its output (Llama 4).
    pub weighs_inputs: bool,
}
