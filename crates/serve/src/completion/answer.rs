use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cluster::{GenerateDone, GenerateEvent};
use futures_util::{StreamExt, stream};
use protocol::{AnswerToken, FailureKind, FinishReason, Token};
use tokio::sync::OwnedSemaphorePermit;

use super::CompletionError;
use super::meter::{Finish, Meter, Outcome};
use super::words::{Part, Words};
use crate::metrics::RequestWatch;
use crate::node::{EventStream, Refusal, RefusalKind};

/// How long a stream's status waits for the first event.
pub(crate) const FIRST_EVENT_WAIT: Duration = Duration::from_secs(1);

/// An answer in progress. Dropping it cancels the work on every node.
pub(crate) struct Answer {
    events: EventStream,
    words: Words,
    fields: Fields,
    ready: VecDeque<Part>,
    /// The outcome to return after all parts.
    outcome: Option<Outcome>,
    meter: Meter,
    /// The prompt's tokens.
    prompt: Arc<[Token]>,
    watch: RequestWatch,
    _permit: OwnedSemaphorePermit,
}

/// The fields of a request that an error may name.
pub(super) struct Fields {
    /// The one that sets the answer's grammar.
    pub grammar: Option<&'static str>,
    /// The paths of the pictures, in the order of the prompt.
    pub pictures: Vec<String>,
}

impl Fields {
    /// The error of a request that a node finds invalid. All but its grammar and what is inside of
    /// pictures was validated before.
    fn invalid(&self, reason: String) -> CompletionError {
        let number = reason.strip_prefix("picture ").and_then(|rest| rest.split(' ').next());
        let number = number.and_then(|number| number.parse::<usize>().ok());
        let at = number.and_then(|number| self.pictures.get(number.checked_sub(1)?));
        match (at, self.grammar) {
            (Some(at), _) => {
                let message = format!("{at}: {reason}");
                CompletionError::Picture { at: at.clone(), message }
            }
            (None, Some(field)) => {
                let message = format!("{field}: {reason}");
                CompletionError::Unusable { field, message }
            }
            (None, None) => failed(FailureKind::Invalid, reason),
        }
    }
}

/// The next event of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AnswerEvent {
    /// The model is loading or recovering; the request waits.
    Waiting(String),
    Part(Part),
    /// The end; nothing comes after it.
    Done(Outcome),
}

impl Answer {
    pub(super) fn new(
        events: EventStream,
        words: Words,
        fields: Fields,
        prompt: Arc<[Token]>,
        watch: RequestWatch,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let (ready, outcome) = Default::default();
        let meter = Meter::start(prompt.len());
        Self { events, words, fields, ready, outcome, meter, prompt, watch, _permit: permit }
    }

    /// The first event if it arrives within [`FIRST_EVENT_WAIT`]. Streaming handlers hold the
    /// status back until then, so that a request that fails at once gets an error status.
    ///
    /// # Errors
    /// As for [`Self::next`].
    pub async fn first(&mut self) -> Result<Option<AnswerEvent>, CompletionError> {
        tokio::time::timeout(FIRST_EVENT_WAIT, self.next()).await.ok().transpose()
    }

    pub fn prompt_tokens(&self) -> usize {
        self.meter.prompt_tokens()
    }

    /// The prompt's tokens.
    pub fn prompt(&self) -> Arc<[Token]> {
        Arc::clone(&self.prompt)
    }

    /// The figures so far, as if the answer ended here.
    pub fn so_far(&self) -> Outcome {
        self.meter.outcome(Finish::Length, self.words.reasoning_tokens())
    }

    /// The next event. Cancel safe: the next call continues from there.
    ///
    /// # Errors
    /// The answer is lost, with the cluster's reason. A stream that ends without a final event also
    /// counts as lost.
    pub async fn next(&mut self) -> Result<AnswerEvent, CompletionError> {
        let next = self.advance().await;
        next.inspect_err(|error| self.watch.failed(error))
    }

    async fn advance(&mut self) -> Result<AnswerEvent, CompletionError> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Ok(AnswerEvent::Part(part));
            }
            if let Some(outcome) = &self.outcome {
                return Ok(AnswerEvent::Done(outcome.clone()));
            }
            let Some(event) = self.events.next().await else {
                return Err(lost("the cluster ended it without a reason. Try again"));
            };
            match event {
                GenerateEvent::Waiting { reason } => {
                    self.meter.restart();
                    return Ok(AnswerEvent::Waiting(reason));
                }
                GenerateEvent::Failed { kind, reason } => {
                    return Err(match kind {
                        FailureKind::Invalid => self.fields.invalid(reason),
                        _ => failed(kind, reason),
                    });
                }
                GenerateEvent::Began(began) => self.meter.began(&began),
                GenerateEvent::Tokens(tokens) => self.take(&tokens),
                GenerateEvent::Done(done) => self.finish(&done)?,
            }
        }
    }

    fn take(&mut self, tokens: &[AnswerToken]) {
        self.watch.tokens(tokens.len());
        for token in tokens {
            self.meter.count(1);
            self.ready.extend(self.words.push(token));
            self.words.check_time(self.meter.since_first());
            if let Some(finish) = self.words.ended() {
                let outcome = self.meter.outcome(finish.clone(), self.words.reasoning_tokens());
                self.watch.finished(&outcome);
                self.outcome = Some(outcome);
                // The answer is complete. Dropping the events ends the work on every node now,
                // before the client disconnects.
                self.events = Box::pin(stream::empty());
                return;
            }
        }
    }

    fn finish(&mut self, done: &GenerateDone) -> Result<(), CompletionError> {
        if done.reason == FinishReason::Cancelled {
            return Err(lost("it was cancelled on its node, because the model is being stopped"));
        }
        let is_cut = done.reason == FinishReason::Length;
        self.ready.extend(self.words.finish(is_cut));
        let finish = match self.words.ended() {
            Some(finish) => finish.clone(),
            None if is_cut => Finish::Length,
            None if self.words.has_called() => Finish::ToolCalls,
            None => Finish::Stop,
        };
        let (prefill_waits, decode_waits) = self.meter.waits(&done.waits);
        let outcome = Outcome {
            finish,
            prompt_tokens: done.prompt_tokens,
            cached_tokens: done.cached_tokens,
            guesses: done.guesses,
            generated_tokens: done.generated_tokens,
            reasoning_tokens: self.words.reasoning_tokens(),
            queue: done.queue,
            prefill: done.prefill,
            decode: done.decode,
            prefill_waits,
            decode_waits,
        };
        self.watch.finished(&outcome);
        self.outcome = Some(outcome);
        Ok(())
    }
}

pub(super) fn failed(kind: FailureKind, reason: String) -> CompletionError {
    match kind {
        FailureKind::Lost => lost(reason),
        FailureKind::Busy => Refusal::new(RefusalKind::Busy, reason).into(),
        FailureKind::Away => Refusal::new(RefusalKind::Unavailable, reason).into(),
        FailureKind::Invalid => Refusal::new(RefusalKind::Invalid, reason).into(),
    }
}

pub(super) fn lost(reason: impl Into<String>) -> CompletionError {
    let reason = reason.into();
    tracing::warn!(reason, "answer lost");
    CompletionError::Lost { reason }
}
