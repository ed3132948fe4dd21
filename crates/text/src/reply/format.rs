//! How a model writes its thoughts and its calls of tools, as its chat template shows it.

use super::forms::{CallStyle, FORMS, Form, HERMES};
use crate::Tokenizer;

/// Where thoughts begin and end, by the families that write them.
const THINKING: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<mm:think>", "</mm:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ("<thinking>", "</thinking>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
];

/// Marks around an answer's text that say nothing more of it, by the first of them: those of Kimi
/// K3, functionary 3.2, Apriel 1.5 and Solar Open.
const AROUND: &[&[&str]] = &[
    &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"],
    &[">>>all\n"],
    &["[END FINAL RESPONSE]"],
    &[SOLAR_CONTENT, "<|begin|>assistant", "<|content|>", "<|end|>"],
];

/// Where Solar Open's thoughts begin and end, with marks that other templates use for other things.
const SOLAR_THINKING: (&str, &str) = ("<|think|>", "<|end|>");
/// Begins an answer's text behind them.
const SOLAR_CONTENT: &str = "<|begin|>assistant<|content|>";

/// Marks that templates put together (Hunyuan 3, Kimi K3) or leave out (MiMo-VL), and the piece of
/// one that shows each.
const COMPOSED: &[(&str, &str)] = &[
    ("<think>", "You are MiMo, an AI assistant"),
    ("<think:opensource>", "<think{}>"),
    ("<tool_calls:opensource>", "<tool_calls{}>"),
    ("<|open|>think<|sep|>", "open_tag('think'"),
    ("<|open|>response<|sep|>", "open_tag('response')"),
    ("<|open|>tools<|sep|>", "open_tag('tools')"),
    (">>>all\n", "'>>>all\\n'"),
];

/// The control tokens among the marks that are longer than a token.
const INNER: &[&str] =
    &["<|channel>", "<|open|>", "<|close|>", "<|sep|>", "<|begin|>", "<|content|>"];

/// The control tokens that divide gpt-oss's messages.
pub(super) const HARMONY: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

/// What a template shows whose messages have recipients.
const RECIPIENTS: &[&str] = &["<|message|>", " to=self", MESSAGE_END];
/// Ends a message after which the same turn goes on.
const MESSAGE_END: &str = "<|eom|>";
/// The control tokens that divide messages to recipients.
pub(super) const ADDRESSED: &[&str] = &["<|start|>", "<|message|>", MESSAGE_END, "<|eot|>"];

/// A piece of a template that shows how the calls of its form are written, where one form has
/// several ways; the first one found counts.
const STYLES: &[(CallStyle, &str, CallStyle)] = &[
    (CallStyle::DeepSeek, "```json", CallStyle::DeepSeekFenced),
    (CallStyle::Json, "<function=", CallStyle::Tagged),
    (CallStyle::Json, "<arg_key>", CallStyle::Glm),
    (CallStyle::List, "[ARGS]", CallStyle::MistralArgs),
];

/// What ids of calls a template takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallIds {
    Any,
    /// Nine letters and digits (Mistral).
    Short,
    /// `functions.NAME:NUMBER` where an id has to be made up (Kimi).
    Numbered,
}

/// The marks in a model's replies that are not text.
#[derive(Debug, Clone, Default)]
pub struct ReplyFormat {
    pub(super) thinking: Vec<(&'static str, &'static str)>,
    pub(super) forms: Vec<&'static Form>,
    /// Marks that are left out of texts.
    pub(super) around: &'static [&'static str],
    /// Replies are messages on channels (gpt-oss).
    pub(super) harmony: bool,
    /// Replies are messages to recipients: the model itself, a tool, the user (Muse Glimmer).
    pub(super) recipients: bool,
    pub(super) style: CallStyle,
}

impl ReplyFormat {
    /// The format that a chat template's source shows. A template that knows no tools gets the most
    /// common form of calls, `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.
    pub fn detect(template: &str) -> Self {
        let shows = |mark: &&str| {
            let composed = COMPOSED.iter().find(|(composed, _)| composed == mark);
            template.contains(*mark) || composed.is_some_and(|(_, piece)| template.contains(piece))
        };
        let thinking = THINKING.iter().filter(|(open, close)| shows(open) || shows(close));
        let solar = template.contains(SOLAR_CONTENT).then_some(&SOLAR_THINKING);
        let thinking = thinking.chain(solar);
        let harmony = template.contains("<|channel|>") && template.contains("<|message|>");
        let mut forms: Vec<&Form> = Vec::new();
        for form in FORMS.iter().filter(|form| form.signs.iter().any(shows)) {
            // Calls without marks around them are part of the forms that have them.
            if !form.open.is_empty() || forms.iter().all(|known| known.lead != form.lead) {
                forms.push(form);
            }
        }
        let style = forms.first().map(|form| form.style);
        let finer = |style| {
            let found = STYLES.iter().find(|(of, sign, _)| *of == style && shows(sign));
            found.map_or(style, |(_, _, finer)| *finer)
        };
        let style = if harmony { CallStyle::Harmony } else { style.map(finer).unwrap_or_default() };
        if forms.is_empty() {
            forms.push(&HERMES);
        }
        let recipients = !harmony && RECIPIENTS.iter().all(|piece| template.contains(piece));
        let around = AROUND.iter().find(|marks| shows(&marks[0])).copied().unwrap_or_default();
        let thinking = thinking.copied().collect();
        Self { thinking, forms, around, harmony, recipients, style }
    }

    /// Whether replies can hold thoughts.
    pub fn thinks(&self) -> bool {
        self.harmony || self.recipients || !self.thinking.is_empty()
    }

    /// What ends the thoughts that a prompt leaves open.
    pub(crate) fn open_thought(&self, prompt: &str) -> Option<&'static str> {
        let prompt = prompt.trim_end();
        let open = self.thinking.iter().find(|(open, _)| prompt.ends_with(open));
        open.map(|(_, close)| *close)
    }

    /// Whether replies are messages on channels (gpt-oss).
    pub fn is_harmony(&self) -> bool {
        self.harmony
    }

    /// Whether templates of this form refuse ids of calls other than nine letters and digits
    /// (Mistral).
    pub fn has_short_call_ids(&self) -> bool {
        self.forms.iter().any(|form| form.open == "[TOOL_CALLS]")
    }

    /// What ids of calls templates of this form take.
    pub(crate) fn call_ids(&self) -> CallIds {
        match self.has_short_call_ids() {
            true => CallIds::Short,
            false if self.style == CallStyle::Kimi => CallIds::Numbered,
            false => CallIds::Any,
        }
    }

    /// The control tokens that a [`crate::TextStream`] must show so that replies can be parsed.
    pub fn marker_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let pairs = self.thinking.iter().flat_map(|(open, close)| [*open, *close]);
        let calls = self.forms.iter().flat_map(|form| form.marks());
        let rest = match () {
            () if self.harmony => HARMONY,
            () if self.recipients => ADDRESSED,
            () => INNER,
        };
        tokenizer.find_tokens(pairs.chain(calls).chain(rest.iter().copied()))
    }

    /// The tokens that end a reply. Between the messages of one reply stands a token that ends a
    /// turn for other models.
    pub fn end_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let inner = if self.recipients { tokenizer.find_tokens([MESSAGE_END]) } else { Vec::new() };
        tokenizer.end_ids().iter().copied().filter(|id| !inner.contains(id)).collect()
    }

    /// The mark of a call with which a prompt ends (functionary 3.2): the reply goes on behind it.
    pub(super) fn begun(&self, prompt: &str) -> &'static str {
        let begun = self.forms.first().map_or("", |form| form.open);
        let is_around = || self.around.iter().any(|mark| mark.starts_with(begun));
        if !begun.is_empty() && prompt.ends_with(begun) && is_around() { begun } else { "" }
    }

    /// The marks around the calls of the style that is demanded.
    pub(super) fn around_calls(&self) -> (&'static str, &'static str) {
        self.forms.first().map_or(("", ""), |form| (form.open, form.close))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases() {
        let cases = [
            ("{{ '<think>' }} <tool_call></tool_call>", "<think>", "<tool_call>", CallStyle::Json),
            ("<tool_call>\n<function=", "", "<tool_call>", CallStyle::Tagged),
            ("<tool_call>{{ name }}<arg_key>", "", "<tool_call>", CallStyle::Glm),
            ("[TOOL_CALLS] [INST]", "", "[TOOL_CALLS]", CallStyle::List),
            ("[TOOL_CALLS] [ARGS] [/THINK]", "[THINK]", "[TOOL_CALLS]", CallStyle::MistralArgs),
            ("<|python_tag|>", "", "<|python_tag|>", CallStyle::Bare),
            ("List of tools: <|tool_list_start|>[", "", "<|tool_call_start|>", CallStyle::Python),
            (
                "<｜tool▁calls▁begin｜> ```json",
                "",
                "<｜tool▁calls▁begin｜>",
                CallStyle::DeepSeekFenced,
            ),
            ("<function=", "", "", CallStyle::Tagged),
            ("plain", "", "<tool_call>", CallStyle::Json),
        ];
        for (template, thinking, calls, style) in cases {
            let format = ReplyFormat::detect(template);
            assert_eq!(
                format.thinking.first().map_or("", |(open, _)| *open),
                thinking,
                "{template}"
            );
            let opens: Vec<&str> = format.forms.iter().map(|form| form.open).collect();
            assert_eq!(opens, [calls], "{template}");
            assert_eq!(format.style, style, "{template}");
        }
        assert!(ReplyFormat::detect("<|start|><|channel|>x<|message|>").harmony);
    }
}
