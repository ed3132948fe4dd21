//! Families that differ in a few switches from a row of the main table.

use super::{
    Activation, Arch, BOTH_NORMS, DEEPSEEK2, ExpertDefaults, ExpertKind, Fused, GEMMA3, GEMMA4,
    GatedAttention, Gating, KIMI_LINEAR, LLAMA, LocalRope, LogitScale, NormKind, Norms, POST_NORMS,
    PRE_NORMS, PRE_NORMS_RENAMED, QWEN2, QWEN3, QkNorm, RopeStyle, Rotation, SIGMOID, SOFTMAX,
    TemperatureRule, Windows,
};

/// Llama without experts and windows: only Llama's and Mistral's files may have them.
const DENSE_LLAMA: Arch = Arch { windows: Windows::Never, experts: ExpertKind::Never, ..LLAMA };

/// The norms before its attention are among the tensors with which a row begins.
pub(super) const EAGLE3: Arch = Arch {
    name: "eagle3",
    norms: Norms { attention: None, ..PRE_NORMS },
    mtp_reads_residual: true,
    reads_token: true,
    ..DENSE_LLAMA
};

pub(super) const GEMMA4_ASSISTANT: Arch =
    Arch { name: "gemma4-assistant", experts: ExpertKind::Never, ..GEMMA4 };

const HUNYUAN_DENSE: Arch =
    Arch { name: "hunyuan-dense", qk_norm: QkNorm::HeadsAfterRotation, ..QWEN2 };

const COMMAND_R: Arch = Arch {
    name: "command-r",
    norms: Norms { feed_forward: None, ..PRE_NORMS },
    norm_kind: NormKind::Layer,
    parallel: true,
    logit_scale: LogitScale::Multiplies,
    ..DENSE_LLAMA
};

/// Each half's output is added first, and the sum is normalised.
const SUM_NORMS: Norms = Norms {
    attention: None,
    after_attention_sum: Some("attn_output_norm"),
    feed_forward: None,
    after_feed_forward_sum: Some("layer_output_norm"),
    ..PRE_NORMS
};

/// BERT, RoBERTa and XLM-RoBERTa: learned positions, and no gate.
const BERT: Arch = Arch {
    name: "bert",
    is_encoder: true,
    rope_style: RopeStyle::Neox,
    norms: SUM_NORMS,
    norm_kind: NormKind::Layer,
    activation: Activation::ExactGelu,
    windows: Windows::Never,
    rotation: Rotation::Never,
    gated_feed_forward: false,
    output_norm: None,
    experts: ExpertKind::Never,
    ..LLAMA
};

pub(super) const ARCHS: &[Arch] = &[
    // Ling 3: as Kimi Linear, with rotations and a gate for each head in layers that attend.
    Arch { name: "bailingmoe3", rotation: Rotation::Always, positive_decays: true, ..KIMI_LINEAR },
    Arch { name: "seed_oss", norms: PRE_NORMS_RENAMED, ..QWEN2 },
    Arch { name: "ernie4_5", ..DENSE_LLAMA },
    Arch { name: "ernie4_5-moe", experts: ExpertKind::Always(SOFTMAX), ..DENSE_LLAMA },
    Arch {
        name: "arcee",
        activation: Activation::SquaredRelu,
        gated_feed_forward: false,
        ..DENSE_LLAMA
    },
    Arch { name: "granitemoe", experts: ExpertKind::Always(SOFTMAX), ..DENSE_LLAMA },
    Arch {
        name: "olmoe",
        qk_norm: QkNorm::Whole,
        experts: ExpertKind::Always(ExpertDefaults { normalised: false, ..SOFTMAX }),
        ..QWEN2
    },
    // For text, all sections of the rotation have the same position.
    Arch { name: "qwen3vl", ..QWEN3 },
    Arch { name: "qwen3vlmoe", experts: ExpertKind::Always(SOFTMAX), ..QWEN3 },
    Arch { name: "hy_v3", experts: ExpertKind::Always(SIGMOID), ..QWEN3 },
    HUNYUAN_DENSE,
    Arch { name: "hunyuan-moe", experts: ExpertKind::Always(SOFTMAX), ..HUNYUAN_DENSE },
    Arch {
        name: "glm4",
        norms: BOTH_NORMS,
        fused: Fused::FeedForward,
        sections_in_runs: true,
        ..DENSE_LLAMA
    },
    Arch {
        name: "exaone4",
        qk_norm: QkNorm::Heads,
        norms: POST_NORMS,
        windows: Windows::AllButEvery(4),
        rotation: Rotation::InWindows,
        ..QWEN2
    },
    COMMAND_R,
    Arch {
        name: "cohere2",
        windows: Windows::AllButEvery(4),
        rotation: Rotation::InWindows,
        ..COMMAND_R
    },
    Arch {
        name: "muse-glimmer",
        qk_norm: QkNorm::Heads,
        norms: BOTH_NORMS,
        after_norms_eps: Some(1e-8),
        windows: Windows::AllButEvery(4),
        rotation: Rotation::InWindows,
        gated_attention: GatedAttention::Apart,
        embedding_norm: true,
        logit_scale: LogitScale::Multiplies,
        ..DENSE_LLAMA
    },
    Arch {
        name: "phimoe",
        norm_kind: NormKind::Layer,
        experts: ExpertKind::Always(ExpertDefaults {
            gating: Gating::SparseMixer,
            normalised: false,
            ..SOFTMAX
        }),
        ..QWEN2
    },
    Arch {
        name: "llama4",
        qk_norm: QkNorm::L2AfterRotation,
        windows: Windows::ChunksButEvery { every: 4, size: 8192 },
        rotation: Rotation::InWindows,
        temperature: TemperatureRule::Unrotated { scale: 0.1, length: 8192 },
        experts: ExpertKind::IfPresent(ExpertDefaults {
            gating: Gating::SigmoidOfChosen,
            normalised: false,
            shared: true,
            weighs_inputs: true,
            ..SOFTMAX
        }),
        ..LLAMA
    },
    Arch { name: "mistral3", windows: Windows::Never, ..LLAMA },
    Arch { name: "mistral4", ..DEEPSEEK2 },
    Arch {
        name: "gemma2",
        norms: BOTH_NORMS,
        activation: Activation::Gelu,
        windows: Windows::AllButEvery(2),
        embedding_times_sqrt_width: true,
        ..QWEN2
    },
    BERT,
    Arch {
        name: "nomic-bert",
        activation: Activation::Silu,
        rotation: Rotation::Always,
        gated_feed_forward: true,
        ..BERT
    },
    Arch { name: "jina-bert-v3", rotation: Rotation::Always, ..BERT },
    Arch {
        name: "nomic-bert-moe",
        rotation: Rotation::Always,
        experts: ExpertKind::Always(ExpertDefaults { normalised: false, ..SOFTMAX }),
        ..BERT
    },
    Arch {
        name: "modern-bert",
        norms: PRE_NORMS,
        fused: Fused::FeedForward,
        windows: Windows::AllButEveryFirst(3),
        local_rope: LocalRope::Base(10_000.0),
        rotation: Rotation::Always,
        gated_feed_forward: true,
        output_norm: LLAMA.output_norm,
        ..BERT
    },
    Arch {
        name: "eurobert",
        is_encoder: true,
        rope_style: RopeStyle::Neox,
        windows: Windows::Never,
        experts: ExpertKind::Never,
        ..LLAMA
    },
    Arch { name: "gemma-embedding", is_encoder: true, ..GEMMA3 },
];
