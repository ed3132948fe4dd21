//! Keys of a configuration that mean another computation than that of its class here.
//!
//! What a class reads elsewhere and not here must have the value that changes nothing, or the
//! folder is refused: its answers would be wrong without a word.

use serde_json::Value;

use crate::Error;
use crate::config::{Config, shown};
use crate::header::Header;
use crate::rope::Rope;

/// Architectures whose feed-forward blocks are gated by SiLU, in every file.
const SILU: &[&str] = &[
    "command-r",
    "cohere2",
    "deepseek2",
    "deepseek32",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone4",
    "glm4",
    "glm4moe",
    "glm-dsa",
    "granite",
    "granitemoe",
    "hunyuan-dense",
    "hunyuan-moe",
    "llama",
    "llama4",
    "mistral3",
    "mistral4",
    "olmo2",
    "olmoe",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "qwen3next",
    "qwen3vl",
    "qwen3vlmoe",
    "qwen35",
    "qwen35moe",
    "seed_oss",
    "smollm3",
];
/// Architectures that compute no windows, and the classes of them that have some elsewhere.
const WITHOUT_WINDOWS: &[&str] = &["llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe"];
const WINDOWED: &[&str] = &["MistralForCausalLM", "MixtralForCausalLM"];
/// Architectures that read the factors of `longrope`.
const LONG_ROPE: &[&str] = &["phi3", "phimoe"];

/// Refuses what is not computed, and shortens the context to a window that is not.
///
/// # Errors
/// A key has a value that this class does not read.
pub(crate) fn check(config: &Config, arch: &str, header: &mut Header) -> Result<(), Error> {
    let refused = |key: &str, value: &Value, wanted: &str| {
        let (key, found, wanted) = (key.to_owned(), shown(value), wanted.to_owned());
        Err(Error::Config { key, found, wanted })
    };
    if let Some(value) = config.get("hidden_act").filter(|_| SILU.contains(&arch))
        && !["silu", "swish"].map(Value::from).contains(value)
    {
        return refused("hidden_act", value, "silu, with which this class is computed,");
    }
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(value) = config.get(key).filter(|value| !value.is_object()) {
            return refused(key, value, "an object");
        }
    }
    let kind = Rope::read(config)?.kind;
    if matches!(kind.as_deref(), Some("su" | "longrope")) && !LONG_ROPE.contains(&arch) {
        let value = Value::from("longrope");
        return refused("rope_scaling", &value, "default, linear, yarn or llama3 for this class");
    }
    let window = window(config)?.filter(|_| WITHOUT_WINDOWS.contains(&arch));
    let context = config.find_u64(&["max_position_embeddings", "model_max_length"])?;
    if let Some(window) = window.filter(|window| context.is_none_or(|context| *window < context)) {
        // Within the window every position sees all before it.
        header.size("context_length", window);
    }
    Ok(())
}

/// The window of some layers; `None` if all see everything.
fn window(config: &Config) -> Result<Option<u64>, Error> {
    let window = config.find_u64(&["sliding_window"])?.filter(|window| *window > 0);
    let classes = config.texts("architectures")?;
    let has_one = match config.find_bool("use_sliding_window")? {
        Some(uses) => uses,
        None => classes.iter().any(|class| WINDOWED.contains(&class.as_str())),
    };
    let layers = config.layers()?;
    let first = config.find_u64(&["max_window_layers"])?.unwrap_or(0);
    let is_windowed = match config.layers_of("sliding_attention")? {
        Some(kinds) => kinds.contains(&true),
        None => first < layers,
    };
    Ok(window.filter(|_| has_one && is_windowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_of(arch: &'static str, text: &str) -> Result<Option<gguf::Value>, String> {
        let mut header = Header::new(arch);
        let whole =
            format!(r#"{{"num_hidden_layers": 4, "max_position_embeddings": 100, {text}}}"#);
        let config = Config::new(serde_json::from_str(&whole).unwrap());
        check(&config, arch, &mut header).map_err(|error| error.to_string())?;
        Ok(header.find("context_length").cloned())
    }

    #[test]
    fn what_another_computation_needs_is_refused_by_name() {
        let cases = [
            ("llama", r#""hidden_act": "relu""#, "hidden_act is \"relu\""),
            ("qwen3", r#""hidden_act": "gelu""#, "hidden_act is \"gelu\""),
            ("qwen3", r#""rope_parameters": 0"#, "rope_parameters is 0"),
            ("qwen3", r#""rope_parameters": {"rope_type": "longrope"}"#, "is \"longrope\""),
        ];
        for (arch, text, wanted) in cases {
            let error = check_of(arch, text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let neutral = [
            ("llama", r#""hidden_act": "silu""#),
            ("arcee", r#""hidden_act": "relu2""#),
            ("phi3", r#""rope_scaling": {"type": "longrope", "short_factor": [1]}"#),
            ("qwen3", r#""sliding_window": 16, "use_sliding_window": false"#),
            (
                "qwen3",
                r#""sliding_window": 16, "use_sliding_window": true, "max_window_layers": 4"#,
            ),
            ("llama", r#""architectures": ["LlamaForCausalLM"], "sliding_window": 16"#),
            ("llama", r#""architectures": ["MistralForCausalLM"], "sliding_window": 100"#),
            ("llama", r#""architectures": ["MistralForCausalLM"], "sliding_window": null"#),
        ];
        for (arch, text) in neutral {
            assert_eq!(check_of(arch, text), Ok(None), "{text}");
        }
    }

    #[test]
    fn a_window_that_is_not_computed_limits_the_context() {
        let windowed = [
            ("llama", r#""architectures": ["MistralForCausalLM"], "sliding_window": 16"#),
            (
                "qwen2",
                r#""sliding_window": 16, "use_sliding_window": true, "max_window_layers": 2"#,
            ),
            (
                "qwen3",
                r#""sliding_window": 16, "use_sliding_window": true, "max_window_layers": 4,
                   "layer_types": ["full_attention", "sliding_attention"]"#,
            ),
        ];
        for (arch, text) in windowed {
            assert_eq!(check_of(arch, text), Ok(Some(gguf::Value::U32(16))), "{text}");
        }
    }
}
