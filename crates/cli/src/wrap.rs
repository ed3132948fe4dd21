//! Wraps a streamed answer at the terminal's edge, between words. Text that fits is shown at once;
//! only near the edge a word is held until it is known to fit.

use std::mem::take;

use unicode_width::UnicodeWidthChar;

/// Longer words, such as addresses, may be cut at the edge: few words of any language are.
const LONGEST: usize = 24;
const TAB: usize = 8;
/// Start of a Markdown line that begins or ends code. Code is not wrapped.
const FENCE: &str = "```";

/// The position of the cursor, and the text still held.
pub struct Wrap {
    columns: usize,
    at: usize,
    /// Spaces that are dropped if the line ends here.
    gap: String,
    /// A word that may not fit.
    word: String,
    /// The beginning of the line, up to the length of a fence.
    head: String,
    is_code: bool,
}

impl Wrap {
    /// For a terminal of `columns` columns, with the cursor at the first.
    pub fn new(columns: usize) -> Self {
        let (gap, word, head) = Default::default();
        Self { columns, at: 0, gap, word, head, is_code: false }
    }

    /// The text to write after this piece.
    pub fn push(&mut self, piece: &str) -> String {
        let mut out = String::new();
        for c in piece.chars() {
            if c != '\n' && self.head.len() < FENCE.len() {
                self.head.extend(Some(c).filter(|c| !c.is_whitespace()));
            }
            match c {
                '\n' => self.end_line(&mut out),
                ' ' | '\t' => {
                    self.end_word(&mut out);
                    self.gap.push(c);
                }
                _ => self.letter(c, &mut out),
            }
        }
        out
    }

    /// The held text, at the end of an answer.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.end_word(&mut out);
        out
    }

    fn letter(&mut self, c: char, out: &mut String) {
        let must_stay = self.gap.is_empty() || self.is_code || self.head == FENCE;
        let end = self.at + width(&self.gap, self.at);
        if self.word.is_empty() && (must_stay || end + LONGEST <= self.columns) {
            return self.show(c, out);
        }
        self.word.push(c);
        if end + width(&self.word, end) > self.columns {
            self.gap.clear();
            out.push('\n');
            self.at = 0;
            self.end_word(out);
        }
    }

    fn show(&mut self, c: char, out: &mut String) {
        self.end_word(out);
        let gap = take(&mut self.gap);
        self.at += width(&gap, self.at);
        out.push_str(&gap);
        out.push(c);
        self.at += c.width().unwrap_or(0);
        if self.at > self.columns {
            // The terminal has moved to its next line.
            self.at = c.width().unwrap_or(0);
        }
    }

    fn end_word(&mut self, out: &mut String) {
        for c in take(&mut self.word).chars() {
            self.show(c, out);
        }
    }

    fn end_line(&mut self, out: &mut String) {
        self.end_word(out);
        self.is_code ^= self.head == FENCE;
        self.head.clear();
        self.gap.clear();
        self.at = 0;
        out.push('\n');
    }
}

/// Columns of a text that starts at column `at`.
fn width(text: &str, at: usize) -> usize {
    let end = text.chars().fold(at, |at, c| match c {
        '\t' => at + TAB - at % TAB,
        c => at + c.width().unwrap_or(0),
    });
    end - at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text as written for 30 columns, when it arrives letter by letter.
    fn written(text: &str) -> String {
        let mut wrap = Wrap::new(30);
        let mut out: String = text.chars().map(|c| wrap.push(&c.to_string())).collect();
        out += &wrap.finish();
        out
    }

    #[test]
    fn words_stay_whole() {
        let cases = [
            ("short words", "short words"),
            ("The ferry leaves at eight, at noon and", "The ferry leaves at eight, at\nnoon and"),
            // Thirty letters fill the line, one more continues below.
            ("aaaaaaaaaa bbbbbbbbb ccccccccc", "aaaaaaaaaa bbbbbbbbb ccccccccc"),
            ("aaaaaaaaaa bbbbbbbbb cccccccccc", "aaaaaaaaaa bbbbbbbbb\ncccccccccc"),
            ("one\n\n  two\n", "one\n\n  two\n"),
            // Text without spaces is left to the terminal, which cuts it.
            (&"x".repeat(70), &"x".repeat(70)),
            (
                "```\nlet a = 1; let b = 2; let c = 3;\n```\nThe ferry leaves at eight, at noon",
                "```\nlet a = 1; let b = 2; let c = 3;\n```\nThe ferry leaves at eight, at\nnoon",
            ),
            // Two columns a letter.
            ("aaaaaaaaaa bbbbbbbbb 日日日日", "aaaaaaaaaa bbbbbbbbb 日日日日"),
            ("aaaaaaaaaa bbbbbbbbb 日日日日日", "aaaaaaaaaa bbbbbbbbb\n日日日日日"),
        ];
        for (text, wanted) in cases {
            assert_eq!(written(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn what_fits_is_not_held() {
        let mut wrap = Wrap::new(80);
        assert_eq!(wrap.push("Hel"), "Hel");
        assert_eq!(wrap.push("lo th"), "lo th");
        assert_eq!(wrap.push("ere"), "ere");
    }
}
