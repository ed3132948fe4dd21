use protocol::{KeepAlive, SamplingChoice, Token};
use serde_json::{Map, Value};

use super::fill::Fill;
use super::lines::LineBounds;
use super::mixed::PromptPiece;
use super::thinking::ThinkingChoice;
use crate::pictures::Picture;

/// A request to a model, independent of the dialect.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompletionRequest {
    /// The name of a served model, or an instance's id.
    pub model: String,
    pub prompt: Prompt,
    pub sampling: SamplingChoice,
    /// Maximum tokens of the answer; the rest of the context is also a limit.
    pub max_tokens: Option<usize>,
    /// Maximum tokens of prompt and answer together, if less than the model's context.
    pub context_max: Option<usize>,
    /// The model cannot end its answer before this many tokens.
    pub min_tokens: usize,
    /// The model cannot end its answer; it continues to a limit or a stop string.
    pub ignore_eos: bool,
    /// Strings that end the answer's visible text and are not part of it.
    pub stops: Vec<String>,
    /// Whether to return log-probabilities: of each token of the text, and of this many of the
    /// likeliest.
    pub logprobs: Option<usize>,
    /// Whether to return the tokens of each piece of text, without log-probabilities.
    pub tokens: bool,
    pub lines: LineBounds,
    pub format: Format,
    /// The request field that sets the format, as named by the client's dialect.
    pub format_field: &'static str,
    /// The client's number.
    pub client: u64,
    /// See [`protocol::GenerateRequest::keep_alive`].
    pub keep_alive: Option<KeepAlive>,
}

/// The model's input.
#[derive(Debug, Clone)]
pub(crate) enum Prompt {
    Chat(Chat),
    /// Used verbatim, without a template. Control tokens in it are recognised, and the
    /// beginning-of-sequence token is prepended if the model expects one.
    Text(String),
    Tokens(Vec<Token>),
    /// Texts, used like [`Prompt::Text`], and tokens.
    Mixed(Vec<PromptPiece>),
    /// The answer is the text in the gap.
    Fill(Fill),
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Chat(Chat::default())
    }
}

impl Prompt {
    /// The pictures in it.
    pub fn pictures(&self) -> &[Picture] {
        match self {
            Self::Chat(chat) => &chat.pictures,
            _ => &[],
        }
    }

    /// The prompt for a model that reads text only: a sentence stands for each picture in the
    /// result of a tool, which nobody can take back. Other pictures stay, and are refused.
    pub fn for_reader(mut self) -> Self {
        let Self::Chat(chat) = &mut self else { return self };
        let results = chat.messages.iter_mut().filter(|message| message.role == "tool");
        let results: Vec<&mut String> = results.map(|message| &mut message.content).collect();
        let mut told = Vec::new();
        for text in results {
            for picture in &chat.pictures {
                if text.contains(&picture.name) {
                    *text = text.replace(&picture.name, UNSEEN);
                    told.push(picture.name.clone());
                }
            }
        }
        chat.pictures.retain(|picture| !told.contains(&picture.name));
        self
    }

    pub fn pictures_mut(&mut self) -> &mut [Picture] {
        match self {
            Self::Chat(chat) => &mut chat.pictures,
            _ => &mut [],
        }
    }
}

/// What stands for a picture in the result of a tool.
const UNSEEN: &str = "[a picture that this model cannot see]";

/// A conversation to continue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chat {
    pub messages: Vec<text::Message>,
    /// The pictures whose places are in the messages.
    pub pictures: Vec<Picture>,
    /// Tools that the model may call, each in the form of OpenAI's `tools`.
    pub tools: Vec<Value>,
    pub tool_choice: ToolChoice,
    /// Whether a call of any other tool is text.
    pub only_offered: bool,
    /// Whether the answer ends after its first call.
    pub single_call: bool,
    pub thinking: ThinkingChoice,
    /// Additional template variables.
    pub variables: Map<String, Value>,
    /// Whether the last message is the beginning of the answer instead of a turn.
    pub continue_last: bool,
}

/// Whether the model must call a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    /// The prompt lists no tools.
    None,
    Required,
    Named(String),
}

/// The format of the answer's text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Format {
    #[default]
    Text,
    JsonObject,
    JsonSchema(Value),
    Regex(String),
    Lark(String),
    /// In llama.cpp's notation.
    Gbnf(String),
}

impl Chat {
    /// The tools listed in the prompt.
    pub fn offered_tools(&self) -> &[Value] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
    }
}
