//! Rendering messages into a prompt with the model's own template.
//!
//! A template is a Jinja program from the model file, so it runs as untrusted code, in an
//! interpreter ([`jinja`]) without access to the system and with limits on everything.
//!
//! It behaves like Hugging Face's `apply_chat_template`: `trim_blocks`, `lstrip_blocks`, loop
//! controls, Python's string methods, `raise_exception`, `strftime_now` and Python's JSON.

mod date;
mod fallback;
mod fit;
mod jinja;
mod message;
mod nesting;
mod pair;
mod placeholder;
mod shows;
mod source;
mod thinking;
mod variant;

use std::cell::Cell;
use std::sync::OnceLock;

use gguf::Directory;
use serde_json::{Map, Value, json};

use crate::tokenizer::GUARD;
use crate::{ReplyFormat, TextError, Tokenizer, with_digits};
pub use message::{Message, ToolCall};
pub use placeholder::{Placed, Placeholder};
use shows::Shows;
pub use thinking::{Effort, Settings, Thinking, Unmet, Wish};
use thinking::{Prompts, Switches};
use variant::Variant;

/// The most bytes of a template; the longest published ones have about 30,000.
const TEMPLATE_BYTES_MAX: usize = 1 << 17;
/// The most extra variables of a request.
const EXTRAS_MAX: usize = 64;

/// The sentinel after a text that is to be continued; no text ends with it.
const END: &str = "\u{f8fe}end\u{f8fe}";

/// The key of a template's variant for requests with tools.
const TOOL_USE: &str = "tokenizer.chat_template.tool_use";

/// A model's chat template, checked. Immutable and shared freely between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    chat: String,
    /// Why the template cannot make prompts.
    fault: Option<String>,
    /// The variant for requests with tools.
    tool_use: Option<String>,
    bos: String,
    eos: String,
    is_fallback: bool,
    /// The format detected from the source.
    written_format: ReplyFormat,
    /// The template's capabilities, once probed, and the resulting format.
    shows: OnceLock<Shows>,
    reply_format: OnceLock<ReplyFormat>,
    /// Its switch for thoughts and its efforts, once probed.
    switches: OnceLock<Switches>,
}

/// The parameters of a rendering, apart from the messages.
#[derive(Debug, Clone, Default)]
pub struct Render<'a> {
    /// Whether to end with the start of an assistant's message.
    pub add_generation_prompt: bool,
    /// Tools as in OpenAI's API: `{"type": "function", "function": {...}}`.
    pub tools: &'a [Value],
    /// What [`ChatTemplate::thinking`] found for the request.
    pub thinking: Settings,
    /// Further variables. The names above are not overwritten, those of `thinking` are.
    pub extra: Option<&'a Map<String, Value>>,
    /// Leaves the last message open, so that the model continues it. Instead of
    /// `add_generation_prompt`.
    pub continue_last: bool,
    /// Those whose names the messages hold.
    pub placeholders: &'a [Placeholder],
    /// The present time for templates, in seconds since 1970 (UTC).
    pub now_unix_s: i64,
}

/// A rendered chat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The template's output, without placeholders.
    pub text: String,
    pub tokens: Vec<u32>,
    /// In the order of the prompt.
    pub placed: Vec<Placed>,
}

impl ChatTemplate {
    /// The template of a GGUF file, or one for the vocabulary if the file has none. One that is too
    /// long or not valid Jinja has a [`fault`](Self::fault).
    pub fn from_gguf(gguf: &Directory, tokenizer: &Tokenizer) -> Self {
        let text = |key| gguf.find_str(key).ok().flatten().filter(|text| !text.is_empty());
        let found = text("tokenizer.chat_template");
        let source = found.unwrap_or_else(|| fallback::template(tokenizer));
        let tool_use = text(TOOL_USE);
        let both = || Ok((prepare(source)?, tool_use.map(prepare).transpose()?));
        let (chat, tool_use_prepared, fault) = match both() {
            Ok((chat, tool_use)) => (chat, tool_use, None),
            Err::<_, TextError>(error) => (String::new(), None, Some(error.to_string())),
        };
        let written_format = ReplyFormat::detect(tool_use.unwrap_or(source));
        let text = |id: Option<u32>| {
            let bytes = id.map_or(&[][..], |id| tokenizer.token_bytes(id));
            String::from_utf8_lossy(bytes).into_owned()
        };
        Self {
            chat,
            fault,
            tool_use: tool_use_prepared,
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            is_fallback: found.is_none(),
            written_format,
            shows: OnceLock::new(),
            reply_format: OnceLock::new(),
            switches: OnceLock::new(),
        }
    }

    /// A template from its source, with the texts of the model's special tokens.
    ///
    /// # Errors
    /// The template is too long or not valid Jinja.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let (bos, eos) = (bos.to_owned(), eos.to_owned());
        Ok(Self {
            chat: prepare(source)?,
            fault: None,
            tool_use: None,
            bos,
            eos,
            is_fallback: false,
            written_format: ReplyFormat::detect(source),
            shows: OnceLock::new(),
            reply_format: OnceLock::new(),
            switches: OnceLock::new(),
        })
    }

    /// Why the template cannot make prompts, if its source is unusable.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Whether the file had no template, so that the prompt is a guess.
    pub fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    /// The format of replies to this template's prompts.
    pub fn reply_format(&self) -> &ReplyFormat {
        self.reply_format.get_or_init(|| match self.shows().tools {
            true => self.written_format.clone(),
            false => self.written_format.clone().told(),
        })
    }

    /// What to set for what a request asks of the model's thoughts.
    ///
    /// # Errors
    /// The template cannot do it.
    pub fn thinking(&self, asked: Thinking) -> Result<Settings, Unmet> {
        match self.fault.is_some() || asked == Thinking::default() {
            true => Ok(Settings::default()),
            false => self.switches().settle(asked),
        }
    }

    fn switches(&self) -> &Switches {
        self.switches.get_or_init(|| {
            let source = format!("{}{}", self.chat, self.tool_use.as_deref().unwrap_or_default());
            // A template that exceeds the limits once is not probed again.
            let is_over = Cell::new(false);
            let one = |messages: &[Message], render: &Render| {
                let rendered = (!is_over.get()).then(|| self.render(messages, render))?;
                let failed = rendered.as_ref().err();
                is_over.set(failed.is_some_and(|error| !is_refusal(error)));
                rendered.ok()
            };
            let format = self.reply_format();
            Switches::probe(&source, format.thinks(), &|settings| {
                let (user, tools) = ([shows::user()], [shows::probe_tool()]);
                let thinking = settings.clone();
                let render = Render { add_generation_prompt: true, thinking, ..Render::default() };
                let plain = one(&user, &render)?;
                let before = Render { add_generation_prompt: false, ..render.clone() };
                let before = one(&user, &before).unwrap_or_default();
                let is_closed = format.ends_thought(&plain, begun(&plain, &before));
                let with_tool = one(&user, &Render { tools: &tools, ..render.clone() });
                let [user] = user;
                let others = vec![one(&[shows::system(), user], &render), with_tool];
                Some(Prompts { plain, is_closed, others })
            })
        })
    }

    /// The template's capabilities.
    fn shows(&self) -> Shows {
        *self.shows.get_or_init(|| {
            // A template that exceeds the limits once is not probed again.
            let is_over = Cell::new(false);
            Shows::probe(&|shows, messages, tools| {
                let render = Render { add_generation_prompt: true, tools, ..Render::default() };
                let rendered =
                    (!is_over.get()).then(|| self.render_as(None, shows, messages, &render));
                let failed = rendered.as_ref().and_then(|rendered| rendered.as_ref().err());
                is_over.set(is_over.get() || failed.is_some_and(|error| !is_refusal(error)));
                rendered?.ok()
            })
        })
    }

    /// The prompt for `messages` in tokens. Only the template's own control tokens count; similar
    /// text in messages, tools and variables stays text.
    ///
    /// # Errors
    /// As for [`Self::render`]; the template leaves out or repeats a placeholder.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        render: &Render,
    ) -> Result<Prompt, TextError> {
        self.prompt_some(tokenizer, messages, render, usize::MAX)
    }

    /// Like [`Self::prompt`], but stops encoding after more than `tokens_max` tokens.
    ///
    /// # Errors
    /// As for [`Self::prompt`].
    pub fn prompt_some(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        render: &Render,
        tokens_max: usize,
    ) -> Result<Prompt, TextError> {
        let rendered = self.render_guarded(Some(tokenizer), messages, render)?;
        let placeholders = render.placeholders;
        let (tokens, placed) = placeholder::encode(tokenizer, &rendered, placeholders, tokens_max)?;
        let text = if rendered.contains(GUARD) { rendered.replace(GUARD, "") } else { rendered };
        let text = Placeholder::without(&text, placeholders).into_owned();
        Ok(Prompt { text, tokens, placed })
    }

    /// The text of [`Self::prompt`], with `<__media__>` where a placeholder's tokens are.
    ///
    /// # Errors
    /// As for [`Self::render`].
    pub fn shown(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        render: &Render,
    ) -> Result<String, TextError> {
        let rendered = self.render_guarded(Some(tokenizer), messages, render)?.replace(GUARD, "");
        Ok(Placeholder::shown(rendered, render.placeholders))
    }

    /// The prompt for `messages` as text, which does not distinguish the template's control tokens
    /// from those in a client's text: for text of clients, use [`Self::prompt`].
    ///
    /// # Errors
    /// The template refuses (the error has its own words), fails, or exceeds the limits of steps or
    /// bytes.
    pub fn render(&self, messages: &[Message], render: &Render) -> Result<String, TextError> {
        self.render_guarded(None, messages, render)
    }

    fn render_guarded(
        &self,
        guard: Option<&Tokenizer>,
        messages: &[Message],
        render: &Render,
    ) -> Result<String, TextError> {
        if let Some(why) = &self.fault {
            return Err(TextError::TemplateUnusable { why: why.clone() });
        }
        let found = render.extra.map_or(0, Map::len);
        if found > EXTRAS_MAX {
            let what = "extra template variables";
            return Err(TextError::RequestTooLarge { what, found, limit: EXTRAS_MAX });
        }
        let mut messages = pair::pair(messages.to_vec(), self.written_format.call_ids());
        render.thinking.marks().for_each(|mark| message::instruct(&mut messages, mark));
        let open =
            messages.last().filter(|last| render.continue_last && last.tool_calls.is_empty());
        let Some(open) = open else { return self.render_fitting(guard, &messages, render) };
        // A sentinel after the text marks its end, whatever the template puts around it.
        let mut marked = messages.clone();
        marked.iter_mut().next_back().expect("there is a last one").content.push_str(END);
        let rendered = self.render_fitting(guard, &marked, render);
        if let Ok(rendered) = &rendered
            && let Some(at) = rendered.rfind(END)
        {
            return Ok(rendered[..at].to_owned());
        }
        // A template that cannot leave a message open writes the start of one.
        let before = &messages[..messages.len() - 1];
        let begun = Render { add_generation_prompt: true, continue_last: false, ..render.clone() };
        let begun = self.render_fitting(guard, before, &begun);
        let content = guard.map_or_else(|| open.content.clone(), |g| g.guard(&open.content));
        let begun = begun.map(|begun| match self.written_format.open_thought(&begun) {
            // The answer follows the thoughts that the template opened.
            Some(close) => begun.trim_end().to_owned() + close,
            None => begun,
        });
        begun.map(|begun| begun + &content).or(rendered)
    }

    /// Renders messages in the nearest form that the template supports.
    fn render_fitting(
        &self,
        guard: Option<&Tokenizer>,
        messages: &[Message],
        render: &Render,
    ) -> Result<String, TextError> {
        let plain = render.tools.is_empty() && is_plain(messages);
        let first = match plain {
            true => self.render_as(guard, Shows::ALL, messages, render),
            false => self.render_shown(guard, messages, render),
        };
        let Err(error) = first else { return first };
        if !is_refusal(&error) {
            return Err(error);
        }
        let next = if plain { self.render_shown(guard, messages, render).ok() } else { None };
        let Shows { tools, thoughts, lone_text, .. } = self.shows();
        let least = Shows { tools, thoughts, lone_text, ..Shows::LEAST };
        let next = next.or_else(|| self.render_as(guard, least, messages, render).ok());
        next.ok_or(error)
    }

    fn render_shown(
        &self,
        guard: Option<&Tokenizer>,
        messages: &[Message],
        render: &Render,
    ) -> Result<String, TextError> {
        let shows = self.shows();
        self.reply_format();
        self.render_as(guard, shows, messages, render)
    }

    fn render_as(
        &self,
        guard: Option<&Tokenizer>,
        shows: Shows,
        messages: &[Message],
        render: &Render,
    ) -> Result<String, TextError> {
        let guarded = |text: &str| guard.map_or_else(|| text.to_owned(), |g| g.guard(text));
        let messages = messages.iter().map(|message| message.map_text(&guarded)).collect();
        // During the probes there is no format yet.
        let format = self.reply_format.get().unwrap_or(&self.written_format);
        let messages = shows.fit(format, messages, render.tools, guarded);
        let has_calls = messages.iter().any(|message| !message.tool_calls.is_empty());
        let mut refused = None;
        for variant in Variant::all(has_calls, shows.style()) {
            match self.render_with(guard, &messages, render, variant) {
                Err(error) if is_refusal(&error) => refused = refused.or(Some(error)),
                other => return other,
            }
        }
        Err(refused.expect("there is at least one variant"))
    }

    fn render_with(
        &self,
        guard: Option<&Tokenizer>,
        messages: &[Message],
        render: &Render,
        variant: Variant,
    ) -> Result<String, TextError> {
        let mut context = render.extra.cloned().unwrap_or_default();
        let has_tools = !render.tools.is_empty();
        variant.add_tools(render.tools, render.now_unix_s, &mut context);
        if let Some(tokenizer) = guard {
            context = guard_entries(tokenizer, context);
        }
        // Their text was guarded before they were fitted to the template.
        let messages = messages.iter().map(|message| message.to_value(variant.style));
        context.insert("messages".into(), messages.collect());
        render.thinking.write(&mut context);
        let add_generation_prompt = render.add_generation_prompt && !render.continue_last;
        context.insert("add_generation_prompt".into(), json!(add_generation_prompt));
        context.insert("bos_token".into(), json!(self.bos));
        context.insert("eos_token".into(), json!(self.eos));
        let chosen = self.tool_use.as_ref().filter(|_| has_tools).unwrap_or(&self.chat);
        jinja::render(chosen, &context, render.now_unix_s).map(with_digits)
    }
}

/// The part of a prompt that begins the reply, which `before` does not have.
fn begun<'p>(prompt: &'p str, before: &str) -> &'p str {
    let differs = |((at, one), other): ((usize, char), char)| (one != other).then_some(at);
    let end = prompt.char_indices().zip(before.chars()).find_map(differs);
    &prompt[end.unwrap_or(before.len().min(prompt.len()))..]
}

/// Whether a template refused the messages; another form may succeed.
fn is_refusal(error: &TextError) -> bool {
    matches!(error, TextError::TemplateFailed { .. } | TextError::TemplateRaised { .. })
}

/// Whether any template supports a conversation: alternating users and assistants without thoughts,
/// after at most one system message.
fn is_plain(messages: &[Message]) -> bool {
    let skipped = usize::from(messages.first().is_some_and(|first| first.role == "system"));
    let turns = &messages[skipped..];
    let expected = ["user", "assistant"].into_iter().cycle();
    let fits = |(turn, role): (&Message, &str)| {
        turn.role == role && turn.tool_calls.is_empty() && turn.reasoning.is_none()
    };
    !turns.is_empty() && turns.iter().zip(expected).all(fits)
}

/// Guards all text of a client, including field names.
fn guard_entries(tokenizer: &Tokenizer, entries: Map<String, Value>) -> Map<String, Value> {
    map_entries(entries, &|text| tokenizer.guard(text))
}

fn map_entries(entries: Map<String, Value>, map: &dyn Fn(&str) -> String) -> Map<String, Value> {
    entries.into_iter().map(|(key, value)| (map(&key), map_text(value, map))).collect()
}

/// Applies `map` to all texts of a value, including field names.
fn map_text(value: Value, map: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(map(&text)),
        Value::Array(items) => items.into_iter().map(|item| map_text(item, map)).collect(),
        Value::Object(entries) => Value::Object(map_entries(entries, map)),
        plain => plain,
    }
}

fn prepare(source: &str) -> Result<String, TextError> {
    if source.len() > TEMPLATE_BYTES_MAX {
        let (found, limit) = (source.len(), TEMPLATE_BYTES_MAX);
        return Err(TextError::TemplateTooLong { found, limit });
    }
    let source = source::prepare(source);
    if let Some(detail) = nesting::fault(&source) {
        return Err(TextError::TemplateSyntax { detail });
    }
    jinja::check(&source)?;
    Ok(source)
}
