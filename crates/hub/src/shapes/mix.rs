//! The type of each tensor in a quantised file: as written by `llama-quantize` of the llama.cpp
//! project, the IQ types with an importance matrix and the others without. The output matrix (or
//! the embedding in its place) gets more bits than the rest, and the K-quants give more to some
//! layers.

use gguf::TensorType;

use super::tensor::Tensor;
use TensorType::*;

/// One of llama.cpp's file types.
#[derive(Debug)]
pub struct Mix {
    /// The first is shown.
    pub names: &'static [&'static str],
    /// Its number in `general.file_type`.
    pub file_type: u32,
    /// The type of most matrices.
    pub ty: TensorType,
}

const fn mix(names: &'static [&'static str], file_type: u32, ty: TensorType) -> Mix {
    Mix { names, file_type, ty }
}

/// The name of the mix with experts in four bits and all else in BF16.
pub const EXPERTS_ONLY: &str = "q4_0-experts";

pub const MIXES: &[Mix] = &[
    mix(&["f32"], 0, F32),
    mix(&["f16"], 1, F16),
    mix(&["bf16"], 32, BF16),
    mix(&["q8_0"], 7, Q8_0),
    mix(&["q4_0"], 2, Q4_0),
    mix(&["q4_1"], 3, Q4_1),
    mix(&["q5_0"], 8, Q5_0),
    mix(&["q5_1"], 9, Q5_1),
    mix(&["q2_k"], 10, Q2_K),
    mix(&["q3_k_m", "q3_k"], 12, Q3_K),
    mix(&["q4_k_m", "q4_k"], 15, Q4_K),
    mix(&["q5_k_m", "q5_k"], 17, Q5_K),
    mix(&["q6_k"], 18, Q6_K),
    mix(&["iq4_nl"], 25, IQ4_NL),
    mix(&["iq4_xs"], 30, IQ4_XS),
    mix(&["iq1_s"], 24, IQ1_S),
    mix(&["iq1_m"], 31, IQ1_M),
    mix(&["iq2_xxs"], 19, IQ2_XXS),
    mix(&["iq2_xs"], 20, IQ2_XS),
    mix(&["iq2_s", "iq2_m"], 29, IQ2_S),
    mix(&["iq3_xxs"], 23, IQ3_XXS),
    mix(&["iq3_s"], 26, IQ3_S),
    mix(&["mxfp4"], 38, MXFP4),
    // Only routed experts are quantised, as in Moonshot's release of Kimi K2 Thinking.
    mix(&[EXPERTS_ONLY], 2, Q4_0),
];

/// What the choice of types depends on.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub layers: u64,
    /// Tensors that make values.
    pub values: u64,
    /// Several queries share each key and value.
    pub shared: bool,
    /// The embedding serves as the output matrix.
    pub tied: bool,
    pub experts: bool,
}

impl Mix {
    /// The mix of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        let lower = name.to_ascii_lowercase();
        MIXES.iter().find(|mix| mix.names.contains(&lower.as_str()))
    }

    /// As in files' names: `Q4_K_M`.
    pub fn label(&self) -> String {
        self.names[0].to_ascii_uppercase()
    }

    /// The type of one tensor; `values` tensors that make values stand before it. Rows that are no
    /// multiple of a type's block take the next finer type whose block divides them.
    pub fn type_of(&self, tensor: &Tensor, values: u64, sizes: &Sizes, pure: bool) -> TensorType {
        let role = tensor.role();
        if role == "ffn_gate_tid2eid.weight" {
            return I32;
        }
        if is_small(role, &tensor.dims) {
            return F32;
        }
        if role == "per_layer_model_proj.weight" {
            return F16;
        }
        if self.names[0] == EXPERTS_ONLY {
            return if role.contains("_exps.") { self.ty } else { BF16 };
        }
        let ty = if pure { self.ty } else { self.mixed(tensor, values, sizes) };
        std::iter::successors(Some(ty), |ty| Some(finer(*ty)))
            .find(|ty| tensor.dims[0].is_multiple_of(ty.block_len() as u64))
            .expect("floats have blocks of one")
    }

    fn mixed(&self, tensor: &Tensor, values: u64, sizes: &Sizes) -> TensorType {
        if matches!(self.ty, F32 | F16 | BF16 | Q8_0) {
            return self.ty;
        }
        let role = tensor.role();
        match role {
            "output.weight" => self.output(),
            "token_embd.weight" if sizes.tied => self.output(),
            "token_embd.weight" | "per_layer_token_embd.weight" => self.embedding(),
            _ if self.ty == MXFP4 => microscaled(role, sizes),
            "attn_v.weight" => self.value(values, sizes),
            "attn_qkv.weight" => self.fused(),
            "attn_output.weight" => match self.ty {
                Q2_K => Q3_K,
                Q3_K => Q4_K,
                IQ1_S | IQ1_M => IQ2_XXS,
                IQ2_S => IQ3_S,
                other => other,
            },
            _ if role.starts_with("ffn_down") => self.down(tensor.layer, sizes.layers),
            "attn_q.weight" | "attn_k.weight" if self.ty == IQ3_XXS => IQ2_S,
            _ => self.ty,
        }
    }

    fn fused(&self) -> TensorType {
        match self.ty {
            Q3_K => Q4_K,
            Q4_K => Q5_K,
            Q5_K => Q6_K,
            other => other,
        }
    }

    fn output(&self) -> TensorType {
        match self.ty {
            MXFP4 => Q8_0,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS => Q5_K,
            _ => Q6_K,
        }
    }

    fn embedding(&self) -> TensorType {
        match self.ty {
            MXFP4 => Q8_0,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS => Q2_K,
            IQ2_S | IQ3_XXS => IQ3_S,
            other => other,
        }
    }

    fn value(&self, at: u64, sizes: &Sizes) -> TensorType {
        let Sizes { shared, values, .. } = *sizes;
        match self.ty {
            Q2_K | IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S if shared => Q4_K,
            Q2_K => Q3_K,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS => Q2_K,
            IQ2_S => IQ3_S,
            Q3_K if at < 2 => Q5_K,
            Q3_K => Q4_K,
            IQ4_NL | IQ4_XS if shared => Q5_K,
            Q4_K | Q5_K if more_bits(at, values) => Q6_K,
            other => other,
        }
    }

    fn down(&self, layer: u64, layers: u64) -> TensorType {
        match self.ty {
            Q2_K => Q3_K,
            Q3_K if layer < layers / 16 => Q5_K,
            Q3_K => Q4_K,
            IQ4_NL | IQ4_XS if layer < layers / 8 => Q5_K,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS if layer < layers / 8 => Q2_K,
            IQ2_S if layer < layers / 8 => IQ3_S,
            Q4_K | Q5_K if more_bits(layer, layers) => Q6_K,
            other => other,
        }
    }
}

/// Vectors, and matrices of which `llama-quantize` makes no other type.
fn is_small(role: &str, dims: &[u64]) -> bool {
    const NEVER: &[&str] = &[
        "ffn_gate_inp.",
        "ssm_conv1d",
        "shortconv.conv.",
        "ssm_a",
        "ssm_d",
        "hc_",
        "_ape.",
        "indexer.proj.",
        ".bias",
        ".scale",
        "norm",
        "position_embd.",
        "token_types.",
    ];
    dims[1..].iter().all(|dim| *dim == 1) || NEVER.iter().any(|part| role.contains(part))
}

/// What `llama-quantize` takes for rows that a type's block does not divide.
fn finer(ty: TensorType) -> TensorType {
    match ty {
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        TQ1_0 | TQ2_0 => Q4_0,
        Q2_K | Q3_K | IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        _ => F16,
    }
}

/// Files in MXFP4 use it only for the experts. A model without experts has it in all layers here,
/// because a file that is all Q8_0 measures nothing.
fn microscaled(role: &str, sizes: &Sizes) -> TensorType {
    if role.starts_with("ffn_") || !sizes.experts { MXFP4 } else { Q8_0 }
}

/// The first and the last eighth of the layers, and every third between.
fn more_bits(layer: u64, layers: u64) -> bool {
    let (first, last) = (layers / 8, 7 * layers / 8);
    layer < first || layer >= last || (layer - first) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::shape::Shape;
    use gguf::{File, Source};

    /// llama-quantize itself wrote every file of the fixtures.
    #[test]
    fn types_are_those_of_llama_quantize() {
        let mut compared = 0;
        for name in fixtures::names("quant") {
            let stem = name.strip_prefix("quant/").unwrap().to_lowercase();
            let (model, quant) = stem.split_once('.').unwrap_or((&stem, ""));
            // In some, each tensor's type was asked for.
            let asked = ["iq2_s", "iq3_xxs", "iq3_s", "nvfp4-scale", "tq1_0", "tq2_0"];
            let known = (model.starts_with("llama") || model.starts_with("qwen3moe"))
                && !asked.contains(&quant);
            if !known {
                continue;
            }
            let file = File::open(fixtures::path(&format!("{name}.gguf"))).unwrap();
            let directory = file.directory();
            let mix = Mix::find(quant).unwrap();
            // The file in MXFP4 was made as Q8_0 with one type overridden, and is marked as such.
            let file_type = directory.u64("general.file_type").unwrap();
            assert!(mix.ty == MXFP4 || file_type == u64::from(mix.file_type), "{stem}");
            let shape = Shape::of(directory);
            for (tensor, found) in shape.tensors.iter().zip(shape.types(mix, false)) {
                let wanted = directory.tensor(&tensor.name).unwrap().ty;
                assert_eq!(found, wanted, "{stem}: {}", tensor.name);
                compared += 1;
            }
        }
        assert!(compared > 100, "{compared} tensors compared");
    }

    #[test]
    fn q4_k_m_of_16_layers_has_six_bits_in_eight_of_them() {
        let six: Vec<u64> = (0..16).filter(|layer| more_bits(*layer, 16)).collect();
        assert_eq!(six, [0, 1, 4, 7, 10, 13, 14, 15]);
    }
}
