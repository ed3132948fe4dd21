//! Stop strings in a stream of text.
//!
//! A stop string may arrive in pieces, so text that could be its start is held back until the next
//! piece decides. The result depends only on the text, never on its pieces: of several stop strings
//! the one that is *complete first* wins, as if text came byte by byte.

use crate::TextError;

/// The most stop strings of a request. OpenAI allows 4, Anthropic and Ollama somewhat more.
const STRINGS_MAX: usize = 64;
/// The most bytes of one stop string; a longer one would hold back too much for a stream.
const STRING_BYTES_MAX: usize = 1024;

/// Finds the first stop string in streamed text.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

/// The result of one piece of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// Text to show: it cannot be part of a stop string.
    pub text: String,
    /// The index of the stop string that ended the text, if one did.
    pub stopped: Option<usize>,
}

impl StopMatcher {
    /// # Errors
    /// More than 64 strings, an empty one, or one of more than 1024 bytes.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, TextError> {
        if stops.len() > STRINGS_MAX {
            return Err(TextError::StopStrings { found: stops.len(), limit: STRINGS_MAX });
        }
        for (index, stop) in stops.iter().enumerate() {
            let found = stop.as_ref().len();
            if found == 0 || found > STRING_BYTES_MAX {
                return Err(TextError::StopLength { index, found, limit: STRING_BYTES_MAX });
            }
        }
        let stops = stops.iter().map(|stop| stop.as_ref().to_owned()).collect();
        Ok(Self { stops, held: String::new(), stopped: None })
    }

    /// Adds the next piece. After a stop, all further text is dropped.
    pub fn push(&mut self, piece: &str) -> StopStep {
        if self.stopped.is_some() {
            return StopStep { text: String::new(), stopped: self.stopped };
        }
        if self.stops.is_empty() {
            return StopStep { text: piece.to_owned(), stopped: None };
        }
        self.held.push_str(piece);
        if let Some((start, index)) = self.first_complete() {
            self.stopped = Some(index);
            self.held.truncate(start);
            return StopStep { text: std::mem::take(&mut self.held), stopped: Some(index) };
        }
        let kept = self.held.split_off(self.held.len() - self.possible_start());
        StopStep { text: std::mem::replace(&mut self.held, kept), stopped: None }
    }

    /// Ends the stream and returns the held-back text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string was found.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Start and index of the stop string that ends first; of those ending there, the longest.
    fn first_complete(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }

    /// The number of bytes at the end of the held text that could start a stop string.
    fn possible_start(&self) -> usize {
        let longest = |stop: &String| {
            (1..stop.len().min(self.held.len() + 1))
                .rev()
                .find(|&len| stop.is_char_boundary(len) && self.held.ends_with(&stop[..len]))
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut text = String::new();
        for piece in pieces {
            text.push_str(&matcher.push(piece).text);
        }
        text.push_str(&matcher.finish());
        (text, matcher.stopped)
    }

    #[test]
    fn cases() {
        type Case = (&'static [&'static str], &'static [&'static str], &'static str, Option<usize>);
        let cases: &[Case] = &[
            (&[], &["a", "b"], "ab", None),
            (&["END"], &["text E", "N", "D more"], "text ", Some(0)),
            (&["END"], &["text E", "N"], "text EN", None),
            (&["END"], &["EEN", "ENDx"], "EEN", Some(0)),
            (&["\n\n"], &["a\n", "b\n", "\nc"], "a\nb", Some(0)),
            (&["abc", "b"], &["abc"], "a", Some(1)),
            (&["abc", "bc"], &["abc"], "", Some(0)),
            (&["é"], &["caf", "é!"], "caf", Some(0)),
            (&["aab"], &["aaaab"], "aa", Some(0)),
        ];
        for (stops, pieces, text, stopped) in cases {
            assert_eq!(run(stops, pieces), (text.to_string(), *stopped), "{stops:?} {pieces:?}");
        }
    }

    #[test]
    fn text_is_not_held_longer_than_needed() {
        let mut matcher = StopMatcher::new(&["</s>"]).unwrap();
        assert_eq!(matcher.push("a < b").text, "a < b");
        assert_eq!(matcher.push("<").text, "");
        assert_eq!(matcher.push("/x").text, "</x");
    }

    #[test]
    fn limits() {
        assert!(matches!(StopMatcher::new(&vec!["a"; 65]), Err(TextError::StopStrings { .. })));
        assert!(matches!(
            StopMatcher::new(&["a", ""]),
            Err(TextError::StopLength { index: 1, .. })
        ));
        let long = "x".repeat(STRING_BYTES_MAX + 1);
        assert!(matches!(StopMatcher::new(&[long]), Err(TextError::StopLength { index: 0, .. })));
    }

    proptest! {
        #[test]
        fn the_cut_does_not_matter(
            text in "[ab\n]{0,24}",
            stops in prop::collection::vec("[ab\n]{1,4}", 0..4),
            cuts in prop::collection::vec(1usize..5, 0..24),
        ) {
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            for cut in cuts {
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = tail;
            }
            pieces.push(rest);
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), run(&stops, &[&text]));
        }
    }
}
