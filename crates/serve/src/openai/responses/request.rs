use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::input::messages;
use super::namespace::Namespaces;
use super::output::{Envelope, Wants};
use crate::completion::{Chat, CompletionRequest, Format, Prompt, ThinkingChoice, ToolChoice};
use crate::http::error::ApiError;
use crate::http::fields::effort;
use crate::known::Endpoint;
use crate::openai::fields::{Fields, shaped, shown};
use crate::openai::format::{shown_format, structured, text_format};
use crate::openai::request::template_variables;
use crate::openai::sampling::{
    Streaming, TOP_LOGPROBS_MAX, answers, bounds, model, sampling, streaming,
};
use crate::openai::tools::{checked, no_function, tool_choice};
use crate::pictures::Pictures;

/// Tools that OpenAI runs itself. Agents send them to every server and work without them, so they
/// are left out of the prompt.
const SKIPPED: &[&str] = &[
    "web_search",
    "web_search_preview",
    "web_search_2025_08_26",
    "web_search_preview_2025_03_11",
    "image_generation",
    "tool_search",
];

/// `POST /v1/responses`, validated.
#[derive(Debug)]
pub(in crate::openai) struct ResponseRequest {
    pub completion: CompletionRequest,
    pub(super) stream: bool,
    pub(super) wants: Wants,
    pub(super) namespaces: Namespaces,
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
        fields.settle(Endpoint::Response)?;
        let metadata: Map<String, Value> = fields.read("metadata")?.unwrap_or_default();
        if answers(fields)? != 1 {
            return Err(ApiError::unsupported("n", "n: a response is one answer. Ask again"));
        }
        let service_tier = fields.read::<String>("service_tier")?;
        let sampling = sampling(fields)?;
        let bounds = bounds(fields, &["max_output_tokens"])?;
        let (format, format_field) = text(fields)?;
        let (wants, logprobs) = wants(fields)?;
        let Streaming { stream, .. } = streaming(fields)?;
        let single_call = fields.read::<bool>("parallel_tool_calls")? == Some(false);
        let Tools { tools, namespaces, choice, told_choice } = tools(fields)?;
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
            "text": {"format": shown_format(&format)},
            "tool_choice": told_choice,
            "tools": tools.iter().map(flat).collect::<Vec<_>>(),
            "top_p": sampling.top_p,
        });
        std::mem::take(fields).finish();
        let chat = Chat {
            messages,
            pictures: pictures.into_read(),
            tools,
            tool_choice: choice,
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
        Ok(Self { completion, stream, wants, namespaces, told: Envelope::new(told) })
    }
}

/// `text`: the format of the answer.
fn text(fields: &mut Fields) -> Result<(Format, &'static str), ApiError> {
    let mut text = Fields::of(fields.read("text")?.unwrap_or_default());
    let format = text.take("format").map(|format| shaped("text.format", format)).transpose()?;
    text.finish();
    structured(fields, "text.format", format.map(text_format).transpose()?)
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
    namespaces: Namespaces,
    /// Whether a call is required.
    choice: ToolChoice,
    /// The choice as the response repeats it.
    told_choice: Value,
}

fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let mut listed: Vec<Value> = fields.read("tools")?.unwrap_or_default();
    let kind = |tool: &Value| tool.get("type").and_then(Value::as_str).map(str::to_owned);
    let is_skipped = |tool: &Value| kind(tool).is_some_and(|kind| SKIPPED.contains(&&*kind));
    // A rejected tool is named by its index in the request.
    for (at, tool) in listed.iter().enumerate().filter(|(_, tool)| !is_skipped(tool)) {
        if let Some(kind) = kind(tool).filter(|kind| kind != "function" && kind != "namespace") {
            return Err(no_function("tools", at, &kind));
        }
    }
    listed.retain(|tool| !is_skipped(tool));
    let (listed, namespaces) = Namespaces::open(listed);
    let nested = listed.into_iter().map(nested).collect();
    let mut tools = checked("tools", nested)?;
    let choice = fields.take("tool_choice");
    let told_choice = choice.clone().unwrap_or_else(|| json!("auto"));
    let choice = choice.map(|choice| tool_choice(&mut tools, choice)).transpose()?;
    Ok(Tools { tools, namespaces, choice: choice.unwrap_or_default(), told_choice })
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

fn flat(tool: &Value) -> Value {
    let mut flat = tool["function"].clone();
    flat["type"] = json!("function");
    for absent in ["parameters", "strict"] {
        if flat.get(absent).is_none() {
            flat[absent] = Value::Null;
        }
    }
    flat
}
