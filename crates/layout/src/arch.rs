//! The supported architectures: a table of switches over one decoder.
//!
//! A row says what a file's metadata does not: how its published model is wired. How to add one is
//! written in `docs/adding-a-model.md`.

use crate::names;

mod families;
mod find;

pub use find::find;

/// What distinguishes one architecture from the others.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture` in the file, and the prefix of its keys.
    pub name: &'static str,
    pub rope_style: RopeStyle,
    /// Keys and values come from one compressed vector a position (DeepSeek-V2's MLA).
    pub latent: bool,
    pub qk_norm: QkNorm,
    pub norms: Norms,
    pub norm_kind: NormKind,
    /// The epsilon of norms after a half of a layer, where it is not the file's (Muse Glimmer).
    pub after_norms_eps: Option<f32>,
    /// Attention and feed-forward block read the same norm, and both add to the residual stream
    /// (Cohere).
    pub parallel: bool,
    pub activation: Activation,
    pub fused: Fused,
    pub windows: Windows,
    pub local_rope: LocalRope,
    pub rotation: Rotation,
    pub temperature: TemperatureRule,
    /// Layers that see everything rotate half as many numbers as the others (Step 3.5).
    pub half_rotated_without_window: bool,
    pub attention_scale: AttentionScale,
    pub values: Values,
    pub gated_attention: GatedAttention,
    /// Layers see positions that an indexer chooses.
    pub indexer: Option<IndexerKind>,
    /// What the layers do that carry a state instead of attending.
    pub recurrence: Option<RecurrenceKind>,
    /// Each block is one half of a layer, with `attn_norm` before it (Nemotron-H).
    pub single_halves: bool,
    /// Feed-forward blocks multiply by a gate.
    pub gated_feed_forward: bool,
    /// The norm before the output matrix.
    pub output_norm: &'static str,
    /// Embeddings are multiplied by the square root of their width (Gemma).
    pub embedding_times_sqrt_width: bool,
    /// Embeddings pass an RMS norm without a gain (Muse Glimmer).
    pub embedding_norm: bool,
    pub logit_scale: LogitScale,
    pub experts: ExpertKind,
    /// A dense block stands beside a layer's experts, each with norms of its own, and the router
    /// reads the residual stream, normalised by itself (Gemma 4).
    pub dense_beside_experts: bool,
}

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
    /// In `attn_gate` (Muse Glimmer).
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
    Gelu,
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

const PRE_NORMS: Norms = Norms {
    attention: Some("attn_norm"),
    after_attention: None,
    feed_forward: Some("ffn_norm"),
    after_feed_forward: None,
};

/// Some converters call the norm before the feed-forward block by where else it could be.
const PRE_NORMS_RENAMED: Norms = Norms { feed_forward: Some("post_attention_norm"), ..PRE_NORMS };

/// Norms before and after each half.
const BOTH_NORMS: Norms = Norms {
    after_attention: Some("post_attention_norm"),
    after_feed_forward: Some("post_ffw_norm"),
    ..PRE_NORMS
};

const POST_NORMS: Norms = Norms { attention: None, feed_forward: None, ..BOTH_NORMS };

const SOFTMAX: ExpertDefaults = ExpertDefaults {
    gating: Gating::Softmax,
    normalised: true,
    shared: false,
    shared_gate: false,
    weighs_inputs: false,
};
const SIGMOID: ExpertDefaults = ExpertDefaults { gating: Gating::Sigmoid, ..SOFTMAX };

const GPT_OSS_SWIGLU: Activation = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };

/// Llama: what most others differ from in a switch or two.
const LLAMA: Arch = Arch {
    name: "llama",
    rope_style: RopeStyle::Interleaved,
    latent: false,
    qk_norm: QkNorm::Never,
    norms: PRE_NORMS,
    norm_kind: NormKind::RootMeanSquare,
    after_norms_eps: None,
    parallel: false,
    activation: Activation::Silu,
    fused: Fused::Nothing,
    windows: Windows::Always,
    local_rope: LocalRope::Same,
    rotation: Rotation::Always,
    temperature: TemperatureRule::FromFile,
    half_rotated_without_window: false,
    attention_scale: AttentionScale::InverseRoot,
    values: Values::Plain,
    gated_attention: GatedAttention::Never,
    indexer: None,
    recurrence: None,
    single_halves: false,
    gated_feed_forward: true,
    output_norm: names::OUTPUT_NORM,
    embedding_times_sqrt_width: false,
    embedding_norm: false,
    logit_scale: LogitScale::Divides,
    experts: ExpertKind::IfPresent(SOFTMAX),
    dense_beside_experts: false,
};

const QWEN2: Arch = Arch {
    name: "qwen2",
    rope_style: RopeStyle::Neox,
    windows: Windows::Never,
    experts: ExpertKind::Never,
    ..LLAMA
};

const QWEN3: Arch = Arch { name: "qwen3", qk_norm: QkNorm::Heads, ..QWEN2 };

const GEMMA3: Arch = Arch {
    name: "gemma3",
    qk_norm: QkNorm::Heads,
    norms: BOTH_NORMS,
    activation: Activation::Gelu,
    windows: Windows::AllButEvery(6),
    local_rope: LocalRope::Base(10_000.0),
    embedding_times_sqrt_width: true,
    ..QWEN2
};

const DEEPSEEK2: Arch = Arch {
    name: "deepseek2",
    latent: true,
    experts: ExpertKind::Always(ExpertDefaults { normalised: false, ..SOFTMAX }),
    ..LLAMA
};

const QWEN35: Arch = Arch {
    name: "qwen35",
    norms: PRE_NORMS_RENAMED,
    gated_attention: GatedAttention::InQueries,
    recurrence: Some(RecurrenceKind::GatedDelta(HeadOrder::Tiled)),
    ..QWEN3
};

const NEMOTRON_H: Arch = Arch {
    name: "nemotron_h",
    norms: Norms { feed_forward: PRE_NORMS.attention, ..PRE_NORMS },
    activation: Activation::SquaredRelu,
    rotation: Rotation::Never,
    recurrence: Some(RecurrenceKind::Mamba),
    single_halves: true,
    gated_feed_forward: false,
    experts: ExpertKind::Never,
    ..LLAMA
};

const LFM2: Arch = Arch {
    name: "lfm2",
    qk_norm: QkNorm::Heads,
    recurrence: Some(RecurrenceKind::ShortConvolution),
    output_norm: names::EMBEDDING_NORM,
    ..QWEN2
};

const ARCHS: &[Arch] = &[
    LLAMA,
    QWEN2,
    QWEN3,
    Arch {
        name: "qwen2moe",
        experts: ExpertKind::Always(ExpertDefaults {
            normalised: false,
            shared_gate: true,
            ..SOFTMAX
        }),
        ..QWEN2
    },
    Arch { name: "qwen3moe", experts: ExpertKind::Always(SOFTMAX), ..QWEN3 },
    Arch {
        name: "olmo2",
        qk_norm: QkNorm::Whole,
        norms: POST_NORMS,
        // OLMo 3 calls itself so too, and has windows.
        windows: Windows::AllButEvery(4),
        local_rope: LocalRope::Unscaled,
        ..QWEN2
    },
    Arch { name: "phi3", fused: Fused::All, windows: Windows::Always, ..QWEN2 },
    GEMMA3,
    Arch {
        name: "gemma4",
        attention_scale: AttentionScale::One,
        values: Values::Normalised,
        experts: ExpertKind::IfPresent(SOFTMAX),
        dense_beside_experts: true,
        ..GEMMA3
    },
    Arch { name: "granite", experts: ExpertKind::Never, ..LLAMA },
    Arch {
        name: "smollm3",
        rotation: Rotation::AllButEvery(4),
        experts: ExpertKind::Never,
        ..LLAMA
    },
    Arch {
        name: "glm4moe",
        qk_norm: QkNorm::HeadsIfPresent,
        norms: PRE_NORMS_RENAMED,
        experts: ExpertKind::Always(SIGMOID),
        ..QWEN2
    },
    Arch {
        name: "step35",
        qk_norm: QkNorm::HeadsIfPresent,
        windows: Windows::AllButEvery(4),
        local_rope: LocalRope::Base(10_000.0),
        half_rotated_without_window: true,
        experts: ExpertKind::Always(SIGMOID),
        ..QWEN2
    },
    Arch {
        name: "mimo2",
        windows: Windows::AllButEvery(4),
        local_rope: LocalRope::Base(10_000.0),
        experts: ExpertKind::Always(SIGMOID),
        ..QWEN2
    },
    Arch {
        name: "minimax-m2",
        qk_norm: QkNorm::Whole,
        experts: ExpertKind::Always(SIGMOID),
        ..QWEN2
    },
    Arch {
        name: "gpt-oss",
        norms: PRE_NORMS_RENAMED,
        activation: GPT_OSS_SWIGLU,
        windows: Windows::AllButEvery(2),
        experts: ExpertKind::Always(ExpertDefaults {
            gating: Gating::SoftmaxOfChosen,
            normalised: false,
            ..SOFTMAX
        }),
        ..QWEN2
    },
    DEEPSEEK2,
    Arch { name: "deepseek32", indexer: Some(IndexerKind::Latent(RopeStyle::Neox)), ..DEEPSEEK2 },
    Arch {
        name: "glm-dsa",
        indexer: Some(IndexerKind::Latent(RopeStyle::Interleaved)),
        experts: ExpertKind::Always(SIGMOID),
        ..DEEPSEEK2
    },
    Arch {
        name: "minimax-m3",
        qk_norm: QkNorm::Heads,
        indexer: Some(IndexerKind::Blocks),
        activation: GPT_OSS_SWIGLU,
        experts: ExpertKind::Always(SIGMOID),
        ..QWEN2
    },
    QWEN35,
    Arch {
        name: "qwen35moe",
        experts: ExpertKind::Always(ExpertDefaults { shared_gate: true, ..SOFTMAX }),
        ..QWEN35
    },
    Arch {
        name: "qwen3next",
        recurrence: Some(RecurrenceKind::GatedDelta(HeadOrder::Grouped)),
        experts: ExpertKind::Always(ExpertDefaults { shared_gate: true, ..SOFTMAX }),
        ..QWEN35
    },
    Arch {
        name: "granitehybrid",
        rotation: Rotation::UnlessUntrained,
        recurrence: Some(RecurrenceKind::Mamba),
        ..LLAMA
    },
    NEMOTRON_H,
    Arch { name: "nemotron_h_moe", experts: ExpertKind::Always(SIGMOID), ..NEMOTRON_H },
    LFM2,
    Arch { name: "lfm2moe", experts: ExpertKind::Always(SIGMOID), ..LFM2 },
    Arch {
        name: "kimi-linear",
        latent: true,
        rotation: Rotation::Never,
        recurrence: Some(RecurrenceKind::KimiDelta),
        experts: ExpertKind::Always(SIGMOID),
        ..LLAMA
    },
];

impl Arch {
    /// Whether the sizes in `windows` are those of chunks.
    pub fn has_chunks(&self) -> bool {
        matches!(self.windows, Windows::ChunksButEvery { .. })
    }
}
