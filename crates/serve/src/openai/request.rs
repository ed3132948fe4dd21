//! The body of a chat completion, checked field by field.

use serde::Deserialize;
use serde_json::Value;

use super::message::ChatMessage;
use crate::completion::{Chat, CompletionRequest, Prompt, SamplingChoice, ToolChoice};
use crate::http::error::ApiError;

/// More messages than any context holds.
const MESSAGES_MAX: usize = 16_384;
/// As vLLM; OpenAI itself takes 4.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 1024;
const TOOLS_MAX: usize = 512;
/// Larger than any vocabulary.
const TOP_K_MAX: i64 = 10_000_000;
/// Far more than any context holds.
const TOKENS_MAX: i64 = i32::MAX as i64;

/// `POST /v1/chat/completions`. Every field may be null.
#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    model: Option<String>,
    messages: Option<Vec<ChatMessage>>,
    #[serde(default)]
    pub stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    stop: Option<Stop>,
    n: Option<i64>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    response_format: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    logit_bias: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "stop must be a string or a list of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

impl ChatRequest {
    pub fn wants_stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub fn wants_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// The request in no dialect.
    ///
    /// # Errors
    /// 400 naming the first field that is wrong, or that asks for what is not there.
    pub fn into_request(self) -> Result<CompletionRequest, ApiError> {
        self.check_unsupported()?;
        let sampling = self.sampling()?;
        let max_tokens = self.max_tokens()?;
        let stops = stops(self.stop)?;
        let (tools, tool_choice) = tools(self.tools, self.tool_choice.as_ref())?;
        let Some(model) = self.model.filter(|model| !model.is_empty()) else {
            return Err(ApiError::invalid_value("model", "model must name a served model"));
        };
        let messages = messages(self.messages.unwrap_or_default())?;
        let chat = Chat { messages, tools, tool_choice, ..Chat::default() };
        let prompt = Prompt::Chat(chat);
        let rest = CompletionRequest::default();
        Ok(CompletionRequest { model, prompt, sampling, max_tokens, stops, ..rest })
    }

    fn check_unsupported(&self) -> Result<(), ApiError> {
        if let Some(n) = self.n.filter(|n| *n != 1) {
            let message =
                format!("n is {n}; one answer a request is what there is. Ask again instead");
            return Err(ApiError::unsupported("n", message));
        }
        if self.logprobs == Some(true) || self.top_logprobs.is_some_and(|top| top != 0) {
            let field = if self.logprobs == Some(true) { "logprobs" } else { "top_logprobs" };
            let message = format!("{field}: log-probabilities are not given yet. Leave it out");
            return Err(ApiError::unsupported(field, message));
        }
        for (field, value) in [
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
        ] {
            if within(field, value, -2.0..=2.0)?.is_some_and(|value| value != 0.0) {
                let message = format!("{field} is not applied yet. Leave it out or send 0");
                return Err(ApiError::unsupported(field, message));
            }
        }
        if self.logit_bias.as_ref().is_some_and(|bias| !is_empty(bias)) {
            let message = "logit_bias is not applied yet. Leave it out";
            return Err(ApiError::unsupported("logit_bias", message));
        }
        check_format(self.response_format.as_ref())
    }

    fn sampling(&self) -> Result<SamplingChoice, ApiError> {
        let float = |value: Option<f64>| value.map(|value| value as f32);
        Ok(SamplingChoice {
            temperature: float(within("temperature", self.temperature, 0.0..=2.0)?),
            top_p: float(within("top_p", self.top_p, 0.0..=1.0)?),
            min_p: float(within("min_p", self.min_p, 0.0..=1.0)?),
            top_k: within("top_k", self.top_k, 0..=TOP_K_MAX)?.map(|top_k| top_k as u32),
            // Any integer names a sequence of draws; its sign means nothing.
            seed: self.seed.map(|seed| seed as u64),
            ..SamplingChoice::default()
        })
    }

    /// The newer name wins where both are given.
    fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        let old = within("max_tokens", self.max_tokens, 1..=TOKENS_MAX)?;
        let new = within("max_completion_tokens", self.max_completion_tokens, 1..=TOKENS_MAX)?;
        Ok(new.or(old).map(|tokens| tokens as usize))
    }
}

/// A number between two others, or an error that says between which.
fn within<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: Option<T>,
    range: std::ops::RangeInclusive<T>,
) -> Result<Option<T>, ApiError> {
    match value {
        Some(found) if !range.contains(&found) => {
            let (low, high) = range.into_inner();
            let message = format!("{field} is {found}; it must be from {low} to {high}");
            Err(ApiError::invalid_value(field, message))
        }
        value => Ok(value),
    }
}

fn messages(messages: Vec<ChatMessage>) -> Result<Vec<text::Message>, ApiError> {
    let found = messages.len();
    if found == 0 || found > MESSAGES_MAX {
        let message = format!("messages has {found} entries; 1 to {MESSAGES_MAX} are accepted");
        return Err(ApiError::invalid_value("messages", message));
    }
    messages.into_iter().enumerate().map(|(at, message)| message.into_message(at)).collect()
}

fn stops(stop: Option<Stop>) -> Result<Vec<String>, ApiError> {
    let stops = match stop {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop],
        Some(Stop::Many(stops)) => stops,
    };
    if stops.len() > STOPS_MAX {
        let message = format!("stop has {} strings; {STOPS_MAX} are the most", stops.len());
        return Err(ApiError::invalid_value("stop", message));
    }
    if let Some(stop) = stops.iter().find(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX) {
        let bytes = stop.len();
        let message =
            format!("a stop string has {bytes} bytes; 1 to {STOP_BYTES_MAX} are accepted");
        return Err(ApiError::invalid_value("stop", message));
    }
    Ok(stops)
}

/// The tools for the template; an empty list is none. Models decide for themselves whether to call
/// one: an answer cannot be forced to yet.
fn tools(
    tools: Option<Vec<Value>>,
    choice: Option<&Value>,
) -> Result<(Vec<Value>, ToolChoice), ApiError> {
    let tools = tools.unwrap_or_default();
    if tools.len() > TOOLS_MAX {
        let message = format!("tools has {} entries; {TOOLS_MAX} are the most", tools.len());
        return Err(ApiError::invalid_value("tools", message));
    }
    if let Some(at) = tools.iter().position(|tool| !tool.is_object()) {
        let message = format!("tools[{at}] must be an object");
        return Err(ApiError::invalid_value(&format!("tools[{at}]"), message));
    }
    match choice {
        None | Some(Value::Null) => Ok((tools, ToolChoice::Auto)),
        Some(Value::String(choice)) if choice == "auto" => Ok((tools, ToolChoice::Auto)),
        Some(Value::String(choice)) if choice == "none" => Ok((tools, ToolChoice::None)),
        Some(_) if tools.is_empty() => Ok((tools, ToolChoice::Auto)),
        Some(_) => {
            let message =
                "a tool call cannot be required yet: tool_choice may be \"auto\" or \"none\"";
            Err(ApiError::unsupported("tool_choice", message))
        }
    }
}

fn check_format(format: Option<&Value>) -> Result<(), ApiError> {
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(()) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(()),
        Some(kind @ ("json_object" | "json_schema")) => {
            let message = format!(
                "response_format {kind} is not there yet: answers cannot be held to a grammar. Ask \
                 for JSON in the messages and check what comes"
            );
            Err(ApiError::unsupported("response_format", message))
        }
        _ => {
            let message = "response_format must be {\"type\": \"text\"}";
            Err(ApiError::invalid_value("response_format", message))
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(extra: Value) -> Result<CompletionRequest, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        serde_json::from_value::<ChatRequest>(body).unwrap().into_request()
    }

    fn tools_of(request: &CompletionRequest) -> &[Value] {
        let Prompt::Chat(chat) = &request.prompt else { panic!("{request:?}") };
        chat.offered_tools()
    }

    #[test]
    fn fields_that_cannot_be_are_named() {
        let cases = [
            (json!({"temperature": -0.1}), "temperature", "invalid_value"),
            (json!({"temperature": 2.5}), "temperature", "invalid_value"),
            (json!({"temperature": 1e300}), "temperature", "invalid_value"),
            (json!({"top_p": 1.01}), "top_p", "invalid_value"),
            (json!({"min_p": -1}), "min_p", "invalid_value"),
            (json!({"top_k": -5}), "top_k", "invalid_value"),
            (json!({"top_k": i64::MAX}), "top_k", "invalid_value"),
            (json!({"max_tokens": -1}), "max_tokens", "invalid_value"),
            (json!({"max_tokens": 0}), "max_tokens", "invalid_value"),
            (json!({"max_tokens": i64::MAX}), "max_tokens", "invalid_value"),
            (json!({"max_completion_tokens": 0}), "max_completion_tokens", "invalid_value"),
            (json!({"n": 1_000_000}), "n", "unsupported"),
            (json!({"n": 0}), "n", "unsupported"),
            (json!({"stop": ""}), "stop", "invalid_value"),
            (json!({"stop": vec!["x"; 17]}), "stop", "invalid_value"),
            (json!({"stop": "x".repeat(1025)}), "stop", "invalid_value"),
            (json!({"logprobs": true}), "logprobs", "unsupported"),
            (json!({"top_logprobs": 3}), "top_logprobs", "unsupported"),
            (json!({"frequency_penalty": 0.5}), "frequency_penalty", "unsupported"),
            (json!({"presence_penalty": 3}), "presence_penalty", "invalid_value"),
            (json!({"logit_bias": {"5": -100}}), "logit_bias", "unsupported"),
            (json!({"response_format": {"type": "json_object"}}), "response_format", "unsupported"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format", "unsupported"),
            (json!({"response_format": {"type": "xml"}}), "response_format", "invalid_value"),
            (json!({"tools": [{}], "tool_choice": "required"}), "tool_choice", "unsupported"),
            (
                json!({"tools": [{}], "tool_choice": {"type": "function"}}),
                "tool_choice",
                "unsupported",
            ),
            (json!({"tools": [7]}), "tools[0]", "invalid_value"),
            (json!({"messages": []}), "messages", "invalid_value"),
            (json!({"messages": null}), "messages", "invalid_value"),
            (json!({"model": null}), "model", "invalid_value"),
        ];
        for (extra, param, code) in cases {
            let error = chat(extra.clone()).expect_err(&extra.to_string());
            assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{extra}");
            assert_eq!(error.status, 400, "{extra}");
            assert!(error.message.contains(param.split('[').next().unwrap()), "{}", error.message);
        }
    }

    #[test]
    fn what_clients_send_without_need_is_accepted() {
        let cases = [
            json!({"n": 1, "tools": [], "tool_choice": "required", "logprobs": false}),
            json!({"top_logprobs": 0, "frequency_penalty": 0, "presence_penalty": 0.0}),
            json!({"logit_bias": {}, "response_format": {"type": "text"}, "user": "me"}),
            json!({"temperature": null, "top_p": null, "seed": null, "stop": null, "tools": null}),
            json!({"metadata": {"a": [1]}, "store": false, "parallel_tool_calls": true}),
            json!({"reasoning_effort": "low", "service_tier": "auto", "stream_options": null}),
        ];
        for extra in cases {
            let chat = chat(extra.clone()).unwrap_or_else(|error| panic!("{extra}: {error:?}"));
            assert!(tools_of(&chat).is_empty() && chat.stops.is_empty(), "{extra}");
        }
    }

    #[test]
    fn values_arrive() {
        let found = chat(json!({
            "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.25, "seed": -1,
            "max_tokens": 5, "max_completion_tokens": 7, "stop": ["a", "b"],
            "tools": [{"type": "function"}], "tool_choice": "auto",
        }))
        .unwrap();
        let sampling = SamplingChoice {
            temperature: Some(0.0),
            top_p: Some(0.5),
            top_k: Some(3),
            min_p: Some(0.25),
            seed: Some(u64::MAX),
            ..SamplingChoice::default()
        };
        assert_eq!(found.sampling, sampling);
        assert_eq!(found.max_tokens, Some(7));
        assert_eq!(found.stops, ["a", "b"]);
        assert_eq!(tools_of(&found).len(), 1);
        let none = chat(json!({"tools": [{}], "tool_choice": "none"})).unwrap();
        assert!(tools_of(&none).is_empty());
    }
}
