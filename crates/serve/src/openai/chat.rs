//! `POST /v1/chat/completions`.

use std::collections::VecDeque;
use std::sync::Arc;

use super::answers::{Answers, Gathered, Write};
use super::custom::{Customs, Input};
use super::logprobs::ChatLogprobs;
use super::request::ChatRequest;
use super::response::{
    Call, Choice, Chunk, ChunkChoice, Completion, Delta, FinishReason, Function, Head, Reply,
    SoFar, Timings, Usage,
};
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Outcome, Part};
use crate::http::error::ApiError;
use crate::http::stream::Item;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let asked = app.intake.read_as(request, ChatRequest::read).await?;
    let completion = caller.asks(&app, asked.completion).await?;
    let style = Style {
        logprobs: completion.logprobs.is_some(),
        as_functions: asked.as_functions,
        customs: asked.customs,
        include_usage: asked.streaming.include_usage,
    };
    let head = |object| Head {
        service_tier: asked.service_tier.then_some("default"),
        ..Head::new("chatcmpl-", object, completion.model.clone())
    };
    if asked.streaming.stream {
        let head = head("chat.completion.chunk");
        let answers = app.completer.start_several(completion, asked.answers).await?;
        let calls = answers.iter().map(|_| Calls::default()).collect::<Vec<_>>();
        let answers = Answers::new(answers, asked.answers);
        let so_far = SoFar::new(asked.streaming, calls.len());
        let chunks = Chunks { head, style, calls, so_far };
        Ok(answers.respond(chunks, app.config.limits.keep_alive).await?)
    } else {
        let head = head("chat.completion");
        let answers = app.completer.start_several(completion, asked.answers).await?;
        let (answers, total) = Answers::new(answers, asked.answers).gather().await?;
        let choices = answers.iter().enumerate();
        let choices = choices.map(|(index, answer)| style.choice(index, answer)).collect();
        let (usage, timings) = (Usage::from(&total), Timings::from(&total));
        Ok(Json(Completion { head, choices, usage, timings }).into_response())
    }
}

/// Which fields of an answer the client requested.
#[derive(Debug, Clone)]
struct Style {
    logprobs: bool,
    /// Whether to return calls in the older format.
    as_functions: bool,
    customs: Customs,
    include_usage: bool,
}

/// The calls of an answer in a stream.
#[derive(Debug, Default)]
struct Calls {
    /// Those that have begun.
    begun: usize,
    /// The input of the last one, if its tool is a custom one.
    input: Option<Input>,
}

impl Style {
    fn choice(&self, index: usize, answer: &Gathered) -> Choice {
        let (text, calls) = (answer.text(), answer.calls());
        let content = (calls.is_empty() || !text.is_empty()).then_some(text);
        let mut message = Reply {
            role: "assistant",
            content,
            refusal: None,
            reasoning_content: answer.reasoning(),
            tool_calls: Vec::new(),
            function_call: None,
        };
        if self.as_functions {
            message.function_call = calls.first().map(|call| Function::whole(call));
        } else {
            let whole = |call| Call::whole(call, &self.customs);
            message.tool_calls = calls.into_iter().map(whole).collect();
        }
        let logprobs = ChatLogprobs::new(self.logprobs, &answer.logprobs());
        let finish_reason = FinishReason::new(&answer.outcome.finish, self.as_functions);
        Choice { index, message, logprobs, finish_reason }
    }
}

/// Writes answers as chunks.
struct Chunks {
    head: Head,
    style: Style,
    /// By answer.
    calls: Vec<Calls>,
    so_far: SoFar,
}

impl Chunks {
    fn delta(&self, index: usize, delta: Delta, out: &mut VecDeque<Item>) {
        let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
        self.choice(choice, self.so_far.timings(index), out);
    }

    fn choice(&self, choice: ChunkChoice, timings: Option<Timings>, out: &mut VecDeque<Item>) {
        let usage = self.style.include_usage.then_some(None);
        out.push_back(Item::json(&Chunk { usage, timings, ..self.chunk(vec![choice]) }));
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk<ChunkChoice> {
        let head = self.head.clone();
        Chunk { head, choices, usage: None, timings: None, prompt_progress: None }
    }

    /// The beginning of a call, with its id and name.
    fn begin_call(&mut self, index: usize, id: String, name: String, out: &mut VecDeque<Item>) {
        let is_custom = self.style.customs.has(&name);
        self.calls[index].begun += 1;
        self.calls[index].input = is_custom.then(Input::default);
        self.call_piece(index, Some(id), Some(name), String::new(), out);
    }

    /// A piece of the call that has begun.
    fn call_piece(
        &mut self,
        index: usize,
        id: Option<String>,
        name: Option<String>,
        text: String,
        out: &mut VecDeque<Item>,
    ) {
        if self.style.as_functions {
            let function_call = Some(Function { name, arguments: text });
            return self.delta(index, Delta { function_call, ..Delta::default() }, out);
        }
        let calls = &self.calls[index];
        let at = calls.begun.saturating_sub(1);
        let piece = Call { id, ..Call::piece(calls.input.is_some(), Some(at), name, text) };
        self.delta(index, Delta { tool_calls: Some([piece]), ..Delta::default() }, out);
    }
}

impl Write for Chunks {
    fn so_far(&mut self, index: usize, figures: Outcome, out: &mut VecDeque<Item>) {
        for report in self.so_far.note(index, figures) {
            let delta = Delta::default();
            let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
            let prompt_progress = Some(report);
            out.push_back(Item::json(&Chunk { prompt_progress, ..self.chunk(vec![choice]) }));
        }
    }

    fn begin(&mut self, out: &mut VecDeque<Item>) {
        for index in 0..self.calls.len() {
            let role = Some("assistant");
            self.delta(
                index,
                Delta { role, content: Some(String::new()), ..Delta::default() },
                out,
            );
        }
    }

    fn part(&mut self, index: usize, part: Part, out: &mut VecDeque<Item>) {
        match part {
            Part::Text(piece) => {
                let logprobs = ChatLogprobs::new(self.style.logprobs, &piece.logprobs);
                let delta = Delta { content: Some(piece.text), ..Delta::default() };
                let choice = ChunkChoice { index, delta, logprobs, finish_reason: None };
                self.choice(choice, self.so_far.timings(index), out);
            }
            Part::Reasoning(piece) => {
                let reasoning_content = Some(piece.text);
                self.delta(index, Delta { reasoning_content, ..Delta::default() }, out);
            }
            Part::Begin { id, name } => self.begin_call(index, id, name, out),
            Part::Arguments(piece) => {
                let text = match &mut self.calls[index].input {
                    Some(input) => input.push(&piece),
                    None => piece,
                };
                if !text.is_empty() {
                    self.call_piece(index, None, None, text, out);
                }
            }
            Part::Call(call) => {
                let input = self.calls[index].input.as_mut().map(std::mem::take);
                let rest = input.map(|input| input.finish(&call.arguments_text()).1);
                if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                    self.call_piece(index, None, None, rest, out);
                }
            }
        }
    }

    fn done(&mut self, index: usize, outcome: &Outcome, out: &mut VecDeque<Item>) {
        let finish_reason = Some(FinishReason::new(&outcome.finish, self.style.as_functions));
        let timings = (!self.style.include_usage).then(|| Timings::from(outcome));
        let delta = Delta::default();
        let choice = ChunkChoice { index, delta, logprobs: None, finish_reason };
        self.choice(choice, timings, out);
    }

    fn end(&mut self, outcome: &Outcome, out: &mut VecDeque<Item>) {
        if self.style.include_usage {
            let usage = Some(Some(Usage::from(outcome)));
            let timings = Some(Timings::from(outcome));
            out.push_back(Item::json(&Chunk { usage, timings, ..self.chunk(Vec::new()) }));
        }
        out.push_back(Item::Data("[DONE]".to_owned()));
    }

    fn fail(&mut self, error: ApiError, out: &mut VecDeque<Item>) {
        out.push_back(Item::Fail(error.body().to_string()));
    }
}
