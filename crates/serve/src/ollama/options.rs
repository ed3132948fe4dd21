//! `options`: sampling, token limits and load settings.

use std::fmt::Display;
use std::ops::RangeInclusive;

use protocol::{PARAMETERS, SamplingChoice};
use serde_json::{Map, Value};

use crate::http::error::ApiError;
use crate::http::fields::{TOKENS_MAX, check_stops, within};
use crate::known::{Endpoint, settle};
use crate::openai::fields::shown_value;
use crate::openai::samplers::settle as settle_samplers;

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
        settle(Endpoint::OllamaOptions, &mut given.0, "options.")?;
        given.0.retain(|_, value| !value.is_null());
        let mut sampling = given.numbers()?;
        settle_samplers(&mut sampling, "options.")?;
        // As in Ollama, -1 requests a random seed.
        let seed = given.integer("seed", i64::MIN..=i64::MAX)?;
        sampling.seed = seed.filter(|seed| *seed != -1).map(|seed| seed as u64);
        // Clients send Ollama's defaults without intent.
        if (sampling.repeat_last_n, sampling.repetition_penalty) == OLLAMA_DEFAULT {
            (sampling.repeat_last_n, sampling.repetition_penalty) = (None, None);
        }
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

/// Ollama's defaults of `repeat_last_n` and `repeat_penalty`.
const OLLAMA_DEFAULT: (Option<i32>, Option<f32>) = (Some(64), Some(1.1));

/// Options not read yet.
struct Given(Map<String, Value>);

impl Given {
    fn numbers(&mut self) -> Result<SamplingChoice, ApiError> {
        let mut choice = SamplingChoice::default();
        for row in PARAMETERS.iter().filter(|row| row.fields.is_ollamas) {
            let (name, (low, high)) = (row.llama_name(), row.fields.range);
            if row.fields.is_switch && self.0.get(name) == Some(&Value::Bool(false)) {
                self.0.remove(name);
            }
            let value = match row.fields.is_whole {
                true => self.integer(name, low as i64..=high as i64)?.map(|value| value as f64),
                false => self.float(name, low..=high)?,
            };
            if let Some(value) = value {
                (row.choose)(&mut choice, value);
            }
        }
        Ok(choice)
    }

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
            let message = format!("{field} is {}; it must be {kind}", shown_value(&value));
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

    /// Unknown options: a misspelt one would silently change nothing.
    fn check_rest(&self) -> Result<(), ApiError> {
        match self.0.iter().next() {
            None => Ok(()),
            Some((name, value)) => {
                let field = format!("options.{name}");
                let value = shown_value(value);
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
            repeat_last_n: Some(-1),
            ..SamplingChoice::default()
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
        let usual = read(json!({"repeat_last_n": 64, "repeat_penalty": 1.1})).unwrap();
        assert_eq!(usual.sampling, SamplingChoice::default());
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
            json!({"mirostat": 1}),
            json!({"typical_p": 2}),
            json!({"dry_multiplier": 0.8}),
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
        let odd = json!({"mirostat": 2, "mirostat_tau": 3, "typical_p": 0.5, "repeat_last_n": 9});
        let found = read(odd).unwrap().sampling;
        assert_eq!((found.mirostat, found.mirostat_tau), (Some(2), Some(3.0)));
        assert_eq!((found.typical_p, found.repeat_last_n), (Some(0.5), Some(9)));
    }
}
