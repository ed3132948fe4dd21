//! The contents of a response, and the fields that it repeats from its request.

use serde_json::{Map, Value, json};
use text::ToolCall;

use super::namespace::Names;
use crate::clock::unix_secs;
use crate::completion::{Finish, Outcome, Part, Piece};
use crate::openai::custom::Input;
use crate::openai::logprobs::chat_tokens;
use crate::openai::response::new_id;

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
    /// `asked` is an object with the request's fields, `about` has those without an effect.
    pub fn new(mut asked: Value, about: Map<String, Value>) -> Self {
        let own = json!({
            "id": new_id("resp_"),
            "object": "response",
            "created_at": unix_secs(),
            "background": false,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
        });
        if let (Some(asked), Value::Object(own)) = (asked.as_object_mut(), own) {
            asked.extend(own);
            asked.extend(about);
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
            // All prompts are cached without being billed.
            "input_tokens_details":
                {"cached_tokens": outcome.cached_tokens, "cache_write_tokens": 0},
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
    call: Option<OpenCall>,
    wants: Wants,
    names: Names,
}

/// A call that has begun.
#[derive(Debug)]
struct OpenCall {
    id: String,
    call_id: String,
    /// Its name, and its namespace if it has one.
    name: Map<String, Value>,
    /// Takes out the input, if its tool is a custom one.
    input: Option<Input>,
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
    pub fn new(wants: Wants, names: Names) -> Self {
        Self { wants, names, ..Self::default() }
    }

    pub fn part(&mut self, part: Part, tell: &mut impl FnMut(&'static str, Value)) {
        match part {
            Part::Text(piece) => self.piece(false, piece, tell),
            Part::Reasoning(piece) => self.piece(true, piece, tell),
            Part::Begin { id, name } => {
                self.close_open("completed", tell);
                self.begin_call(id, &name, tell);
            }
            Part::Arguments(piece) => self.arguments(&piece, tell),
            Part::Call(call) => self.end_call(&call, tell),
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

    fn begin_call(
        &mut self,
        call_id: String,
        called: &str,
        tell: &mut impl FnMut(&'static str, Value),
    ) {
        let mut name = Map::new();
        self.names.namespaces.name(called, &mut name);
        let input = self.names.customs.has(called).then(Input::default);
        let id = new_id(if input.is_some() { "ctc_" } else { "fc_" });
        let open = OpenCall { id, call_id, name, input };
        let item = open.item("in_progress", "");
        tell("response.output_item.added", json!({"output_index": self.items.len(), "item": item}));
        self.call = Some(open);
    }

    fn arguments(&mut self, piece: &str, tell: &mut impl FnMut(&'static str, Value)) {
        let at = self.items.len();
        let Some(open) = &mut self.call else { return };
        let text = open.input.as_mut().map(|input| input.push(piece));
        open.tell_piece(at, text.as_deref().unwrap_or(piece), tell);
    }

    fn end_call(&mut self, call: &ToolCall, tell: &mut impl FnMut(&'static str, Value)) {
        let at = self.items.len();
        let Some(mut open) = self.call.take() else { return };
        let mut text = call.arguments_text();
        // Arguments that a limit cut are no object.
        let status = if call.arguments.is_string() { "incomplete" } else { "completed" };
        let done = match open.input.take() {
            Some(input) => {
                let (whole, rest) = input.finish(&text);
                open.input = Some(Input::default());
                open.tell_piece(at, &rest, tell);
                text = whole;
                json!({"item_id": open.id, "output_index": at, "input": text})
            }
            None => {
                let name = &open.name["name"];
                json!({"item_id": open.id, "output_index": at, "name": name, "arguments": text})
            }
        };
        tell(open.events().1, done);
        let whole = open.item(status, &text);
        tell("response.output_item.done", json!({"output_index": at, "item": whole}));
        self.items.push(whole);
    }
}

impl OpenCall {
    /// The names of the events of a piece and of the end.
    fn events(&self) -> (&'static str, &'static str) {
        match self.input {
            Some(_) => {
                ("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done")
            }
            None => {
                ("response.function_call_arguments.delta", "response.function_call_arguments.done")
            }
        }
    }

    fn tell_piece(&self, at: usize, text: &str, tell: &mut impl FnMut(&'static str, Value)) {
        if !text.is_empty() {
            let delta = json!({"item_id": self.id, "output_index": at, "delta": text});
            tell(self.events().0, delta);
        }
    }

    fn item(&self, status: &str, text: &str) -> Value {
        let (kind, field) = match self.input {
            Some(_) => ("custom_tool_call", "input"),
            None => ("function_call", "arguments"),
        };
        let mut item = json!({
            "id": self.id, "type": kind, "status": status, "call_id": self.call_id, field: text,
        });
        if let Some(fields) = item.as_object_mut() {
            fields.extend(self.name.clone());
        }
        item
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
