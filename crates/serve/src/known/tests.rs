use std::collections::{BTreeMap, BTreeSet};

use protocol::{PARAMETERS, ParameterFields};
use serde_json::{Value, json};

use super::entry::Endpoint::{
    Chat, Completion, Embedding, Embeddings, Infill, Messages, OllamaChat, OllamaEmbed,
    OllamaGenerate, OllamaOptions, Rerank, Response, Text,
};
use super::entry::Entry;
use super::*;

/// Every endpoint and its schema in the API's description.
const ENDPOINTS: &[(Endpoint, &[&str])] = &[
    (Chat, &["ChatRequest", "Sampling"]),
    (Text, &["CompletionRequest", "Sampling"]),
    (Response, &["ResponseRequest", "Sampling"]),
    (Embeddings, &["EmbeddingsRequest"]),
    (Rerank, &["RerankRequest"]),
    (Messages, &["MessagesRequest"]),
    (OllamaChat, &["OllamaChatRequest"]),
    (OllamaGenerate, &["OllamaGenerateRequest"]),
    (OllamaOptions, &["OllamaOptions"]),
    (OllamaEmbed, &["OllamaEmbedRequest", "OllamaOldEmbedRequest"]),
    (Completion, &["LlamaCompletionRequest"]),
    (Embedding, &["LlamaEmbeddingRequest"]),
    (Infill, &["LlamaInfillRequest"]),
];

/// The documents, the part of each that is about these endpoints, and the endpoints.
const PAGES: &[(&str, &str, &[Endpoint])] = &[
    (API, "OpenAI", &[Chat, Text, Response, Embeddings, Rerank]),
    (API, "Anthropic", &[Messages]),
    (API, "Ollama", &[OllamaChat, OllamaGenerate, OllamaOptions, OllamaEmbed]),
    (GUIDE, "", &[Completion, Embedding, Infill]),
];
const API: &str = include_str!("../../../../docs/api.md");
const GUIDE: &str = include_str!("../../../../docs/guides/llama-server.md");

fn entries(endpoint: Endpoint) -> impl Iterator<Item = &'static Entry> {
    TABLE.iter().filter(move |entry| entry.of.contains(&endpoint))
}

fn settled(endpoint: Endpoint, body: Value) -> Result<Map<String, Value>, ApiError> {
    let Value::Object(mut fields) = body else { panic!("{body} is no object") };
    settle(endpoint, &mut fields, "").map(|()| fields)
}

#[test]
fn a_field_stands_once() {
    for (endpoint, _) in ENDPOINTS {
        let mut found = BTreeSet::new();
        for name in entries(*endpoint).flat_map(Entry::names).chain(sampling(*endpoint)) {
            assert!(found.insert(name), "{endpoint:?} has {name} twice");
        }
    }
}

#[test]
fn every_field_of_the_clients_libraries_is_known() {
    let libraries: BTreeMap<String, BTreeMap<String, Vec<String>>> =
        serde_json::from_str(include_str!("clients.json")).unwrap();
    let mut checked = 0;
    for (library, bodies) in libraries {
        for (name, fields) in bodies {
            let named = |(endpoint, _): &&(Endpoint, _)| format!("{endpoint:?}") == name;
            let (endpoint, _) = ENDPOINTS.iter().find(named).expect("it names an endpoint");
            for field in fields {
                let head = field.split(['.', '[']).next().unwrap_or_default();
                // What is refused or has no effect has neither with its own fields.
                let known = entries(*endpoint)
                    .any(|entry| entry.has(&field) || entry.act != Act::Reads && entry.has(head))
                    || reads(*endpoint, &field);
                assert!(known, "{library}, {name}: {field}");
                checked += 1;
            }
        }
    }
    assert!(checked > 300, "{checked}");
}

#[test]
fn the_description_has_every_field_that_is_read() {
    let document = crate::openapi::description();
    let schemas = &document["components"]["schemas"];
    for (endpoint, names) in ENDPOINTS {
        let fields = |name: &&str| schemas[name]["properties"].as_object().unwrap().keys();
        let described: BTreeSet<&str> = names.iter().flat_map(fields).map(String::as_str).collect();
        let known = |act: fn(&Entry) -> bool| -> BTreeSet<&str> {
            let names = entries(*endpoint).filter(|entry| act(entry)).flat_map(Entry::names);
            names.chain(sampling(*endpoint)).filter(|name| !name.contains(['.', '['])).collect()
        };
        let read = known(|entry| entry.act == Act::Reads);
        let missing: Vec<_> = read.difference(&described).collect();
        assert!(missing.is_empty(), "{endpoint:?}: {names:?} lacks {missing:?}");
        let all = known(|_| true);
        let unknown: Vec<_> = described.difference(&all).collect();
        assert!(unknown.is_empty(), "{endpoint:?}: the table lacks {unknown:?}");
    }
}

/// The fields in the first column of a page's tables with this head, of one section or of the whole
/// page.
fn listed<'p>(page: &'p str, section: &str, head: &str) -> BTreeSet<&'p str> {
    let heading = format!("\n## {section}\n");
    let part = match section {
        "" => page,
        _ => page.split_once(&heading).expect("the page has the section").1,
    };
    let part = part.split("\n## ").next().unwrap_or_default();
    let mut lines = part.lines();
    let mut found = BTreeSet::new();
    while let Some(line) = lines.next() {
        if !line.starts_with(head) {
            continue;
        }
        for row in lines.by_ref().skip(1).take_while(|line| line.starts_with('|')) {
            let first = row.split('|').nth(1).unwrap_or_default();
            found.extend(first.split('`').skip(1).step_by(2));
        }
    }
    found
}

#[test]
fn the_documents_list_what_is_refused_and_what_has_no_effect() {
    for (page, section, endpoints) in PAGES {
        for (head, ignores) in [("| refused |", false), ("| no effect |", true)] {
            let of = |entry: &&Entry| entry.of.iter().any(|one| endpoints.contains(one));
            let entries = TABLE.iter().filter(of).filter(|entry| match entry.act {
                Act::Reads => false,
                act => (act == Act::Ignores) == ignores,
            });
            let wanted: BTreeSet<&str> = entries.flat_map(Entry::names).collect();
            assert_eq!(listed(page, section, head), wanted, "{section} {head}");
        }
    }
}

#[test]
fn the_document_lists_the_parameters_of_sampling() {
    let head = "| parameter |";
    let names = listed(API, "Samplers", head);
    for row in PARAMETERS {
        let has = |name| names.contains(name);
        assert!(has(row.name) && has(row.llama_name()), "{} of {names:?}", row.name);
        let ParameterFields { range: (low, high), .. } = row.fields;
        let default = if row.fields.is_whole { row.default } else { shown(row.default) };
        let line = format!(" | {low} to {high} | {default} | {} |\n", row.effect);
        assert!(API.contains(&line), "{}:{line}", row.name);
    }
}

/// A number of single precision as it was written.
fn shown(single: f64) -> f64 {
    (single as f32).to_string().parse().unwrap()
}

#[test]
fn only_what_asks_for_something_is_refused() {
    let covered = [
        (Unless::Nothing, vec![json!(false), json!(0), json!(""), json!([]), json!({})]),
        (Unless::Numbers(&[1.0]), vec![json!(1), json!(1.0), json!(false)]),
        (Unless::Words(&["auto"]), vec![json!("auto")]),
        (Unless::True, vec![json!(true)]),
        (Unless::Lists("direct"), vec![json!(["x", "direct"])]),
        (Unless::Unscaled, vec![json!([]), json!([{"id": 0, "scale": 0.0}])]),
        (Unless::Null, vec![]),
    ];
    let asking = [json!(7), json!("x"), json!([0]), json!({"a": 0}), json!([{"scale": 1}])];
    for (unless, values) in covered {
        assert!(unless.covers(&Value::Null));
        for value in values {
            assert!(unless.covers(&value), "{unless:?} {value}");
        }
        for value in &asking {
            assert!(!unless.covers(value), "{unless:?} {value}");
        }
    }
    assert!(!Unless::True.covers(&json!(false)) && !Unless::Null.covers(&json!({})));
}

/// The code and parameter of a body's refusal.
fn refusal(endpoint: Endpoint, body: Value) -> (&'static str, String) {
    let error = settled(endpoint, body.clone()).expect_err(&body.to_string());
    let param = error.param.unwrap();
    assert!(error.message.starts_with(&format!("{param}: ")), "{}", error.message);
    (error.code, param)
}

#[test]
fn what_asks_the_server_to_keep_or_change_something_is_refused() {
    let edit =
        json!({"edits": [{"type": "clear_thinking_20251015"}, {"type": "compact_20260112"}]});
    let cases = [
        (Messages, json!({"compaction": {"type": "summarize"}}), "compaction"),
        (Messages, json!({"compaction": {}}), "compaction"),
        (Messages, json!({"context_management": edit}), "context_management.edits[].type"),
        (Messages, json!({"container": {"id": "c"}}), "container"),
        (Messages, json!({"mcp_servers": [{"name": "m"}]}), "mcp_servers"),
        (Chat, json!({"store": true}), "store"),
        (Text, json!({"store": true}), "store"),
        (Response, json!({"previous_response_id": "r"}), "previous_response_id"),
        (Response, json!({"conversation": {"id": "c"}}), "conversation"),
        (Response, json!({"background": true}), "background"),
        (Response, json!({"context_management": [{"type": "compaction"}]}), "context_management"),
        (OllamaGenerate, json!({"context": [1]}), "context"),
    ];
    for (endpoint, body, param) in cases {
        assert_eq!(refusal(endpoint, body), ("unsupported", param.to_owned()));
    }
    for thread in [json!({"type": "create"}), json!({}), json!(true), json!("t")] {
        // A client that goes on without a thread sends the rest again.
        let body = json!({"compaction": {"type": "summarize"}, "thread": thread});
        assert_eq!(refusal(Messages, body), (THREAD_UNSUPPORTED, "thread".to_owned()));
    }
    let kept = json!({"messages": [], "thread": null, "compaction": null, "mcp_servers": [],
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}});
    assert_eq!(Value::Object(settled(Messages, kept).unwrap()), json!({"messages": []}));
}

#[test]
fn chats_refuse_samplers_and_forms_that_are_not_there() {
    for (name, neutral, asking) in [
        ("tfs_z", json!(1), json!(0.5)),
        ("top_a", json!(0), json!(0.5)),
        ("adaptive_target", json!(-1), json!(0.5)),
        ("lora", json!([{"id": 0, "scale": 0}]), json!([{"id": 0, "scale": 0.5}])),
        ("reasoning_format", json!("deepseek"), json!("none")),
        ("include_reasoning", json!(true), json!(false)),
        ("thinking_budget_tokens", json!(-1), json!(0)),
        ("n_probs", json!(0), json!(3)),
    ] {
        settled(Chat, json!({ name: neutral })).unwrap();
        assert_eq!(refusal(Chat, json!({ name: asking })), ("unsupported", name.to_owned()));
    }
}

#[test]
fn fields_of_objects_are_named_with_their_paths() {
    let reasoning = json!({"reasoning": {"effort": "low", "mode": "pro"}});
    assert_eq!(refusal(Response, reasoning).1, "reasoning.mode");
    let tools = json!({"tools": [{"name": "a"}, {"name": "b", "allowed_callers": ["code"]}]});
    assert_eq!(refusal(Messages, tools).1, "tools[].allowed_callers");
    let mut options = json!({"tfs_z": 2}).as_object().unwrap().clone();
    let error = settle(OllamaOptions, &mut options, "options.").unwrap_err();
    assert_eq!(error.param.as_deref(), Some("options.tfs_z"));
}
