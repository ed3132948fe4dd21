//! The body of a chat completion, validated field by field.

use serde_json::{Map, Value};
use text::Wish;

use super::custom::Customs;
use super::fields::{Fields, shaped};
use super::message::ChatMessage;
use super::sampling::{Streaming, TOP_LOGPROBS_MAX, answers, bounds, model, sampling, streaming};
use super::{format, tools};
use crate::completion::{Chat, CompletionRequest, Prompt, ThinkingChoice};
use crate::http::error::ApiError;
use crate::http::fields::effort;
use crate::known::Endpoint;
use crate::pictures::Pictures;

/// More messages than fit any context.
const MESSAGES_MAX: usize = 16_384;

/// Fields with which an assistant says something; null counts.
const SAID: &[&str] =
    &["content", "tool_calls", "function_call", "reasoning_content", "reasoning", "refusal"];

/// `POST /v1/chat/completions`.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub completion: CompletionRequest,
    /// Number of answers.
    pub answers: usize,
    pub streaming: Streaming,
    /// Whether calls are returned as `function_call`.
    pub as_functions: bool,
    /// The tools whose calls are returned as those of custom tools.
    pub customs: Customs,
    /// Whether the client requested a tier; the answer then names the tier used.
    pub service_tier: bool,
}

impl ChatRequest {
    /// Reads the fields. Every field may be null, which means absent.
    ///
    /// # Errors
    /// 400 naming the first field that is invalid or not supported.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let fields = &mut fields;
        fields.settle(Endpoint::Chat)?;
        check_modalities(fields)?;
        let sampling = sampling(fields)?;
        let bounds = bounds(fields, &["max_completion_tokens", "max_tokens", "n_predict"])?;
        let (format, format_field) = format::format(fields)?;
        let logprobs = logprobs(fields)?;
        let tools = tools::tools(fields)?;
        let (answers, streaming) = (answers(fields)?, streaming(fields)?);
        let service_tier = fields.read::<String>("service_tier")?.is_some();
        let model = model(fields)?;
        let variables = template_variables(fields)?;
        let thinking = thinking(fields)?;
        let continue_last = continue_last(fields)?;
        let mut pictures = Pictures::new();
        let messages = messages(fields.read("messages")?.unwrap_or_default(), &mut pictures)?;
        std::mem::take(fields).finish();
        let chat = Chat {
            messages,
            pictures: pictures.into_read(),
            tools: tools.tools,
            tool_choice: tools.choice,
            only_offered: tools.is_allowed_list,
            single_call: tools.single,
            thinking,
            variables,
            continue_last,
        };
        let completion = CompletionRequest {
            model,
            prompt: Prompt::Chat(chat),
            sampling,
            max_tokens: bounds.max_tokens,
            min_tokens: bounds.min_tokens,
            ignore_eos: bounds.ignore_eos,
            stops: bounds.stops,
            logprobs,
            format,
            format_field,
            ..CompletionRequest::default()
        };
        let (as_functions, customs) = (tools.as_functions, tools.customs);
        Ok(Self { completion, answers, streaming, as_functions, customs, service_tier })
    }
}

/// Answers are text alone.
fn check_modalities(fields: &mut Fields) -> Result<(), ApiError> {
    let modalities: Vec<String> = fields.read("modalities")?.unwrap_or_default();
    if let Some(other) = modalities.iter().find(|one| *one != "text") {
        let message = format!("modalities has {other}; answers are text alone");
        return Err(ApiError::unsupported("modalities", message));
    }
    Ok(())
}

/// `logprobs` is a switch; `top_logprobs` is the number of likeliest tokens.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?;
    let top = fields.count("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(top)) => {
            let message = format!("top_logprobs is {top}, which needs logprobs to be true");
            Err(ApiError::invalid_value("top_logprobs", message))
        }
    }
}

/// Variables for the model's template.
///
/// # Errors
/// 400 if it is not an object.
pub(super) fn template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    Ok(fields.read("chat_template_kwargs")?.unwrap_or_default())
}

/// Whether and how hard to think: `enable_thinking` as in Qwen's API, `thinking` as in DeepSeek's
/// and GLM's.
fn thinking(fields: &mut Fields) -> Result<ThinkingChoice, ApiError> {
    let word: Option<String> = fields.read("reasoning_effort")?;
    let effort = effort("reasoning_effort", word.as_deref())?;
    let enabled: Option<bool> = fields.read("enable_thinking")?;
    let enabled = enabled.map(|on| (ThinkingChoice::switched(on), "enable_thinking"));
    let Some(thinking) = fields.read::<Map<String, Value>>("thinking")? else {
        return Ok(ThinkingChoice { wish: enabled, effort });
    };
    const TYPE: &str = "thinking.type";
    let wish = match thinking.get("type").and_then(Value::as_str) {
        Some("enabled") => Some((Wish::On, TYPE)),
        Some("disabled") => Some((Wish::Off, TYPE)),
        Some("auto" | "adaptive") => enabled.or(Some((Wish::Adaptive, TYPE))),
        _ => {
            let message = "thinking.type may be enabled, disabled or auto";
            return Err(ApiError::invalid_value(TYPE, message));
        }
    };
    Ok(ThinkingChoice { wish, effort })
}

/// Whether the answer continues the last message, as in vLLM.
fn continue_last(fields: &mut Fields) -> Result<bool, ApiError> {
    let continues = fields.flag("continue_final_message")?;
    let begins: Option<bool> = fields.read("add_generation_prompt")?;
    match (continues, begins) {
        (true, Some(true)) => {
            let message = "add_generation_prompt and continue_final_message cannot both be true";
            Err(ApiError::invalid_value("add_generation_prompt", message))
        }
        (false, Some(false)) => {
            let message = "add_generation_prompt: an answer has to begin. Leave it out";
            Err(ApiError::unsupported("add_generation_prompt", message))
        }
        (continues, _) => Ok(continues),
    }
}

fn messages(
    messages: Vec<Map<String, Value>>,
    pictures: &mut Pictures,
) -> Result<Vec<text::Message>, ApiError> {
    let found = messages.len();
    if found == 0 || found > MESSAGES_MAX {
        let message = format!("messages has {found} entries; 1 to {MESSAGES_MAX} are accepted");
        return Err(ApiError::invalid_value("messages", message));
    }
    let read = |(at, message): (usize, Map<String, Value>)| {
        let at = format!("messages[{at}]");
        let is_empty = !SAID.iter().any(|field| message.contains_key(*field));
        if is_empty && message.get("role").is_some_and(|role| role == "assistant") {
            let message =
                format!("{at}.content: the assistant says nothing. Send it or tool_calls");
            return Err(ApiError::invalid_value(&format!("{at}.content"), message));
        }
        shaped::<ChatMessage>(&at, Value::Object(message))?.into_message(&at, pictures)
    };
    messages.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use protocol::SamplingChoice;
    use serde_json::json;
    use text::Effort;

    use super::*;
    use crate::completion::{Format, ToolChoice};

    fn chat(extra: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        ChatRequest::read(serde_json::from_value(body).unwrap())
    }

    fn chat_of(request: &ChatRequest) -> &Chat {
        let Prompt::Chat(chat) = &request.completion.prompt else { panic!("{request:?}") };
        chat
    }

    #[test]
    fn fields_that_cannot_be_are_named() {
        let cases = [
            (json!({"temperature": -0.1}), "temperature", "invalid_value"),
            (json!({"temperature": 2.5}), "temperature", "invalid_value"),
            (json!({"temperature": 1e300}), "temperature", "invalid_value"),
            (json!({"temperature": "hot"}), "temperature", "invalid_value"),
            (json!({"top_p": 1.01}), "top_p", "invalid_value"),
            (json!({"min_p": -1}), "min_p", "invalid_value"),
            (json!({"top_k": -5}), "top_k", "invalid_value"),
            (json!({"top_k": i64::MAX}), "top_k", "invalid_value"),
            (json!({"seed": 1.5}), "seed", "invalid_value"),
            (json!({"max_tokens": -2}), "max_tokens", "invalid_value"),
            (json!({"max_tokens": 0}), "max_tokens", "invalid_value"),
            (json!({"max_tokens": i64::MAX}), "max_tokens", "invalid_value"),
            (json!({"max_completion_tokens": 0}), "max_completion_tokens", "invalid_value"),
            (json!({"min_tokens": -1}), "min_tokens", "invalid_value"),
            (json!({"min_tokens": 6, "max_tokens": 5}), "min_tokens", "invalid_value"),
            (json!({"ignore_eos": 1}), "ignore_eos", "invalid_value"),
            (json!({"n": 1_000_000}), "n", "invalid_value"),
            (json!({"n": 0}), "n", "invalid_value"),
            (json!({"stop": [7]}), "stop", "invalid_value"),
            (json!({"stop": vec!["x"; 17]}), "stop", "invalid_value"),
            (json!({"stop": "x".repeat(1025)}), "stop", "invalid_value"),
            (json!({"top_logprobs": 3}), "top_logprobs", "invalid_value"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "invalid_value"),
            (json!({"frequency_penalty": 2.5}), "frequency_penalty", "invalid_value"),
            (json!({"presence_penalty": 3}), "presence_penalty", "invalid_value"),
            (json!({"repetition_penalty": 0}), "repetition_penalty", "invalid_value"),
            (json!({"logit_bias": {"5": -101}}), "logit_bias", "invalid_value"),
            (json!({"logit_bias": {"five": 1}}), "logit_bias", "invalid_value"),
            (json!({"reasoning_effort": "extreme"}), "reasoning_effort", "invalid_value"),
            (json!({"chat_template_kwargs": 7}), "chat_template_kwargs", "invalid_value"),
            (json!({"thinking": {"type": "deep"}}), "thinking.type", "invalid_value"),
            (json!({"modalities": ["text", "audio"]}), "modalities", "unsupported"),
            (json!({"verbosity": "low"}), "verbosity", "unsupported"),
            (json!({"store": true}), "store", "unsupported"),
            (json!({"best_of": 3}), "best_of", "unsupported"),
            (json!({"guided_regex": "a"}), "guided_regex", "unsupported"),
            (json!({"grammar": 7}), "grammar", "invalid_value"),
            (json!({"json_schema": 7}), "json_schema", "invalid_value"),
            (json!({"grammar": "root ::= \"a\"", "json_schema": {}}), "grammar", "invalid_value"),
            (json!({"skip_special_tokens": false}), "skip_special_tokens", "unsupported"),
            (json!({"add_generation_prompt": false}), "add_generation_prompt", "unsupported"),
            (
                json!({"stream_options": {"continuous_usage_stats": true}}),
                "stream_options.continuous_usage_stats",
                "unsupported",
            ),
            (json!({"messages": []}), "messages", "invalid_value"),
            (json!({"messages": null}), "messages", "invalid_value"),
            (json!({"messages": [{"role": "king"}]}), "messages[0].role", "invalid_value"),
            (json!({"messages": [{"role": "assistant"}]}), "messages[0].content", "invalid_value"),
            (json!({"messages": [["user", "hi"]]}), "messages[0]", "invalid_value"),
            (json!({"stream_options": [true, null]}), "stream_options", "invalid_value"),
            (json!({"model": 7}), "model", "invalid_value"),
        ];
        for (extra, param, code) in cases {
            let error = chat(extra.clone()).expect_err(&extra.to_string());
            assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{extra}");
            assert_eq!(error.status, 400, "{extra}");
            assert!(error.message.contains(param), "{}", error.message);
        }
    }

    #[test]
    fn what_clients_send_without_need_is_accepted() {
        let cases = [
            json!({"n": 1, "tools": [], "tool_choice": "auto", "logprobs": false}),
            json!({"top_logprobs": 0, "frequency_penalty": 0, "presence_penalty": 0.0}),
            json!({"logit_bias": {}, "response_format": {"type": "text"}, "user": "me"}),
            json!({"temperature": null, "top_p": null, "seed": null, "stop": null, "tools": null}),
            json!({"metadata": {"a": [1]}, "store": false, "parallel_tool_calls": true}),
            json!({"reasoning_effort": "low", "service_tier": "auto", "stream_options": null}),
            json!({"modalities": ["text"], "verbosity": "medium", "skip_special_tokens": true}),
            json!({"prediction": {"type": "content", "content": "x"}, "something_new": {"a": 1}}),
            json!({"add_generation_prompt": true, "best_of": null, "stop_token_ids": []}),
            json!({"typical_p": 1, "repeat_penalty": 1.0, "length_penalty": 1.0, "best_of": 1}),
            json!({"stop": "", "logit_bias": [], "max_tokens": -1}),
            json!({"stop": ["", ""], "max_completion_tokens": -1}),
        ];
        for extra in cases {
            let chat = chat(extra.clone()).unwrap_or_else(|error| panic!("{extra}: {error:?}"));
            assert!(chat_of(&chat).tools.is_empty(), "{extra}");
            assert!(chat.completion.stops.is_empty() && chat.answers == 1, "{extra}");
        }
    }

    #[test]
    fn values_arrive() {
        let found = chat(json!({
            "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.25, "seed": -1,
            "repetition_penalty": 1.5, "frequency_penalty": -2, "presence_penalty": 1,
            "logit_bias": {"17": -100}, "max_tokens": 5, "max_completion_tokens": 7,
            "min_tokens": 2, "ignore_eos": true, "stop": ["a", "b"], "n": 3,
            "logprobs": true, "top_logprobs": 4, "response_format": {"type": "json_object"},
            "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required",
            "parallel_tool_calls": false, "reasoning_effort": "high", "enable_thinking": false,
            "chat_template_kwargs": {"x": 1}, "stream": true,
            "stream_options": {"include_usage": true},
        }))
        .unwrap();
        let sampling = SamplingChoice {
            temperature: Some(0.0),
            top_p: Some(0.5),
            top_k: Some(3),
            min_p: Some(0.25),
            seed: Some(u64::MAX),
            repetition_penalty: Some(1.5),
            frequency_penalty: Some(-2.0),
            presence_penalty: Some(1.0),
            logit_bias: vec![(17, -100.0)],
            ..SamplingChoice::default()
        };
        assert_eq!(found.completion.sampling, sampling);
        assert_eq!((found.completion.max_tokens, found.completion.min_tokens), (Some(7), 2));
        assert_eq!(found.completion.stops, ["a", "b"]);
        assert!(found.completion.ignore_eos && found.streaming.stream);
        assert!(found.streaming.include_usage && !found.as_functions);
        assert_eq!((found.completion.logprobs, found.answers), (Some(4), 3));
        assert_eq!(found.completion.format, Format::JsonObject);
        let chat = chat_of(&found);
        assert_eq!((chat.tools.len(), &chat.tool_choice), (1, &ToolChoice::Required));
        let thinking = ThinkingChoice {
            wish: Some((Wish::Off, "enable_thinking")),
            effort: Some((Effort::High, "reasoning_effort")),
        };
        assert_eq!((chat.single_call, chat.thinking), (true, thinking));
        assert_eq!(chat.variables.get("x"), Some(&json!(1)));
    }

    #[test]
    fn wide_seeds_and_vllms_top_k_are_understood() {
        let found = chat(json!({"seed": u64::MAX, "top_k": -1})).unwrap().completion.sampling;
        assert_eq!((found.seed, found.top_k), (Some(u64::MAX), Some(0)));
    }
}
