//! The fields of `llama-server` for sampling.

use protocol::{BIASES_MAX, SamplingChoice};
use serde_json::Value;

use crate::completion::random_seed;
use crate::http::error::ApiError;
use crate::openai::fields::Fields;
use crate::openai::samplers::{lists, llama_numbers};

/// A bias smaller than any logit.
const NEVER: f32 = -1e9;

/// The settings of one request.
///
/// # Errors
/// 400 naming the first field that is invalid or not supported.
pub(super) fn read(fields: &mut Fields) -> Result<SamplingChoice, ApiError> {
    let mut choice = llama_numbers(fields)?;
    choice.temperature = choice.temperature.map(|temperature| temperature.max(0.0));
    choice.seed = Some(seed(fields)?);
    lists(fields, &mut choice)?;
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
    use protocol::{Sampler, Sampling};
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
    fn what_switches_samplers_off_is_accepted_and_what_is_not_there_is_refused() {
        let off =
            read(json!({"mirostat": 0, "typical_p": 1.0, "xtc_probability": 0, "dry_base": 0,
            "dynatemp_range": 0.0, "top_n_sigma": -1, "repeat_last_n": 64, "min_keep": 0.0,
            "tfs_z": 1, "adaptive_target": -1, "dry_sequence_breakers": []}))
            .unwrap();
        let sampling = off.over(&Sampling::default(), 0).simplified();
        assert_eq!(sampling, Sampling::default());
        let cases = [
            json!({"mirostat": 1}),
            json!({"mirostat": 3}),
            json!({"typical_p": 2}),
            json!({"dry_multiplier": -1}),
            json!({"samplers": ["beam"]}),
            json!({"samplers": "q"}),
            json!({"tfs_z": 0.5}),
            json!({"adaptive_target": 0.5}),
            json!({"repeat_last_n": -2}),
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
    fn samplers_and_their_order_arrive() {
        let found = read(json!({"samplers": ["temperature", "top_k"], "repeat_penalty": 1.1,
            "repeat_last_n": 64, "temperature": -1, "dry_multiplier": 0.8, "mirostat": 2}))
        .unwrap();
        assert_eq!(found.samplers, Some(vec![Sampler::Temperature, Sampler::TopK]));
        assert_eq!((found.repetition_penalty, found.repeat_last_n), (Some(1.1), Some(64)));
        assert_eq!((found.temperature, found.dry_multiplier), (Some(0.0), Some(0.8)));
        assert_eq!((found.mirostat, found.typical_p), (Some(2), None));
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
