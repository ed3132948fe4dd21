//! The OpenAPI document matches the server that it describes.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::client::{self, chat_body, get, post, send};
use crate::support::double::{Act, Double};
use crate::support::server::{KEY, Server};
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::ApiKeys;

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

/// The routes in the server's sources: `GET /v1/models/{}` and the like.
fn routed() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(kind) if kind == "rs" => {
                    let text = std::fs::read_to_string(&path).unwrap();
                    text.split(".route(").skip(1).for_each(|call| routes_of(call, &mut found));
                }
                _ => {}
            }
        }
    }
    found
}

/// The routes added by one call of `route`; `call` is the source text after its opening
/// parenthesis.
fn routes_of(call: &str, found: &mut BTreeSet<String>) {
    let mut quoted = call.splitn(3, '"');
    let (before, path, rest) = (quoted.next(), quoted.next(), quoted.next());
    let (path, rest) = path.zip(rest).expect("a route's path is a text where it is added");
    // The page's files share one handler, created in the line before.
    if before == Some("&format!(") {
        found.insert(format!("GET {}", without_names(path)));
        return;
    }
    let until = rest.find([';', '\n']).unwrap_or(rest.len());
    let methods = ["get", "post", "delete", "put", "patch"];
    let is_named = |method: &&str| rest[..until].contains(&format!("{method}("));
    let methods: Vec<&str> = methods.into_iter().filter(is_named).collect();
    assert!(!methods.is_empty(), "{path}: its methods are to stand in the same line");
    for method in methods {
        found.insert(format!("{} {}", method.to_uppercase(), without_names(path)));
    }
}

/// A path without the names of its variables.
fn without_names(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "{}" } else { part }.to_owned();
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The methods of a path, and what is said of each; parameters belong to all of them.
fn methods(item: &Value) -> impl Iterator<Item = (String, &Value)> {
    let methods = item.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters");
    methods.map(|(method, described)| (method.to_uppercase(), described))
}

#[test]
fn what_is_routed_is_documented_and_the_other_way_round() {
    let document = document(&server());
    let described: BTreeSet<String> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            let named = |(method, _)| format!("{method} {}", without_names(path));
            methods(item).map(named).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(routed(), described);
}

#[test]
fn administration_is_for_who_has_the_token_alone_and_looking_on_for_who_has_a_key() {
    const ELSEWHERE: (&str, &str) = ("x-forwarded-for", "203.0.113.9");
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    let server = Server::with(&double, |config| {
        config.api_keys = Some(ApiKeys::fixed(&[KEY]));
    });
    let document = document(&server);
    let paths = document["paths"].as_object().unwrap().iter();
    let (mut administered, mut looked) = (0, 0);
    // Who has no key yet pairs by a number.
    let is_guarded = |path: &str| path.starts_with("/sinew/") && path != "/sinew/v1/browsers/pair";
    for (path, item) in paths.filter(|(path, _)| is_guarded(path)) {
        for (method, described) in methods(item) {
            let ask = |headers: &[(&str, &str)]| {
                let request = client::request(&method, path, server.addr, headers, "");
                send(server.addr, request.as_bytes())
            };
            if described["security"] == json!([{"admin": []}]) {
                administered += 1;
                for headers in [&[][..], &[("x-api-key", KEY)], &[ELSEWHERE, ("x-api-key", KEY)]] {
                    assert_eq!(ask(headers).status, 401, "{method} {path} {headers:?}");
                }
            } else {
                looked += 1;
                assert_eq!(ask(&[ELSEWHERE]).status, 401, "{method} {path}");
            }
        }
    }
    assert!(double.calls.lock().unwrap().is_empty());
    assert!(administered >= 12 && looked == 13, "{administered} {looked}");
}

#[test]
fn every_route_is_there() {
    let server = server();
    let document = document(&server);
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{model}", "tiny/qwen3").replace("{name}", "app.js");
        // An event stream does not end.
        let path = path.replace("/events", "/events?follow=false");
        for (method, _) in methods(item) {
            let request = client::request(&method, &path, server.addr, &[], "");
            let reply = send(server.addr, request.as_bytes());
            let unknown = reply.body.contains("there is nothing at") || reply.status == 405;
            assert!(!unknown && reply.status != 0, "{method} {path}: {reply:?}");
        }
    }
}

/// Fields that accept any value, or that are checked only together with others.
const SHAPELESS: &[&str] = &["user", "metadata", "tool_choice", "function_call"];

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
        ("/completion", "LlamaCompletionRequest"),
        ("/tokenize", "LlamaTokenizeRequest"),
        ("/detokenize", "LlamaDetokenizeRequest"),
        ("/apply-template", "LlamaTemplateRequest"),
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
    // A request that only loads a model is validated too.
    for body in [json!({"options": {"temperature": 9}}), json!({"format": 7}), json!({"think": 7})]
    {
        let mut body = body;
        body["model"] = "tiny/qwen3".into();
        for path in ["/api/chat", "/api/generate"] {
            assert_eq!(post(server.addr, path, &[], &body).status, 400, "{path} {body}");
        }
    }
}
