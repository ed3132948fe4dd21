//! Answers and their events, in the format of the client libraries.

use serde::Serialize;
use serde_json::Value;
use text::ToolCall;

use crate::completion::{Finish, Outcome, random_seed};
use crate::http::stream::Item;

/// Thoughts carry a signature that Anthropic uses to authenticate them. This server does not check
/// it, but clients drop thoughts without one.
pub(super) const SIGNATURE: &str = "unsigned";

/// An answer; at the start of a stream it has no content.
#[derive(Debug, Serialize)]
pub(super) struct Message {
    pub id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    pub model: String,
    pub content: Vec<Block>,
    pub stop_reason: Option<StopReason>,
    pub stop_sequence: Option<String>,
    pub usage: Usage,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Text { text: String },
    Thinking { thinking: String, signature: &'static str },
    ToolUse { id: String, name: String, input: Value },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopReason {
    EndTurn,
    MaxTokens,
    ModelContextWindowExceeded,
    StopSequence,
    ToolUse,
}

/// All prompts are cached without being billed, so no tokens count as written to a cache.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Usage {
    /// Prompt tokens that were not in the cache.
    pub input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event {
    MessageStart { message: Message },
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: Delta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: Ending, usage: Usage },
    MessageStop,
    Ping,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(clippy::enum_variant_names, reason = "these are their names in the API")]
pub(super) enum Delta {
    TextDelta { text: String },
    ThinkingDelta { thinking: String },
    SignatureDelta { signature: &'static str },
    InputJsonDelta { partial_json: String },
}

/// Why an answer ended.
#[derive(Debug, Serialize)]
pub(super) struct Ending {
    pub stop_reason: StopReason,
    pub stop_sequence: Option<String>,
}

impl Message {
    pub fn new(model: String) -> Self {
        Self {
            id: format!("msg_{:016x}{:08x}", random_seed(), random_seed() >> 32),
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage::default(),
        }
    }
}

impl Ending {
    /// `max_tokens` is the request's limit: an answer that is cut below it has filled the context.
    pub fn new(outcome: &Outcome, max_tokens: Option<usize>) -> Self {
        let is_full = max_tokens.is_none_or(|max| outcome.generated_tokens < max);
        let (stop_reason, stop_sequence) = match &outcome.finish {
            Finish::Stop => (StopReason::EndTurn, None),
            Finish::StopString(stop) => (StopReason::StopSequence, Some(stop.clone())),
            Finish::Length if is_full => (StopReason::ModelContextWindowExceeded, None),
            Finish::Length => (StopReason::MaxTokens, None),
            Finish::ToolCalls => (StopReason::ToolUse, None),
        };
        Self { stop_reason, stop_sequence }
    }
}

impl Usage {
    /// The usage of a prompt before it is read.
    pub fn of_prompt(tokens: usize) -> Self {
        Self { input_tokens: tokens, ..Self::default() }
    }
}

impl From<&Outcome> for Usage {
    fn from(outcome: &Outcome) -> Self {
        Self {
            input_tokens: outcome.prompt_tokens.saturating_sub(outcome.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: outcome.cached_tokens,
            output_tokens: outcome.generated_tokens,
        }
    }
}

impl From<ToolCall> for Block {
    fn from(call: ToolCall) -> Self {
        let input = match call.arguments {
            Value::String(text) => text::begun_object(&text),
            input => input,
        };
        Self::ToolUse { id: call.id, name: call.name, input }
    }
}

impl Event {
    pub fn item(&self) -> Item {
        let name = match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
        };
        Item::event(name, self)
    }
}
