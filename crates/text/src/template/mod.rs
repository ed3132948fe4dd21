//! Rendering messages into a prompt with the model's own template.
//!
//! A template is a program in Jinja that came with the model, so it is run as untrusted code: no
//! files and no other templates to include, no attributes beyond the data it is given, and limits
//! on its length, its steps, its recursion and what it writes.
//!
//! It behaves as Hugging Face's `apply_chat_template` does: `trim_blocks`, `lstrip_blocks`, loop
//! controls, Python's string methods, `raise_exception`, `strftime_now` and Python's JSON.

mod date;
mod fallback;
mod json;
mod message;
mod source;

use std::io;

use gguf::Directory;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value, json};

use crate::{ReplyFormat, TextError, Tokenizer};
pub use message::{Message, ToolCall};

/// Bytes of a template; the longest published ones have about 30,000.
const TEMPLATE_BYTES_MAX: usize = 1 << 18;
/// Bytes a template may write: more than the longest contexts hold.
pub(crate) const OUTPUT_BYTES_MAX: usize = 32 << 20;
/// Instructions of one rendering: about 200 for each of 20,000 messages, and a second at most.
const FUEL: u64 = 4_000_000;
/// Nested macro calls.
const RECURSION_MAX: usize = 64;
/// Extra variables that a request may set.
const EXTRAS_MAX: usize = 64;

/// The name under which a template can hold a variant for requests with tools.
const TOOL_USE: &str = "tokenizer.chat_template.tool_use";

/// A model's chat template, compiled. Immutable and shared freely between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    chat: Environment<'static>,
    tool_use: Option<Environment<'static>>,
    bos: String,
    eos: String,
    is_fallback: bool,
    reply_format: ReplyFormat,
}

/// What a rendering is about, apart from the messages.
#[derive(Debug, Clone, Default)]
pub struct Render<'a> {
    /// End with the beginning of an assistant's message.
    pub add_generation_prompt: bool,
    /// Tools as in OpenAI's API: `{"type": "function", "function": {...}}`.
    pub tools: &'a [Value],
    /// Whether a model that can think should; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables, such as `reasoning_effort`. The names used above are not overwritten.
    pub extra: Option<&'a Map<String, Value>>,
    /// The time that templates see as now, in seconds since 1970 (UTC).
    pub now_unix_s: i64,
}

impl ChatTemplate {
    /// The template of a GGUF file, or one that fits the vocabulary if the file has none.
    ///
    /// # Errors
    /// A template that is too long or no valid Jinja.
    pub fn from_gguf(gguf: &Directory, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let found = gguf.find_str("tokenizer.chat_template")?.filter(|text| !text.is_empty());
        let source = found.unwrap_or_else(|| fallback::template(tokenizer));
        let tool_use = gguf.find_str(TOOL_USE)?;
        let reply_format = ReplyFormat::detect(tool_use.unwrap_or(source));
        let text = |id: Option<u32>| {
            let bytes = id.map_or(&[][..], |id| tokenizer.token_bytes(id));
            String::from_utf8_lossy(bytes).into_owned()
        };
        Ok(Self {
            chat: compile(source)?,
            tool_use: tool_use.map(compile).transpose()?,
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            is_fallback: found.is_none(),
            reply_format,
        })
    }

    /// A template from its source, with the texts of the model's special tokens.
    ///
    /// # Errors
    /// As for [`Self::from_gguf`].
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let (bos, eos) = (bos.to_owned(), eos.to_owned());
        let (chat, reply_format) = (compile(source)?, ReplyFormat::detect(source));
        Ok(Self { chat, tool_use: None, bos, eos, is_fallback: false, reply_format })
    }

    /// Whether the file had no template of its own, so that the prompt is a guess.
    pub fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    /// How replies to this template's prompts are written.
    pub fn reply_format(&self) -> &ReplyFormat {
        &self.reply_format
    }

    /// The prompt for `messages`, to be encoded with [`Tokenizer::encode_prompt`].
    ///
    /// # Errors
    /// What the template refuses (in its own words), what it cannot handle, and a template that
    /// runs or writes past the limits.
    pub fn render(&self, messages: &[Message], render: &Render) -> Result<String, TextError> {
        let found = render.extra.map_or(0, Map::len);
        if found > EXTRAS_MAX {
            let what = "extra template variables";
            return Err(TextError::RequestTooLarge { what, found, limit: EXTRAS_MAX });
        }
        let first = self.render_with(messages, render, false);
        // Most templates want a call's arguments as an object; some can only append text.
        let has_calls = messages.iter().any(|message| !message.tool_calls.is_empty());
        match first {
            Err(TextError::TemplateFailed { .. }) if has_calls => {
                self.render_with(messages, render, true).or(first)
            }
            first => first,
        }
    }

    fn render_with(
        &self,
        messages: &[Message],
        render: &Render,
        text_arguments: bool,
    ) -> Result<String, TextError> {
        let mut context = render.extra.cloned().unwrap_or_default();
        let messages = messages.iter().map(|message| message.to_value(text_arguments));
        context.insert("messages".into(), messages.collect());
        context.insert("add_generation_prompt".into(), json!(render.add_generation_prompt));
        context.insert("bos_token".into(), json!(self.bos));
        context.insert("eos_token".into(), json!(self.eos));
        context.insert(NOW.into(), json!(render.now_unix_s));
        // Templates ask `tools is not none` as well as `tools`.
        let tools = (!render.tools.is_empty()).then_some(render.tools);
        context.insert("tools".into(), json!(tools));
        if let Some(enable_thinking) = render.enable_thinking {
            context.insert("enable_thinking".into(), json!(enable_thinking));
        }
        let chosen = self.tool_use.as_ref().filter(|_| tools.is_some()).unwrap_or(&self.chat);
        let template = chosen.get_template(NAME).expect("added when it was compiled");
        let mut out = Limited { bytes: Vec::new(), exceeded: false };
        let result = template.render_captured_to(&context, &mut out);
        match result {
            Ok(_) => Ok(String::from_utf8(out.bytes).expect("templates write strings")),
            Err(_) if out.exceeded => Err(TextError::TemplateOutput { limit: OUTPUT_BYTES_MAX }),
            Err(error) => Err(explain(&error)),
        }
    }
}

const NAME: &str = "chat";
/// The variable that carries the time to `strftime_now`.
const NOW: &str = "__now_unix_s";

fn compile(source: &str) -> Result<Environment<'static>, TextError> {
    if source.len() > TEMPLATE_BYTES_MAX {
        let (found, limit) = (source.len(), TEMPLATE_BYTES_MAX);
        return Err(TextError::TemplateTooLong { found, limit });
    }
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION_MAX);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_filter("tojson", json::tojson);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_template_owned(NAME, source::prepare(source))
        .map_err(|error| TextError::TemplateSyntax { detail: detail(&error) })?;
    Ok(env)
}

fn strftime_now(state: &minijinja::State, format: &str) -> String {
    let now = state.lookup(NOW).and_then(|now| i64::try_from(now).ok()).unwrap_or(0);
    date::strftime(now, format)
}

/// What a template says when it refuses its messages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template")
        .with_source(Raised(message)))
}

fn explain(error: &Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(Raised(message)) = found.downcast_ref::<Raised>() {
            return TextError::TemplateRaised { message: message.clone() };
        }
        let fuel = found.downcast_ref::<Error>().map(Error::kind);
        if fuel == Some(ErrorKind::OutOfFuel) {
            return TextError::TemplateFuel { limit: FUEL };
        }
        cause = found.source();
    }
    TextError::TemplateFailed { detail: detail(error) }
}

/// The error and its causes on one line, with the template's line.
fn detail(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(found) = cause {
        text.push_str(": ");
        text.push_str(&found.to_string());
        cause = found.source();
    }
    text.replace(" (in chat:", " (line ")
}

/// A writer that stops at the limit.
struct Limited {
    bytes: Vec<u8>,
    exceeded: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.exceeded |= self.bytes.len() + bytes.len() > OUTPUT_BYTES_MAX;
        if self.exceeded {
            return Err(io::Error::other("too much output"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
