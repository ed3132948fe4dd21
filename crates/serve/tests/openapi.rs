//! The OpenAPI document and the server that it describes agree.

mod support;

use protocol::FinishReason;
use serde_json::{Value, json};
use support::client::{self, chat_body, get, post, send};
use support::double::{Act, Double};
use support::server::Server;

fn server() -> Server {
    Server::start(&Double::new(&[Act::Say("ok"), Act::Done(FinishReason::Stop)]))
}

fn document(server: &Server) -> Value {
    let reply = get(server.addr, "/openapi.json", &[]);
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    reply.json()
}

/// Every `$ref` below a value.
fn refs(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| refs(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| refs(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document(&server());
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut found = Vec::new();
    refs(&document, &mut found);
    assert!(found.len() > 50);
    for target in found {
        assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
    }
}

#[test]
fn every_route_is_there() {
    let server = server();
    let document = document(&server);
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{model}", "tiny/qwen3");
        for method in methods.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            let request = client::request(&method, &path, server.addr, &[], "");
            let reply = send(server.addr, request.as_bytes());
            let unknown = reply.body.contains("there is nothing at") || reply.status == 405;
            assert!(!unknown && reply.status != 0, "{method} {path}: {reply:?}");
        }
    }
}

/// What has no shape that could be wrong, or only has one beside other fields.
const SHAPELESS: &[&str] = &["user", "metadata", "tool_choice"];

#[test]
fn every_field_of_openais_requests_is_known() {
    let server = server();
    let document = document(&server);
    let schemas = &document["components"]["schemas"];
    let shared = schemas["Sampling"]["properties"].as_object().unwrap();
    for (path, schema, prompt) in [
        ("/v1/chat/completions", "ChatRequest", "messages"),
        ("/v1/completions", "CompletionRequest", "prompt"),
        ("/v1/responses", "ResponseRequest", "input"),
    ] {
        let own = schemas[schema]["properties"].as_object().unwrap();
        for name in own.keys().chain(shared.keys()) {
            if SHAPELESS.contains(&name.as_str()) {
                continue;
            }
            let mut body = chat_body(json!({}));
            if prompt != "messages" {
                body[prompt] = json!("Hello");
            }
            body[name] = json!([[[]]]);
            let reply = post(server.addr, path, &[], &body);
            let param = reply.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
            assert!(reply.status == 400 && param.starts_with(name.as_str()), "{name}: {reply:?}");
        }
    }
}

#[test]
fn every_field_of_the_other_dialects_requests_is_known() {
    let server = server();
    let document = document(&server);
    for (path, schema) in [
        ("/v1/messages", "MessagesRequest"),
        ("/v1/messages/count_tokens", "CountRequest"),
        ("/api/chat", "OllamaChatRequest"),
        ("/api/generate", "OllamaGenerateRequest"),
        ("/api/embed", "OllamaEmbedRequest"),
        ("/api/embeddings", "OllamaOldEmbedRequest"),
    ] {
        let asked = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"];
        assert_eq!(asked["schema"]["$ref"], format!("#/components/schemas/{schema}"));
        let schema = &document["components"]["schemas"][schema];
        for name in schema["properties"].as_object().unwrap().keys() {
            let mut body = chat_body(json!({"prompt": "Hello", "input": "Hello"}));
            body[name] = json!([[[]]]);
            let reply = post(server.addr, path, &[], &body);
            assert_eq!(reply.status, 400, "{path} {name}: {reply:?}");
        }
    }
    // A request that only has a model loaded is checked as well.
    for body in [json!({"options": {"temperature": 9}}), json!({"format": 7}), json!({"think": 7})]
    {
        let mut body = body;
        body["model"] = "tiny/qwen3".into();
        for path in ["/api/chat", "/api/generate"] {
            assert_eq!(post(server.addr, path, &[], &body).status, 400, "{path} {body}");
        }
    }
}
