//! Prompts that ask a code model for the text between a prefix and a suffix.
//!
//! An editor sends such a prompt with every keystroke. The prompt ends with the line of the cursor,
//! behind the token that begins the middle, so that the next keystroke in that line finds
//! everything before it in the cache. A text that does not fit the context is cut where the editor
//! misses it least, and in large steps: a cut that moved with each keystroke would leave nothing in
//! the cache.

use protocol::Token;
use text::{FillTokens, Special};

use super::CompletionError;
use super::model::TextModel;

/// A longer line of the cursor stays in the prefix, where models expect long texts.
const LINE_BYTES_MAX: usize = 1024;
/// Bytes of text per token of the context that are tokenized; tokens of code have about 3.
const BYTES_PER_TOKEN: usize = 16;
/// Texts are cut in steps of this part of what fits.
const CUT_PART: usize = 8;
/// The part of the context that is left for an answer without a limit of its own.
const ANSWER_PART: usize = 4;
/// The part of the room that the suffix gets if prefix and suffix do not both fit.
const SUFFIX_PART: usize = 4;

/// A text with a gap.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Fill {
    /// The text before the cursor.
    pub prefix: String,
    /// The text after it.
    pub suffix: String,
    /// Other files, least important first.
    pub files: Vec<FillFile>,
    /// The most tokens of the answer, for which the prompt leaves room.
    pub answer_tokens: Option<usize>,
    /// The request field that asks for filling in, as named by the client's dialect.
    pub field: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FillFile {
    pub name: String,
    pub text: String,
}

impl TextModel {
    /// The tokens of the prompt.
    ///
    /// # Errors
    /// The model has no tokens for filling in.
    pub(super) fn fill_tokens(
        &self,
        fill: &Fill,
        context_tokens: usize,
    ) -> Result<Vec<Token>, CompletionError> {
        let marks = self.fill_marks(fill.field)?;
        let answer = fill.answer_tokens.unwrap_or(usize::MAX);
        let answer = answer.min(context_tokens / ANSWER_PART).max(1);
        let room = context_tokens.saturating_sub(answer);
        let bytes_max = context_tokens.saturating_mul(BYTES_PER_TOKEN);

        let (prefix, line) = at_line(&fill.prefix);
        let prefix = self.plain(tail(prefix, bytes_max));
        let suffix = self.plain(head(&fill.suffix, bytes_max));
        let line = self.plain(line);
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos());
        let marked = 3 + usize::from(bos.is_some());
        let room = room.saturating_sub(marked + line.len());

        let suffix_room = suffix.len().min((room / SUFFIX_PART).max(room - prefix.len().min(room)));
        let prefix = &prefix[cut(prefix.len(), room - suffix_room)..];
        let suffix = &suffix[..suffix_room];
        let files = self.files(fill, marks, room - prefix.len() - suffix.len(), bytes_max);

        let mut tokens: Vec<Token> = bos.into_iter().chain(files).collect();
        tokens.push(marks.prefix);
        tokens.extend(prefix);
        tokens.push(marks.suffix);
        tokens.extend(suffix);
        tokens.push(marks.middle);
        tokens.extend(line);
        Ok(tokens)
    }

    /// The tokens that end the text in the gap, besides those that end any answer: the next part.
    pub(super) fn fill_ends(&self) -> impl Iterator<Item = Token> {
        let marks = self.tokenizer.fill_tokens();
        let marks = marks.map(|marks| [marks.prefix, marks.suffix, marks.middle]);
        marks.into_iter().flatten()
    }

    /// The model's tokens for filling in; `field` asks for it.
    fn fill_marks(&self, field: &'static str) -> Result<FillTokens, CompletionError> {
        self.tokenizer.fill_tokens().ok_or_else(|| {
            let message = format!(
                "{field}: this model cannot fill in text: its file has no tokens for prefix, \
                 suffix and middle. Serve a code model that has them, such as one of Qwen2.5 Coder"
            );
            CompletionError::Unusable { field, message }
        })
    }

    /// The other files' tokens, the most important ones of those that fit.
    fn files(&self, fill: &Fill, marks: FillTokens, room: usize, bytes_max: usize) -> Vec<Token> {
        let file = |name: &str, text: &str| {
            let mut tokens: Vec<Token> = marks.file.into_iter().collect();
            let end = if marks.file.is_some() { "" } else { "\n\n" };
            tokens.extend(self.plain(&format!("{name}\n{}{end}", head(text, bytes_max))));
            tokens
        };
        if fill.files.is_empty() {
            return Vec::new();
        }
        let named = marks.file.is_some();
        let mut before: Vec<Token> = marks.repo.filter(|_| named).into_iter().collect();
        if !before.is_empty() {
            before.extend(self.plain("project\n"));
        }
        // The file with the gap comes last.
        let after = if named { file("file", "") } else { Vec::new() };
        let mut left = room.saturating_sub(before.len() + after.len());
        let mut kept = Vec::new();
        for one in fill.files.iter().rev() {
            let tokens = file(&one.name, &one.text);
            let Some(rest) = left.checked_sub(tokens.len()) else { break };
            left = rest;
            kept.push(tokens);
        }
        if kept.is_empty() {
            return Vec::new();
        }
        before.into_iter().chain(kept.into_iter().rev().flatten()).chain(after).collect()
    }

    /// The tokens of a client's text, in which no control token counts.
    fn plain(&self, text: &str) -> Vec<Token> {
        self.tokenizer.encode(text, Special::Plain, false)
    }
}

/// The text before the line of the cursor, and that line.
fn at_line(prefix: &str) -> (&str, &str) {
    let (before, line) = prefix.split_at(prefix.rfind('\n').map_or(0, |at| at + 1));
    if line.len() > LINE_BYTES_MAX { (prefix, "") } else { (before, line) }
}

/// How much of `len` to cut off so that at most `most` are left, in large steps.
fn cut(len: usize, most: usize) -> usize {
    let over = len.saturating_sub(most);
    over.next_multiple_of((most / CUT_PART).max(1)).min(len)
}

/// The end of a text, at most `bytes_max` long.
fn tail(text: &str, bytes_max: usize) -> &str {
    let from = cut(text.len(), bytes_max);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[from.unwrap_or(text.len())..]
}

/// The start of a text, at most `bytes_max` long.
fn head(text: &str, bytes_max: usize) -> &str {
    let to = (0..=text.len().min(bytes_max)).rev().find(|at| text.is_char_boundary(*at));
    &text[..to.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_cursor_is_apart_unless_it_is_long() {
        assert_eq!(at_line("a\nb\n  c"), ("a\nb\n", "  c"));
        assert_eq!(at_line("a\n"), ("a\n", ""));
        assert_eq!(at_line("a"), ("", "a"));
        let long = format!("a\n{}", "b".repeat(LINE_BYTES_MAX + 1));
        assert_eq!(at_line(&long), (long.as_str(), ""));
    }

    #[test]
    fn a_cut_stays_where_it_is_for_a_while() {
        assert_eq!((cut(80, 80), cut(81, 80), cut(90, 80), cut(91, 80)), (0, 10, 10, 20));
        assert_eq!((cut(5, 0), cut(0, 0)), (5, 0));
        assert_eq!((tail("aéb", 2), head("aéb", 2)), ("b", "a"));
    }
}
