//! Reads a streamed chat completion, and stops it at Ctrl-C.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

use crate::client::error_message;
use crate::error::CliError;
use crate::interrupt::Interrupt;

/// Interval of checks for Ctrl-C while the model is silent.
const POLL: Duration = Duration::from_millis(50);

/// One answer.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub text: String,
    /// Whether the user stopped it.
    pub interrupted: bool,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    pub tokens_per_sec: Option<f64>,
    pub first_token_ms: Option<f64>,
    /// Guessed tokens that were compared with the model's own, and those that were right.
    pub guesses: Option<(u64, u64)>,
    /// Whether it ended at a limit, before its natural end.
    pub cut_by_length: bool,
}

/// A piece of what a model writes.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// Before the answer, and no part of it.
    Thought(&'a str),
    Text(&'a str),
}

/// Reads server-sent events to their end, and passes each piece to `on_piece` at once.
///
/// # Errors
/// The stream ended with an error, or without a proper end.
pub fn read_answer(
    stream: impl Read + Send + 'static,
    interrupt: &Interrupt,
    mut on_piece: impl FnMut(Piece),
) -> Result<Answer, CliError> {
    let events = spawn_reader(stream);
    let mut answer = Answer::default();
    loop {
        if interrupt.take() {
            answer.interrupted = true;
            return Ok(answer); // Dropping the reader closes the connection, which cancels.
        }
        let data = match events.recv_timeout(POLL) {
            Ok(Ok(data)) => data,
            Ok(Err(error)) => return Err(CliError::Cut(error.to_string())),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CliError::Cut("the connection to the node ended".to_owned()));
            }
        };
        if data == "[DONE]" {
            return Ok(answer);
        }
        let event: Value = serde_json::from_str(&data)
            .map_err(|error| CliError::Cut(format!("the node sent {data:?}: {error}")))?;
        if !event["error"].is_null() {
            return Err(CliError::Cut(error_message(&event["error"])));
        }
        let delta = &event["choices"][0]["delta"];
        if let Some(text) = delta["reasoning_content"].as_str() {
            on_piece(Piece::Thought(&printable(text)));
        }
        if let Some(text) = delta["content"].as_str() {
            answer.text.push_str(text);
            on_piece(Piece::Text(&printable(text)));
        }
        answer.take_figures(&event);
    }
}

impl Answer {
    fn take_figures(&mut self, event: &Value) {
        let (usage, timings) = (&event["usage"], &event["timings"]);
        self.cut_by_length |= event["choices"][0]["finish_reason"] == "length";
        if let Some(tokens) = usage["completion_tokens"].as_u64() {
            self.generated_tokens = tokens;
            self.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
        }
        if let Some(rate) = timings["predicted_per_second"].as_f64() {
            self.tokens_per_sec = Some(rate);
            self.first_token_ms = timings["prompt_ms"].as_f64();
            let count = |name: &str| timings[name].as_u64();
            self.guesses = count("draft_n").zip(count("draft_n_accepted"));
        }
    }

    /// Why it ended in mid-sentence, if it did, and what to do: at the end of the context, or at
    /// the requested number of tokens.
    pub fn why_cut(&self, context_tokens: usize, max_tokens: Option<usize>) -> Option<String> {
        if !self.cut_by_length {
            return None;
        }
        let used = self.prompt_tokens + self.generated_tokens;
        Some(match max_tokens {
            Some(max) if used < context_tokens as u64 => {
                format!("cut off at --max-tokens {max}; ask for more, or to go on")
            }
            _ => format!(
                "cut off: the context of {context_tokens} tokens is full; --ctx gives more where \
                 the model was trained for it"
            ),
        })
    }

    /// The figures in one line.
    pub fn summary(&self) -> String {
        let mut parts = vec![format!("{} tokens", self.generated_tokens)];
        parts.extend(self.tokens_per_sec.map(|rate| format!("{rate:.1} tokens/s")));
        parts.extend(self.first_token_ms.map(|ms| format!("first token after {ms:.0} ms")));
        let guesses = self.guesses.filter(|(tried, _)| *tried > 0);
        parts.extend(guesses.map(|(tried, right)| format!("{right} of {tried} guesses right")));
        parts.join(", ")
    }
}

/// Text from a model without characters that control a terminal.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// Reads `data:` lines in a separate thread, so that the caller can check for Ctrl-C.
fn spawn_reader(stream: impl Read + Send + 'static) -> Receiver<std::io::Result<String>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let line = match line {
                Ok(line) => line,
                Err(error) => {
                    // The receiver may be gone.
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            if let Some(data) = line.strip_prefix("data:")
                && sender.send(Ok(data.trim_start().to_owned())).is_err()
            {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> (Result<Answer, CliError>, String) {
        let mut shown = String::new();
        let interrupt = Interrupt::never();
        let answer = read_answer(text.as_bytes(), &interrupt, |piece| match piece {
            Piece::Thought(text) => shown.push_str(&format!("({text})")),
            Piece::Text(text) => shown.push_str(text),
        });
        (answer, shown)
    }

    #[test]
    fn an_answer_is_read_to_its_end() {
        let (answer, shown) = read(concat!(
            ": keep-alive\n\n",
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"Hm\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"Hi \\u001b[31mthere\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2},",
            "\"timings\":{\"predicted_per_second\":10.0,\"prompt_ms\":5.0,",
            "\"draft_n\":4,\"draft_n_accepted\":3}}\n\n",
            "data: [DONE]\n\n",
        ));
        assert_eq!(shown, "(Hm)Hi [31mthere");
        let summary = "2 tokens, 10.0 tokens/s, first token after 5 ms, 3 of 4 guesses right";
        let answer = answer.unwrap();
        assert_eq!((answer.summary().as_str(), answer.text.contains("Hm")), (summary, false));
    }

    #[test]
    fn an_answer_that_was_cut_off_says_so() {
        let (answer, _) = read(concat!(
            "data: {\"choices\":[{\"delta\":{\"content\":\"and th\"},\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":500,\"completion_tokens\":12}}\n\n",
            "data: [DONE]\n\n",
        ));
        let answer = answer.unwrap();
        assert!(answer.cut_by_length);
        let why = answer.why_cut(512, None).unwrap();
        assert!(why.contains("512 tokens") && why.contains("--ctx"), "{why}");
        let why = answer.why_cut(8192, Some(12)).unwrap();
        assert!(why.contains("--max-tokens 12"), "{why}");
    }

    #[test]
    fn an_error_or_a_missing_end_is_never_a_whole_answer() {
        for (stream, expected) in [
            ("data: {\"error\":{\"message\":\"node b was lost\"}}\n\n", "node b was lost"),
            ("data: {\"choices\":[]}\n\n", "the connection to the node ended"),
            ("data: {nonsense\n\n", "the node sent"),
        ] {
            let error = read(stream).0.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
