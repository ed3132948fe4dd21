//! Normalizes calls and their results before a template sees them: arguments are objects, each call
//! has an id, and each result names its call and follows it.
//!
//! Clients omit ids (all of Ollama's do), send arguments as text, `""` or nothing, and send results
//! late or for calls that they have cut away.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use super::{Message, ToolCall};
use crate::reply::{CallIds, whole_value};

/// The most calls that wait for their results: the latest ones.
const OPEN_MAX: usize = 1024;

/// Normalizes calls and results.
pub(super) fn pair(mut messages: Vec<Message>, ids: CallIds) -> Vec<Message> {
    let mut made = 0;
    let calls = messages.iter_mut().flat_map(|message| &mut message.tool_calls);
    calls.for_each(|call| call.arguments = object(std::mem::take(&mut call.arguments)));
    let mut messages = answered(messages);
    for message in &mut messages {
        for call in message.tool_calls.iter_mut().filter(|call| call.id.is_empty()) {
            call.id = made_id(&call.name, made, ids);
            made += 1;
        }
    }
    name_results(&mut messages);
    if ids == CallIds::Short {
        messages.iter_mut().for_each(shorten);
    }
    messages
}

/// Arguments as an object; nothing becomes an empty one. Anything else, such as a text cut by a
/// limit, becomes the only field of an object: many templates write an object's fields and nothing
/// else.
fn object(arguments: Value) -> Value {
    let value = match arguments {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => whole_value(&text)
            .or_else(|| serde_json::from_str(&text).ok())
            .unwrap_or(Value::String(text)),
        other => other,
    };
    match value {
        Value::Null => Value::Object(Map::new()),
        Value::Object(_) => value,
        other => Value::Object(Map::from_iter([("arguments".to_owned(), other)])),
    }
}

/// The messages with each result after its calls; the results of missing calls become user
/// messages.
fn answered(messages: Vec<Message>) -> Vec<Message> {
    let mut ordered: Vec<Message> = Vec::new();
    // Calls without a result yet: the index of their message, and of the call in it.
    let mut open: VecDeque<(usize, usize)> = VecDeque::new();
    // The index of the last message that is not a result.
    let mut turn = 0;
    for mut message in messages {
        if message.role != "tool" {
            let at = ordered.len();
            turn = at;
            open.extend((0..message.tool_calls.len()).map(|call| (at, call)));
            open.drain(..open.len().saturating_sub(OPEN_MAX));
            ordered.push(message);
            continue;
        }
        let Some(found) = matching(&message, &ordered, &open) else {
            if again(&message, ordered.get(turn)) {
                ordered.push(message);
            } else {
                turn = ordered.len();
                ordered.push(Message::new("user", response(&message.content)));
            }
            continue;
        };
        let (at, call) = open.remove(found).expect("it was found there");
        let id = message.tool_call_id.take().filter(|id| !id.is_empty());
        let called = &mut ordered[at].tool_calls[call];
        if let Some(id) = id.filter(|_| called.id.is_empty()) {
            called.id = id;
        }
        // Until ids are generated, a result refers to its call by index.
        message.tool_call_id = Some(called.id.clone()).filter(|id| !id.is_empty());
        message.name = Some(called.name.clone());
        let results = ordered[at + 1..].iter().take_while(|next| next.role == "tool").count();
        let place = at + 1 + results;
        ordered.insert(place, message);
        turn += usize::from(turn >= place);
        open.iter_mut().filter(|(other, _)| *other >= place).for_each(|(other, _)| *other += 1);
    }
    ordered
}

/// The open call that a result answers: by its id, else by its name, else any; of several the first
/// of the latest turn.
fn matching(
    result: &Message,
    ordered: &[Message],
    open: &VecDeque<(usize, usize)>,
) -> Option<usize> {
    let call = |(at, call): &(usize, usize)| -> &ToolCall { &ordered[*at].tool_calls[*call] };
    let best = |fits: &dyn Fn(&ToolCall) -> bool| {
        let fitting = open.iter().enumerate().filter(|(_, place)| fits(call(place)));
        fitting.max_by_key(|(index, (at, _))| (*at, Reverse(*index))).map(|(index, _)| index)
    };
    let id = result.tool_call_id.as_deref().filter(|id| !id.is_empty());
    let name = result.name.as_deref();
    let is_free = |call: &ToolCall| id.is_none() || call.id.is_empty();
    best(&|call| id == Some(call.id.as_str()))
        .or_else(|| best(&|call| is_free(call) && name == Some(call.name.as_str())))
        .or_else(|| best(&is_free))
}

/// Whether the turn before this result has a call with its id: a second result of one call.
fn again(result: &Message, turn: Option<&Message>) -> bool {
    let calls = turn.map_or(&[][..], |message| &message.tool_calls);
    let id = result.tool_call_id.as_deref();
    calls.iter().take(OPEN_MAX).any(|call| id == Some(call.id.as_str()) && !call.id.is_empty())
}

/// A tool's result as text.
pub(super) fn response(content: &str) -> String {
    format!("<tool_response>\n{content}\n</tool_response>")
}

fn made_id(name: &str, number: usize, ids: CallIds) -> String {
    match ids {
        CallIds::Numbered => format!("functions.{name}:{number}"),
        CallIds::Any | CallIds::Short => format!("call{number:05}"),
    }
}

/// Gives results without an id that of their call: the first earlier call of their name without
/// another result.
fn name_results(messages: &mut [Message]) {
    let mut open: Vec<(String, String)> = Vec::new();
    for message in messages {
        if message.role != "tool" {
            if !message.tool_calls.is_empty() {
                let ids = message.tool_calls.iter();
                let ids = ids.map(|call| (call.id.clone(), call.name.clone()));
                open = ids.take(OPEN_MAX).collect();
            }
            continue;
        }
        let is_its = |(id, name): &(String, String)| match &message.tool_call_id {
            Some(own) => own == id,
            None => message.name.as_ref() == Some(name),
        };
        if let Some(at) = open.iter().position(is_its) {
            message.tool_call_id = Some(open.remove(at).0);
        }
    }
}

/// Shortens foreign ids, from a chat that another model began, to nine letters and digits.
fn shorten(message: &mut Message) {
    let shorten = |id: &mut String| {
        if id.len() != 9 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            let mut hasher = DefaultHasher::new();
            id.hash(&mut hasher);
            *id = format!("{:09x}", hasher.finish() >> 28);
        }
    };
    message.tool_calls.iter_mut().for_each(|call| shorten(&mut call.id));
    message.tool_call_id.iter_mut().for_each(shorten);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
        ToolCall { id: id.into(), name: name.into(), arguments }
    }

    fn calls(calls: Vec<ToolCall>) -> Message {
        Message { tool_calls: calls, ..Message::new("assistant", "") }
    }

    fn result(id: &str, name: &str, content: &str) -> Message {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Message { tool_call_id: some(id), name: some(name), ..Message::new("tool", content) }
    }

    /// Ids of calls and `ID=CONTENT` of results, in order; other messages as their text.
    fn shown(messages: Vec<Message>, ids: CallIds) -> Vec<String> {
        let paired = pair(messages, ids);
        let of = |message: &Message| match message.role.as_str() {
            "tool" => vec![format!(
                "{}={}",
                message.tool_call_id.as_deref().unwrap_or("?"),
                message.content
            )],
            _ if message.tool_calls.is_empty() => vec![message.content.clone()],
            _ => message.tool_calls.iter().map(|call| call.id.clone()).collect(),
        };
        paired.iter().flat_map(of).collect()
    }

    #[test]
    fn arguments_are_objects() {
        let cases = [
            (json!(null), json!({})),
            (json!(""), json!({})),
            (json!(" "), json!({})),
            (json!("null"), json!({})),
            (json!("{\"a\": 1}"), json!({"a": 1})),
            (json!({"a": 1}), json!({"a": 1})),
            (json!("{\"a\": \"raw\nbreak\"}"), json!({"a": "raw\nbreak"})),
            (json!("{\"a\": \"ha"), json!({"arguments": "{\"a\": \"ha"})),
            (json!("just text"), json!({"arguments": "just text"})),
            (json!([1]), json!({"arguments": [1]})),
        ];
        for (given, wanted) in cases {
            let paired = pair(vec![calls(vec![call("c", "f", given.clone())])], CallIds::Any);
            assert_eq!(paired[0].tool_calls[0].arguments, wanted, "{given}");
        }
    }

    #[test]
    fn results_find_their_calls() {
        let two = || calls(vec![call("", "f", json!({})), call("", "g", json!({}))]);
        let known = || calls(vec![call("x", "f", json!({})), call("y", "g", json!({}))]);
        let user = || Message::new("user", "hi");
        let cases = [
            // Without ids: by name, then by order.
            (
                vec![two(), result("", "g", "2"), result("", "f", "1")],
                "call00000 call00001 call00001=2 call00000=1",
            ),
            (
                vec![two(), result("", "", "1"), result("", "", "2")],
                "call00000 call00001 call00000=1 call00001=2",
            ),
            // An id that only the result has is given to the call.
            (vec![two(), result("z", "g", "2")], "call00000 z z=2"),
            (vec![known(), result("", "g", "2"), result("x", "", "1")], "x y y=2 x=1"),
            // Late results move behind their calls.
            (vec![known(), user(), result("y", "", "2"), known()], "x y y=2 hi x y"),
            (
                vec![known(), user(), two(), result("y", "", "2"), result("", "g", "3")],
                "x y y=2 hi call00000 call00001 call00001=3",
            ),
            // Two results of one call, and one without a call.
            (vec![known(), result("x", "", "1"), result("x", "", "2")], "x y x=1 x=2"),
            (vec![user(), result("q", "", "7")], "hi <tool_response>\n7\n</tool_response>"),
        ];
        for (messages, wanted) in cases {
            assert_eq!(shown(messages, CallIds::Any).join(" "), wanted);
        }
        let named = pair(vec![known(), result("y", "", "2")], CallIds::Any);
        assert_eq!(named[1].name.as_deref(), Some("g"));
    }

    #[test]
    fn ids_are_as_the_template_takes_them() {
        let two = vec![calls(vec![call("", "f", json!({})), call("toolu_1", "f", json!({}))])];
        assert_eq!(shown(two.clone(), CallIds::Numbered), ["functions.f:0", "toolu_1"]);
        let results = [two, vec![result("toolu_1", "", "a"), result("", "", "b")]].concat();
        let short = shown(results, CallIds::Short);
        assert!(short[1].len() == 9 && short[1].bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(short[2..], [format!("{}=a", short[1]), "call00000=b".to_owned()]);
    }
}
