//! The fields of `llama-server` for sampling.

use protocol::BIASES_MAX;
use serde_json::Value;

use crate::completion::{SamplingChoice, random_seed};
use crate::http::error::ApiError;
use crate::http::fields::{TOKENS_MAX, TOP_K_MAX};
use crate::openai::fields::Fields;
use crate::openai::samplers::{keep_only, limit_penalties};

/// A bias smaller than any logit.
const NEVER: f32 = -1e9;

/// The settings of one request.
///
/// # Errors
/// 400 naming the first field that is invalid or not supported.
pub(super) fn read(fields: &mut Fields) -> Result<SamplingChoice, ApiError> {
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
        ..SamplingChoice::default()
    };
    let last_n = fields.integer("repeat_last_n", -1..=TOKENS_MAX)?;
    limit_penalties(&mut choice, "repeat_last_n", last_n)?;
    if let Some(names) = fields.take("samplers") {
        keep_only(&mut choice, &names)?;
    }
    read_biases(fields.take("logit_bias"), &mut choice)?;
    Ok(choice)
}

/// The seed; -1, also as an unsigned number, stands for a random one.
fn seed(fields: &mut Fields) -> Result<u64, ApiError> {
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    let given = seed.filter(|seed| *seed != -1 && *seed != i64::from(u32::MAX));
    // Answers repeat it: 32 bits are exact in every client.
    Ok(given.map_or_else(|| random_seed() >> 32, |seed| seed as u64))
}

/// `[[token or text, bias or false], ...]`, or an object of the same.
fn read_biases(field: Option<Value>, choice: &mut SamplingChoice) -> Result<(), ApiError> {
    let wrong = || {
        let message = "logit_bias must list pairs of a token or text and a number or false";
        ApiError::invalid_value("logit_bias", message)
    };
    let count = match &field {
        Some(Value::Object(pairs)) => pairs.len(),
        Some(Value::Array(pairs)) => pairs.len(),
        _ => 0,
    };
    if count > BIASES_MAX {
        let message = format!("logit_bias has {count} entries; {BIASES_MAX} are the most");
        return Err(ApiError::invalid_value("logit_bias", message));
    }
    let pairs: Vec<(Value, Value)> = match field {
        None => Vec::new(),
        Some(Value::Object(pairs)) => pairs
            .into_iter()
            .map(|(key, bias)| (key.parse::<u32>().map_or(Value::from(key), Value::from), bias))
            .collect(),
        Some(Value::Array(pairs)) => {
            let pair = |pair| serde_json::from_value::<(Value, Value)>(pair).map_err(|_| wrong());
            pairs.into_iter().map(pair).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    for (biased, bias) in pairs {
        let bias = match bias {
            Value::Bool(false) => NEVER,
            bias => bias.as_f64().ok_or_else(wrong)? as f32,
        };
        match biased {
            Value::String(text) => choice.text_bias.push((text, bias)),
            token => {
                let token = token.as_u64().and_then(|token| u32::try_from(token).ok());
                choice.logit_bias.push((token.ok_or_else(wrong)?, bias));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::known::Endpoint;

    fn read(fields: Value) -> Result<SamplingChoice, ApiError> {
        let mut fields: Fields = serde_json::from_value(fields).unwrap();
        fields.settle(Endpoint::Completion)?;
        super::read(&mut fields)
    }

    #[test]
    fn biases_come_in_every_form() {
        let biases = |fields| {
            let choice = read(fields).unwrap();
            (choice.logit_bias, choice.text_bias)
        };
        let found = biases(json!({"logit_bias": [[7, -1.5], [" a", false]]}));
        assert_eq!(found, (vec![(7, -1.5)], vec![(" a".to_owned(), NEVER)]));
        let found = biases(json!({"logit_bias": {"7": 1, "b": 2}}));
        assert_eq!(found, (vec![(7, 1.0)], vec![("b".to_owned(), 2.0)]));
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
        let seed = |fields| read(fields).unwrap().seed.unwrap();
        assert_eq!(seed(json!({"seed": 42})), 42);
        let random: Vec<u64> = (0..3).map(|_| seed(json!({"seed": -1}))).collect();
        assert!(random[0] != random[1] || random[1] != random[2]);
        assert!(random.iter().all(|seed| *seed <= u64::from(u32::MAX)));
    }
}
