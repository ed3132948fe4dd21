//! The supported architectures: a table of switches over one decoder.
//!
//! A row describes the wiring of the published model, which a file's metadata lacks.
//! `docs/adding-a-model.md` explains how to add one.

use crate::file::names;

mod families;
mod find;
mod switches;

pub use find::{find, names as architectures};
pub use switches::*;

/// The switches of one architecture.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture` in the file, and the prefix of its keys.
    pub name: &'static str,
    /// Every row sees its whole text, and the model makes vectors of texts instead of tokens.
    pub is_encoder: bool,
    pub rope_style: RopeStyle,
    /// Keys and values are projected from one compressed vector a position (DeepSeek-V2's MLA).
    pub latent: bool,
    pub qk_norm: QkNorm,
    pub norms: Norms,
    pub norm_kind: NormKind,
    /// The epsilon of norms after a half of a layer, if it differs from the file's (Muse Glimmer).
    pub after_norms_eps: Option<f32>,
    /// Attention and feed-forward block read the same norm, and both add to the residual stream
    /// (Cohere).
    pub parallel: bool,
    pub activation: Activation,
    pub fused: Fused,
    pub windows: Windows,
    pub local_rope: LocalRope,
    pub rotation: Rotation,
    /// The sections of M-RoPE are runs of pairs (GLM), or else pairs take turns (Qwen).
    pub sections_in_runs: bool,
    pub temperature: TemperatureRule,
    /// Layers with full attention rotate half as many elements as the others (Step 3.5).
    pub half_rotated_without_window: bool,
    pub attention_scale: AttentionScale,
    pub values: Values,
    pub gated_attention: GatedAttention,
    /// Layers attend to positions, or blocks of them, chosen by an indexer.
    pub indexer: Option<IndexerKind>,
    /// The recurrence of layers that carry a state instead of attending.
    pub recurrence: Option<RecurrenceKind>,
    /// The output gates of a gated delta net are sigmoids (Qwen3.8-Flash-Next).
    pub sigmoid_gates: bool,
    /// Files have the decay rates of states without their minus sign (Ling 3).
    pub positive_decays: bool,
    /// Each block is one half of a layer, with `attn_norm` before it (Nemotron-H).
    pub single_halves: bool,
    /// Feed-forward blocks multiply by a gate.
    pub gated_feed_forward: bool,
    /// The norm before the output matrix, if there is one.
    pub output_norm: Option<&'static str>,
    /// Embeddings are multiplied by the square root of their width (Gemma).
    pub embedding_times_sqrt_width: bool,
    /// Embeddings pass an RMS norm without a gain (Muse Glimmer).
    pub embedding_norm: bool,
    /// A layer may add embeddings of the last few tokens (Qwen3.8-Flash-Next).
    pub ngrams: bool,
    pub logit_scale: LogitScale,
    /// There are several residual streams.
    pub streams: Option<StreamKind>,
    /// Residual streams are banked at a fixed interval of layers, and all later layers attend to
    /// them (Kimi K3).
    pub banks: bool,
    pub experts: ExpertKind,
    /// A dense block is beside a layer's experts, each with its own norms, and the router reads
    /// the residual stream with a norm of its own (Gemma 4).
    pub dense_beside_experts: bool,
    /// An MTP block reads the model's residual streams, instead of the last norm's output (Step
    /// 3.5, MiMo 2, DeepSeek V4).
    pub mtp_reads_residual: bool,
    /// Attention reads a token's embedding beside the residual stream, as many numbers again
    /// (EAGLE-3).
    pub reads_token: bool,
}

const PRE_NORMS: Norms = Norms {
    attention: Some("attn_norm"),
    after_attention: None,
    after_attention_sum: None,
    feed_forward: Some("ffn_norm"),
    after_feed_forward: None,
    after_feed_forward_sum: None,
};

/// Some converters name the norm before the feed-forward block after another position.
const PRE_NORMS_RENAMED: Norms = Norms { feed_forward: Some("post_attention_norm"), ..PRE_NORMS };

/// Norms before and after each half.
const BOTH_NORMS: Norms = Norms {
    after_attention: Some("post_attention_norm"),
    after_feed_forward: Some("post_ffw_norm"),
    ..PRE_NORMS
};

const NO_NORMS: Norms = Norms { attention: None, feed_forward: None, ..PRE_NORMS };

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

/// Llama: the base of most others, which differ in a switch or two.
const LLAMA: Arch = Arch {
    name: "llama",
    is_encoder: false,
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
    sections_in_runs: false,
    half_rotated_without_window: false,
    attention_scale: AttentionScale::InverseRoot,
    values: Values::Plain,
    gated_attention: GatedAttention::Never,
    indexer: None,
    recurrence: None,
    sigmoid_gates: false,
    positive_decays: false,
    single_halves: false,
    gated_feed_forward: true,
    output_norm: Some(names::OUTPUT_NORM),
    embedding_times_sqrt_width: false,
    embedding_norm: false,
    ngrams: false,
    logit_scale: LogitScale::Divides,
    streams: None,
    banks: false,
    experts: ExpertKind::IfPresent(SOFTMAX),
    dense_beside_experts: false,
    mtp_reads_residual: false,
    reads_token: false,
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

const GEMMA4: Arch = Arch {
    name: "gemma4",
    attention_scale: AttentionScale::One,
    values: Values::Normalised,
    experts: ExpertKind::IfPresent(SOFTMAX),
    dense_beside_experts: true,
    ..GEMMA3
};

const LFM2: Arch = Arch {
    name: "lfm2",
    qk_norm: QkNorm::Heads,
    recurrence: Some(RecurrenceKind::ShortConvolution),
    output_norm: Some(names::EMBEDDING_NORM),
    ..QWEN2
};

const KIMI_LINEAR: Arch = Arch {
    name: "kimi-linear",
    latent: true,
    rotation: Rotation::Never,
    recurrence: Some(RecurrenceKind::KimiDelta),
    experts: ExpertKind::Always(SIGMOID),
    ..LLAMA
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
        // OLMo 3 has the same name, and windows.
        windows: Windows::AllButEvery(4),
        local_rope: LocalRope::Unscaled,
        ..QWEN2
    },
    Arch { name: "phi3", fused: Fused::All, windows: Windows::Always, ..QWEN2 },
    GEMMA3,
    GEMMA4,
    Arch { name: "granite", experts: ExpertKind::Never, ..LLAMA },
    Arch {
        name: "smollm3",
        rotation: Rotation::AllButEvery(4),
        experts: ExpertKind::Never,
        ..LLAMA
    },
    Arch {
        name: "glm4moe",
        sections_in_runs: true,
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
        mtp_reads_residual: true,
        ..QWEN2
    },
    Arch {
        name: "mimo2",
        windows: Windows::AllButEvery(4),
        local_rope: LocalRope::Base(10_000.0),
        experts: ExpertKind::Always(SIGMOID),
        mtp_reads_residual: true,
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
        name: "deepseek4",
        activation: Activation::LimitedFirst,
        local_rope: LocalRope::Uncompressed,
        indexer: Some(IndexerKind::Compressed),
        streams: Some(StreamKind::Matrix),
        experts: ExpertKind::Always(ExpertDefaults { gating: Gating::SqrtSoftplus, ..SOFTMAX }),
        mtp_reads_residual: true,
        ..LLAMA
    },
    Arch {
        name: "glm5-next",
        latent: true,
        activation: Activation::LimitedFirst,
        rotation: Rotation::Never,
        recurrence: Some(RecurrenceKind::KimiDelta),
        indexer: Some(IndexerKind::Pools),
        streams: Some(StreamKind::Matrix),
        experts: ExpertKind::Always(SIGMOID),
        ..LLAMA
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
        name: "qwen4exp",
        norms: NO_NORMS,
        indexer: Some(IndexerKind::Means),
        sigmoid_gates: true,
        output_norm: None,
        ngrams: true,
        streams: Some(StreamKind::Gates),
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
    KIMI_LINEAR,
    Arch {
        name: "kimi-k3",
        activation: Activation::Situ,
        gated_attention: GatedAttention::Apart,
        banks: true,
        ..KIMI_LINEAR
    },
];

impl Arch {
    /// Whether the sizes in `windows` are those of chunks.
    pub fn has_chunks(&self) -> bool {
        matches!(self.windows, Windows::ChunksButEvery { .. })
    }
}
