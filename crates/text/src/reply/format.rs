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

/// The marks in a model's replies that are not text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyFormat {
    pub(super) thinking: Vec<(&'static str, &'static str)>,
    pub(super) calls: Vec<(&'static str, &'static str)>,
    /// A reply that is nothing but JSON is a call (Llama 3).
    pub(super) bare_json: bool,
    /// Replies are messages on channels (gpt-oss).
    pub(super) harmony: bool,
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
        Self { thinking: shown(THINKING), calls, bare_json, harmony }
    }

    /// The control tokens that a [`crate::TextStream`] must show so that replies can be parsed.
    pub fn marker_ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let pairs = self.thinking.iter().chain(&self.calls);
        let marks = pairs.flat_map(|(open, close)| [*open, *close]);
        let rest = if self.harmony { HARMONY } else { INNER };
        tokenizer.find_tokens(marks.chain(rest.iter().copied()))
    }
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
