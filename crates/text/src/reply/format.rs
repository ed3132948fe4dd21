//! The format of a model's thoughts and tool calls, detected from its chat template.

use super::forms::{CallStyle, FORMS, Form, HERMES};
use crate::Tokenizer;

/// The marks around thoughts, by family.
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

/// Meaningless marks around a reply's text, by the first of them: those of Kimi K3, functionary
/// 3.2, Apriel 1.5 and Solar Open.
const AROUND: &[&[&str]] = &[
    &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"],
    &[">>>all\n"],
    &["[END FINAL RESPONSE]"],
    &[SOLAR_CONTENT, "<|begin|>assistant", "<|content|>", "<|end|>"],
    RESPONSE,
];

/// The mark at the start of Granite's texts, and the one at their end. Without the first, the
/// second is text.
pub(super) const RESPONSE: &[&str] = &["<response>"];
pub(super) const RESPONSE_END: &[&str] = &["</response>"];

/// The marks around Solar Open's thoughts; other templates use them for other things.
const SOLAR_THINKING: (&str, &str) = ("<|think|>", "<|end|>");
/// The start of a reply's text after its thoughts.
const SOLAR_CONTENT: &str = "<|begin|>assistant<|content|>";

/// Marks that templates compose (Hunyuan 3, Kimi K3) or omit (MiMo-VL), with a part of a template
/// that reveals each.
const COMPOSED: &[(&str, &str)] = &[
    ("<think>", "You are MiMo, an AI assistant"),
    ("<think:opensource>", "<think{}>"),
    ("<tool_calls:opensource>", "<tool_calls{}>"),
    ("<|open|>think<|sep|>", "open_tag('think'"),
    ("<|open|>response<|sep|>", "open_tag('response')"),
    ("<|open|>tools<|sep|>", "open_tag('tools')"),
    (">>>all\n", "'>>>all\\n'"),
];

/// Control tokens inside marks that are longer than a token.
const INNER: &[&str] =
    &["<|channel>", "<|open|>", "<|close|>", "<|sep|>", "<|begin|>", "<|content|>"];

/// The control tokens between gpt-oss's messages.
pub(super) const HARMONY: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

/// Signs of a template with recipients of messages.
const RECIPIENTS: &[&str] = &["<|message|>", " to=self", MESSAGE_END];
/// Ends a message but not the turn.
const MESSAGE_END: &str = "<|eom|>";
/// The control tokens between messages with recipients.
pub(super) const ADDRESSED: &[&str] = &["<|start|>", "<|message|>", MESSAGE_END, "<|eot|>"];

/// Parts of a template that reveal the style of a form with several; the first match counts.
const STYLES: &[(CallStyle, &str, CallStyle)] = &[
    (CallStyle::DeepSeek, "```json", CallStyle::DeepSeekFenced),
    (CallStyle::Json, "<function=", CallStyle::Tagged),
    (CallStyle::Json, "<arg_key>", CallStyle::Glm),
    (CallStyle::List, "[ARGS]", CallStyle::MistralArgs),
];

/// The call ids that a template accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallIds {
    Any,
    /// Nine letters and digits (Mistral).
    Short,
    /// `functions.NAME:NUMBER` for generated ids (Kimi).
    Numbered,
}

/// The marks in a model's replies that are not text.
#[derive(Debug, Clone, Default)]
pub struct ReplyFormat {
    pub(super) thinking: Vec<(&'static str, &'static str)>,
    pub(super) forms: Vec<&'static Form>,
    /// Marks to remove from texts.
    pub(super) around: &'static [&'static str],
    /// Replies are messages on channels (gpt-oss).
    pub(super) harmony: bool,
    /// Replies are messages to recipients: the model itself, a tool, the user (Muse Glimmer).
    pub(super) recipients: bool,
    pub(super) style: CallStyle,
}

impl ReplyFormat {
    /// Detects the format from a chat template's source. A template without tools gets the most
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
            // Calls without marks are part of the forms that have them.
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

    /// Whether replies can contain thoughts.
    pub fn thinks(&self) -> bool {
        self.harmony || self.recipients || !self.thinking.is_empty()
    }

    /// The closing mark of a thought that the prompt leaves open.
    pub(crate) fn open_thought(&self, prompt: &str) -> Option<&'static str> {
        let prompt = prompt.trim_end();
        let open = self.thinking.iter().find(|(open, _)| prompt.ends_with(open));
        open.map(|(_, close)| *close)
    }

    /// A thought between its marks, as it stands before the text of a reply.
    pub(crate) fn think_aloud(&self, thought: &str) -> String {
        match self.thinking.first().filter(|_| !thought.is_empty()) {
            Some((open, close)) => format!("{open}\n{thought}\n{close}\n\n"),
            None => String::new(),
        }
    }

    /// Whether a prompt begins the reply (`begun` is that part of it) with a finished thought, so
    /// that the reply has none.
    pub(crate) fn ends_thought(&self, prompt: &str, begun: &str) -> bool {
        let prompt = prompt.trim_end();
        self.thinking.iter().any(|(_, close)| prompt.ends_with(close) || begun.contains(close))
    }

    /// Whether templates of this form accept only call ids of nine letters and digits (Mistral).
    pub fn has_short_call_ids(&self) -> bool {
        self.forms.iter().any(|form| form.open == "[TOOL_CALLS]")
    }

    /// The call ids that templates of this form accept.
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

    /// The tokens that end a reply. The token between the messages of one reply, which ends a turn
    /// for other models, is excluded.
    pub fn end_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let inner = if self.recipients { tokenizer.find_tokens([MESSAGE_END]) } else { Vec::new() };
        tokenizer.end_ids().iter().copied().filter(|id| !inner.contains(id)).collect()
    }

    /// The opening mark of a call at the end of a prompt (functionary 3.2): the reply continues
    /// after it.
    pub(super) fn begun(&self, prompt: &str) -> &'static str {
        let begun = self.forms.first().map_or("", |form| form.open);
        let is_around = || self.around.iter().any(|mark| mark.starts_with(begun));
        if !begun.is_empty() && prompt.ends_with(begun) && is_around() { begun } else { "" }
    }

    /// The marks around calls in the form for required calls.
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
