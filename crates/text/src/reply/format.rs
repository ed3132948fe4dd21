//! How a model writes its thoughts and its calls of tools, as its chat template shows it.

use crate::Tokenizer;

/// Where thoughts begin and end, by the families that write them.
const THINKING: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// Where calls of tools begin and end. A block without an end goes on to the end of the reply.
const CALLS: &[(&str, &str)] = &[
    ("<tool_call>", "</tool_call>"),
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("[TOOL_CALLS]", ""),
    ("<|python_tag|>", ""),
];

/// Control tokens inside the blocks above, and those that divide gpt-oss's messages.
const INNER: &[&str] = &[
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "[ARGS]",
    "[CALL_ID]",
];
pub(super) const HARMONY: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

/// How the calls inside the blocks above are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum CallStyle {
    /// `{"name": ..., "arguments": ...}` in a block (Hermes, Qwen).
    #[default]
    Json,
    /// `{"name": ..., "parameters": ...}` as the whole reply (Llama 3).
    Bare,
    /// A list of objects (Mistral), or `NAME[ARGS]{...}` since Small 3.2.
    MistralList,
    MistralArgs,
    DeepSeek,
    /// With the arguments in a fence, before V3.1.
    DeepSeekFenced,
    Kimi,
    /// `<function=NAME>` and `<parameter=KEY>` (Qwen 3 Coder).
    Tagged,
    /// `<invoke name="NAME">` (MiniMax-M2).
    Invoke,
    /// `<arg_key>` and `<arg_value>` (GLM 4.5).
    Glm,
    Harmony,
}

/// A piece of a template that shows a style; the first one found counts.
const STYLES: &[(&str, CallStyle)] = &[
    ("<|channel|>", CallStyle::Harmony),
    ("```json", CallStyle::DeepSeekFenced),
    ("<｜tool▁call▁begin｜>", CallStyle::DeepSeek),
    ("<|tool_call_begin|>", CallStyle::Kimi),
    ("<function=", CallStyle::Tagged),
    ("<invoke name=", CallStyle::Invoke),
    ("<arg_key>", CallStyle::Glm),
    ("[ARGS]", CallStyle::MistralArgs),
    ("[TOOL_CALLS]", CallStyle::MistralList),
    ("<tool_call>", CallStyle::Json),
    ("<|python_tag|>", CallStyle::Bare),
];

/// The marks in a model's replies that are not text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyFormat {
    pub(super) thinking: Vec<(&'static str, &'static str)>,
    pub(super) calls: Vec<(&'static str, &'static str)>,
    /// A reply that is nothing but JSON is a call (Llama 3).
    pub(super) bare_json: bool,
    /// Replies are messages on channels (gpt-oss).
    pub(super) harmony: bool,
    pub(super) style: CallStyle,
}

impl ReplyFormat {
    /// The format that a chat template's source shows. A template that knows no tools gets the most
    /// common form of calls, `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.
    pub fn detect(template: &str) -> Self {
        let shown = |pairs: &[(&'static str, &'static str)]| -> Vec<_> {
            pairs.iter().copied().filter(|(open, _)| template.contains(open)).collect()
        };
        let harmony = template.contains("<|channel|>") && template.contains("<|message|>");
        let mut calls = shown(CALLS);
        let bare_json = calls.is_empty() || template.contains("<|python_tag|>");
        if calls.is_empty() {
            calls.push(CALLS[0]);
        }
        Self { thinking: shown(THINKING), calls, bare_json, harmony, style: style(template) }
    }

    /// Whether replies can hold thoughts.
    pub fn thinks(&self) -> bool {
        self.harmony || !self.thinking.is_empty()
    }

    /// Whether replies are messages on channels (gpt-oss).
    pub fn is_harmony(&self) -> bool {
        self.harmony
    }

    /// Whether templates of this form refuse ids of calls other than nine letters and digits
    /// (Mistral).
    pub fn has_short_call_ids(&self) -> bool {
        self.calls.iter().any(|(open, _)| *open == "[TOOL_CALLS]")
    }

    /// The control tokens that a [`crate::TextStream`] must show so that replies can be parsed.
    pub fn marker_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let pairs = self.thinking.iter().chain(&self.calls);
        let marks = pairs.flat_map(|(open, close)| [*open, *close]);
        let rest = if self.harmony { HARMONY } else { INNER };
        tokenizer.find_tokens(marks.chain(rest.iter().copied()))
    }
}

fn style(template: &str) -> CallStyle {
    let is_deepseek = template.contains("<｜tool▁call▁begin｜>");
    let shown = |(mark, style): &&(&str, CallStyle)| {
        template.contains(mark) && (*style != CallStyle::DeepSeekFenced || is_deepseek)
    };
    STYLES.iter().find(shown).map(|(_, style)| *style).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases() {
        let cases = [
            (
                "{{ '<think>' }} <tool_call></tool_call>",
                vec!["<think>"],
                vec!["<tool_call>"],
                false,
            ),
            ("[TOOL_CALLS] [INST]", vec![], vec!["[TOOL_CALLS]"], false),
            ("<|python_tag|>", vec![], vec!["<|python_tag|>"], true),
            ("plain", vec![], vec!["<tool_call>"], true),
        ];
        for (template, thinking, calls, bare_json) in cases {
            let format = ReplyFormat::detect(template);
            let opens = |pairs: &[(&'static str, &str)]| -> Vec<&str> {
                pairs.iter().map(|(open, _)| *open).collect()
            };
            assert_eq!(opens(&format.thinking), thinking, "{template}");
            assert_eq!(opens(&format.calls), calls, "{template}");
            assert_eq!(format.bare_json, bare_json, "{template}");
        }
        assert!(ReplyFormat::detect("<|start|><|channel|>x<|message|>").harmony);
    }
}
