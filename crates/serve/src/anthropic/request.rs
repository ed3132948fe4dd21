//! The body of a message request, validated field by field.

use protocol::SamplingChoice;
use serde::Deserialize;
use serde_json::Value;
use text::Wish;

use super::content::Content;
use super::message::{Conversation, InputMessage};
use super::tools::{self, Choice, Tool};
use crate::completion::{Chat, CompletionRequest, Format, Prompt, ThinkingChoice};
use crate::http::error::ApiError;
use crate::http::fields::{TOKENS_MAX, TOP_K_MAX, check_stops, effort as effort_of, within};
use crate::known::Endpoint;
use crate::openai::fields::Fields;

/// `POST /v1/messages`. `count_tokens` takes the same body without the fields that affect the
/// answer. Every field may be null.
#[derive(Debug, Default, Deserialize)]
pub(super) struct MessagesRequest {
    pub model: Option<String>,
    messages: Option<Vec<InputMessage>>,
    system: Option<Content>,
    pub stream: Option<bool>,
    max_tokens: Option<i64>,
    stop_sequences: Option<Vec<String>>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
    pub thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// The older location of `output_config.format`.
    output_format: Option<OutputFormat>,
}

/// Whether to think. The model decides how long: `budget_tokens` has no effect, and `max_tokens`
/// limits thoughts and text together.
#[derive(Debug, Deserialize)]
pub(super) struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    display: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct OutputConfig {
    effort: Option<String>,
    format: Option<OutputFormat>,
}

#[derive(Debug, Deserialize)]
struct OutputFormat {
    #[serde(rename = "type")]
    kind: Option<String>,
    schema: Option<Value>,
}

/// How the answer shows the model's thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thoughts {
    Shown,
    /// Empty thinking blocks, without the text.
    Omitted,
    /// No blocks: the client did not request thinking, and would read the first block as the
    /// answer.
    Hidden,
}

impl MessagesRequest {
    /// # Errors
    /// 400 naming a field that is not supported or does not fit.
    pub fn read(fields: Fields) -> Result<Self, ApiError> {
        fields.whole(Endpoint::Messages)
    }

    /// Converts the request to the dialect-independent form.
    ///
    /// # Errors
    /// 400 naming the first field that is invalid or not supported.
    pub fn into_request(self) -> Result<CompletionRequest, ApiError> {
        let max_tokens = within("max_tokens", self.max_tokens, 1..=TOKENS_MAX)?;
        let sampling = SamplingChoice {
            temperature: within("temperature", self.temperature, 0.0..=2.0)?.map(|t| t as f32),
            // -1 means all tokens, as in other dialects.
            top_k: within("top_k", self.top_k, -1..=TOP_K_MAX)?.map(|top_k| top_k.max(0) as u32),
            top_p: within("top_p", self.top_p, 0.0..=1.0)?.map(|top_p| top_p as f32),
            ..SamplingChoice::default()
        };
        let mut stops = self.stop_sequences.clone().unwrap_or_default();
        stops.retain(|stop| !stop.is_empty());
        check_stops("stop_sequences", &stops)?;
        let format = self.format()?;
        let (model, prompt) = self.into_prompt()?;
        Ok(CompletionRequest {
            model,
            prompt,
            sampling,
            max_tokens: max_tokens.map(|tokens| tokens as usize),
            stops,
            format,
            format_field: "output_config.format",
            ..CompletionRequest::default()
        })
    }

    /// The model's name and the prompt.
    ///
    /// # Errors
    /// As for [`Self::into_request`].
    pub fn into_prompt(self) -> Result<(String, Prompt), ApiError> {
        let effort = self.output_config.as_ref().and_then(|config| config.effort.as_deref());
        let thinking = ThinkingChoice {
            wish: Some((self.wish()?, "thinking")),
            effort: effort_of("output_config.effort", effort)?,
        };
        let Some(model) = self.model.filter(|model| !model.is_empty()) else {
            return Err(ApiError::invalid_value("model", "model must name a served model"));
        };
        let conversation = Conversation::new(self.system, self.messages.unwrap_or_default())?;
        let (tool_choice, single_call) =
            self.tool_choice.map_or(Ok(Default::default()), Choice::read)?;
        let chat = Chat {
            messages: conversation.messages,
            pictures: conversation.pictures,
            tools: tools::offered(self.tools.unwrap_or_default())?,
            tool_choice,
            single_call,
            thinking,
            continue_last: conversation.continue_last,
            ..Chat::default()
        };
        Ok((model, Prompt::Chat(chat)))
    }

    /// How the client wants to receive the model's thoughts.
    pub fn thoughts(&self) -> Thoughts {
        match &self.thinking {
            None => Thoughts::Hidden,
            Some(thinking) if thinking.kind == "disabled" => Thoughts::Hidden,
            Some(thinking) if thinking.display.as_deref() == Some("omitted") => Thoughts::Omitted,
            Some(_) => Thoughts::Shown,
        }
    }

    /// Without the field the client does not expect thoughts, but does not refuse them.
    fn wish(&self) -> Result<Wish, ApiError> {
        match self.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
            None => Ok(Wish::Quiet),
            Some("disabled") => Ok(Wish::Off),
            Some("enabled") => Ok(Wish::On),
            Some("adaptive") => Ok(Wish::Adaptive),
            Some(kind) => {
                let message =
                    format!("thinking is of type {kind}; it may be enabled, adaptive or disabled");
                Err(ApiError::invalid_value("thinking.type", message))
            }
        }
    }

    fn format(&self) -> Result<Format, ApiError> {
        let newer = self.output_config.as_ref().and_then(|config| config.format.as_ref());
        let Some(format) = newer.or(self.output_format.as_ref()) else { return Ok(Format::Text) };
        match (format.kind.as_deref().unwrap_or("text"), &format.schema) {
            ("text", None) => Ok(Format::Text),
            ("json_schema", Some(schema)) if schema.is_object() => {
                Ok(Format::JsonSchema(schema.clone()))
            }
            (kind, _) => {
                let message = format!(
                    "output_config.format is of type {kind}; it must be json_schema, with a schema"
                );
                Err(ApiError::invalid_value("output_config.format", message))
            }
        }
    }
}
