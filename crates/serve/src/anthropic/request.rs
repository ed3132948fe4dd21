//! The body of a message request, validated field by field.

use serde::Deserialize;
use serde_json::Value;

use super::content::Content;
use super::message::{Conversation, InputMessage};
use super::tools::{self, Choice, Tool};
use crate::completion::{Chat, CompletionRequest, Format, Prompt, SamplingChoice};
use crate::http::error::ApiError;
use crate::http::fields::{EFFORTS, TOKENS_MAX, TOP_K_MAX, check_stops, within};

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
    mcp_servers: Option<Vec<Value>>,
    container: Option<Value>,
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

impl OutputConfig {
    fn effort(self) -> Result<Option<String>, ApiError> {
        match self.effort {
            Some(effort) if !EFFORTS.contains(&effort.as_str()) => {
                let efforts = EFFORTS.join(", ");
                let effort: String = effort.chars().take(40).collect();
                let message = format!("output_config.effort is {effort:?}; it may be {efforts}");
                Err(ApiError::invalid_value("output_config.effort", message))
            }
            effort => Ok(effort),
        }
    }
}

#[derive(Debug, Deserialize)]
struct OutputFormat {
    #[serde(rename = "type")]
    kind: String,
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
    /// Converts the request to the dialect-independent form.
    ///
    /// # Errors
    /// 400 naming the first field that is invalid or not supported.
    pub fn into_request(self) -> Result<CompletionRequest, ApiError> {
        let max_tokens = within("max_tokens", self.max_tokens, 1..=TOKENS_MAX)?;
        let sampling = SamplingChoice {
            temperature: within("temperature", self.temperature, 0.0..=2.0)?.map(|t| t as f32),
            top_k: within("top_k", self.top_k, 0..=TOP_K_MAX)?.map(|top_k| top_k as u32),
            top_p: within("top_p", self.top_p, 0.0..=1.0)?.map(|top_p| top_p as f32),
            ..SamplingChoice::default()
        };
        let stops = self.stop_sequences.clone().unwrap_or_default();
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
        self.check_unsupported()?;
        let thinking = self.wants_thinking()?;
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
            reasoning_effort: self.output_config.map(OutputConfig::effort).transpose()?.flatten(),
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

    /// Without the field the client does not expect thoughts; `adaptive` leaves the choice to the
    /// model.
    fn wants_thinking(&self) -> Result<Option<bool>, ApiError> {
        match self.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
            None | Some("disabled") => Ok(Some(false)),
            Some("enabled") => Ok(Some(true)),
            Some("adaptive") => Ok(None),
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
        match (format.kind.as_str(), &format.schema) {
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

    fn check_unsupported(&self) -> Result<(), ApiError> {
        if self.mcp_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
            let message = "mcp_servers cannot be called from here. Let the client call them, and \
                           offer what they can do as tools";
            return Err(ApiError::unsupported("mcp_servers", message));
        }
        if self.container.as_ref().is_some_and(|container| !container.is_null()) {
            let message = "container: there is nothing that runs code here. Leave it out";
            return Err(ApiError::unsupported("container", message));
        }
        Ok(())
    }
}
