//! Maps pieces of shown text to their tokens, for log-probabilities.
//!
//! Between the tokens and the shown text, markers and white space are dropped and text is held
//! back. The ledger counts bytes. A part of the reply consists of the last tokens that add up to
//! its bytes; the shown piece of that part consists of the first of them.

use std::collections::VecDeque;

use protocol::{AnswerToken, Logprobs, Token};

/// A token of the answer with its log-probability, and the likeliest tokens at its position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenLogprobs {
    pub drawn: Logprob,
    pub top: Vec<Logprob>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Logprob {
    pub token: Token,
    /// The bytes that the token adds to the text; they may be part of a character.
    pub bytes: Vec<u8>,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    /// Tokens that are still in the parser, with their bytes.
    parsing: VecDeque<TokenLogprobs>,
    /// Tokens of text not shown yet, with their share of its bytes; `None` for the rest of a token
    /// that was already returned.
    waiting: VecDeque<(Option<TokenLogprobs>, usize)>,
}

impl Ledger {
    /// Records a token; without log-probabilities only if `always`, with a probability of one.
    pub fn note(&mut self, answer: &AnswerToken, tokenizer: &text::Tokenizer, always: bool) {
        let certain = Logprobs { drawn: 0.0, top: Vec::new() };
        let certain = always.then_some(&certain);
        let Some(logprobs) = answer.logprobs.as_ref().or(certain) else { return };
        let entry = |token, logprob| {
            let bytes = tokenizer.token_bytes(token).to_vec();
            Logprob { token, bytes, logprob }
        };
        let top = logprobs.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
        let drawn = entry(answer.token, logprobs.drawn);
        self.parsing.push_back(TokenLogprobs { drawn, top });
    }

    /// The tokens of a part of `bytes` bytes that left the parser. Earlier tokens were dropped
    /// markers or white space.
    pub fn parsed(&mut self, bytes: usize) -> Vec<TokenLogprobs> {
        let (mut covered, mut at) = (0, self.parsing.len());
        while covered < bytes && at > 0 {
            at -= 1;
            covered += self.parsing[at].drawn.bytes.len();
        }
        let found = self.parsing.split_off(at).into();
        self.parsing.clear();
        found
    }

    /// Like [`Self::parsed`], for text that the stop matcher still holds.
    pub fn wait(&mut self, bytes: usize) {
        let found = self.parsed(bytes);
        let all: usize = found.iter().map(|token| token.drawn.bytes.len()).sum();
        // The first token may start before the part.
        let mut before = all.saturating_sub(bytes);
        for token in found {
            let len = token.drawn.bytes.len();
            let share = len.saturating_sub(before);
            before = before.saturating_sub(len);
            self.waiting.push_back((Some(token), share));
        }
    }

    /// The tokens that start in the next `bytes` bytes of shown text.
    pub fn shown(&mut self, mut bytes: usize) -> Vec<TokenLogprobs> {
        let mut found = Vec::new();
        while bytes > 0 {
            let Some((token, share)) = self.waiting.pop_front() else { break };
            if share > bytes {
                self.waiting.push_front((None, share - bytes));
            }
            bytes = bytes.saturating_sub(share);
            found.extend(token);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(ledger: &mut Ledger, text: &str) {
        let drawn = Logprob { token: 0, bytes: text.as_bytes().to_vec(), logprob: -1.0 };
        ledger.parsing.push_back(TokenLogprobs { drawn, top: Vec::new() });
    }

    fn texts(tokens: Vec<TokenLogprobs>) -> Vec<String> {
        let text = |token: TokenLogprobs| String::from_utf8(token.drawn.bytes).unwrap();
        tokens.into_iter().map(text).collect()
    }

    #[test]
    fn markers_and_dropped_white_space_belong_to_nobody() {
        let mut ledger = Ledger::default();
        for token in ["\n", "</think>", "\n\n", "Hi"] {
            note(&mut ledger, token);
        }
        assert_eq!(texts(ledger.parsed("Hi".len())), ["Hi"]);
        assert!(ledger.parsed(9).is_empty());
    }

    #[test]
    fn text_that_waited_for_a_stop_string_comes_with_its_tokens() {
        let mut ledger = Ledger::default();
        note(&mut ledger, "one E");
        ledger.wait(5);
        assert_eq!(texts(ledger.shown("one ".len())), ["one E"]);
        note(&mut ledger, "N");
        ledger.wait(1);
        note(&mut ledger, "x");
        ledger.wait(1);
        assert_eq!(texts(ledger.shown("ENx".len())), ["N", "x"]);
        assert!(ledger.shown(3).is_empty());
    }
}
