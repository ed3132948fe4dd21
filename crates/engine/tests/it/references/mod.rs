//! The tiny models and the results of other implementations (`fixtures/README.md`).

use std::path::PathBuf;

use gguf::File;
use gguf::Source as _;
use layout::Config;
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
pub struct Prompt {
    pub ids: Vec<u32>,
    pub hf: Option<Reference>,
    pub llama_cpp_dequant_f32: Option<Reference>,
    pub llama_cpp: Option<Reference>,
}

#[derive(Deserialize, Clone)]
pub struct Reference {
    pub logits: Vec<f32>,
    pub greedy: Vec<u32>,
    pub margins: Vec<f32>,
}

/// Models with float weights, of every architecture.
pub const FLOAT_MODELS: &[&str] = &[
    "models/llama-spm",
    "models/llama-untied",
    "models/llama3-tied",
    "models/mistral",
    "models/qwen2",
    "models/qwen3",
    "models/olmo2",
    "models/phi3",
    "models/gemma3",
    "models/mixtral",
    "models/qwen2moe",
    "models/qwen3moe",
    "models/qwen3moe-coder",
    "models/glm4moe",
    "models/minimax-m2",
    "models/deepseek-v2-lite",
    "models/deepseek-v2",
    "models/deepseek-v3",
    "models/kimi-k2",
    "models/granite",
    "models/smollm3",
    "models/llama-odd",
    "models/qwen3moe-odd",
    "models/deepseek-v3-odd",
    "models/gemma3-odd",
    "models/llama-biases",
    "models/deepseek-v3-plain",
    "models/olmo3",
    "models/gemma3-global",
    "models/qwen35",
    "models/qwen35-mtp",
    "models/qwen35moe",
    "models/qwen35moe-fused",
    "models/qwen3next",
    "models/nemotron_h",
    "models/nemotron_h_moe",
    "models/nemotron_h_moe-latent",
    "models/granitehybrid",
    "models/lfm2",
    "models/lfm2moe",
    "models/kimi-linear",
    "models/bailingmoe3",
    "models/kimi-k3",
    "models/qwen35-odd",
    "models/qwen35moe-odd",
    "models/qwen3next-odd",
    "models/nemotron_h-odd",
    "models/granitehybrid-odd",
    "models/lfm2-odd",
    "models/kimi-linear-odd",
    "models/gemma4",
    "models/gemma4-e",
    "models/gemma4-moe",
    "models/step35",
    "models/mimo2",
    "models/deepseek32",
    "models/deepseek32-mtp",
    "models/glm4moe-mtp",
    "models/glm-dsa",
    "models/minimax-m3",
    "models/deepseek4",
    "models/glm5-next",
    "models/qwen4exp",
    "models/seed_oss",
    "models/ernie4_5",
    "models/ernie4_5-moe",
    "models/arcee",
    "models/granitemoe",
    "models/olmoe",
    "models/qwen3vl",
    "models/qwen3vlmoe",
    "models/hy_v3",
    "models/hunyuan-dense",
    "models/hunyuan-moe",
    "models/glm4",
    "models/exaone4",
    "models/exaone4-window",
    "models/mistral3",
    "models/gemma2",
    "models/cohere2",
    "models/muse-glimmer",
    "models/phimoe",
    "models/llama4",
];

/// Models with quantised weights, of every type. gpt-oss and DeepSeek V4 have quantised experts.
pub const QUANTISED_MODELS: &[&str] = &[
    "quant/llama-q256-l1.Q8_0",
    "quant/llama-q256-l1.Q4_0",
    "quant/llama-q256-l1.Q4_1",
    "quant/llama-q256-l1.Q5_0",
    "quant/llama-q256-l1.Q5_1",
    "quant/llama-q256-l1.IQ4_NL",
    "quant/llama-q256-l1.MXFP4",
    "quant/llama-q256.Q2_K",
    "quant/llama-q256.Q3_K_M",
    "quant/llama-q256.Q4_K_M",
    "quant/llama-q256.Q5_K_M",
    "quant/llama-q256.Q6_K",
    "quant/llama-q256.IQ4_XS",
    "quant/llama-q256-today.IQ1_S",
    "quant/llama-q256-today.IQ1_M",
    "quant/llama-q256-today.IQ2_XXS",
    "quant/llama-q256-today.IQ2_XS",
    "quant/llama-q256-today.IQ2_S",
    "quant/llama-q256-today.IQ3_XXS",
    "quant/llama-q256-today.IQ3_S",
    "quant/llama-q256-today.NVFP4-scale",
    "quant/llama-q256-today.TQ1_0",
    "quant/llama-q256-today.TQ2_0",
    "quant/deepseek-v3-q256.Q4_K_M",
    // Its first router has a near tie, so a change may exceed the limit by chance (decision 14).
    "quant/qwen3moe-q256.Q4_K_M",
    "models/gpt-oss",
    "quant/qwen35-q256.Q4_K_M",
    "quant/qwen35-odd.Q8_0",
    "quant/gemma4-q256.Q4_K_M",
    "models/deepseek4-mxfp4",
    "quant/deepseek4-q256.Q4_K_M",
];

/// A model with experts in 26 layers: for some token two are so close that rounding may choose the
/// other one, and the results then differ by more than the rounding itself.
pub const ROUTED_BY_TIES: &[&str] = &["models/deepseek-v2-lite"];

pub fn path(name: &str, extension: &str) -> PathBuf {
    fixtures::path(&format!("{name}.{extension}"))
}

/// The layers before which a pipeline may cut the model, and both ends.
pub fn borders(name: &str) -> Vec<usize> {
    let file = File::open(path(name, "gguf")).expect("the fixture is in the repository");
    Config::read(file.directory()).expect("the model is supported").borders()
}

/// The most stages of the model.
pub fn pieces(name: &str) -> usize {
    borders(name).len() - 1
}

pub fn prompts(name: &str) -> Vec<Prompt> {
    let about = serde_json::from_value::<Fixture>(fixtures::about(name));
    about.expect("the fixture has the expected fields").prompts
}
