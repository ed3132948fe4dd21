//! Answers in Ollama's format: JSON lines while streaming, or one object.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use protocol::KeepAlive;
use serde::Serialize;
use serde_json::{Value, json};
use text::ToolCall;

use super::error_body;
use crate::app::App;
use crate::clock::{rfc3339, unix_secs};
use crate::completion::{
    Answer, AnswerEvent, CompletionError, CompletionRequest, Finish, Logprob, Outcome, Part, Piece,
    TokenLogprobs,
};
use crate::http::error::ApiError;
use crate::http::stream::{Framing, Item, json_response, respond_with};

/// The request's settings that affect its answer.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// The model's name as the client wrote it.
    pub model: String,
    /// Whether to hide the model's thoughts.
    pub hides_thoughts: bool,
}

/// The field that carries the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `/api/chat`: `message`.
    Chat,
    /// `/api/generate`: `response`.
    Generate,
}

/// A piece of an answer, or all of it.
#[derive(Debug, Clone, Default)]
struct Content {
    text: String,
    thinking: String,
    calls: Vec<ToolCall>,
    logprobs: Vec<TokenLogprobs>,
}

/// The statistics in the last line, in nanoseconds.
#[derive(Debug, Serialize)]
struct Account {
    done_reason: &'static str,
    total_duration: u64,
    /// How long the model was not ready.
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

/// Starts an answer and returns it, line by line if `wants_stream`.
///
/// # Errors
/// Any failure before the first line.
pub(super) async fn respond(
    app: &App,
    request: CompletionRequest,
    asked: Asked,
    shape: Shape,
    wants_stream: bool,
) -> Result<Response, ApiError> {
    let start = Instant::now();
    let mut answer = app.completer.start(request).await?;
    let mut teller = Teller { asked, shape, start, ready_at: start, calls: 0 };
    if !wants_stream {
        return Ok(json_response(&whole(&mut answer, &mut teller).await?));
    }
    let first = answer.first().await?;
    let beat = teller.clone();
    let mut lines = Lines { answer, teller, ready: VecDeque::new(), ended: false };
    if let Some(first) = first {
        lines.take(Ok(first));
    }
    let items = stream::unfold(lines, |mut lines| async move {
        let item = lines.next().await?;
        Some((item, lines))
    });
    // This format has no comments; clients ignore an empty piece.
    let beat = move || Item::json(&beat.clone().line(Content::default()));
    Ok(respond_with(Framing::JsonLines, items, app.config.limits.keep_alive, beat))
}

/// Handles a request without a prompt: loads a model, or unloads it if `keep_alive` is zero.
///
/// # Errors
/// The model cannot be loaded.
pub(super) async fn load(
    app: &App,
    request: &CompletionRequest,
    asked: Asked,
    shape: Shape,
) -> Result<Response, ApiError> {
    let start = Instant::now();
    app.completer.load(&request.model, request.keep_alive).await?;
    let mut teller = Teller { asked, shape, start, ready_at: start, calls: 0 };
    let mut line = teller.line(Content::default());
    line["done"] = true.into();
    let unloads = request.keep_alive == Some(KeepAlive::secs(0));
    line["done_reason"] = if unloads { "unload" } else { "load" }.into();
    Ok(Json(line).into_response())
}

async fn whole(answer: &mut Answer, teller: &mut Teller) -> Result<Value, CompletionError> {
    let mut content = Content::default();
    loop {
        match answer.next().await? {
            AnswerEvent::Waiting(_) => teller.wait(),
            AnswerEvent::Part(part) => content.add(part, teller.asked.hides_thoughts),
            AnswerEvent::Done(outcome) => return Ok(teller.last(content, &outcome)),
        }
    }
}

/// A stream to one client.
struct Lines {
    answer: Answer,
    teller: Teller,
    ready: VecDeque<Item>,
    ended: bool,
}

impl Lines {
    /// The next item. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Item> {
        while self.ready.is_empty() {
            if self.ended {
                return None;
            }
            let event = self.answer.next().await;
            self.take(event);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, event: Result<AnswerEvent, CompletionError>) {
        match event {
            Ok(AnswerEvent::Waiting(_)) => {
                self.teller.wait();
                self.push(Content::default());
            }
            Ok(AnswerEvent::Part(part)) => {
                let mut content = Content::default();
                content.add(part, self.teller.asked.hides_thoughts);
                if !content.is_empty() {
                    self.push(content);
                }
            }
            Ok(AnswerEvent::Done(outcome)) => {
                self.ended = true;
                let last = self.teller.last(Content::default(), &outcome);
                self.ready.push_back(Item::json(&last));
            }
            Err(error) => {
                self.ended = true;
                self.ready.push_back(Item::Fail(error_body(&error.into()).to_string()));
            }
        }
    }

    fn push(&mut self, content: Content) {
        let line = self.teller.line(content);
        self.ready.push_back(Item::json(&line));
    }
}

/// Writes lines.
#[derive(Debug, Clone)]
struct Teller {
    asked: Asked,
    shape: Shape,
    start: Instant,
    /// When the model was last not ready.
    ready_at: Instant,
    /// Calls written so far.
    calls: usize,
}

impl Teller {
    fn wait(&mut self) {
        self.ready_at = Instant::now();
    }

    fn line(&mut self, content: Content) -> Value {
        let mut line = json!({
            "model": self.asked.model,
            "created_at": rfc3339(unix_secs()),
            "done": false,
        });
        let mut message = json!({});
        if !content.thinking.is_empty() {
            message["thinking"] = content.thinking.into();
        }
        if !content.calls.is_empty() {
            let calls = content.calls.into_iter().map(|call| self.call(call));
            message["tool_calls"] = calls.collect();
        }
        if !content.logprobs.is_empty() {
            line["logprobs"] = content.logprobs.iter().map(told).collect();
        }
        match self.shape {
            Shape::Chat => {
                message["role"] = "assistant".into();
                message["content"] = content.text.into();
                line["message"] = message;
            }
            Shape::Generate => {
                line["response"] = content.text.into();
                line.as_object_mut()
                    .into_iter()
                    .zip(message.as_object_mut())
                    .for_each(|(line, message)| line.append(message));
            }
        }
        line
    }

    fn last(&mut self, content: Content, outcome: &Outcome) -> Value {
        let account = Account {
            done_reason: match outcome.finish {
                Finish::Length => "length",
                Finish::Stop | Finish::StopString(_) | Finish::ToolCalls => "stop",
            },
            total_duration: nanos(self.start.elapsed()),
            load_duration: nanos(self.ready_at - self.start),
            prompt_eval_count: outcome.prompt_tokens,
            prompt_eval_duration: nanos(outcome.prefill),
            eval_count: outcome.generated_tokens,
            eval_duration: nanos(outcome.decode),
        };
        let mut line = self.line(content);
        line["done"] = true.into();
        if let (Value::Object(line), Value::Object(mut account)) = (&mut line, json!(account)) {
            line.append(&mut account);
        }
        line
    }

    fn call(&mut self, call: ToolCall) -> Value {
        let index = self.calls;
        self.calls += 1;
        let arguments = match call.arguments {
            Value::String(text) => text::exact_value(&text).unwrap_or(Value::String(text)),
            arguments => arguments,
        };
        let function = json!({ "index": index, "name": call.name, "arguments": arguments });
        json!({ "id": call.id, "function": function })
    }
}

impl Content {
    fn add(&mut self, part: Part, hides_thoughts: bool) {
        match part {
            Part::Text(piece) => self.note(piece, |content| &mut content.text),
            Part::Reasoning(_) if hides_thoughts => {}
            Part::Reasoning(piece) => self.note(piece, |content| &mut content.thinking),
            // This protocol has whole calls alone. One that was cut has no arguments to run with.
            Part::Call(call) => self.calls.extend(Some(call).filter(is_whole)),
            Part::Begin { .. } | Part::Arguments(_) => {}
        }
    }

    fn note(&mut self, piece: Piece, place: fn(&mut Self) -> &mut String) {
        place(self).push_str(&piece.text);
        self.logprobs.extend(piece.logprobs);
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }
}

/// Whether a call's arguments are an object.
fn is_whole(call: &ToolCall) -> bool {
    let text = call.arguments.as_str();
    text.is_none_or(|text| serde_json::from_str::<Value>(text).is_ok())
}

fn told(token: &TokenLogprobs) -> Value {
    let one = |logprob: &Logprob| {
        json!({
            "token": String::from_utf8_lossy(&logprob.bytes),
            "logprob": logprob.logprob,
            "bytes": logprob.bytes,
        })
    };
    let mut told = one(&token.drawn);
    told["top_logprobs"] = token.top.iter().map(one).collect();
    told
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
