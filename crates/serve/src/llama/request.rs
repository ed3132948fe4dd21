//! The fields shared by `/completion` and `/infill`.

use std::time::Duration;

use protocol::LOGPROBS_MAX;
use serde_json::Value;

use super::sampling;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{CompletionRequest, LineBounds};
use crate::http::error::ApiError;
use crate::http::fields::{TOKENS_MAX, check_stops};
use crate::openai::fields::Fields;
use crate::openai::format::format;

/// Answers per request.
pub(super) const ANSWERS_MAX: usize = 128;
/// Fields of an answer that a request may choose.
const RESPONSE_FIELDS_MAX: usize = 128;

/// The validated fields, without the prompt.
#[derive(Debug)]
pub(super) struct Asked {
    /// The request without its prompt.
    pub completion: CompletionRequest,
    /// Answers to each prompt.
    pub answers: usize,
    pub wants: Wants,
    model: Option<String>,
}

/// What an answer contains.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Wants {
    pub stream: bool,
    /// Whether to return token ids without streaming.
    pub tokens: bool,
    pub timings_per_token: bool,
    pub progress: bool,
    /// Whether the prompt is only computed for later requests.
    pub only_prompt: bool,
    /// The fields to return; all if empty.
    pub fields: Vec<String>,
}

impl Asked {
    /// Reads settled fields.
    ///
    /// # Errors
    /// 400 naming the first invalid field.
    pub fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let model = fields.read::<String>("model")?.filter(|model| !model.is_empty());
        let sampling = sampling::read(fields)?;
        let mut n_predict = None;
        for name in ["n_predict", "max_completion_tokens", "max_tokens"] {
            n_predict = n_predict.or(fields.integer(name, -1..=TOKENS_MAX)?);
        }
        let n_predict = n_predict.and_then(|tokens| usize::try_from(tokens).ok());
        let n_cmpl = fields.count("n_cmpl", 1..=ANSWERS_MAX as i64)?;
        let n = fields.count("n", 1..=ANSWERS_MAX as i64)?;
        let probs = fields.count("n_probs", 0..=LOGPROBS_MAX as i64)?;
        let logprobs = fields.count("logprobs", 0..=LOGPROBS_MAX as i64)?;
        let time_max = fields.integer("t_max_predict_ms", -1..=i64::MAX)?;
        let time_max = time_max.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
        let lines = LineBounds {
            indent_min: fields.count("n_indent", 0..=TOKENS_MAX)?.unwrap_or(0),
            time_max: time_max.map(Duration::from_millis),
        };
        let stops = stops(fields.take("stop"))?;
        let (format, format_field) = format(fields)?;
        let wants = Wants {
            stream: fields.flag("stream")?,
            tokens: fields.flag("return_tokens")?,
            timings_per_token: fields.flag("timings_per_token")?,
            progress: fields.flag("return_progress")?,
            only_prompt: n_predict == Some(0),
            fields: response_fields(fields.read("response_fields")?.unwrap_or_default())?,
        };
        let completion = CompletionRequest {
            // At least one token is computed.
            max_tokens: n_predict.map(|tokens| tokens.max(1)),
            ignore_eos: fields.flag("ignore_eos")?,
            stops,
            logprobs: probs.or(logprobs).filter(|probs| *probs > 0),
            tokens: true,
            lines,
            format,
            format_field,
            sampling,
            ..CompletionRequest::default()
        };
        Ok(Self { completion, answers: n_cmpl.or(n).unwrap_or(1), wants, model })
    }

    /// The request to the model, and what its answer contains.
    ///
    /// # Errors
    /// No model of that name is served, or several without a name in the request.
    pub async fn into_request(
        self,
        app: &App,
        caller: Caller,
    ) -> Result<(CompletionRequest, usize, Wants), ApiError> {
        let model = caller.serve_or_only(app, self.model).await?;
        let completion = CompletionRequest { model, client: caller.number, ..self.completion };
        Ok((completion, self.answers, self.wants))
    }
}

/// One string or several; empty ones mean nothing.
fn stops(field: Option<Value>) -> Result<Vec<String>, ApiError> {
    let listed = match field {
        None => Some(Vec::new()),
        Some(Value::String(stop)) => Some(vec![stop]),
        Some(stops) => serde_json::from_value::<Vec<String>>(stops).ok(),
    };
    let Some(mut stops) = listed else {
        let message = "stop must be a string or a list of strings";
        return Err(ApiError::invalid_value("stop", message));
    };
    stops.retain(|stop| !stop.is_empty());
    check_stops("stop", &stops)?;
    Ok(stops)
}

fn response_fields(fields: Vec<String>) -> Result<Vec<String>, ApiError> {
    if fields.len() > RESPONSE_FIELDS_MAX {
        let found = fields.len();
        let message = format!("response_fields has {found} names; up to {RESPONSE_FIELDS_MAX} fit");
        return Err(ApiError::invalid_value("response_fields", message));
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::completion::Format;
    use crate::known::Endpoint;

    fn read(fields: Value) -> Result<Asked, ApiError> {
        let mut fields: Fields = serde_json::from_value(fields).unwrap();
        fields.settle(Endpoint::Completion)?;
        Asked::read(&mut fields)
    }

    #[test]
    fn values_arrive() {
        let asked = read(json!({
            "n_predict": 9, "n_indent": 4, "t_max_predict_ms": 250, "stop": ["a", ""],
            "n_probs": 3, "n_cmpl": 2, "stream": true, "return_tokens": true,
            "response_fields": ["content"], "json_schema": {"type": "integer"},
            "cache_prompt": true, "id_slot": 0, "timings_per_token": true,
        }))
        .unwrap();
        let completion = asked.completion;
        assert_eq!((completion.max_tokens, completion.logprobs), (Some(9), Some(3)));
        let time_max = Some(Duration::from_millis(250));
        assert_eq!(completion.lines, LineBounds { indent_min: 4, time_max });
        assert_eq!((completion.stops, asked.answers), (vec!["a".to_owned()], 2));
        assert_eq!(completion.format, Format::JsonSchema(json!({"type": "integer"})));
        assert!(asked.wants.stream && asked.wants.tokens && asked.wants.timings_per_token);
        assert!(!asked.wants.only_prompt);
        let asked = read(json!({"n_predict": 0, "t_max_predict_ms": 0})).unwrap();
        assert_eq!((asked.completion.max_tokens, asked.wants.only_prompt), (Some(1), true));
        assert_eq!(asked.completion.lines, LineBounds::default());
        assert_eq!(read(json!({"n_predict": -1})).unwrap().completion.max_tokens, None);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let cases = [
            json!({"n_predict": -2}),
            json!({"n_cmpl": 0}),
            json!({"n_probs": 21}),
            json!({"stop": [7]}),
            json!({"response_fields": "content"}),
            json!({"post_sampling_probs": true}),
            json!({"grammar": 7}),
            json!({"json_schema": 7}),
            json!({"lora": [{"id": 0, "scale": 1.0}]}),
            json!({"stream": "yes"}),
        ];
        for fields in cases {
            let name = fields.as_object().unwrap().keys().next().unwrap().clone();
            let error = read(fields.clone()).expect_err(&fields.to_string());
            assert_eq!(error.param, Some(name), "{fields}");
        }
    }
}
