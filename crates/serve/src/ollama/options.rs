//! `options`: sampling, token limits and load settings.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::completion::SamplingChoice;
use crate::http::error::ApiError;
use crate::http::fields::{TOKENS_MAX, TOP_K_MAX, check_stops, within};

/// Load options, which are set when the model is served, and `num_keep`, which sets the part to
/// keep of a truncated conversation: conversations are never truncated here.
const WITHOUT_EFFECT: &[&str] = &[
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "mirostat_eta",
    "mirostat_tau",
    "num_batch",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

/// Unsupported samplers, with the value that switches each off.
const SWITCHED_OFF: &[(&str, f64)] = &[("mirostat", 0.0), ("tfs_z", 1.0), ("typical_p", 1.0)];

/// The validated options of one request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Options {
    pub sampling: SamplingChoice,
    pub max_tokens: Option<usize>,
    /// Maximum tokens of prompt and answer together.
    pub num_ctx: Option<usize>,
    pub stops: Vec<String>,
}

impl Options {
    /// # Errors
    /// 400 naming the first option that is invalid, unknown or unsupported.
    pub fn read(options: Option<Map<String, Value>>) -> Result<Self, ApiError> {
        let mut given = Given(options.unwrap_or_default());
        given.0.retain(|name, value| !value.is_null() && !WITHOUT_EFFECT.contains(&name.as_str()));
        let float = |value: Option<f64>| value.map(|value| value as f32);
        let mut sampling = SamplingChoice {
            temperature: float(given.float("temperature", 0.0..=2.0)?),
            top_k: given.integer("top_k", 0..=TOP_K_MAX)?.map(|top_k| top_k as u32),
            top_p: float(given.float("top_p", 0.0..=1.0)?),
            min_p: float(given.float("min_p", 0.0..=1.0)?),
            // As in Ollama, -1 requests a random seed.
            seed: given
                .integer("seed", i64::MIN..=i64::MAX)?
                .filter(|seed| *seed != -1)
                .map(|s| s as u64),
            repetition_penalty: float(given.float("repeat_penalty", 0.01..=10.0)?),
            frequency_penalty: float(given.float("frequency_penalty", -2.0..=2.0)?),
            presence_penalty: float(given.float("presence_penalty", -2.0..=2.0)?),
            logit_bias: Vec::new(),
        };
        let last_n = given.integer("repeat_last_n", -1..=TOKENS_MAX)?;
        limit_penalties(&mut sampling, last_n)?;
        let max_tokens = given.integer("num_predict", -2..=TOKENS_MAX)?;
        if max_tokens == Some(0) {
            let message = "options.num_predict is 0; at least one token must be asked for, and -1 \
                           stands for as many as there is room for";
            return Err(ApiError::invalid_value("options.num_predict", message));
        }
        let num_ctx = given.integer("num_ctx", 1..=TOKENS_MAX)?;
        let mut stops = given.strings("stop")?;
        stops.retain(|stop| !stop.is_empty());
        check_stops("options.stop", &stops)?;
        given.check_rest()?;
        Ok(Self {
            sampling,
            max_tokens: max_tokens.and_then(|tokens| usize::try_from(tokens).ok()),
            num_ctx: num_ctx.map(|tokens| tokens as usize),
            stops,
        })
    }
}

/// Ollama's defaults of `repeat_last_n` and `repeat_penalty`: clients send both without intent.
const OLLAMA_DEFAULT: (Option<i64>, Option<f32>) = (Some(64), Some(1.1));

/// Penalties cover the whole prompt and answer (`repeat_last_n` of -1) or are off (0).
fn limit_penalties(sampling: &mut SamplingChoice, last_n: Option<i64>) -> Result<(), ApiError> {
    if (last_n, sampling.repetition_penalty) == OLLAMA_DEFAULT {
        sampling.repetition_penalty = None;
    }
    let neutral = [
        (&mut sampling.repetition_penalty, 1.0),
        (&mut sampling.frequency_penalty, 0.0),
        (&mut sampling.presence_penalty, 0.0),
    ];
    match last_n {
        None | Some(-1) => Ok(()),
        Some(0) => {
            neutral.into_iter().for_each(|(penalty, off)| *penalty = Some(off));
            Ok(())
        }
        Some(_) if neutral.iter().all(|(given, off)| given.is_none_or(|given| given == *off)) => {
            Ok(())
        }
        Some(last_n) => {
            let message = format!(
                "options.repeat_last_n is {last_n}; penalties look at all tokens or at none. Send \
                 -1 or 0, or leave it out"
            );
            Err(ApiError::unsupported("options.repeat_last_n", message))
        }
    }
}

/// Options not read yet.
struct Given(Map<String, Value>);

impl Given {
    fn float(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        self.number(name, range, "a number", Value::as_f64)
    }

    /// Some clients write integers as 7.0.
    fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.number(name, range, "an integer", |value| {
            let whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9e15;
            value.as_i64().or_else(|| value.as_f64().filter(whole).map(|number| number as i64))
        })
    }

    fn number<T: PartialOrd + Display>(
        &mut self,
        name: &str,
        range: RangeInclusive<T>,
        kind: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.remove(name) else { return Ok(None) };
        let field = format!("options.{name}");
        let Some(number) = read(&value) else {
            let message = format!("{field} is {value}; it must be {kind}");
            return Err(ApiError::invalid_value(&field, message));
        };
        within(&field, Some(number), range)
    }

    fn strings(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        let wrong = || {
            let field = format!("options.{name}");
            let message = format!("{field} must be a string or a list of strings");
            Err(ApiError::invalid_value(&field, message))
        };
        match self.0.remove(name) {
            None => Ok(Vec::new()),
            Some(Value::String(one)) => Ok(vec![one]),
            Some(Value::Array(many)) => {
                let texts = many.iter().map(|one| one.as_str().map(str::to_owned));
                texts.collect::<Option<_>>().map_or_else(wrong, Ok)
            }
            Some(_) => wrong(),
        }
    }

    fn check_rest(&self) -> Result<(), ApiError> {
        let is_off = |name: &str, value: &Value| {
            let off = SWITCHED_OFF.iter().find(|(switch, _)| *switch == name);
            let newline = name == "penalize_newline" && *value == Value::Bool(true);
            newline || off.is_some_and(|(_, off)| value.as_f64() == Some(*off))
        };
        match self.0.iter().find(|(name, value)| !is_off(name, value)) {
            None => Ok(()),
            Some((name, value)) => {
                let field = format!("options.{name}");
                let value: String = value.to_string().chars().take(40).collect();
                let message =
                    format!("{field} ({value}) is not there in this version. Leave it out");
                Err(ApiError::unsupported(&field, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(options: Value) -> Result<Options, ApiError> {
        Options::read(options.as_object().cloned())
    }

    #[test]
    fn values_arrive() {
        let found = read(json!({
            "temperature": 0, "top_k": 3.0, "top_p": 0.5, "min_p": 0.25, "seed": 7,
            "repeat_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -1,
            "repeat_last_n": -1, "num_predict": 9, "num_ctx": 512, "stop": ["a", "b"],
        }))
        .unwrap();
        let sampling = SamplingChoice {
            temperature: Some(0.0),
            top_k: Some(3),
            top_p: Some(0.5),
            min_p: Some(0.25),
            seed: Some(7),
            repetition_penalty: Some(1.5),
            frequency_penalty: Some(-1.0),
            presence_penalty: Some(1.0),
            logit_bias: Vec::new(),
        };
        let stops = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(found, Options { sampling, max_tokens: Some(9), num_ctx: Some(512), stops });
    }

    #[test]
    fn what_means_nothing_is_accepted() {
        let cases = [
            json!(null),
            json!({"num_predict": -1, "seed": -1, "stop": null, "mirostat": 0, "tfs_z": 1}),
            json!({"num_predict": -2, "num_gpu": 99, "use_mmap": true, "typical_p": 1.0}),
            json!({"repeat_last_n": 64, "repeat_penalty": 1.0, "penalize_newline": true}),
            json!({"repeat_last_n": 64, "repeat_penalty": 1.1}),
        ];
        for options in cases {
            let found =
                read(options.clone()).unwrap_or_else(|error| panic!("{options}: {error:?}"));
            assert_eq!((found.max_tokens, found.sampling.seed), (None, None), "{options}");
        }
        let off = read(json!({"repeat_last_n": 0, "repeat_penalty": 1.5})).unwrap();
        assert_eq!(off.sampling.repetition_penalty, Some(1.0));
        assert_eq!(read(json!({"stop": "END"})).unwrap().stops, ["END"]);
        assert!(read(json!({"stop": ["", ""]})).unwrap().stops.is_empty());
    }

    #[test]
    fn what_cannot_be_is_named() {
        let cases = [
            json!({"temperature": -1}),
            json!({"temperature": "hot"}),
            json!({"top_k": 1.5}),
            json!({"top_p": 2}),
            json!({"num_predict": 0}),
            json!({"num_predict": -3}),
            json!({"num_ctx": 0}),
            json!({"repeat_last_n": -2}),
            json!({"mirostat": 2}),
            json!({"tfs_z": 0.5}),
            json!({"penalize_newline": false}),
            json!({"stop": 7}),
            json!({"stop": [7]}),
            json!({"no_such_option": 1}),
        ];
        for options in cases {
            let name = options.as_object().unwrap().keys().next().unwrap().clone();
            let error = read(options.clone()).expect_err(&options.to_string());
            assert_eq!(error.param, Some(format!("options.{name}")), "{options}");
            assert!(error.message.contains(&name), "{}", error.message);
        }
        let penalties = read(json!({"repeat_last_n": 64, "repeat_penalty": 1.2}));
        assert!(penalties.unwrap_err().message.contains("repeat_last_n is 64"));
    }
}
