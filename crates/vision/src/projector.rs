//! The known towers, and how they differ.
//!
//! A tower is named by its projector, the part that turns its output into rows of the model.

use kernels::Activation;

/// A kind of tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projector {
    /// Qwen3-VL, Qwen 3.5 and later.
    Qwen3Vl,
    /// Gemma 4.
    Gemma4,
    /// Kimi K2.5.
    KimiK25,
    /// Gemma 3.
    Gemma3,
    /// Pixtral, Mistral 3.
    Pixtral,
    /// Llama 4.
    Llama4,
    /// GLM-4.1V to GLM-4.6V.
    Glm4v,
}

/// How an axis of patches is filtered from a table of learned positions with another length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// The ends of both coincide.
    Linear,
    /// The centres of both grids' cells lie over each other; the kernel of Keys with a = -0.75.
    Cubic,
}

const ALL: [(&str, Projector); 7] = [
    ("qwen3vl_merger", Projector::Qwen3Vl),
    ("gemma4v", Projector::Gemma4),
    ("kimik25", Projector::KimiK25),
    ("gemma3", Projector::Gemma3),
    ("pixtral", Projector::Pixtral),
    ("llama4", Projector::Llama4),
    ("glm4v", Projector::Glm4v),
];

/// All of them.
#[cfg(test)]
pub(crate) fn all() -> impl Iterator<Item = Projector> {
    ALL.into_iter().map(|known| known.1)
}

impl Projector {
    /// By its name in a file, `clip.projector_type`.
    pub fn of(name: &str) -> Option<Self> {
        ALL.iter().find(|known| known.0 == name).map(|known| known.1)
    }

    /// Its name in a file.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|known| known.1 == self).expect("each is in the table").0
    }

    /// All names, for people.
    pub fn names() -> String {
        ALL.map(|known| known.0).join(", ")
    }

    /// What stands in front of a picture in a prompt, in texts of the model's tokens.
    pub fn begin(self) -> &'static [&'static str] {
        match self {
            Self::Qwen3Vl => &["<|vision_start|>"],
            Self::Gemma4 => &["<|image>"],
            Self::KimiK25 => &["<|media_begin|>", "image", "<|media_content|>"],
            Self::Gemma3 => &["\n\n", "<start_of_image>"],
            Self::Pixtral => &[],
            Self::Llama4 => &["<|image_start|>"],
            Self::Glm4v => &["<|begin_of_image|>"],
        }
    }

    /// What follows it.
    pub fn end(self) -> &'static [&'static str] {
        match self {
            Self::Qwen3Vl => &["<|vision_end|>"],
            Self::Gemma4 => &["<image|>"],
            Self::KimiK25 => &["<|media_end|>"],
            Self::Gemma3 => &["<end_of_image>", "\n\n"],
            Self::Pixtral => &["[IMG_END]"],
            Self::Llama4 => &["<|image_end|>"],
            Self::Glm4v => &["<|end_of_image|>"],
        }
    }

    /// The token after each row of tokens except the last.
    pub fn row_separator(self) -> Option<&'static str> {
        (self == Self::Pixtral).then_some("[IMG_BREAK]")
    }

    /// Tensors beside the layers that other kinds lack, and this one must have.
    pub(crate) fn tensors(self) -> &'static [&'static str] {
        match self {
            Self::Qwen3Vl => {
                &["v.patch_embd.weight.1", "v.position_embd.weight", "v.post_ln.weight"]
            }
            Self::Gemma4 => &["v.position_embd.weight"],
            Self::KimiK25 | Self::Gemma3 => &["v.position_embd.weight", "v.post_ln.weight"],
            Self::Pixtral => &["v.pre_ln.weight"],
            Self::Llama4 => &["v.position_embd.weight", "v.pre_ln.weight", "v.post_ln.weight"],
            Self::Glm4v => &[
                "v.patch_embd.weight.1",
                "v.norm_embd.weight",
                "v.position_embd.weight",
                "v.post_ln.weight",
            ],
        }
    }

    /// The same for each layer, without `.weight`.
    pub(crate) fn layer_tensors(self) -> &'static [&'static str] {
        match self {
            Self::Gemma4 => {
                &["attn_q_norm", "attn_k_norm", "attn_post_norm", "ffn_gate", "ffn_post_norm"]
            }
            Self::Pixtral | Self::Glm4v => &["ffn_gate"],
            _ => &[],
        }
    }

    /// The activation of the layers' feed-forward blocks. `gelu`: whether the file names GELU, of
    /// which it does not tell the two forms apart, and which Gemma 4's leave out.
    pub(crate) fn activation(self, gelu: bool) -> Activation {
        match self {
            Self::Qwen3Vl | Self::Gemma4 | Self::KimiK25 | Self::Gemma3 => Activation::Gelu,
            Self::Pixtral | Self::Glm4v if !gelu => Activation::Silu,
            Self::Pixtral | Self::Glm4v | Self::Llama4 => Activation::ExactGelu,
        }
    }

    /// Whether norms divide by the root mean square alone, and have no bias.
    pub(crate) fn has_rms_norms(self) -> bool {
        matches!(self, Self::Gemma4 | Self::Pixtral | Self::Glm4v)
    }

    /// Patches a side of a token, where a file does not name it.
    pub(crate) fn merge_default(self) -> usize {
        match self {
            Self::Gemma3 => 4,
            Self::Gemma4 => 3,
            Self::Pixtral => 1,
            _ => 2,
        }
    }

    /// Whether pictures are enlarged and reduced by a cubic filter, or else by a linear one.
    pub(crate) fn scales_cubically(self) -> bool {
        !matches!(self, Self::Gemma3 | Self::Llama4)
    }

    /// Whether all pictures have the same size.
    pub(crate) fn has_fixed_size(self) -> bool {
        matches!(self, Self::Gemma3 | Self::Llama4)
    }

    /// How learned positions are taken from their table.
    pub(crate) fn position_filter(self) -> Filter {
        match self {
            Self::KimiK25 | Self::Glm4v => Filter::Cubic,
            _ => Filter::Linear,
        }
    }

    /// The base of the rotations, if there are any.
    pub(crate) fn rope_base(self) -> Option<f32> {
        match self {
            Self::Gemma3 => None,
            Self::Gemma4 => Some(100.0),
            _ => Some(10_000.0),
        }
    }
}
