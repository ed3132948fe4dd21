//! `POST /v1/chat/completions`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};

use super::request::ChatRequest;
use super::response::{
    Choice, Chunk, ChunkChoice, Completion, Delta, FINGERPRINT, Head, Reply, Timings, Usage,
};
use crate::app::App;
use crate::clock::unix_secs;
use crate::completion::{
    Answer, AnswerEvent, CompletionError, CompletionRequest, Outcome, Part, random_seed,
};
use crate::http::error::ApiError;
use crate::http::keys::client_number;
use crate::http::stream::{Framing, Item, respond};

/// How long a stream's status is held back for its first step, so that a request that fails at
/// once fails with a status.
const FIRST_STEP_WAIT: Duration = Duration::from_secs(1);

pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = client_number(request.headers(), &app.config.api_keys);
    let request: ChatRequest = app.intake.read_json(request).await?;
    let (wants_stream, wants_usage) = (request.wants_stream(), request.wants_usage());
    let chat = CompletionRequest { client, ..request.into_request()? };
    let head = |object| Head {
        id: format!("chatcmpl-{:016x}{:016x}", random_seed(), random_seed()),
        object,
        created: unix_secs(),
        model: chat.model.clone(),
        system_fingerprint: FINGERPRINT,
    };
    if wants_stream {
        let head = head("chat.completion.chunk");
        let mut answer = app.completer.start(chat).await?;
        let first = tokio::time::timeout(FIRST_STEP_WAIT, answer.next()).await;
        let first = first.ok().transpose()?;
        let chunks = Chunks { answer, head, wants_usage, ready: VecDeque::new(), ended: false };
        Ok(respond(Framing::Sse, chunks.into_stream(first), app.config.limits.keep_alive))
    } else {
        let head = head("chat.completion");
        let answer = app.completer.start(chat).await?;
        Ok(Json(whole(head, answer).await?).into_response())
    }
}

async fn whole(head: Head, mut answer: Answer) -> Result<Completion, CompletionError> {
    let mut content = String::new();
    let outcome = loop {
        match answer.next().await? {
            AnswerEvent::Waiting(_) => {}
            AnswerEvent::Part(Part::Text(piece)) => content.push_str(&piece.text),
            AnswerEvent::Part(_) => {}
            AnswerEvent::Done(outcome) => break outcome,
        }
    };
    let message = Reply { role: "assistant", content, refusal: None };
    let finish_reason = (&outcome.finish).into();
    Ok(Completion {
        head,
        choices: [Choice { index: 0, message, logprobs: None, finish_reason }],
        usage: Usage::from(&outcome),
        timings: Timings::from(&outcome),
    })
}

/// An answer as chunks.
struct Chunks {
    answer: Answer,
    head: Head,
    wants_usage: bool,
    ready: VecDeque<Item>,
    ended: bool,
}

impl Chunks {
    fn into_stream(mut self, first: Option<AnswerEvent>) -> impl Stream<Item = Item> + Send {
        let role = Delta { role: Some("assistant"), content: Some(String::new()) };
        self.push_delta(role, None);
        if let Some(step) = first {
            self.take(Ok(step));
        }
        stream::unfold(self, |mut chunks| async move {
            let item = chunks.next().await?;
            Some((item, chunks))
        })
    }

    /// The next item. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Item> {
        while self.ready.is_empty() {
            if self.ended {
                return None;
            }
            let step = self.answer.next().await;
            self.take(step);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, event: Result<AnswerEvent, CompletionError>) {
        match event {
            Ok(AnswerEvent::Waiting(reason)) => self.ready.push_back(Item::Comment(reason)),
            Ok(AnswerEvent::Part(Part::Text(piece))) => {
                self.push_delta(Delta { content: Some(piece.text), ..Delta::default() }, None);
            }
            Ok(AnswerEvent::Part(_)) => {}
            Ok(AnswerEvent::Done(outcome)) => self.finish(&outcome),
            Err(error) => {
                self.ended = true;
                self.ready.push_back(Item::Fail(ApiError::from(error).body().to_string()));
            }
        }
    }

    fn finish(&mut self, outcome: &Outcome) {
        self.ended = true;
        let timings = Some(Timings::from(outcome));
        if self.wants_usage {
            self.push_delta(Delta::default(), Some((outcome, None)));
            let usage = Some(Some(Usage::from(outcome)));
            self.push(Chunk { head: self.head.clone(), choices: vec![], usage, timings });
        } else {
            self.push_delta(Delta::default(), Some((outcome, timings)));
        }
        self.ready.push_back(Item::Data("[DONE]".to_owned()));
    }

    fn push_delta(&mut self, delta: Delta, end: Option<(&Outcome, Option<Timings>)>) {
        let finish_reason = end.map(|(outcome, _)| (&outcome.finish).into());
        let choice = ChunkChoice { index: 0, delta, logprobs: None, finish_reason };
        self.push(Chunk {
            head: self.head.clone(),
            choices: vec![choice],
            usage: self.wants_usage.then_some(None),
            timings: end.and_then(|(_, timings)| timings),
        });
    }

    fn push(&mut self, chunk: Chunk) {
        self.ready.push_back(Item::json(&chunk));
    }
}
