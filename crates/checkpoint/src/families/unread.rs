//! Keys of a configuration that mean another computation than that of its class here.
//!
//! What a class reads elsewhere and not here must have the value that changes nothing, or the
//! folder is refused: its answers would be wrong without a word.

use serde_json::Value;

use super::neutral::{BASES, DEFAULTS, GATING, MAMBA, NEUTRAL, NOT_ZERO, STRETCHED};
use crate::Error;
use crate::config::{Config, shown};
use crate::header::{GATING_KEYS, Header};
use crate::rope::Rope;

/// Architectures that compute no windows, and the classes of them that have some elsewhere.
const WITHOUT_WINDOWS: &[&str] =
    &["llama", "mistral3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "smollm3"];
const WINDOWED: &[&str] = &["Ministral3ForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"];
/// Architectures that read the factors of `longrope`.
const LONG_ROPE: &[&str] = &["phi3", "phimoe"];

/// Fills in what the class has where a configuration leaves it out.
///
/// # Errors
/// The configuration is malformed.
pub(crate) fn complete(config: &mut Config) -> Result<(), Error> {
    let classes = config.texts("architectures")?;
    let is_one = |class: &str| classes.iter().any(|one| one == class);
    for (_, key, value) in DEFAULTS.iter().filter(|(class, ..)| is_one(class)) {
        match (config.get(key), config.is_null(key)) {
            // A condition that is null does not hold.
            (None, true) if *value == "true" => config.set(key, Value::from(false)),
            (None, _) => config.set(key, parsed(value)),
            _ => {}
        }
    }
    config.base = BASES.iter().find(|(class, _)| is_one(class)).map(|(_, base)| *base);
    if is_one("DeepseekV2ForCausalLM") {
        choose_groups(config)?;
        config.set("norm_topk_prob", Value::from(false));
    }
    Ok(())
}

/// DeepSeek V2's groups of experts count for one method alone.
fn choose_groups(config: &mut Config) -> Result<(), Error> {
    const KEY: &str = "topk_method";
    match config.find_str(&[KEY])?.as_deref() {
        Some("group_limited_greedy") => Ok(()),
        None | Some("greedy") => {
            ["n_group", "topk_group"].into_iter().for_each(|key| config.set(key, Value::from(1)));
            Ok(())
        }
        Some(found) => refused(KEY, &Value::from(found), "greedy or group_limited_greedy"),
    }
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).expect("tables have JSON")
}

/// Refuses what is not computed, and shortens the context to a window that is not.
///
/// # Errors
/// A key has a value that this class does not read.
pub(crate) fn check(config: &Config, arch: &str, header: &mut Header) -> Result<(), Error> {
    for (archs, key, neutral) in NEUTRAL {
        let is_for = archs.is_empty() || archs.contains(&arch);
        let Some(value) = config.get(key).filter(|_| is_for) else { continue };
        if !neutral.iter().any(|json| parsed(json) == *value) {
            let wanted = format!("{}, with which this class is computed,", neutral.join(" or "));
            return refused(key, value, &wanted);
        }
    }
    let rotation = Rope::read(config)?.full;
    for key in NOT_ZERO {
        let value = config.get(key).or_else(|| rotation.get(key));
        if let Some(value) = value.filter(|value| value.as_f64().is_some_and(|it| it <= 0.0)) {
            return refused(key, value, "a number above 0");
        }
    }
    // Python's infinity is no number in JSON.
    if let Some(value) = config.get("time_step_limit").filter(|_| MAMBA.contains(&arch)) {
        let limits = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let is_none = |it: &Value, none: Option<f64>| it.as_f64() == none;
        if !matches!(limits, [low, high] if is_none(low, Some(0.0)) && is_none(high, None)) {
            return refused("time_step_limit", value, "[0.0, Infinity]");
        }
    }
    check_gating(config, arch)?;
    check_rotation(config, arch)?;
    check_norms_of_llama4(config, arch)?;
    let window = window(config)?.filter(|_| WITHOUT_WINDOWS.contains(&arch));
    let context = config.find_u64(&["max_position_embeddings", "model_max_length"])?;
    if let Some(window) = window.filter(|window| context.is_none_or(|context| *window < context)) {
        // Within the window every position sees all before it.
        header.size("context_length", window);
    }
    Ok(())
}

fn refused(key: &str, value: &Value, wanted: &str) -> Result<(), Error> {
    let (key, found, wanted) = (key.to_owned(), shown(value), wanted.to_owned());
    Err(Error::Config { key, found, wanted })
}

/// GGUF has no key for Llama 4's norms of queries and keys: Maverick, with its 128 experts, is the
/// one without.
fn check_norms_of_llama4(config: &Config, arch: &str) -> Result<(), Error> {
    const WITHOUT: u64 = 128;
    if arch != "llama4" {
        return Ok(());
    }
    let experts = config.find_u64(&["num_local_experts"])?;
    let has_norms = Value::from(experts != Some(WITHOUT));
    let found = config.get("use_qk_norm").cloned().unwrap_or(Value::from(true));
    if found == has_norms {
        return Ok(());
    }
    let experts = experts.map_or("the usual".to_owned(), |count| count.to_string());
    refused("use_qk_norm", &found, &format!("{has_norms} with {experts} experts"))
}

/// Refuses another function of a router than the class has.
fn check_gating(config: &Config, arch: &str) -> Result<(), Error> {
    let classes = config.texts("architectures")?;
    let is_v2 = classes.iter().any(|class| class == "DeepseekV2ForCausalLM");
    let wanted = match arch {
        "deepseek2" if is_v2 => Some("softmax"),
        "deepseek2" => Some("sigmoid"),
        _ => GATING.iter().find(|(archs, _)| archs.contains(&arch)).map(|(_, name)| *name),
    };
    let found = GATING_KEYS.iter().find_map(|key| Some((*key, config.get(key)?)));
    match (wanted, found) {
        (Some(wanted), Some((key, value))) if value.as_str() != Some(wanted) => {
            refused(key, value, &format!("{wanted}, with which this class is computed,"))
        }
        _ => Ok(()),
    }
}

/// Refuses a rotation that is given twice or is not read.
fn check_rotation(config: &Config, arch: &str) -> Result<(), Error> {
    let [new, old] = ["rope_parameters", "rope_scaling"].map(|key| (key, config.get(key)));
    for (key, value) in [new, old] {
        if let Some(value) = value.filter(|value| !value.is_object()) {
            return refused(key, value, "an object");
        }
    }
    if let (Some(new), Some(old)) = (new.1, old.1)
        && !is_same_rotation(new, old)
    {
        return refused("rope_scaling", old, "the same as rope_parameters, or none beside it,");
    }
    let rope = Rope::read(config)?;
    if matches!(rope.kind.as_deref(), Some("su" | "longrope")) && !LONG_ROPE.contains(&arch) {
        let value = Value::from("longrope");
        return refused("rope_scaling", &value, "default, linear, yarn or llama3 for this class");
    }
    let by_layer = |kind: &str| new.1.and_then(|all| all.get(kind)).is_some();
    if by_layer("sliding_attention") && !by_layer("full_attention") {
        return Err(config.lacks("rope_parameters.full_attention"));
    }
    let is_none = rope.full.is_empty();
    let classes = config.texts("architectures")?;
    if is_none && classes.iter().any(|class| STRETCHED.contains(&class.as_str())) {
        return Err(config.lacks("rope_parameters"));
    }
    let scales = [rope.full.find_f64(&["mscale"])?, rope.full.find_f64(&["mscale_all_dim"])?];
    let own = rope.full.find_u64(&["original_max_position_embeddings"])?;
    if let (Some(own), Some(whole)) = (own, config.find_u64(&["original_max_position_embeddings"])?)
        && own != whole
    {
        let wanted = format!("{own}, as that of the rotation is,");
        return refused("original_max_position_embeddings", &Value::from(whole), &wanted);
    }
    match scales {
        [None, Some(_)] if rope.kind.as_deref() == Some("yarn") => Err(config.lacks("mscale")),
        [Some(one), Some(all)] if one != all => {
            refused("mscale", &Value::from(one), &format!("{all}, as mscale_all_dim is,"))
        }
        _ => Ok(()),
    }
}

/// Whether the older key says what the newer one does.
fn is_same_rotation(new: &Value, old: &Value) -> bool {
    let Some(old) = old.as_object() else { return false };
    const NEEDED: [&str; 2] = ["factor", "original_max_position_embeddings"];
    let is_known = |key: &str| !NEEDED.contains(&key) || old.contains_key(key);
    let is_in = |new: &Value| {
        let all = new.as_object().into_iter().flatten();
        if !all.into_iter().all(|(key, _)| is_known(key)) {
            return false;
        }
        let renamed = |key: &str| new.get(if key == "type" { "rope_type" } else { key });
        old.iter().all(|(key, value)| new.get(key).or_else(|| renamed(key)) == Some(value))
    };
    let parts = ["full_attention", "compress"].map(|part| new.get(part));
    is_in(new) || parts.into_iter().flatten().any(is_in)
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
    fn maverick_alone_has_no_norms() {
        let of = |experts: &str, norms: &str| check_of("llama4", &format!("{experts}{norms}"));
        let (scout, maverick) = (r#""num_local_experts": 16"#, r#""num_local_experts": 128"#);
        for (experts, norms) in [
            (scout, ""),
            (scout, r#", "use_qk_norm": true"#),
            (maverick, r#", "use_qk_norm": false"#),
        ] {
            assert_eq!(of(experts, norms), Ok(None), "{experts}{norms}");
        }
        for (experts, norms) in [
            (scout, r#", "use_qk_norm": false"#),
            (maverick, r#", "use_qk_norm": true"#),
            (maverick, ""),
        ] {
            let error = of(experts, norms).unwrap_err();
            assert!(error.contains("use_qk_norm is"), "{error}");
        }
    }

    #[test]
    fn each_key_of_the_table_has_one_meaning() {
        for (archs, key, neutral) in NEUTRAL {
            let arch = archs.first().copied().unwrap_or("llama");
            for value in *neutral {
                assert_eq!(
                    check_of(arch, &format!("\"{key}\": {value}")),
                    Ok(None),
                    "{arch} {key}"
                );
            }
            let error = check_of(arch, &format!("\"{key}\": \"nonsense\"")).unwrap_err();
            assert!(error.contains(&format!("{key} is \"nonsense\"")), "{error}");
        }
        for (archs, wanted) in GATING {
            for arch in *archs {
                assert_eq!(check_of(arch, &format!("\"scoring_func\": \"{wanted}\"")), Ok(None));
                let error = check_of(arch, "\"score_func\": \"nonsense\"").unwrap_err();
                assert!(error.contains("score_func is \"nonsense\""), "{error}");
            }
        }
    }

    #[test]
    fn a_rotation_is_given_once_and_whole() {
        let yarn = r#""rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16"#;
        let refused = [
            (
                r#""rope_parameters": {"rope_theta": 1.0}, "rope_scaling": {"factor": 2.0}"#,
                "rope_scaling is",
            ),
            (r#""rope_parameters": {"sliding_attention": {}}"#, "rope_parameters.full_attention"),
            (r#""rope_scaling": {"rope_type": "linear", "factor": -1.0}"#, "factor is -1.0"),
            (&format!(r#""rope_scaling": {{{yarn}, "mscale_all_dim": 1.0}}"#), "mscale is missing"),
            (
                &format!(r#""rope_scaling": {{{yarn}, "mscale": 0.5, "mscale_all_dim": 1.0}}"#),
                "mscale is 0.5; 1, as mscale_all_dim is,",
            ),
            (r#""architectures": ["GptOssForCausalLM"]"#, "rope_parameters is missing"),
        ];
        for (text, wanted) in refused {
            let error = check_of("llama", text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let twice = format!(
            r#""rope_parameters": {{{yarn}, "rope_theta": 5.0}}, "rope_scaling": {{{yarn}}}"#
        );
        assert_eq!(check_of("llama", &twice), Ok(None));
    }

    #[test]
    fn what_a_configuration_leaves_out_is_as_its_class_has_it() {
        let of = |text: &str| {
            let mut config = Config::new(serde_json::from_str(text).unwrap());
            complete(&mut config).map(|()| config)
        };
        let v3 = of(r#"{"architectures": ["DeepseekV3ForCausalLM"], "n_group": 1}"#).unwrap();
        assert_eq!(v3.find_bool("norm_topk_prob").unwrap(), Some(true));
        assert_eq!((v3.u64(&["n_group"]).unwrap(), v3.u64(&["topk_group"]).unwrap()), (1, 4));
        let null = r#"{"architectures": ["DeepseekV3ForCausalLM"], "norm_topk_prob": null}"#;
        assert_eq!(of(null).unwrap().find_bool("norm_topk_prob").unwrap(), Some(false));
        let v2 =
            r#"{"architectures": ["DeepseekV2ForCausalLM"], "n_group": 4, "topk_method": "?"}"#;
        let v2_of = |method| of(&v2.replace('?', method));
        assert_eq!(v2_of("greedy").unwrap().u64(&["n_group"]).unwrap(), 1);
        assert_eq!(v2_of("group_limited_greedy").unwrap().u64(&["n_group"]).unwrap(), 4);
        assert!(v2_of("other").is_err());
        let smol = of(r#"{"architectures": ["SmolLM3ForCausalLM"]}"#).unwrap();
        assert_eq!(Rope::read(&smol).unwrap().base, Some(2e6));
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
