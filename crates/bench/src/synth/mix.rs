//! The type of each tensor in a quantised file: as written by `llama-quantize` of the llama.cpp
//! project, the IQ types with an importance matrix and the others without. The output matrix (or
//! the embedding in its place) gets more bits than the rest, and the K-quants give more to some
//! layers.

use gguf::TensorType;

use super::shape::{Role, Shape};
use TensorType::*;

/// One of llama.cpp's file types.
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

impl Mix {
    /// The type of one matrix.
    pub fn type_of(&self, role: Role, layer: u64, shape: &Shape) -> TensorType {
        if matches!(self.ty, F32 | F16 | BF16 | Q8_0) {
            return self.ty;
        }
        match role {
            Role::Output => self.output(),
            Role::Embedding if shape.tied => self.output(),
            Role::Embedding => self.embedding(),
            _ if self.ty == MXFP4 => microscaled(role, shape),
            Role::Value => self.value(layer, shape),
            Role::Down => self.down(layer, shape.layers),
            Role::AttentionOutput => match self.ty {
                Q2_K => Q3_K,
                Q3_K => Q4_K,
                IQ1_S | IQ1_M => IQ2_XXS,
                IQ2_S => IQ3_S,
                other => other,
            },
            Role::Query | Role::Key if self.ty == IQ3_XXS => IQ2_S,
            _ => self.ty,
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

    fn value(&self, layer: u64, shape: &Shape) -> TensorType {
        let shared = shape.heads / shape.kv_heads >= 4;
        match self.ty {
            Q2_K | IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S if shared => Q4_K,
            Q2_K => Q3_K,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS => Q2_K,
            IQ2_S => IQ3_S,
            Q3_K if layer < 2 => Q5_K,
            Q3_K => Q4_K,
            IQ4_NL | IQ4_XS if shared => Q5_K,
            Q4_K | Q5_K if more_bits(layer, shape.layers) => Q6_K,
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

/// Files in MXFP4 use it only for the experts. A model without experts has it in all layers here,
/// because a file that is all Q8_0 measures nothing.
fn microscaled(role: Role, shape: &Shape) -> TensorType {
    let layer = !matches!(role, Role::Embedding | Role::Output);
    let expert = matches!(role, Role::Hidden | Role::Down);
    if expert || (layer && shape.experts.is_none()) { MXFP4 } else { Q8_0 }
}

/// The first and the last eighth of the layers, and every third between.
fn more_bits(layer: u64, layers: u64) -> bool {
    let (first, last) = (layers / 8, 7 * layers / 8);
    layer < first || layer >= last || (layer - first) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::shape::{Experts, SHAPES};
    use gguf::{File, Source};
    use std::path::Path;

    /// llama-quantize itself wrote every file of the fixtures.
    #[test]
    fn types_are_those_of_llama_quantize() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/quant");
        let mut compared = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_string_lossy().to_lowercase();
            let (model, quant) = stem.split_once('.').unwrap_or((&stem, ""));
            // In some, each tensor's type was asked for.
            let asked = ["iq2_s", "iq3_xxs", "iq3_s", "nvfp4-scale", "tq1_0", "tq2_0"];
            let known = (model.starts_with("llama") || model.starts_with("qwen3moe"))
                && !asked.contains(&quant);
            if path.extension().is_none_or(|extension| extension != "gguf") || !known {
                continue;
            }
            let file = File::open(&path).unwrap();
            let directory = file.directory();
            let arch = directory.str("general.architecture").unwrap();
            let size = |name: &str| directory.find_u64(&format!("{arch}.{name}")).unwrap();
            let base = SHAPES.iter().find(|shape| shape.arch == arch).unwrap();
            let shape = Shape {
                layers: size("block_count").unwrap(),
                heads: size("attention.head_count").unwrap(),
                kv_heads: size("attention.head_count_kv").unwrap(),
                experts: size("expert_count").map(|count| Experts {
                    count,
                    used: 2,
                    hidden: 256,
                    shared: 0,
                    dense_layers: 0,
                    groups: 1,
                }),
                tied: false,
                ..*base
            };
            let mix = MIXES.iter().find(|mix| mix.names.contains(&quant)).unwrap();
            // The file in MXFP4 was made as Q8_0 with one type overridden, and is marked as such.
            let file_type = directory.u64("general.file_type").unwrap();
            assert!(mix.ty == MXFP4 || file_type == u64::from(mix.file_type), "{stem}");
            for tensor in shape.tensors() {
                if matches!(tensor.role, Role::Norm | Role::Router) {
                    continue;
                }
                let found = mix.type_of(tensor.role, tensor.layer, &shape);
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
