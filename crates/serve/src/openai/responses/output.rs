//! The contents of a response, and the fields that it repeats from its request.

use serde_json::{Map, Value, json};
use text::ToolCall;

use super::namespace::Namespaces;
use crate::clock::unix_secs;
use crate::completion::{Finish, Outcome, Part, Piece};
use crate::openai::logprobs::chat_tokens;
use crate::openai::response::{arguments, new_id};

/// Prefix of `encrypted_content`: thoughts that a client cannot read but returns with its next
/// request. Here they are not secret, so they are not encrypted.
const THOUGHTS: &str = "sinew:";

/// Encodes thoughts for the client to return.
pub(super) fn encrypted(thoughts: &str) -> String {
    format!("{THOUGHTS}{thoughts}")
}

/// Decodes returned thoughts; `None` if another server wrote them.
pub(super) fn thoughts_in(encrypted: &str) -> Option<&str> {
    encrypted.strip_prefix(THOUGHTS)
}

/// What the client requests besides the text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wants {
    pub logprobs: bool,
    /// Whether to return thoughts in encoded form.
    pub encrypted: bool,
}

/// A response without its output: fields repeated from the request, id and time.
#[derive(Debug, Clone)]
pub(super) struct Envelope(Value);

impl Envelope {
    /// `asked` is an object with the request's fields.
    pub fn new(mut asked: Value) -> Self {
        let own = json!({
            "id": new_id("resp_"),
            "object": "response",
            "created_at": unix_secs(),
            "background": false,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "user": null,
        });
        if let (Some(asked), Value::Object(own)) = (asked.as_object_mut(), own) {
            asked.extend(own);
        }
        Self(asked)
    }

    /// The response in progress.
    pub fn in_progress(&self) -> Value {
        self.with("in_progress", Vec::new())
    }

    /// The response when it is complete, or cut by a limit.
    pub fn finished(&self, outcome: &Outcome, output: Vec<Value>) -> Value {
        let is_cut = outcome.finish == Finish::Length;
        let mut told = self.with(if is_cut { "incomplete" } else { "completed" }, output);
        if is_cut {
            told["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        told["usage"] = json!({
            "input_tokens": outcome.prompt_tokens,
            "input_tokens_details": {"cached_tokens": outcome.cached_tokens},
            "output_tokens": outcome.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": outcome.reasoning_tokens},
            "total_tokens": outcome.prompt_tokens + outcome.generated_tokens,
        });
        told
    }

    /// The response when it has failed.
    pub fn failed(&self, code: &str, message: &str, output: Vec<Value>) -> Value {
        let mut told = self.with("failed", output);
        told["error"] = json!({"code": code, "message": message});
        told
    }

    fn with(&self, status: &str, output: Vec<Value>) -> Value {
        let mut told = self.0.clone();
        told["status"] = json!(status);
        told["output"] = Value::Array(output);
        for absent in ["error", "incomplete_details", "usage"] {
            told[absent] = Value::Null;
        }
        told
    }
}

/// The items of an output under construction. Each change is sent as an event: a name, and its
/// fields without `type` and `sequence_number`.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// The complete items.
    pub items: Vec<Value>,
    open: Option<Open>,
    wants: Wants,
    namespaces: Namespaces,
}

/// A text item that may continue.
#[derive(Debug)]
struct Open {
    is_thought: bool,
    id: String,
    text: String,
    logprobs: Vec<Value>,
}

impl Output {
    pub fn new(wants: Wants, namespaces: Namespaces) -> Self {
        Self { wants, namespaces, ..Self::default() }
    }

    pub fn part(&mut self, part: Part, tell: &mut impl FnMut(&'static str, Value)) {
        match part {
            Part::Text(piece) => self.piece(false, piece, tell),
            Part::Reasoning(piece) => self.piece(true, piece, tell),
            Part::Call(call) => {
                self.close_open("completed", tell);
                self.call(&call, tell);
            }
        }
    }

    /// Ends the answer.
    pub fn close(&mut self, finish: &Finish, tell: &mut impl FnMut(&'static str, Value)) {
        let is_cut = *finish == Finish::Length;
        self.close_open(if is_cut { "incomplete" } else { "completed" }, tell);
    }

    fn piece(
        &mut self,
        is_thought: bool,
        piece: Piece,
        tell: &mut impl FnMut(&'static str, Value),
    ) {
        if self.open.as_ref().is_some_and(|open| open.is_thought != is_thought) {
            self.close_open("completed", tell);
        }
        let (at, wants) = (self.items.len(), self.wants);
        let open = self.open.get_or_insert_with(|| Open::begin(is_thought, at, wants, tell));
        let logprobs: Vec<Value> = match wants.logprobs && !is_thought {
            true => chat_tokens(&piece.logprobs).iter().map(|token| json!(token)).collect(),
            false => Vec::new(),
        };
        let mut event = json!({
            "item_id": open.id, "output_index": at, "content_index": 0, "delta": piece.text,
        });
        if !is_thought {
            event["logprobs"] = json!(logprobs);
        }
        let name = match is_thought {
            true => "response.reasoning_text.delta",
            false => "response.output_text.delta",
        };
        tell(name, event);
        open.text.push_str(&piece.text);
        open.logprobs.extend(logprobs);
    }

    fn close_open(&mut self, status: &str, tell: &mut impl FnMut(&'static str, Value)) {
        let Some(open) = self.open.take() else { return };
        let at = self.items.len();
        let mut event = json!({
            "item_id": open.id, "output_index": at, "content_index": 0, "text": open.text,
        });
        if !open.is_thought {
            event["logprobs"] = json!(open.logprobs);
        }
        let name = match open.is_thought {
            true => "response.reasoning_text.done",
            false => "response.output_text.done",
        };
        tell(name, event);
        let part = open.part();
        tell(
            "response.content_part.done",
            json!({"item_id": open.id, "output_index": at, "content_index": 0, "part": part}),
        );
        let item = open.item(status, vec![part], self.wants);
        tell("response.output_item.done", json!({"output_index": at, "item": item}));
        self.items.push(item);
    }

    fn call(&mut self, call: &ToolCall, tell: &mut impl FnMut(&'static str, Value)) {
        let (id, at) = (new_id("fc_"), self.items.len());
        let mut name = Map::new();
        self.namespaces.name(&call.name, &mut name);
        let item = |status: &str, arguments: &str| {
            let mut item = json!({
                "id": id, "type": "function_call", "status": status, "call_id": call.id,
                "arguments": arguments,
            });
            item.as_object_mut().expect("it is one").extend(name.clone());
            item
        };
        let text = arguments(call);
        let begun = json!({"output_index": at, "item": item("in_progress", "")});
        tell("response.output_item.added", begun);
        let delta = json!({"item_id": id, "output_index": at, "delta": text});
        tell("response.function_call_arguments.delta", delta);
        let name = &name["name"];
        let done = json!({"item_id": id, "output_index": at, "name": name, "arguments": text});
        tell("response.function_call_arguments.done", done);
        let whole = item("completed", &text);
        tell("response.output_item.done", json!({"output_index": at, "item": whole}));
        self.items.push(whole);
    }
}

impl Open {
    fn begin(
        is_thought: bool,
        at: usize,
        wants: Wants,
        tell: &mut impl FnMut(&'static str, Value),
    ) -> Self {
        let id = new_id(if is_thought { "rs_" } else { "msg_" });
        let open = Self { is_thought, id, text: String::new(), logprobs: Vec::new() };
        let wants = Wants { encrypted: false, ..wants };
        let item = open.item("in_progress", Vec::new(), wants);
        tell("response.output_item.added", json!({"output_index": at, "item": item}));
        tell(
            "response.content_part.added",
            json!({
                "item_id": open.id, "output_index": at, "content_index": 0, "part": open.part(),
            }),
        );
        open
    }

    fn part(&self) -> Value {
        let Self { text, logprobs, .. } = self;
        match self.is_thought {
            true => json!({"type": "reasoning_text", "text": text}),
            false => json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs,
            }),
        }
    }

    fn item(&self, status: &str, content: Vec<Value>, wants: Wants) -> Value {
        if !self.is_thought {
            return json!({
                "id": self.id, "type": "message", "status": status, "role": "assistant",
                "content": content,
            });
        }
        let mut item = json!({
            "id": self.id, "type": "reasoning", "status": status, "summary": [],
            "content": content,
        });
        if wants.encrypted {
            item["encrypted_content"] = json!(encrypted(&self.text));
        }
        item
    }
}
