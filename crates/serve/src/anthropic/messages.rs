//! `POST /v1/messages`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::stream;

use super::RequestId;
use super::events::Events;
use super::request::{MessagesRequest, Thoughts};
use super::response::{Block, Ending, Event, Message, SIGNATURE};
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Answer, AnswerEvent, CompletionError, Part};
use crate::http::error::ApiError;
use crate::http::stream::{Framing, json_response, respond_with};

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let read = app.intake.read_as(request, |fields| {
        let request = MessagesRequest::read(fields)?;
        let (wants_stream, thoughts) = (request.stream == Some(true), request.thoughts());
        Ok((request.into_request()?, wants_stream, thoughts))
    });
    let (request, wants_stream, thoughts) = read.await?;
    let request = caller.asks(&app, request).await?;
    let max_tokens = request.max_tokens;
    let message = Message::new(request.model.clone());
    let mut answer = app.completer.start(request).await?;
    if !wants_stream {
        let message = whole(message, answer, thoughts, max_tokens).await?;
        return Ok(json_response(&message));
    }
    let first = answer.first().await?;
    let mut events = Events::new(answer, message, thoughts, max_tokens, id);
    if let Some(first) = first {
        events.take(Ok(first));
    }
    let items = stream::unfold(events, |mut events| async move {
        let item = events.next().await?;
        Some((item, events))
    });
    Ok(respond_with(Framing::Sse, items, app.config.limits.keep_alive, || Event::Ping.item()))
}

async fn whole(
    mut message: Message,
    mut answer: Answer,
    thoughts: Thoughts,
    max_tokens: Option<usize>,
) -> Result<Message, CompletionError> {
    let outcome = loop {
        match answer.next().await? {
            AnswerEvent::Waiting(_) => {}
            AnswerEvent::Part(part) => add(&mut message.content, part, thoughts),
            AnswerEvent::Done(outcome) => break outcome,
        }
    };
    let ending = Ending::new(&outcome, max_tokens);
    message.stop_reason = Some(ending.stop_reason);
    message.stop_sequence = ending.stop_sequence;
    message.usage = (&outcome).into();
    Ok(message)
}

/// Adds a part to the last block if the kinds match.
fn add(content: &mut Vec<Block>, part: Part, thoughts: Thoughts) {
    match (part, content.last_mut()) {
        (Part::Text(piece), Some(Block::Text { text })) => text.push_str(&piece.text),
        (Part::Text(piece), _) => content.push(Block::Text { text: piece.text }),
        (Part::Reasoning(_), _) if thoughts == Thoughts::Hidden => {}
        (Part::Reasoning(piece), last) => {
            let shown = if thoughts == Thoughts::Shown { piece.text } else { String::new() };
            match last {
                Some(Block::Thinking { thinking, .. }) => thinking.push_str(&shown),
                _ => content.push(Block::Thinking { thinking: shown, signature: SIGNATURE }),
            }
        }
        (Part::Call(call), _) => content.push(call.into()),
        (Part::Begin { .. } | Part::Arguments(_), _) => {}
    }
}
