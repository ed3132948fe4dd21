//! Fields shared by chats and prompts, and their conversion to the dialect-independent form.

use std::sync::Arc;

use protocol::KeepAlive;
use serde::Deserialize;
use serde_json::{Map, Value};
use text::Wish;

use super::answer::Asked;
use super::options::Options;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{CompletionRequest, Format, Prompt, ThinkingChoice};
use crate::http::error::ApiError;
use crate::http::fields::effort;
use crate::openai::fields::shown_value;

/// Ollama's limit.
const TOP_LOGPROBS_MAX: usize = 20;

/// Fields of both `/api/chat` and `/api/generate`. Every field may be null.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Common {
    model: Option<String>,
    /// True by default.
    pub stream: Option<bool>,
    format: Option<Value>,
    options: Option<Map<String, Value>>,
    keep_alive: Option<Value>,
    think: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
}

impl Common {
    /// The requested model's name as served here. If no model has the name, Ollama's `:latest` is
    /// removed.
    ///
    /// # Errors
    /// 400: no name.
    fn model(&self, app: &App) -> Result<String, ApiError> {
        match self.model.as_deref() {
            Some(model) if !model.is_empty() => Ok(served_name(app, model)),
            _ => Err(ApiError::invalid_value("model", "model must name a served model")),
        }
    }

    /// The name in answers: as requested.
    fn asked_name(&self) -> String {
        self.model.clone().unwrap_or_default()
    }

    /// The request in the dialect-independent form.
    ///
    /// # Errors
    /// 400 naming the first field that is invalid or unsupported; 404 for an unknown model.
    pub async fn into_request(
        self,
        app: &Arc<App>,
        mut prompt: Prompt,
        caller: Caller,
    ) -> Result<(CompletionRequest, Asked), ApiError> {
        let keep_alive = caller.keep_alive(app, keep_alive(self.keep_alive.as_ref())?).await?;
        let model = self.model(app)?;
        let model = caller.serve_if_found(app, model, keep_alive).await?;
        let name = self.asked_name();
        let options = Options::read(self.options)?;
        let think = think(self.think)?;
        let logprobs = logprobs(self.logprobs, self.top_logprobs)?;
        let format = format(self.format)?;
        if let Prompt::Chat(chat) = &mut prompt {
            chat.thinking = think;
        }
        if let Prompt::Fill(fill) = &mut prompt {
            fill.answer_tokens = options.max_tokens;
        }
        let context_tokens = app.completer.find(&model).await?.context_tokens;
        if let Some(num_ctx) = options.num_ctx.filter(|num_ctx| *num_ctx > context_tokens) {
            let message = format!(
                "options.num_ctx is {num_ctx}, and {model} is served with a context of \
                 {context_tokens} tokens. Leave it out, or serve the model with a larger context"
            );
            return Err(ApiError::invalid_value("options.num_ctx", message));
        }
        let request = CompletionRequest {
            model,
            prompt,
            sampling: options.sampling,
            max_tokens: options.max_tokens,
            stops: options.stops,
            context_max: options.num_ctx,
            logprobs,
            format,
            format_field: "format",
            client: caller.number,
            keep_alive,
            ..CompletionRequest::default()
        };
        Ok((
            request,
            Asked {
                model: name,
                hides_thoughts: think.wish.is_some_and(|(wish, _)| wish == Wish::Off),
            },
        ))
    }
}

/// The name under which a model is served: Ollama's clients append `:latest` to names without a
/// tag.
pub(super) fn served_name(app: &App, asked: &str) -> String {
    match asked.strip_suffix(":latest") {
        Some(bare) if !app.is_served(asked) && app.preset(asked).is_none() => bare.to_owned(),
        _ => asked.to_owned(),
    }
}

/// Whether the model should think, and how hard.
fn think(think: Option<Value>) -> Result<ThinkingChoice, ApiError> {
    const NAME: &str = "think";
    let on = |on| Some((ThinkingChoice::switched(on), NAME));
    match think {
        None | Some(Value::Null) => Ok(ThinkingChoice::default()),
        Some(Value::Bool(wanted)) => Ok(ThinkingChoice { wish: on(wanted), effort: None }),
        Some(Value::String(word)) if ["low", "medium", "high", "max"].contains(&word.as_str()) => {
            Ok(ThinkingChoice { wish: on(true), effort: effort(NAME, Some(&word))? })
        }
        Some(other) => {
            let other = shown_value(&other);
            let message =
                format!("think is {other}; it may be true, false, low, medium, high or max");
            Err(ApiError::invalid_value(NAME, message))
        }
    }
}

fn logprobs(wanted: Option<bool>, top: Option<usize>) -> Result<Option<usize>, ApiError> {
    let top = top.unwrap_or(0);
    if top > TOP_LOGPROBS_MAX {
        let message = format!("top_logprobs is {top}; {TOP_LOGPROBS_MAX} are the most");
        return Err(ApiError::invalid_value("top_logprobs", message));
    }
    match wanted {
        Some(true) => Ok(Some(top)),
        _ if top == 0 => Ok(None),
        _ => {
            let message = "top_logprobs needs \"logprobs\": true beside it";
            Err(ApiError::invalid_value("top_logprobs", message))
        }
    }
}

fn format(format: Option<Value>) -> Result<Format, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(Format::Text),
        Some(Value::String(name)) if name.is_empty() => Ok(Format::Text),
        Some(Value::String(name)) if name == "json" => Ok(Format::JsonObject),
        Some(schema @ Value::Object(_)) => Ok(Format::JsonSchema(schema)),
        Some(other) => {
            let other = shown_value(&other);
            let message = format!("format is {other}; it must be \"json\" or a JSON schema");
            Err(ApiError::invalid_value("format", message))
        }
    }
}

/// Seconds, or a duration such as `5m`; a negative value means forever.
///
/// # Errors
/// 400: neither of them.
pub(super) fn keep_alive(field: Option<&Value>) -> Result<Option<KeepAlive>, ApiError> {
    let wrong = |what: String| ApiError::invalid_value("keep_alive", format!("keep_alive: {what}"));
    match field {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(secs)) => {
            let secs = secs.as_f64().unwrap_or(0.0);
            let keep =
                if secs < 0.0 { KeepAlive::FOR_GOOD } else { KeepAlive::secs(secs.ceil() as u64) };
            Ok(Some(keep))
        }
        Some(Value::String(text)) => text.parse().map(Some).map_err(wrong),
        Some(other) => {
            let other = shown_value(other);
            Err(wrong(format!("{other} is neither seconds nor a duration such as 5m")))
        }
    }
}
