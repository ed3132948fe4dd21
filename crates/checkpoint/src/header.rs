//! The metadata of the GGUF file that a folder appears as.

use gguf::{Array, Value, Writer};

use crate::Error;
use crate::config::Config;
use crate::rope::Rope;

/// Metadata under construction. Names of keys are without the architecture in front.
#[derive(Debug)]
pub(crate) struct Header {
    arch: &'static str,
    values: Vec<(String, Value)>,
}

/// Keys of config.json, of which the first that is there counts; and the key in GGUF.
type Keys<'t> = &'t [(&'t [&'t str], &'t str)];

const SIZES: Keys<'static> = &[
    (&["max_position_embeddings", "model_max_length"], "context_length"),
    (&["hidden_size"], "embedding_length"),
    (
        &["prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size"],
        "feed_forward_length",
    ),
    (&["num_attention_heads"], "attention.head_count"),
    (&["num_key_value_heads"], "attention.head_count_kv"),
    (&["num_local_experts", "num_experts", "n_routed_experts"], "expert_count"),
    (&["num_experts_per_tok", "num_experts_per_token", "top_k_experts"], "expert_used_count"),
    (&["n_group"], "expert_group_count"),
    (&["topk_group"], "expert_group_used_count"),
    (&["head_dim"], "attention.key_length"),
    (&["head_dim"], "attention.value_length"),
];

const NUMBERS: Keys<'static> = &[
    (&["rms_norm_eps", "norm_eps"], "attention.layer_norm_rms_epsilon"),
    (&["layer_norm_eps", "layer_norm_epsilon"], "attention.layer_norm_epsilon"),
];

const YARN: Keys<'static> = &[
    (&["extrapolation_factor"], "rope.scaling.yarn_ext_factor"),
    (&["attention_factor", "attn_factor"], "rope.scaling.yarn_attn_factor"),
    (&["beta_fast"], "rope.scaling.yarn_beta_fast"),
    (&["beta_slow"], "rope.scaling.yarn_beta_slow"),
];

/// A router's function, under the names of several families.
pub(crate) const GATING_KEYS: [&str; 5] = [
    "score_function",
    "scoring_func",
    "score_func",
    "moe_router_activation",
    "moe_router_activation_func",
];

/// Sampling that a model's publisher recommends.
const SAMPLING: Keys<'static> = &[
    (&["temperature"], "general.sampling.temp"),
    (&["top_p"], "general.sampling.top_p"),
    (&["min_p"], "general.sampling.min_p"),
    (&["repetition_penalty"], "general.sampling.penalty_repeat"),
];

impl Header {
    pub fn new(arch: &'static str) -> Self {
        let mut header = Self { arch, values: Vec::new() };
        header.set_whole("general.architecture", Value::String(arch.to_owned()));
        header
    }

    /// A writer with all values, in the order in which they were set.
    pub fn writer(self) -> Writer {
        let mut writer = Writer::new();
        for (key, value) in self.values {
            writer.set(&key, value);
        }
        writer
    }

    /// Sets the keys that all families have.
    pub fn common(&mut self, config: &Config) -> Result<(), Error> {
        self.size("block_count", config.layers()? + config.blocks);
        if config.blocks > 0 {
            self.size("nextn_predict_layers", config.blocks);
        }
        self.sizes(config, SIZES)?;
        self.numbers(config, NUMBERS)?;
        self.gating(config)?;
        self.rope(&Rope::read(config)?)
    }

    /// Sets the recommended sampling, if the publisher samples at all. Defaults are no reason to
    /// refuse a model: what is no number is left out, and a `top_k` of -1 means none.
    pub fn sampling(&mut self, generation: &Config) {
        if generation.find_bool("do_sample").ok().flatten() == Some(false) {
            return;
        }
        for (from, key) in SAMPLING {
            if let Some(number) = generation.find_f64(from).ok().flatten() {
                self.set_whole(key, Value::F32(number as f32));
            }
        }
        let top_k = generation.find_u64(&["top_k"]).ok().flatten();
        if let Some(top_k) = top_k.and_then(|count| u32::try_from(count).ok()) {
            self.set_whole("general.sampling.top_k", Value::U32(top_k));
        }
    }

    #[cfg(test)]
    pub fn find(&self, key: &str) -> Option<&Value> {
        let key = format!("{}.{key}", self.arch);
        self.values.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    pub fn sizes(&mut self, config: &Config, keys: Keys<'_>) -> Result<(), Error> {
        for (from, to) in keys {
            if let Some(found) = config.find_u64(from)? {
                self.size(to, narrow(from[0], found)?.into());
            }
        }
        Ok(())
    }

    pub fn numbers(&mut self, config: &Config, keys: Keys<'_>) -> Result<(), Error> {
        for (from, to) in keys {
            if let Some(found) = config.find_f64(from)? {
                self.number(to, found);
            }
        }
        Ok(())
    }

    /// Sets a count; like all values, it replaces an earlier one of its name.
    pub fn size(&mut self, key: &str, count: u64) {
        self.set(key, Value::U32(count as u32));
    }

    pub fn number(&mut self, key: &str, number: f64) {
        self.set(key, Value::F32(number as f32));
    }

    pub fn flag(&mut self, key: &str, flag: bool) {
        self.set(key, Value::Bool(flag));
    }

    pub fn text(&mut self, key: &str, text: &str) {
        self.set(key, Value::String(text.to_owned()));
    }

    pub fn set(&mut self, key: &str, value: Value) {
        self.set_whole(&format!("{}.{key}", self.arch), value);
    }

    /// Sets a flag for each layer.
    pub fn flags(&mut self, key: &str, flags: &[bool]) {
        self.set(key, Value::Array(Array::from_bools(flags)));
    }

    /// Sets which layers have a window, if `layer_types` tells.
    pub fn window_pattern(&mut self, config: &Config) -> Result<(), Error> {
        if let Some(layers) = config.layers_of("sliding_attention")? {
            self.flags("attention.sliding_window_pattern", &layers);
        }
        Ok(())
    }

    /// Sets a count for each layer.
    pub fn sizes_of_layers(&mut self, key: &str, counts: &[u64]) {
        let counts: Vec<i32> = counts.iter().map(|count| *count as i32).collect();
        self.set(key, Value::Array(Array::from_i32s(&counts)));
    }

    /// Sets a list of integers.
    pub fn integers(&mut self, key: &str, numbers: &[i64]) {
        self.set(key, Value::Array(Array::from_i64s(numbers)));
    }

    /// Sets a number for each layer.
    pub fn numbers_of_layers(&mut self, key: &str, numbers: &[f32]) {
        self.set(key, Value::Array(Array::from_f32s(numbers)));
    }

    /// Sets a key that does not belong to the architecture.
    pub fn set_whole(&mut self, key: &str, value: Value) {
        match self.values.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = value,
            None => self.values.push((key.to_owned(), value)),
        }
    }

    fn gating(&mut self, config: &Config) -> Result<(), Error> {
        let Some(found) = config.find_str(&GATING_KEYS)? else { return Ok(()) };
        let kinds = [("softmax", 1), ("sigmoid", 2), ("sqrtsoftplus", 4)];
        let kind = kinds.iter().find(|(name, _)| *name == found).ok_or_else(|| Error::Config {
            key: GATING_KEYS.into_iter().find(|key| config.get(key).is_some()).unwrap_or("").into(),
            found: found.clone(),
            wanted: kinds.map(|(name, _)| name).join(" or "),
        })?;
        self.size("expert_gating_func", kind.1);
        Ok(())
    }

    fn rope(&mut self, rope: &Rope) -> Result<(), Error> {
        let factor = rope.full.find_f64(&["factor"])?;
        match (rope.kind.as_deref(), factor) {
            (Some(kind @ ("linear" | "yarn")), Some(factor)) => {
                self.text("rope.scaling.type", kind);
                self.number("rope.scaling.factor", factor);
                if kind == "yarn" {
                    let missing = || rope.full.lacks("original_max_position_embeddings");
                    let context = rope.original_context.ok_or_else(missing)?;
                    self.size("rope.scaling.original_context_length", context);
                    self.numbers(&rope.full, YARN)?;
                    if rope.full.find_bool("truncate")? == Some(false) {
                        self.flag("rope.scaling.yarn_truncate", false);
                    }
                }
            }
            (Some("su" | "longrope"), _) => self.text("rope.scaling.type", "longrope"),
            (None | Some("default" | "llama3" | "dynamic" | "mrope" | "proportional"), _) => {}
            (Some(kind), _) => {
                return Err(Error::Config {
                    key: "rope_scaling".to_owned(),
                    found: format!("{kind} with the factor {factor:?}"),
                    wanted: "default, linear, yarn, longrope or llama3".to_owned(),
                });
            }
        }
        if let Some(base) = rope.base {
            self.number("rope.freq_base", base);
        }
        if let Some(base) = rope.local_base {
            self.number("rope.freq_base_swa", base);
        }
        Ok(())
    }
}

/// A count of config.json, which GGUF keeps in 32 bits.
fn narrow(key: &str, count: u64) -> Result<u32, Error> {
    let (found, wanted) = (count.to_string(), format!("a count of at most {}", u32::MAX));
    count.try_into().map_err(|_| Error::Config { key: key.to_owned(), found, wanted })
}
