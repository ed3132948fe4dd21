use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{GenerateDone, GenerateEvent};
use futures_util::{StreamExt, stream};
use protocol::{AnswerToken, FailureKind, FinishReason, Token};
use tokio::sync::OwnedSemaphorePermit;

use super::CompletionError;
use crate::node::{EventStream, Refusal, RefusalKind};

/// An answer on its way. Dropping it cancels the work on every node.
pub(crate) struct Answer {
    events: EventStream,
    text: AnswerText,
    /// What is left to say when the text has been handed out.
    outcome: Option<Outcome>,
    meter: Meter,
    _permit: OwnedSemaphorePermit,
}

/// What comes next of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AnswerEvent {
    /// The model is loading or recovering; the request waits.
    Waiting(String),
    /// Never empty.
    Text(String),
    /// The end; nothing comes after it.
    Done(Outcome),
}

/// The account of a finished answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub finish: Finish,
    pub prompt_tokens: usize,
    pub generated_tokens: usize,
    /// From the request to its first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended it.
    Stop,
    /// A stop string was met.
    StopString,
    /// A limit on tokens was reached.
    Length,
}

impl Answer {
    pub(super) fn new(
        events: EventStream,
        text: AnswerText,
        meter: Meter,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { events, text, outcome: None, meter, _permit: permit }
    }

    /// The next event. Dropping the future loses nothing: the next call goes on from there.
    ///
    /// # Errors
    /// The answer is lost, with the reason that the cluster gives. A stream that ends without
    /// saying so is lost as well.
    pub async fn next(&mut self) -> Result<AnswerEvent, CompletionError> {
        loop {
            if let Some(outcome) = self.outcome {
                return Ok(AnswerEvent::Done(outcome));
            }
            let Some(event) = self.events.next().await else {
                return Err(lost("the cluster ended it without a reason. Try again"));
            };
            let text = match event {
                GenerateEvent::Waiting { reason } => {
                    self.meter.restart();
                    return Ok(AnswerEvent::Waiting(reason));
                }
                GenerateEvent::Failed { kind: FailureKind::Lost, reason } => {
                    return Err(lost(reason));
                }
                GenerateEvent::Failed { kind, reason } => {
                    let kind = match kind {
                        FailureKind::Busy => RefusalKind::Busy,
                        _ => RefusalKind::Invalid,
                    };
                    return Err(Refusal::new(kind, reason).into());
                }
                GenerateEvent::Tokens(tokens) => self.take(&tokens),
                GenerateEvent::Done(done) => self.finish(&done)?,
            };
            if !text.is_empty() {
                return Ok(AnswerEvent::Text(text));
            }
        }
    }

    fn take(&mut self, tokens: &[AnswerToken]) -> String {
        self.meter.count(tokens.len());
        let tokens: Vec<Token> = tokens.iter().map(|answer| answer.token).collect();
        let text = self.text.push(&tokens);
        if self.text.is_stopped() {
            self.outcome = Some(self.meter.outcome(Finish::StopString));
            // Nothing more is wanted: the work ends on every node now, not when the client leaves.
            self.events = Box::pin(stream::empty());
        }
        text
    }

    fn finish(&mut self, done: &GenerateDone) -> Result<String, CompletionError> {
        let tail = self.text.finish();
        let finish = match done.reason {
            _ if self.text.is_stopped() => Finish::StopString,
            FinishReason::Stop => Finish::Stop,
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => {
                return Err(lost(
                    "it was cancelled on its node, because the model is being stopped",
                ));
            }
        };
        self.outcome = Some(Outcome {
            finish,
            prompt_tokens: done.prompt_tokens,
            generated_tokens: done.generated_tokens,
            prefill: done.prefill,
            decode: done.decode,
        });
        Ok(tail)
    }
}

fn lost(reason: impl Into<String>) -> CompletionError {
    let reason = reason.into();
    tracing::warn!(reason, "answer lost");
    CompletionError::Lost { reason }
}

/// Tokens to text without what follows a stop string.
pub(crate) struct AnswerText {
    stream: text::TextStream<Arc<text::Tokenizer>>,
    stops: text::StopMatcher,
}

impl AnswerText {
    pub(super) fn new(
        stream: text::TextStream<Arc<text::Tokenizer>>,
        stops: text::StopMatcher,
    ) -> Self {
        Self { stream, stops }
    }

    fn push(&mut self, tokens: &[Token]) -> String {
        let piece: String = tokens.iter().map(|token| self.stream.push(*token)).collect();
        self.stops.push(&piece).text
    }

    /// What was held back.
    fn finish(&mut self) -> String {
        let piece = self.stream.finish();
        let mut text = self.stops.push(&piece).text;
        text.push_str(&self.stops.finish());
        text
    }

    fn is_stopped(&self) -> bool {
        self.stops.is_stopped()
    }
}

/// This side's own account, for answers that end here at a stop string: the node's account comes
/// only at its own end.
pub(super) struct Meter {
    start: Instant,
    first: Option<Instant>,
    last: Instant,
    prompt_tokens: usize,
    generated_tokens: usize,
}

impl Meter {
    pub fn start(prompt_tokens: usize) -> Self {
        let start = Instant::now();
        Self { start, first: None, last: start, prompt_tokens, generated_tokens: 0 }
    }

    /// Waiting for a model is not reading a prompt.
    fn restart(&mut self) {
        if self.first.is_none() {
            self.start = Instant::now();
            self.last = self.start;
        }
    }

    fn count(&mut self, tokens: usize) {
        self.last = Instant::now();
        self.first.get_or_insert(self.last);
        self.generated_tokens += tokens;
    }

    fn outcome(&self, finish: Finish) -> Outcome {
        let first = self.first.unwrap_or(self.last);
        Outcome {
            finish,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated_tokens,
            prefill: first - self.start,
            decode: self.last - first,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures_util::FutureExt;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    fn tokenizer() -> Arc<text::Tokenizer> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/qwen3.gguf");
        let bytes = std::fs::read(path).unwrap();
        let header = gguf::Directory::parse(&bytes, bytes.len() as u64).unwrap();
        Arc::new(text::Tokenizer::from_gguf(&header).unwrap())
    }

    #[test]
    fn the_work_ends_at_a_stop_string_while_the_text_is_still_to_be_taken() {
        let tokenizer = tokenizer();
        let tokens = tokenizer.encode("one two three", text::Special::Plain, false);
        let stops = text::StopMatcher::new(&["two"]).unwrap();
        let text = AnswerText::new(text::TextStream::new(tokenizer), stops);
        let (send, recv) = mpsc::unbounded_channel();
        let events =
            stream::unfold(recv, |mut recv| async move { Some((recv.recv().await?, recv)) });
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let mut answer = Answer::new(Box::pin(events), text, Meter::start(1), permit);

        let tokens = tokens.into_iter().map(AnswerToken::from).collect();
        send.send(GenerateEvent::Tokens(tokens)).unwrap();
        let event = answer.next().now_or_never().unwrap().unwrap();
        assert_eq!(event, AnswerEvent::Text("one ".to_owned()));
        assert!(send.is_closed(), "nobody listens to the cluster any more");
        let event = answer.next().now_or_never().unwrap().unwrap();
        assert!(matches!(event, AnswerEvent::Done(Outcome { finish: Finish::StopString, .. })));
    }
}
