//! Ends of an answer that editors ask for: a line with less indentation, and a time limit.

use std::time::Duration;

/// Where the lines of an answer end it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LineBounds {
    /// A line after the first that begins with fewer spaces and tabs ends the answer, and is not
    /// part of it. 0 allows all.
    pub indent_min: usize,
    /// The most time since the first token, once the answer has a line break.
    pub time_max: Option<Duration>,
}

/// Checks the lines of one answer.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    bounds: LineBounds,
    /// White space since the last letter, from a line break on. The next letter decides whether it
    /// is shown.
    held: String,
    indent: usize,
    has_break: bool,
}

impl Lines {
    pub fn new(bounds: LineBounds) -> Self {
        Self { bounds, held: String::new(), indent: 0, has_break: false }
    }

    /// The text that is certain, and whether the answer ends with it.
    pub fn push(&mut self, text: String) -> (String, bool) {
        self.has_break |= text.contains('\n');
        if self.bounds.indent_min == 0 {
            return (text, false);
        }
        let mut certain = String::with_capacity(text.len());
        for ch in text.chars() {
            match ch {
                '\n' => {
                    self.held.push(ch);
                    self.indent = 0;
                }
                '\r' | ' ' | '\t' if !self.held.is_empty() => {
                    self.held.push(ch);
                    self.indent += 1;
                }
                _ if self.held.is_empty() => certain.push(ch),
                _ if self.indent < self.bounds.indent_min => {
                    self.held.clear();
                    return (certain, true);
                }
                _ => {
                    certain.push_str(&std::mem::take(&mut self.held));
                    certain.push(ch);
                }
            }
        }
        (certain, false)
    }

    /// The text held back when the answer ends.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether the time is up.
    pub fn is_late(&self, since_first: Duration) -> bool {
        self.has_break && self.bounds.time_max.is_some_and(|most| since_first > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(indent_min: usize, texts: &[&str]) -> (String, bool) {
        let mut lines = Lines::new(LineBounds { indent_min, time_max: None });
        let mut shown = String::new();
        for text in texts {
            let (text, is_over) = lines.push((*text).to_owned());
            shown.push_str(&text);
            if is_over {
                return (shown, true);
            }
        }
        (shown + &lines.finish(), false)
    }

    #[test]
    fn a_line_with_less_indentation_ends_the_answer() {
        let cases: &[(usize, &[&str], &str, bool)] = &[
            (0, &["a\nb"], "a\nb", false),
            (2, &["a\n", "  b", "\n c"], "a\n  b", true),
            (2, &["a\n\n  ", "b\n", "\n"], "a\n\n  b\n\n", false),
            (1, &["no break"], "no break", false),
            (1, &["a\n\tb\n}"], "a\n\tb", true),
        ];
        for (indent_min, texts, shown, is_over) in cases {
            assert_eq!(lines(*indent_min, texts), ((*shown).to_owned(), *is_over), "{texts:?}");
        }
    }

    #[test]
    fn time_counts_once_there_is_a_line() {
        let time_max = Some(Duration::from_millis(5));
        let mut lines = Lines::new(LineBounds { indent_min: 0, time_max });
        lines.push("a".to_owned());
        assert!(!lines.is_late(Duration::from_secs(1)));
        lines.push("\n".to_owned());
        assert!(lines.is_late(Duration::from_millis(6)) && !lines.is_late(Duration::ZERO));
    }
}
