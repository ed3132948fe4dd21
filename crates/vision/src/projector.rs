//! The known towers: a table of what the files leave out.
//!
//! A tower is named by its projector, the part that turns its output into rows of the model.

use std::ops::Deref;

use kernels::Activation;

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Projector(&'static Kind);

/// How one kind of tower differs from the others.
pub struct Kind {
    /// `clip.projector_type` in a file.
    pub name: &'static str,
    /// The texts of the model's tokens in front of a picture in a prompt, and behind it.
    pub begin: &'static [&'static str],
    pub end: &'static [&'static str],
    /// The token after each row of tokens except the last.
    pub row_separator: Option<&'static str>,
    /// The token before the whole picture, which follows its tiles.
    pub(crate) before_whole: Option<&'static str>,
    /// Tensors beside the layers that other kinds lack, and this one must have.
    pub(crate) tensors: &'static [&'static str],
    /// The same for each layer, without `.weight`.
    pub(crate) layer_tensors: &'static [&'static str],
    pub(crate) activation: Active,
    /// Norms divide by the root mean square alone, and have no bias.
    pub(crate) rms_norms: bool,
    /// Values are normalised without a gain, and scores have no factor.
    pub(crate) plain_values: bool,
    /// Patches a side of a token, where a file does not name it.
    pub(crate) merge: usize,
    pub(crate) sizing: Sizing,
    /// Pictures are enlarged and reduced by a cubic filter, or else by a linear one.
    pub(crate) scales_cubically: bool,
    /// Pixels become numbers in bf16, as the processor computes them.
    pub(crate) bf16_pixels: bool,
    /// The tower maps numbers to -1 to 1, whatever the file says of them.
    pub(crate) centred_pixels: bool,
    pub(crate) positions: Positions,
    /// How learned positions are taken from their table.
    pub(crate) filter: Filter,
    /// The base of the rotations and what turns, if anything does.
    pub(crate) rope: Option<(f32, Turns)>,
    /// A row of its own before the patches, for the class. Places count from 1 then.
    pub(crate) has_class: bool,
    pub(crate) steps: Steps,
}

/// The activation of the layers' feed-forward blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Active {
    Always(Activation),
    /// The exact GELU if the file names GELU, of which it does not tell the two forms apart; else
    /// SiLU.
    ByFile,
}

/// The sizes to which a picture is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizing {
    /// Multiples of a token's side, from `fewest` to `most` tokens. `enlarges`: a side below a
    /// token's is enlarged first.
    Smart { fewest: usize, most: usize, enlarges: bool },
    /// As many tokens as the budget of its detail has.
    Budget,
    /// Cut to a limit, with a border up to whole tokens.
    Bordered,
    /// Every picture alike.
    Fixed,
    /// By its longest edge.
    LongestEdge,
    /// In tiles of one size, and then whole.
    Tiled,
}

/// The table of learned positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Positions {
    /// Of a square grid.
    Square,
    /// Of a grid with two sizes.
    Grid,
    /// Of rows and of columns.
    Axes,
}

/// How an axis of patches is filtered from a table of learned positions with another length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// The ends of both coincide.
    Linear,
    /// The centres of both grids' cells lie over each other; the kernel of Keys with a = -0.75.
    Cubic,
}

/// The pairs of a head that turn by rows and by columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turns {
    /// Halves as pairs: the first by rows, the second by columns.
    RowsFirst,
    /// Each half of a head is rotated like a head of its own: by columns, then by rows.
    HalvesApart,
    /// Neighbours as pairs: rows take the even frequencies, columns the odd ones.
    OddAndEven,
    /// Neighbours as pairs, the first by columns.
    ColumnsFirst,
}

/// The steps after the last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Steps {
    Qwen3Vl,
    Gemma4,
    Kimi,
    Gemma3,
    Pixtral,
    Llama4,
    Glm4v,
}

/// Qwen3-VL, Qwen 3.5 and later.
static QWEN3_VL: Kind = BASE;

const BASE: Kind = Kind {
    name: "qwen3vl_merger",
    begin: &["<|vision_start|>"],
    end: &["<|vision_end|>"],
    row_separator: None,
    before_whole: None,
    tensors: &["v.patch_embd.weight.1", "v.position_embd.weight", "v.post_ln.weight"],
    layer_tensors: &[],
    activation: Active::Always(Activation::Gelu),
    rms_norms: false,
    plain_values: false,
    merge: 2,
    // From 256² to 4096² pixels in tokens of 32².
    sizing: Sizing::Smart { fewest: 64, most: 16_384, enlarges: false },
    scales_cubically: true,
    bf16_pixels: false,
    centred_pixels: false,
    positions: Positions::Square,
    filter: Filter::Linear,
    rope: Some((10_000.0, Turns::RowsFirst)),
    has_class: false,
    steps: Steps::Qwen3Vl,
};

static GEMMA4: Kind = Kind {
    name: "gemma4v",
    begin: &["<|image>"],
    end: &["<image|>"],
    tensors: &["v.position_embd.weight"],
    layer_tensors: &["attn_q_norm", "attn_k_norm", "attn_post_norm", "ffn_gate", "ffn_post_norm"],
    rms_norms: true,
    plain_values: true,
    merge: 3,
    sizing: Sizing::Budget,
    centred_pixels: true,
    positions: Positions::Axes,
    rope: Some((100.0, Turns::HalvesApart)),
    steps: Steps::Gemma4,
    ..BASE
};

static KIMI_K25: Kind = Kind {
    name: "kimik25",
    begin: &["<|media_begin|>", "image", "<|media_content|>"],
    end: &["<|media_end|>"],
    tensors: &["v.position_embd.weight", "v.post_ln.weight"],
    sizing: Sizing::Bordered,
    positions: Positions::Grid,
    filter: Filter::Cubic,
    rope: Some((10_000.0, Turns::ColumnsFirst)),
    steps: Steps::Kimi,
    ..BASE
};

static GEMMA3: Kind = Kind {
    name: "gemma3",
    begin: &["\n\n", "<start_of_image>"],
    end: &["<end_of_image>", "\n\n"],
    tensors: &["v.position_embd.weight", "v.post_ln.weight"],
    merge: 4,
    sizing: Sizing::Fixed,
    scales_cubically: false,
    rope: None,
    steps: Steps::Gemma3,
    ..BASE
};

/// Pixtral, Mistral 3.
static PIXTRAL: Kind = Kind {
    name: "pixtral",
    begin: &[],
    end: &["[IMG_END]"],
    row_separator: Some("[IMG_BREAK]"),
    tensors: &["v.pre_ln.weight"],
    layer_tensors: &["ffn_gate"],
    activation: Active::ByFile,
    rms_norms: true,
    merge: 1,
    sizing: Sizing::LongestEdge,
    rope: Some((10_000.0, Turns::OddAndEven)),
    steps: Steps::Pixtral,
    ..BASE
};

static LLAMA4: Kind = Kind {
    name: "llama4",
    begin: &["<|image_start|>"],
    end: &["<|image_end|>"],
    before_whole: Some("<|image|>"),
    tensors: &["v.position_embd.weight", "v.pre_ln.weight", "v.post_ln.weight"],
    activation: Active::Always(Activation::ExactGelu),
    sizing: Sizing::Tiled,
    scales_cubically: false,
    bf16_pixels: true,
    rope: Some((10_000.0, Turns::ColumnsFirst)),
    has_class: true,
    steps: Steps::Llama4,
    ..BASE
};

/// GLM-4.1V to GLM-4.6V.
static GLM4V: Kind = Kind {
    name: "glm4v",
    begin: &["<|begin_of_image|>"],
    end: &["<|end_of_image|>"],
    tensors: &[
        "v.patch_embd.weight.1",
        "v.norm_embd.weight",
        "v.position_embd.weight",
        "v.post_ln.weight",
    ],
    layer_tensors: &["ffn_gate"],
    activation: Active::ByFile,
    rms_norms: true,
    // From 112² pixels to 15,000 tokens for two frames.
    sizing: Sizing::Smart { fewest: 8, most: 7500, enlarges: true },
    filter: Filter::Cubic,
    steps: Steps::Glm4v,
    ..BASE
};

static ALL: [&Kind; 7] = [&QWEN3_VL, &GEMMA4, &KIMI_K25, &GEMMA3, &PIXTRAL, &LLAMA4, &GLM4V];

/// All of them.
#[cfg(test)]
pub(crate) fn all() -> impl Iterator<Item = Projector> {
    ALL.into_iter().map(Projector)
}

impl Projector {
    /// By its name in a file, `clip.projector_type`.
    pub fn of(name: &str) -> Option<Self> {
        ALL.into_iter().find(|known| known.name == name).map(Self)
    }

    /// All names, for people.
    pub fn names() -> String {
        ALL.map(|known| known.name).join(", ")
    }

    /// The activation of the layers' feed-forward blocks. `gelu`: whether the file names GELU.
    pub(crate) fn activation(self, gelu: bool) -> Activation {
        match self.activation {
            Active::Always(activation) => activation,
            Active::ByFile if gelu => Activation::ExactGelu,
            Active::ByFile => Activation::Silu,
        }
    }

    /// Whether all pictures, or all tiles of them, have the same size.
    pub(crate) fn has_fixed_size(self) -> bool {
        matches!(self.sizing, Sizing::Fixed | Sizing::Tiled)
    }
}

impl Deref for Projector {
    type Target = Kind;

    fn deref(&self) -> &Kind {
        self.0
    }
}

impl PartialEq for Projector {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Projector {}

impl std::fmt::Debug for Projector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
