//! Presets: written in Ollama's dialect or by the admin, used in every dialect.

use std::sync::Arc;

use crate::support::client::{Reply, get, post, request, send};
use crate::support::double::{Act, Double};
use crate::support::server::{ADMIN, KEY, Server};
use protocol::{FinishReason, Preset};
use serde_json::{Value, json};
use serve::{ApiKeys, OwnProcess};

const FINE: [Act; 2] = [Act::Say("fine"), Act::Done(FinishReason::Stop)];

fn server(double: &Arc<Double>, is_own: bool) -> Server {
    Server::with(double, |config| {
        config.own_process = Some(OwnProcess::new(move |_, _| is_own));
    })
}

fn preset() -> Preset {
    let (name, model) = ("pirate".to_owned(), "tiny/qwen3".to_owned());
    Preset { name, model, ..Preset::default() }
}

fn create(server: &Server, fields: Value) -> Reply {
    let mut body = json!({
        "model": "pirate",
        "from": "tiny/qwen3",
        "system": "Talk like a pirate.",
        "parameters": { "temperature": 0.25, "top_k": 7, "seed": 5, "stop": ["END", "###"],
            "num_predict": 9, "num_gpu": 99 },
        "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Arr" }],
        "stream": false,
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    post(server.addr, "/api/create", &[], &body)
}

#[test]
fn a_preset_answers_in_every_dialect_by_its_name() {
    let double = Double::new(&FINE);
    let server = server(&double, true);
    let created = create(&server, json!({}));
    assert_eq!((created.status, created.json()), (200, json!({ "status": "success" })));
    let user = json!([{ "role": "user", "content": "Ahoy" }]);
    let asks = [
        ("/v1/chat/completions", json!({ "model": "pirate", "messages": user })),
        ("/v1/responses", json!({ "model": "pirate", "input": "Ahoy" })),
        ("/v1/messages", json!({ "model": "pirate", "max_tokens": 9, "messages": user })),
        ("/api/chat", json!({ "model": "pirate:latest", "messages": user, "stream": false })),
        ("/api/generate", json!({ "model": "pirate", "prompt": "Ahoy", "stream": false })),
    ];
    for (path, body) in asks {
        let reply = post(server.addr, path, &[], &body);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        assert_eq!(reply.json()["model"], body["model"], "{path}");
        let prompt = double.last_prompt();
        let at = |words: &str| prompt.find(words).unwrap_or_else(|| panic!("{path}: {prompt}"));
        let order = ["Talk like a pirate.", "Hi", "Arr", "Ahoy"].map(at);
        assert!(order.is_sorted(), "{path}: {prompt}");
        let sent = double.asked.lock().unwrap().last().unwrap().clone();
        let sampling = &sent.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.25, 7, 5), "{path}");
        assert_eq!(sent.max_tokens, 9, "{path}");
    }
    // What a request sets itself comes first.
    let own = json!([{ "role": "system", "content": "Be plain." }, user[0]]);
    let body = json!({ "model": "pirate", "messages": own, "temperature": 0, "max_tokens": 3 });
    assert_eq!(post(server.addr, "/v1/chat/completions", &[], &body).status, 200);
    let sent = double.asked.lock().unwrap().last().unwrap().clone();
    assert_eq!((sent.sampling.temperature, sent.sampling.top_k, sent.max_tokens), (0.0, 7, 3));
    let prompt = double.last_prompt();
    assert!(prompt.contains("Be plain.") && !prompt.contains("pirate"), "{prompt}");
    // A count is that of what would be sent.
    let count = |model: &str| {
        let body = json!({ "model": model, "messages": user });
        let reply = post(server.addr, "/v1/messages/count_tokens", &[], &body);
        reply.json()["input_tokens"].as_u64().unwrap()
    };
    assert!(count("pirate") > count("tiny/qwen3") + 4);
}

#[test]
fn presets_are_listed_shown_copied_and_deleted_like_models() {
    let double = Double::new(&FINE);
    let server = server(&double, true);
    assert_eq!(create(&server, json!({ "model": "pirate:latest" })).status, 200);
    let models = get(server.addr, "/v1/models", &[]).json();
    assert_eq!(models["data"][1]["id"], "pirate");
    assert_eq!(models["data"][1]["status"]["value"], "loaded");
    let tags = get(server.addr, "/api/tags", &[]).json();
    assert_eq!(tags["models"][1]["name"], "pirate");
    assert_eq!(tags["models"][1]["details"]["parent_model"], "tiny/qwen3");
    let shown = post(server.addr, "/api/show", &[], &json!({ "model": "pirate" })).json();
    let file = shown["modelfile"].as_str().unwrap();
    assert!(file.starts_with("FROM tiny/qwen3\nPARAMETER temperature 0.25\n"), "{file}");
    assert_eq!(shown["system"], "Talk like a pirate.");
    assert!(shown["parameters"].as_str().unwrap().contains("stop END\nstop ###"), "{shown}");
    let copy = json!({ "source": "pirate", "destination": "captain" });
    assert_eq!(post(server.addr, "/api/copy", &[], &copy).status, 200);
    let alias = json!({ "source": "tiny/qwen3", "destination": "gpt-4o" });
    assert_eq!(post(server.addr, "/api/copy", &[], &alias).status, 200);
    let chat = json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": "x" }] });
    assert_eq!(post(server.addr, "/v1/chat/completions", &[], &chat).status, 200);
    let delete = json!({ "model": "pirate" }).to_string();
    let length = delete.len().to_string();
    let headers = [("content-length", length.as_str())];
    let delete = request("DELETE", "/api/delete", server.addr, &headers, &delete);
    assert_eq!(send(server.addr, delete.as_bytes()).status, 200);
    let gone = json!({ "model": "pirate", "messages": [{ "role": "user", "content": "x" }] });
    let reply = post(server.addr, "/v1/chat/completions", &[], &gone);
    assert_eq!(reply.code(), "model_not_found", "{reply:?}");
    let token = format!("Bearer {ADMIN}");
    let token = [("authorization", token.as_str())];
    let all = get(server.addr, "/sinew/v1/presets", &token).json();
    let names: Vec<_> = all.as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["captain", "gpt-4o"]);
    let reply =
        post(server.addr, "/sinew/v1/presets/remove", &token, &json!({ "name": "captain" }));
    assert_eq!(reply.json(), json!({ "removed": "captain" }));
    let preset = json!({ "name": "cold", "model": "tiny/qwen3", "temperature": 0 });
    let reply = post(server.addr, "/sinew/v1/presets", &token, &preset);
    assert_eq!(reply.json()["temperature"], 0.0, "{reply:?}");
}

#[test]
fn a_preset_of_a_model_that_is_not_served_says_which() {
    let double = Double::new(&FINE);
    let server = Server::with(&double, |config| config.api_keys = Some(ApiKeys::fixed(&[KEY])));
    double.status.lock().unwrap().presets = [preset()].into();
    double.status.lock().unwrap().instances.clear();
    let key = format!("Bearer {KEY}");
    let far = [("x-forwarded-for", "10.0.0.9"), ("authorization", key.as_str())];
    let body = json!({ "model": "pirate", "messages": [{ "role": "user", "content": "x" }] });
    let reply = post(server.addr, "/v1/chat/completions", &far, &body);
    assert_eq!((reply.status, reply.code().as_str()), (404, "model_not_found"), "{reply:?}");
    assert!(reply.body.contains("sinew serve tiny/qwen3"), "{reply:?}");
}

/// Every door that shows a prompt shows a preset's words to the owner alone.
#[test]
fn a_presets_prompt_is_shown_to_its_owner_alone() {
    for is_own in [true, false] {
        let double = Double::new(&FINE);
        let server = server(&double, is_own);
        let mut preset = Preset { system: Some("secret".to_owned()), ..preset() };
        preset.messages =
            serde_json::from_value(json!([{ "role": "user", "content": "secret" }])).unwrap();
        double.status.lock().unwrap().presets = [preset].into();
        let user = json!([{ "role": "user", "content": "Ahoy" }]);
        let asks = [
            ("/apply-template", json!({ "model": "pirate", "messages": user })),
            ("/api/show", json!({ "model": "pirate" })),
        ];
        for (path, body) in asks {
            let reply = post(server.addr, path, &[], &body);
            assert_eq!((reply.status, reply.body.contains("secret")), (200, is_own), "{path}");
        }
        let asks = [
            ("/v1/chat/completions", json!({ "model": "pirate", "messages": user })),
            ("/v1/responses", json!({ "model": "pirate", "input": "Ahoy" })),
            ("/v1/messages", json!({ "model": "pirate", "max_tokens": 9, "messages": user })),
            ("/v1/messages/count_tokens", json!({ "model": "pirate", "messages": user })),
            ("/v1/completions", json!({ "model": "pirate", "prompt": "Ahoy", "echo": true })),
            ("/completion", json!({ "model": "pirate", "prompt": "Ahoy" })),
            ("/tokenize", json!({ "model": "pirate", "content": "Ahoy", "with_pieces": true })),
            ("/api/chat", json!({ "model": "pirate", "messages": user, "stream": false })),
            ("/api/generate", json!({ "model": "pirate", "prompt": "Ahoy", "stream": false })),
        ];
        for (path, body) in asks {
            let reply = post(server.addr, path, &[], &body);
            assert!(reply.status == 200 && !reply.body.contains("secret"), "{path}: {reply:?}");
        }
        for path in ["/props?model=pirate", "/slots?model=pirate", "/sinew/v1/status", "/api/tags"]
        {
            let reply = get(server.addr, path, &[]);
            assert!(reply.status == 200 && !reply.body.contains("secret"), "{path}: {reply:?}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused_by_its_name() {
    let double = Double::new(&FINE);
    let server = server(&double, true);
    let cases = [
        (json!({ "model": "" }), "model: give the new name"),
        (json!({ "from": "" }), "from: name the model"),
        (json!({ "template": "{{ .Prompt }}" }), "template: a model's own template"),
        (json!({ "quantize": "q4_K_M" }), "quantize: models are not converted"),
        (json!({ "files": { "a.gguf": "sha256:0" } }), "sinew serve FILE"),
        (json!({ "parameters": { "temperature": 9 } }), "parameters.temperature: temperature 9"),
        (json!({ "parameters": { "mirostat": 1 } }), "mirostat is 1; it must be 0 or 2"),
        (json!({ "modelfile": "FORM x" }), "modelfile: line 1: FORM"),
    ];
    for (fields, why) in cases {
        let reply = create(&server, fields.clone());
        assert!(reply.status == 400 && reply.body.contains(why), "{fields}: {reply:?}");
    }
    assert_eq!(create(&server, json!({ "template": "", "files": {} })).status, 200);
}

#[test]
fn only_the_owner_writes_presets() {
    let double = Double::new(&FINE);
    let server = server(&double, false);
    let copy = json!({ "source": "tiny/qwen3", "destination": "x" });
    let preset = Preset { system: Some("secret".to_owned()), ..preset() };
    double.status.lock().unwrap().presets = [preset].into();
    let shown = post(server.addr, "/api/show", &[], &json!({ "model": "pirate" }));
    assert!(shown.status == 200 && !shown.body.contains("secret"), "{shown:?}");
    for reply in [create(&server, json!({})), post(server.addr, "/api/copy", &[], &copy)] {
        assert!(reply.status == 403 && reply.body.contains("sinew preset create"), "{reply:?}");
    }
    assert_eq!(get(server.addr, "/sinew/v1/presets", &[]).status, 401);
    assert!(double.calls.lock().unwrap().is_empty());
}
