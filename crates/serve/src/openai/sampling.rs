//! The fields shared by all requests for text: sampling and the end of the answer.

use protocol::{BIASES_MAX, SamplingChoice};
use serde::Deserialize;
use serde_json::{Map, Number, Value};

use super::fields::{Fields, shaped, shown};
use super::samplers::{lists, numbers};
use crate::http::error::ApiError;
use crate::http::fields::TOKENS_MAX;

/// vLLM's limit; OpenAI's is 4.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;
/// OpenAI's limit.
const ANSWERS_MAX: i64 = 128;
/// OpenAI's limit.
pub(super) const TOP_LOGPROBS_MAX: i64 = 20;

/// Where an answer ends.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Bounds {
    pub max_tokens: Option<usize>,
    pub min_tokens: usize,
    pub ignore_eos: bool,
    pub stops: Vec<String>,
}

/// # Errors
/// 400 naming the first invalid field.
pub(super) fn sampling(fields: &mut Fields) -> Result<SamplingChoice, ApiError> {
    let mut choice = numbers(fields, |row| (row.name, row.fields.range))?;
    choice.seed = seed(fields)?;
    choice.logit_bias = logit_bias(fields)?;
    // An empty list asks for nothing here.
    fields.drop_empty("samplers");
    lists(fields, &mut choice)?;
    Ok(choice)
}

/// Any integer is a valid seed; the sign has no meaning.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(number) = fields.read::<Number>("seed")? else { return Ok(None) };
    let seed = number.as_u64().or(number.as_i64().map(|seed| seed as u64));
    let odd = || {
        let message = format!("seed is {number}; it must be an integer of 64 bits");
        ApiError::invalid_value("seed", message)
    };
    seed.map(Some).ok_or_else(odd)
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let given = fields.take("logit_bias").filter(|given| *given != Value::Array(Vec::new()));
    let biases: Map<String, Value> =
        given.map(|given| shaped("logit_bias", given)).transpose()?.unwrap_or_default();
    if biases.len() > BIASES_MAX {
        let message = format!("logit_bias has {} tokens; {BIASES_MAX} are the most", biases.len());
        return Err(ApiError::invalid_value("logit_bias", message));
    }
    let bias = |(token, bias): (String, Value)| {
        let number = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        match (token.parse(), number) {
            (Ok(token), Some(bias)) => Ok((token, bias as f32)),
            _ => {
                let message = format!(
                    "logit_bias gives \"{}\" {}; it must map token ids to numbers from -100 to 100",
                    shown(&token),
                    shown(&bias.to_string()),
                );
                Err(ApiError::invalid_value("logit_bias", message))
            }
        }
    };
    biases.into_iter().map(bias).collect()
}

/// `names` are the fields that limit the answer's tokens; the first one present counts.
///
/// # Errors
/// 400 naming the first invalid field.
pub(super) fn bounds(fields: &mut Fields, names: &[&str]) -> Result<Bounds, ApiError> {
    let mut max_tokens = None;
    for name in names {
        // In llama.cpp, -1 means no limit.
        fields.drop_if(name, -1.0);
        let found = fields.count(name, 1..=TOKENS_MAX)?;
        max_tokens = max_tokens.or(found);
    }
    let min_tokens = fields.count("min_tokens", 0..=TOKENS_MAX)?.unwrap_or(0);
    if let Some(max) = max_tokens.filter(|max| min_tokens > *max) {
        let message = format!("min_tokens is {min_tokens}; the answer may have {max} at most");
        return Err(ApiError::invalid_value("min_tokens", message));
    }
    let ignore_eos = fields.flag("ignore_eos")?;
    Ok(Bounds { max_tokens, min_tokens, ignore_eos, stops: stops(fields.read("stop")?)? })
}

/// The number of answers.
///
/// # Errors
/// 400 if it is zero or above the limit of one request.
pub(super) fn answers(fields: &mut Fields) -> Result<usize, ApiError> {
    Ok(fields.count("n", 1..=ANSWERS_MAX)?.unwrap_or(1))
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

fn stops(stop: Option<Stop>) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop],
        Some(Stop::Many(stops)) => stops,
    };
    let stops: Vec<String> = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
    if stops.len() > STOPS_MAX {
        let message = format!("stop has {} strings; {STOPS_MAX} are the most", stops.len());
        return Err(ApiError::invalid_value("stop", message));
    }
    if let Some(stop) = stops.iter().find(|stop| stop.len() > STOP_BYTES_MAX) {
        let bytes = stop.len();
        let message = format!("a stop string has {bytes} bytes; {STOP_BYTES_MAX} are the most");
        return Err(ApiError::invalid_value("stop", message));
    }
    Ok(stops)
}

/// Streaming options.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Streaming {
    pub stream: bool,
    pub include_usage: bool,
    /// Whether each chunk has timings.
    pub timings_per_token: bool,
    /// Whether to report that the prompt is computed.
    pub return_progress: bool,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// # Errors
/// 400 naming a field that is invalid or not supported.
pub(super) fn streaming(fields: &mut Fields) -> Result<Streaming, ApiError> {
    let stream = fields.flag("stream")?;
    let options: StreamOptions = fields.object("stream_options")?.unwrap_or_default();
    Ok(Streaming {
        stream,
        include_usage: options.include_usage.unwrap_or(false),
        timings_per_token: fields.flag("timings_per_token")?,
        return_progress: fields.flag("return_progress")?,
    })
}

/// The model's name, empty if there is none.
///
/// # Errors
/// 400 if it is not a text.
pub(super) fn model(fields: &mut Fields) -> Result<String, ApiError> {
    Ok(fields.read("model")?.unwrap_or_default())
}
