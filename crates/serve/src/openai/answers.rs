//! The concurrent answers to one request.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use text::ToolCall;

use crate::completion::{
    Answer, AnswerEvent, CompletionError, FIRST_EVENT_WAIT, Outcome, Part, TokenLogprobs,
};
use crate::http::error::ApiError;
use crate::http::stream::{Framing, Item, respond};

/// An event of the answer at an index.
struct Event {
    index: usize,
    event: Result<AnswerEvent, CompletionError>,
    /// The figures of the answer before a part.
    so_far: Option<Outcome>,
}

/// Several answers; dropping them cancels the work on every node.
pub(crate) struct Answers {
    /// The event streams of the unfinished answers.
    events: Vec<BoxStream<'static, Event>>,
    /// The stream to poll first.
    turn: usize,
    /// Answers per prompt; the answers to one prompt are adjacent.
    per_prompt: usize,
    /// The combined outcome of the finished answers.
    total: Option<Outcome>,
    running: usize,
}

/// One complete answer.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// In order of arrival.
    pub parts: Vec<Part>,
    pub outcome: Outcome,
}

/// Writes a stream's items for each event.
pub(crate) trait Write: Send + 'static {
    /// The figures of an answer, before its next part.
    fn so_far(&mut self, _index: usize, _figures: Outcome, _out: &mut VecDeque<Item>) {}
    /// The start of the stream.
    fn begin(&mut self, out: &mut VecDeque<Item>);
    fn part(&mut self, index: usize, part: Part, out: &mut VecDeque<Item>);
    /// The answer at this index is complete.
    fn done(&mut self, index: usize, outcome: &Outcome, out: &mut VecDeque<Item>);
    /// All answers are complete; `outcome` combines them.
    fn end(&mut self, outcome: &Outcome, out: &mut VecDeque<Item>);
    /// The stream failed.
    fn fail(&mut self, error: ApiError, out: &mut VecDeque<Item>);
}

impl Answers {
    /// `per_prompt` answers to each prompt.
    pub fn new(answers: Vec<Answer>, per_prompt: usize) -> Self {
        let running = answers.len();
        let events = answers.into_iter().enumerate().map(|(index, answer)| {
            stream::unfold(Some(answer), move |answer| async move {
                let mut answer = answer?;
                let event = answer.next().await;
                let is_part = matches!(event, Ok(AnswerEvent::Part(_)));
                let so_far = is_part.then(|| answer.so_far());
                let is_last = matches!(event, Ok(AnswerEvent::Done(_)) | Err(_));
                Some((Event { index, event, so_far }, (!is_last).then_some(answer)))
            })
            .boxed()
        });
        Self { events: events.collect(), turn: 0, per_prompt, total: None, running }
    }

    /// The next event of any answer. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls every stream each time: there are few, usually one.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut looked = 0;
        while looked < self.events.len() {
            let at = (self.turn + looked) % self.events.len();
            match self.events[at].poll_next_unpin(context) {
                Poll::Ready(Some(event)) => {
                    self.turn = at + 1;
                    return Poll::Ready(Some(event));
                }
                Poll::Ready(None) => {
                    drop(self.events.remove(at));
                    (self.turn, looked) = (at, 0);
                }
                Poll::Pending => looked += 1,
            }
        }
        if self.events.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }

    /// The complete answers and their combined outcome.
    ///
    /// # Errors
    /// The first failure of any answer.
    pub async fn gather(mut self) -> Result<(Vec<Gathered>, Outcome), CompletionError> {
        let mut parts = vec![Vec::new(); self.running];
        let mut outcomes = vec![None; self.running];
        while let Some(Event { index, event, .. }) = self.next().await {
            match event? {
                AnswerEvent::Waiting(_) => {}
                AnswerEvent::Part(part) => parts[index].push(part),
                AnswerEvent::Done(outcome) => {
                    self.count(index, &outcome);
                    outcomes[index] = Some(outcome);
                }
            }
        }
        let lost = || CompletionError::Lost { reason: "it ended without an account".to_owned() };
        let gathered = parts.into_iter().zip(outcomes).map(|(parts, outcome)| {
            let outcome = outcome.ok_or_else(lost)?;
            Ok::<_, CompletionError>(Gathered { parts, outcome })
        });
        Ok((gathered.collect::<Result<_, _>>()?, self.total.ok_or_else(lost)?))
    }

    /// Adds an answer's outcome to the combined one: each prompt counts once, and each time is the
    /// maximum.
    fn count(&mut self, index: usize, one: &Outcome) {
        let mut one = one.clone();
        if !index.is_multiple_of(self.per_prompt) {
            (one.prompt_tokens, one.cached_tokens) = (0, 0);
        }
        self.total = Some(match self.total.take() {
            None => one,
            Some(all) => Outcome {
                prompt_tokens: all.prompt_tokens + one.prompt_tokens,
                cached_tokens: all.cached_tokens + one.cached_tokens,
                guesses: all.guesses.plus(one.guesses),
                generated_tokens: all.generated_tokens + one.generated_tokens,
                reasoning_tokens: all.reasoning_tokens + one.reasoning_tokens,
                queue: all.queue.max(one.queue),
                prefill: all.prefill.max(one.prefill),
                decode: all.decode.max(one.decode),
                ..all
            },
        });
    }

    /// A response that streams the answers as they arrive.
    ///
    /// # Errors
    /// An answer fails before the first event.
    pub async fn respond(
        mut self,
        writer: impl Write,
        keep_alive: Duration,
    ) -> Result<Response, CompletionError> {
        let first = tokio::time::timeout(FIRST_EVENT_WAIT, self.next()).await;
        let first = match first.ok().flatten() {
            Some(Event { event: Err(error), .. }) => return Err(error),
            first => first,
        };
        let mut writing = Writing { answers: self, writer, ready: VecDeque::new(), ended: false };
        writing.writer.begin(&mut writing.ready);
        if let Some(event) = first {
            writing.take(event);
        }
        Ok(respond(Framing::Sse, writing.into_stream(), keep_alive))
    }
}

impl Gathered {
    /// All thoughts, concatenated.
    pub fn reasoning(&self) -> Option<String> {
        let pieces = self.parts.iter().filter_map(|part| match part {
            Part::Reasoning(piece) => Some(piece.text.as_str()),
            _ => None,
        });
        let reasoning: String = pieces.collect();
        (!reasoning.is_empty()).then_some(reasoning)
    }

    /// All text, concatenated.
    pub fn text(&self) -> String {
        let pieces = self.parts.iter().filter_map(|part| match part {
            Part::Text(piece) => Some(piece.text.as_str()),
            _ => None,
        });
        pieces.collect()
    }

    /// The log-probabilities of the text.
    pub fn logprobs(&self) -> Vec<TokenLogprobs> {
        let pieces = self.parts.iter().filter_map(|part| match part {
            Part::Text(piece) => Some(piece.logprobs.iter().cloned()),
            _ => None,
        });
        pieces.flatten().collect()
    }

    pub fn calls(&self) -> Vec<&ToolCall> {
        let calls = self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            _ => None,
        });
        calls.collect()
    }
}

/// Answers written to a stream.
struct Writing<W> {
    answers: Answers,
    writer: W,
    ready: VecDeque<Item>,
    ended: bool,
}

impl<W: Write> Writing<W> {
    fn into_stream(self) -> impl Stream<Item = Item> + Send {
        stream::unfold(self, |mut writing| async move {
            let item = writing.next().await?;
            Some((item, writing))
        })
    }

    /// The next item. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Item> {
        while self.ready.is_empty() {
            if self.ended {
                return None;
            }
            let event = self.answers.next().await?;
            self.take(event);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, Event { index, event, so_far }: Event) {
        let Self { answers, writer, ready, ended } = self;
        if let Some(figures) = so_far {
            writer.so_far(index, figures, ready);
        }
        match event {
            Ok(AnswerEvent::Waiting(reason)) => ready.push_back(Item::Comment(reason)),
            Ok(AnswerEvent::Part(part)) => writer.part(index, part, ready),
            Ok(AnswerEvent::Done(outcome)) => {
                writer.done(index, &outcome, ready);
                answers.count(index, &outcome);
                answers.running -= 1;
                if answers.running == 0 {
                    *ended = true;
                    writer.end(answers.total.as_ref().unwrap_or(&outcome), ready);
                }
            }
            Err(error) => {
                *ended = true;
                writer.fail(error.into(), ready);
            }
        }
    }
}
