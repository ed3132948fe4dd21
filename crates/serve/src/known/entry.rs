//! What the table says of a field.

use serde_json::Value;

/// The kind of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
    /// `/v1/responses`.
    Response,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/v1/rerank`.
    Rerank,
    /// `/v1/messages`.
    Messages,
    /// Ollama's `/api/chat`.
    OllamaChat,
    /// Ollama's `/api/generate`.
    OllamaGenerate,
    /// The `options` of both.
    OllamaOptions,
    /// Ollama's `/api/embed` and `/api/embeddings`.
    OllamaEmbed,
    /// llama-server's `/completion`.
    Completion,
    /// llama-server's `/embedding`.
    Embedding,
    /// llama-server's `/infill`.
    Infill,
}

/// Fields with the same treatment for the same reason.
pub(super) struct Entry {
    pub of: &'static [Endpoint],
    /// Paths with spaces between them: `reasoning.mode` is a field of an object, `tools[].async` of
    /// each object in a list.
    pub names: &'static str,
    pub act: Act,
    /// The reason. Of a refused field also the alternative.
    pub why: &'static str,
}

/// How a field is treated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Act {
    Reads,
    /// 400, unless the value asks for nothing.
    Refuses(Unless),
    /// Like `Refuses(Unless::Null)`, with the code at which Anthropic's clients send the whole
    /// conversation instead.
    Unthreads,
    Ignores,
}

/// The values with which an unsupported field asks for nothing. Null always does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Unless {
    Null,
    /// False, zero, an empty text, list or object. Clients that fill in every field send these.
    Nothing,
    /// These numbers, or false.
    Numbers(&'static [f64]),
    /// These words.
    Words(&'static [&'static str]),
    True,
    /// A list with this word.
    Lists(&'static str),
    /// Adapters that are all scaled to zero, or none.
    Unscaled,
}

impl Entry {
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split_whitespace()
    }

    pub fn has(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }
}

impl Unless {
    pub fn covers(self, value: &Value) -> bool {
        match self {
            _ if value.is_null() => true,
            Self::Null => false,
            Self::Nothing => is_nothing(value),
            Self::Numbers(numbers) => {
                *value == Value::Bool(false)
                    || value.as_f64().is_some_and(|number| numbers.contains(&number))
            }
            Self::Words(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Self::True => *value == Value::Bool(true),
            Self::Lists(word) => {
                value.as_array().is_some_and(|items| items.iter().any(|item| item == word))
            }
            Self::Unscaled => {
                let off = |item: &Value| item.get("scale").and_then(Value::as_f64) == Some(0.0);
                value.as_array().is_some_and(|items| items.iter().all(off))
            }
        }
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}
