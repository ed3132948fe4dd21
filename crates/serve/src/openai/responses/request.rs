use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::input::messages;
use super::namespace::{Names, Namespaces};
use super::output::{Envelope, Wants};
use crate::completion::{Chat, CompletionRequest, Format, Prompt, ThinkingChoice, ToolChoice};
use crate::http::error::ApiError;
use crate::http::fields::effort;
use crate::known::Endpoint;
use crate::openai::custom::Customs;
use crate::openai::fields::{Fields, shaped, shown};
use crate::openai::format::{shown_format, structured, text_format};
use crate::openai::request::template_variables;
use crate::openai::sampling::{
    Streaming, TOP_LOGPROBS_MAX, answers, bounds, model, sampling, streaming,
};
use crate::openai::tools::{checked, is_allowed_list, tool_choice};
use crate::pictures::Pictures;

/// What a response repeats without any effect.
const ABOUT: [&str; 3] = ["prompt_cache_key", "safety_identifier", "user"];

/// `POST /v1/responses`, validated.
#[derive(Debug)]
pub(in crate::openai) struct ResponseRequest {
    pub completion: CompletionRequest,
    pub(super) stream: bool,
    pub(super) wants: Wants,
    pub(super) names: Names,
    pub(super) told: Envelope,
}

#[derive(Debug, Default, Deserialize)]
struct Reasoning {
    effort: Option<String>,
    summary: Option<Value>,
}

impl ResponseRequest {
    /// Reads the fields. Every field may be null, which means absent.
    ///
    /// # Errors
    /// 400 naming the first field that is invalid or not supported.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let fields = &mut fields;
        let about = ABOUT.map(|name| (name.to_owned(), fields.peek(name)));
        fields.settle(Endpoint::Response)?;
        let metadata: Map<String, Value> = fields.read("metadata")?.unwrap_or_default();
        if answers(fields)? != 1 {
            return Err(ApiError::unsupported("n", "n: a response is one answer. Ask again"));
        }
        let service_tier = fields.read::<String>("service_tier")?;
        let sampling = sampling(fields)?;
        let bounds = bounds(fields, &["max_output_tokens"])?;
        let top_logprobs = fields.peek("top_logprobs");
        let Text { format, format_field, told: told_text } = text(fields)?;
        let (wants, logprobs) = wants(fields)?;
        let Streaming { stream, .. } = streaming(fields)?;
        let single_call = fields.read::<bool>("parallel_tool_calls")? == Some(false);
        let Tools { tools, told_tools, names, choice, only_offered, told_choice } = tools(fields)?;
        let reasoning: Reasoning = fields.object("reasoning")?.unwrap_or_default();
        let effort = effort("reasoning.effort", reasoning.effort.as_deref())?;
        let model = model(fields)?;
        let variables = template_variables(fields)?;
        let instructions: Option<String> = fields.read("instructions")?;
        let mut pictures = Pictures::new();
        let messages = messages(instructions.clone(), fields.take("input"), &mut pictures)?;
        let told = json!({
            "model": model,
            "instructions": instructions,
            "max_output_tokens": bounds.max_tokens,
            "metadata": metadata,
            "parallel_tool_calls": !single_call,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "service_tier": service_tier.map(|_| "default"),
            "temperature": sampling.temperature,
            "text": told_text,
            "tool_choice": told_choice,
            "tools": told_tools,
            "top_logprobs": top_logprobs,
            "top_p": sampling.top_p,
        });
        std::mem::take(fields).finish();
        let chat = Chat {
            messages,
            pictures: pictures.into_read(),
            tools,
            tool_choice: choice,
            only_offered,
            single_call,
            thinking: ThinkingChoice { wish: None, effort },
            variables,
            ..Chat::default()
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
        let told = Envelope::new(told, about.into_iter().collect());
        Ok(Self { completion, stream, wants, names, told })
    }
}

/// `text`: the format of the answer.
struct Text {
    format: Format,
    format_field: &'static str,
    /// As the response repeats it.
    told: Value,
}

fn text(fields: &mut Fields) -> Result<Text, ApiError> {
    let given: Map<String, Value> = fields.read("text")?.unwrap_or_default();
    let mut text = Fields::of(given.clone());
    let format = text.take("format");
    let told = format.clone().filter(|format| format.get("type").is_some());
    let format = format.map(|format| shaped("text.format", format)).transpose()?;
    text.finish();
    let format = format.map(text_format).transpose()?;
    let (format, format_field) = structured(fields, "text.format", format)?;
    let told = json!({"format": told.unwrap_or_else(|| shown_format(&format))});
    Ok(Text { format, format_field, told })
}

/// What the output shows besides the text, and the number of log-probabilities per token.
fn wants(fields: &mut Fields) -> Result<(Wants, Option<usize>), ApiError> {
    let include: Vec<String> = fields.read("include")?.unwrap_or_default();
    let top = fields.count("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    let mut wants = Wants { logprobs: top.is_some_and(|top| top > 0), encrypted: false };
    for one in &include {
        match one.as_str() {
            "reasoning.encrypted_content" => wants.encrypted = true,
            "message.output_text.logprobs" => wants.logprobs = true,
            // Results of tools that are not available here.
            "web_search_call.action.sources" | "web_search_call.results" => {}
            other => {
                let message = format!("include: {} is not there. Leave it out", shown(other));
                return Err(ApiError::unsupported("include", message));
            }
        }
    }
    Ok((wants, wants.logprobs.then(|| top.unwrap_or(0))))
}

/// Tools that the model may call.
struct Tools {
    /// In the format that templates expect.
    tools: Vec<Value>,
    /// As the response repeats them.
    told_tools: Vec<Value>,
    names: Names,
    /// Whether a call is required.
    choice: ToolChoice,
    /// Whether the client listed the tools that may be called.
    only_offered: bool,
    /// The choice as the response repeats it.
    told_choice: Value,
}

fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let listed: Vec<Value> = fields.read("tools")?.unwrap_or_default();
    let told_tools = listed.iter().map(told_tool).collect();
    let (mut listed, namespaces) = Namespaces::open(listed);
    let customs = Customs::open(&mut listed, true)?;
    let nested = listed.into_iter().map(nested).collect();
    let mut tools = checked("tools", nested)?;
    let choice = fields.take("tool_choice");
    let told_choice = choice.clone().unwrap_or_else(|| json!("auto"));
    let only_offered = choice.as_ref().is_some_and(is_allowed_list);
    let choice = choice.map(|choice| tool_choice(&mut tools, choice)).transpose()?;
    let (choice, names) = (choice.unwrap_or_default(), Names { namespaces, customs });
    Ok(Tools { tools, told_tools, names, choice, only_offered, told_choice })
}

/// A function's fields are beside its type here, and inside `function` in templates.
fn nested(tool: Value) -> Value {
    match tool {
        Value::Object(mut fields) if fields.get("type") == Some(&json!("function")) => {
            fields.remove("type");
            json!({"type": "function", "function": fields})
        }
        other => other,
    }
}

/// A tool as the response repeats it: functions have all of their fields.
fn told_tool(tool: &Value) -> Value {
    let mut told = tool.clone();
    if let Some(fields) =
        told.as_object_mut().filter(|fields| fields.get("type") == Some(&json!("function")))
    {
        for absent in ["parameters", "strict"] {
            fields.entry(absent).or_insert(Value::Null);
        }
    }
    told
}
