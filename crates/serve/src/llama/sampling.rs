//! The fields of `llama-server` for sampling.

use serde_json::Value;

use crate::completion::{SamplingChoice, TextModel, random_seed};
use crate::http::error::ApiError;
use crate::http::fields::TOP_K_MAX;
use crate::openai::fields::Fields;

/// Samplers that this server does not have, with the values that switch each off.
const SWITCHED_OFF: &[(&str, &[f64])] = &[
    ("adaptive_target", &[-1.0]),
    ("dry_multiplier", &[0.0]),
    ("dynatemp_range", &[0.0]),
    ("min_keep", &[0.0]),
    ("mirostat", &[0.0]),
    ("tfs_z", &[1.0]),
    ("top_n_sigma", &[-1.0, 0.0]),
    ("typical_p", &[1.0, 0.0]),
    ("xtc_probability", &[0.0]),
];

/// Settings of those samplers.
const WITHOUT_EFFECT: &[&str] = &[
    "adaptive_decay",
    "dry_allowed_length",
    "dry_base",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "mirostat_eta",
    "mirostat_tau",
    "penalize_nl",
    "xtc_threshold",
];

/// The samplers of this server in their order. One that a request's list leaves out is off.
const ORDER: &[&str] = &["penalties", "top_k", "top_p", "min_p", "temperature"];
/// Other samplers that a list may name: their settings leave them off, and `infill` prefers endings
/// that the model itself already weighs.
const OTHERS: &[&str] = &[
    "adaptive_p",
    "dry",
    "infill",
    "mirostat",
    "tfs_z",
    "top_n_sigma",
    "typ_p",
    "typical_p",
    "xtc",
];

/// A bias smaller than any logit.
const NEVER: f32 = -1e9;

/// The token or text of a bias.
#[derive(Debug, Clone, PartialEq)]
enum Biased {
    Token(u32),
    /// Each of its tokens.
    Text(String),
}

/// The settings of one request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Sampling {
    choice: SamplingChoice,
    biases: Vec<(Biased, f32)>,
}

impl Sampling {
    /// # Errors
    /// 400 naming the first field that is invalid or not supported.
    pub fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        fields.ignore(WITHOUT_EFFECT);
        for (name, off) in SWITCHED_OFF {
            let Some(value) = fields.take(name) else { continue };
            let is_off = value.as_f64().is_some_and(|value| off.contains(&value));
            if !is_off && value != Value::Bool(false) {
                let message = format!("{name}: there is no such sampler here. Leave it out");
                return Err(ApiError::unsupported(name, message));
            }
        }
        let top_k = fields.integer("top_k", -1..=TOP_K_MAX)?;
        let mut choice = SamplingChoice {
            temperature: fields.number("temperature", -1e3..=1e3)?.map(|t| t.max(0.0)),
            top_k: top_k.map(|top_k| top_k.max(0) as u32),
            top_p: fields.number("top_p", 0.0..=1.0)?,
            min_p: fields.number("min_p", 0.0..=1.0)?,
            seed: Some(seed(fields)?),
            repetition_penalty: fields.number("repeat_penalty", 0.01..=10.0)?,
            frequency_penalty: fields.number("frequency_penalty", -10.0..=10.0)?,
            presence_penalty: fields.number("presence_penalty", -10.0..=10.0)?,
            logit_bias: Vec::new(),
        };
        limit_penalties(&mut choice, fields.integer("repeat_last_n", -1..=i64::from(i32::MAX))?)?;
        if let Some(names) = fields.take("samplers") {
            keep_only(&mut choice, &names)?;
        }
        Ok(Self { choice, biases: biases(fields.take("logit_bias"))? })
    }

    /// The settings with the tokens of biased texts.
    pub fn choice(self, model: &TextModel) -> SamplingChoice {
        let mut logit_bias = Vec::new();
        for (biased, bias) in self.biases {
            match biased {
                Biased::Token(token) => logit_bias.push((token, bias)),
                Biased::Text(text) => {
                    let tokens = model.tokenizer.encode(&text, text::Special::Plain, false);
                    logit_bias.extend(tokens.into_iter().map(|token| (token, bias)));
                }
            }
        }
        SamplingChoice { logit_bias, ..self.choice }
    }
}

/// The seed; -1, also as an unsigned number, stands for a random one.
fn seed(fields: &mut Fields) -> Result<u64, ApiError> {
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    let given = seed.filter(|seed| *seed != -1 && *seed != i64::from(u32::MAX));
    // Answers repeat it: 32 bits are exact in every client.
    Ok(given.map_or_else(|| random_seed() >> 32, |seed| seed as u64))
}

/// Penalties cover the whole prompt and answer (`repeat_last_n` of -1) or are off (0).
fn limit_penalties(choice: &mut SamplingChoice, last_n: Option<i64>) -> Result<(), ApiError> {
    let penalties = [
        (&mut choice.repetition_penalty, 1.0),
        (&mut choice.frequency_penalty, 0.0),
        (&mut choice.presence_penalty, 0.0),
    ];
    match last_n {
        None | Some(-1) => {}
        Some(0) => penalties.into_iter().for_each(|(penalty, off)| *penalty = Some(off)),
        Some(last_n) => {
            if penalties.iter().any(|(given, off)| given.is_some_and(|given| given != *off)) {
                let message = format!(
                    "repeat_last_n is {last_n}; penalties look at all tokens or at none. Send -1 \
                     or 0, or leave it out"
                );
                return Err(ApiError::unsupported("repeat_last_n", message));
            }
        }
    }
    Ok(())
}

/// Switches off the samplers that are not among `names`.
fn keep_only(choice: &mut SamplingChoice, names: &Value) -> Result<(), ApiError> {
    const NAME: &str = "samplers";
    let listed = names.as_array().map(|names| names.iter().map(Value::as_str).collect());
    let Some(Some(names)): Option<Option<Vec<&str>>> = listed else {
        let message = "samplers must be a list of names";
        return Err(ApiError::invalid_value(NAME, message));
    };
    let known = |name: &&str| ORDER.contains(name) || OTHERS.contains(name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let name: String = name.chars().take(40).collect();
        let message = format!("samplers: there is no {name:?}; there are {}", ORDER.join(", "));
        return Err(ApiError::invalid_value(NAME, message));
    }
    let places: Vec<usize> =
        names.iter().filter_map(|name| ORDER.iter().position(|known| known == name)).collect();
    if !places.is_sorted_by(|a, b| a < b) {
        let message = format!("samplers: their order is {}, each once", ORDER.join(", "));
        return Err(ApiError::unsupported(NAME, message));
    }
    let has = |name: &str| names.contains(&name);
    if !has("penalties") {
        choice.repetition_penalty = Some(1.0);
        (choice.frequency_penalty, choice.presence_penalty) = (Some(0.0), Some(0.0));
    }
    if !has("top_k") {
        choice.top_k = Some(0);
    }
    if !has("top_p") {
        choice.top_p = Some(1.0);
    }
    if !has("min_p") {
        choice.min_p = Some(0.0);
    }
    if !has("temperature") {
        choice.temperature = Some(1.0);
    }
    Ok(())
}

/// `[[token or text, bias or false], ...]`, or an object of the same.
fn biases(field: Option<Value>) -> Result<Vec<(Biased, f32)>, ApiError> {
    let wrong = || {
        let message = "logit_bias must list pairs of a token or text and a number or false";
        ApiError::invalid_value("logit_bias", message)
    };
    let pairs: Vec<(Value, Value)> = match field {
        None => Vec::new(),
        Some(Value::Object(pairs)) => pairs
            .into_iter()
            .map(|(key, bias)| (key.parse::<u32>().map_or(Value::from(key), Value::from), bias))
            .collect(),
        Some(Value::Array(pairs)) => {
            let pair = |pair| match serde_json::from_value::<(Value, Value)>(pair) {
                Ok(pair) => Ok(pair),
                Err(_) => Err(wrong()),
            };
            pairs.into_iter().map(pair).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    let bias = |(biased, bias): (Value, Value)| {
        let biased = match biased {
            Value::String(text) => Biased::Text(text),
            token => {
                let token = token.as_u64().and_then(|token| u32::try_from(token).ok());
                Biased::Token(token.ok_or_else(wrong)?)
            }
        };
        match bias {
            Value::Bool(false) => Ok((biased, NEVER)),
            bias => Ok((biased, bias.as_f64().ok_or_else(wrong)? as f32)),
        }
    };
    pairs.into_iter().map(bias).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(fields: Value) -> Result<Sampling, ApiError> {
        Sampling::read(&mut serde_json::from_value(fields).unwrap())
    }

    #[test]
    fn samplers_that_are_left_out_are_off() {
        let found = read(json!({"samplers": ["top_k", "top_p", "infill"], "top_p": 0.9}));
        let choice = found.unwrap().choice;
        assert_eq!((choice.top_k, choice.top_p, choice.min_p), (None, Some(0.9), Some(0.0)));
        assert_eq!((choice.temperature, choice.repetition_penalty), (Some(1.0), Some(1.0)));
        let all = json!({"samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p",
            "top_p", "min_p", "xtc", "temperature"]});
        let choice = SamplingChoice { seed: None, ..read(all).unwrap().choice };
        assert_eq!(choice, SamplingChoice::default());
    }

    #[test]
    fn biases_come_in_every_form() {
        let text = |text: &str| Biased::Text(text.to_owned());
        let found = read(json!({"logit_bias": [[7, -1.5], [" a", false]]})).unwrap();
        assert_eq!(found.biases, [(Biased::Token(7), -1.5), (text(" a"), NEVER)]);
        let found = read(json!({"logit_bias": {"7": 1, "b": 2}})).unwrap();
        assert_eq!(found.biases, [(Biased::Token(7), 1.0), (text("b"), 2.0)]);
    }

    #[test]
    fn what_switches_samplers_off_is_accepted_and_what_asks_for_one_is_refused() {
        read(json!({"mirostat": 0, "typical_p": 1.0, "xtc_probability": 0, "dry_base": 1.75,
            "dynatemp_range": 0.0, "top_n_sigma": -1, "repeat_last_n": 64, "min_keep": 0}))
        .unwrap();
        let cases = [
            json!({"mirostat": 2}),
            json!({"typical_p": 0.5}),
            json!({"dry_multiplier": 0.8}),
            json!({"samplers": ["temperature", "top_k"]}),
            json!({"samplers": ["nucleus"]}),
            json!({"samplers": "kpt"}),
            json!({"repeat_last_n": 64, "repeat_penalty": 1.1}),
            json!({"logit_bias": [[7]]}),
            json!({"logit_bias": [[-7, 1]]}),
            json!({"top_p": 2}),
        ];
        for fields in cases {
            let name = fields.as_object().unwrap().keys().next().unwrap().clone();
            let error = read(fields.clone()).expect_err(&fields.to_string());
            assert_eq!(error.param, Some(name), "{fields}");
        }
    }

    #[test]
    fn a_seed_of_minus_one_is_random() {
        let seed = |fields| read(fields).unwrap().choice.seed.unwrap();
        assert_eq!(seed(json!({"seed": 42})), 42);
        let random: Vec<u64> = (0..3).map(|_| seed(json!({"seed": -1}))).collect();
        assert!(random[0] != random[1] || random[1] != random[2]);
        assert!(random.iter().all(|seed| *seed <= u64::from(u32::MAX)));
    }
}
