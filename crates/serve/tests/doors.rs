//! What one request may cost at each door: the memory that the intake counts for it, and no time on
//! the threads that serve all requests. In a process of its own, whose memory is measured.

#![cfg(target_os = "linux")]

#[path = "it/support/mod.rs"]
mod support;

mod measured;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use measured::Cost;
use protocol::FinishReason;
use serde_json::{Map, Value, json};
use support::client::{get, request, send};
use support::double::{Act, Double};
use support::server::{ADMIN, Server};

/// Bytes that a request may cost beside what the intake counts: the model's vocabulary, buffers of
/// connections.
const OTHER_BYTES: usize = 32 << 20;
/// The intake's figures, per byte of a body and per value.
const COST: usize = 8;
const VALUE_BYTES: usize = 128;
/// The longest time of the runtime's one thread between two looks of a clock that runs on it. It is
/// 20 ms at most where nothing else runs; a thread computes more slowly beside others.
// Short: time of a processor, which no load beside it adds to.
const LATE_MAX: Duration = Duration::from_millis(50);

/// Every door for clients: its path, and the fields of its body.
fn doors(server: &Server) -> Vec<(String, Vec<String>)> {
    let document = get(server.addr, "/openapi.json", &[]).json();
    let posts = document["paths"].as_object().unwrap().iter().filter_map(|(path, methods)| {
        let schema = methods.pointer("/post/requestBody/content/application~1json/schema")?;
        let target = schema["$ref"].as_str().map(|target| target.trim_start_matches('#'));
        let schema = target.map_or(schema, |target| document.pointer(target).unwrap());
        let mut fields = Vec::new();
        properties(&document, schema, &mut fields);
        Some((path.clone(), fields))
    });
    // Those of the administration are the owner's alone.
    posts.filter(|(path, _)| !path.starts_with("/sinew/")).collect()
}

/// The names of a schema's properties, with those of the schemas that it is put together from.
fn properties(document: &Value, schema: &Value, fields: &mut Vec<String>) {
    fields.extend(schema["properties"].as_object().into_iter().flat_map(Map::keys).cloned());
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let target = part["$ref"].as_str().map(|target| target.trim_start_matches('#'));
        properties(document, target.map_or(part, |at| document.pointer(at).unwrap()), fields);
    }
}

/// A small body that this door answers.
fn plain(path: &str) -> Map<String, Value> {
    let message = json!([{"role": "user", "content": "Say hello"}]);
    let body = match path {
        _ if path.contains("chat") || path.contains("messages") || path == "/apply-template" => {
            json!({"model": "tiny/qwen3", "messages": message, "max_tokens": 9})
        }
        _ if path.contains("responses") || path.contains("embed") => {
            json!({"model": "tiny/qwen3", "input": "hello", "prompt": "hello"})
        }
        _ => json!({"model": "tiny/qwen3", "prompt": "hello", "content": "hello", "tokens": [1]}),
    };
    let Value::Object(body) = body else { unreachable!("an object") };
    body
}

/// Values of about `bytes` bytes that have cost far more than that somewhere, as JSON.
const HOSTILE: [fn(usize) -> String; 2] = [
    |bytes| format!("\"{}\"", "x".repeat(bytes)),
    |bytes| format!("[{}[]]", "[\"ab\",1],".repeat(bytes / 9)),
];

/// A body with this value in a field.
fn with(body: &Map<String, Value>, field: &str, value: &str) -> String {
    let mut body = body.clone();
    body.insert(field.to_owned(), "HERE".into());
    Value::from(body).to_string().replace("\"HERE\"", value)
}

/// The measures are the process's.
static ONE_BY_ONE: Mutex<()> = Mutex::new(());

fn check(server: &Server, path: &str, what: &str, body: &str) {
    // As the intake counts it. Commas in texts are too few to matter.
    let values = body.bytes().filter(|byte| *byte == b',').count();
    let token = format!("Bearer {ADMIN}");
    let asked = request("POST", path, server.addr, &[("authorization", &*token)], body);
    let most = COST * body.len() + VALUE_BYTES * values + OTHER_BYTES;
    let (reply, Cost { bytes, longest }) =
        measured::cost(server, || send(server.addr, asked.as_bytes()));
    let what: String = what.chars().take(60).collect();
    let status = reply.status;
    println!("{path}, {what}: {} MiB, {longest:?} on the runtime, {status}", bytes >> 20);
    assert!(status > 0, "{path}, {what}: no answer");
    assert!(bytes <= most, "{path}, {what}: {bytes} bytes of {most}, status {status}");
    assert!(longest <= LATE_MAX, "{path}, {what}: {longest:?} on the runtime, status {status}");
}

fn server() -> Server {
    let script = [Act::Say("fine"), Act::Done(FinishReason::Stop)];
    Server::on(&Double::new(&script), 1, |_| {})
}

/// Every field of every door.
#[test]
fn no_field_of_any_door_costs_more_than_is_counted() {
    let _one = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server();
    let doors = doors(&server);
    assert!(doors.len() > 20, "{}", doors.len());
    for (path, fields) in doors {
        let plain = plain(&path);
        for field in fields {
            for hostile in HOSTILE {
                let value = hostile(1 << 17);
                let body = with(&plain, &field, &value);
                check(&server, &path, &format!("{field} {value}"), &body);
            }
        }
    }
}

/// Long bodies, where texts and tokens go.
#[test]
fn the_longest_text_costs_no_more_than_is_counted() {
    let _one = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server();
    let doors = [
        ("/tokenize", "content"),
        ("/detokenize", "tokens"),
        ("/completion", "prompt"),
        ("/completion", "stop"),
        ("/completion", "logit_bias"),
        ("/infill", "input_prefix"),
        ("/v1/completions", "prompt"),
        ("/v1/chat/completions", "messages"),
        ("/v1/chat/completions", "tools"),
        ("/v1/responses", "input"),
        ("/v1/responses", "instructions"),
        ("/v1/embeddings", "input"),
        ("/v1/messages", "system"),
        ("/api/embed", "input"),
        ("/api/generate", "prompt"),
    ];
    for (path, field) in doors {
        let mut plain = plain(path);
        if path == "/tokenize" {
            plain.insert("with_pieces".to_owned(), true.into());
        }
        for hostile in HOSTILE {
            let value = hostile(8 << 20);
            check(&server, path, &format!("{field} {value}"), &with(&plain, field, &value));
        }
    }
}

/// Texts of biases become tokens, of which few are allowed.
#[test]
fn biased_texts_are_bounded_by_their_tokens() {
    let _one = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server();
    for (texts, letters) in [(1024, 300), (1024, 3000), (1, 8 << 20), (1 << 16, 2)] {
        let pair = format!("[\"{}\",1.0],", "ab".repeat(letters / 2));
        let value = format!("[{}[1,1.0]]", pair.repeat(texts));
        let body = with(&plain("/completion"), "logit_bias", &value);
        check(&server, "/completion", &format!("{texts} texts of {letters}"), &body);
    }
}
