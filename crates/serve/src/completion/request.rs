use protocol::{KeepAlive, Token};
use serde_json::{Map, Value};

use super::sampling::SamplingChoice;

/// What is asked of a model, in no dialect.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompletionRequest {
    /// The name of a served model, or an instance's id.
    pub model: String,
    pub prompt: Prompt,
    pub sampling: SamplingChoice,
    /// Most tokens of the answer; what the context has left is a limit as well.
    pub max_tokens: Option<usize>,
    /// Most tokens of prompt and answer together, where that is less than the model's context.
    pub context_max: Option<usize>,
    /// Before so many tokens the model cannot end its answer.
    pub min_tokens: usize,
    /// The model cannot end its answer at all: it goes on to a limit or a stop string.
    pub ignore_eos: bool,
    /// Strings that end the answer's visible text and are not part of it.
    pub stops: Vec<String>,
    /// Tell the log-probability of each token of the text, and of so many of the likeliest.
    pub logprobs: Option<usize>,
    pub format: Format,
    /// The field that asks for the form, as the client's dialect calls it.
    pub format_field: &'static str,
    /// Who asks, as a number that tells one from the other.
    pub client: u64,
    /// See [`protocol::GenerateRequest::keep_alive`].
    pub keep_alive: Option<KeepAlive>,
}

/// What the model reads.
#[derive(Debug, Clone)]
pub(crate) enum Prompt {
    Chat(Chat),
    /// As it stands, without a template: control tokens in it are recognised, and the
    /// beginning-of-sequence token is put in front where the model wants it.
    Text(String),
    Tokens(Vec<Token>),
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Chat(Chat::default())
    }
}

/// A conversation to be continued.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chat {
    pub messages: Vec<text::Message>,
    /// What the model may call, each in the form of OpenAI's `tools`.
    pub tools: Vec<Value>,
    pub tool_choice: ToolChoice,
    /// The answer ends with its first call.
    pub single_call: bool,
    /// Whether a model that can think should; `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// `none`, `minimal`, `low`, `medium`, `high` and the like.
    pub reasoning_effort: Option<String>,
    /// Further variables of the template.
    pub variables: Map<String, Value>,
    /// The last message is the beginning of the answer, not a turn of its own.
    pub continue_last: bool,
}

/// Whether the model has to call a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    /// It is not told that there are any.
    None,
    Required,
    Named(String),
}

/// What the answer's text is held to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Format {
    #[default]
    Text,
    JsonObject,
    JsonSchema(Value),
    Regex(String),
    Lark(String),
}

impl Chat {
    /// The tools that the model is told of.
    pub fn offered_tools(&self) -> &[Value] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
    }
}
