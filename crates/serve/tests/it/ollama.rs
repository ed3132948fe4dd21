//! Ollama's dialect over real HTTP, in front of a scripted cluster: successful answers and rejected
//! requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{self, Reply, get, post};
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::{KEY, Server};
use cluster::{InstanceState, PullStage, PullStatus};
use protocol::{FinishReason, Grammar};
use serde_json::{Value, json};

const FINE: [Act; 2] = [Act::Say("Hello there, friend."), Act::Done(FinishReason::Stop)];

/// A template of a model that thinks and calls tools.
const THINKER: &str = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}\
    {% for m in messages %}<{{ m.role }}>{{ m.name }}{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}\n\
    {% endfor %}{% if enable_thinking is defined %}thinks={{ enable_thinking }}{% endif %}\
    {% if reasoning_effort %} effort={{ reasoning_effort }}{% endif %}{# <think></think> #}";

fn thinker(script: &[Act]) -> Arc<Double> {
    Arc::new(Double::with_header(fixture_with_template(THINKER), script))
}

fn ask(addr: SocketAddr, path: &str, mut body: Value, extra: Value) -> Reply {
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    post(addr, path, &[], &body)
}

fn chat(addr: SocketAddr, extra: Value) -> Reply {
    let messages = json!([{"role": "user", "content": "Say hello"}]);
    ask(addr, "/api/chat", json!({"model": "tiny/qwen3", "messages": messages}), extra)
}

fn generate(addr: SocketAddr, extra: Value) -> Reply {
    ask(addr, "/api/generate", json!({"model": "tiny/qwen3", "prompt": "Say hello"}), extra)
}

fn lines(reply: &Reply) -> Vec<Value> {
    reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A field of all lines, concatenated.
fn said(reply: &Reply, place: &str) -> String {
    lines(reply)
        .iter()
        .filter_map(|line| line.pointer(place)?.as_str().map(str::to_owned))
        .collect()
}

fn error(reply: &Reply) -> String {
    let body = reply.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    body["error"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}

#[test]
fn a_chat_streams_lines_unless_it_is_told_not_to() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let reply = chat(server.addr, json!({"model": "tiny/qwen3:latest"}));
    assert_eq!((reply.status, reply.whole), (200, true), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(said(&reply, "/message/content"), "Hello there, friend.");
    let (last, before) = (lines(&reply).pop().unwrap(), lines(&reply).len() - 1);
    assert!(before > 5, "piece by piece");
    assert!(lines(&reply)[..before].iter().all(|line| line["done"] == false));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));

    let whole = chat(server.addr, json!({"stream": false}));
    assert_eq!(whole.header("content-type"), Some("application/json"));
    let body = whole.json();
    let message = json!({"role": "assistant", "content": "Hello there, friend."});
    assert_eq!(body["message"], message);
    assert_eq!(
        (&body["model"], &last["model"]),
        (&json!("tiny/qwen3"), &json!("tiny/qwen3:latest"))
    );
    let prompt_tokens = double.asked.lock().unwrap()[0].prompt.len();
    for account in [&body, &last] {
        assert!(account["created_at"].as_str().unwrap().ends_with('Z'));
        assert_eq!(account["prompt_eval_count"], prompt_tokens);
        assert_eq!(account["prompt_eval_duration"], 250_000_000);
        assert_eq!(account["eval_duration"], 500_000_000);
        assert!(account["eval_count"].as_u64().unwrap() > 3);
        assert!(account["total_duration"].is_u64() && account["load_duration"] == 0);
    }
}

#[test]
fn a_prompt_is_answered_in_the_template_or_raw() {
    let double = thinker(&FINE);
    let server = Server::start(&double);
    let reply = generate(server.addr, json!({"system": "Be brief."}));
    assert_eq!(said(&reply, "/response"), "Hello there, friend.");
    assert!(lines(&reply).iter().all(|line| line.get("message").is_none()));
    let prompt = double.last_prompt();
    assert!(prompt.contains("<system>Be brief.<user>Say hello"), "{prompt}");
    let body = generate(server.addr, json!({"raw": true, "stream": false})).json();
    assert_eq!(body["response"], "Hello there, friend.");
    assert!(double.last_prompt().trim() == "Say hello", "{}", double.last_prompt());
}

#[test]
fn a_request_for_nothing_loads_the_model_or_unloads_it() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let nothing = generate(server.addr, json!({"prompt": null})).json();
    assert_eq!(nothing["done_reason"], "load");
    assert!(double.asked.lock().unwrap().is_empty(), "it is loaded, and stays as long as before");
    let cases = [
        (chat(server.addr, json!({"messages": [], "keep_alive": "5m"})), "load", 300),
        (generate(server.addr, json!({"prompt": "", "keep_alive": -1})), "load", -1),
        (generate(server.addr, json!({"prompt": "", "keep_alive": 0})), "unload", 0),
    ];
    let asked = double.asked.lock().unwrap().clone();
    for ((reply, reason, secs), asked) in cases.into_iter().zip(&asked) {
        let body = reply.json();
        assert_eq!((&body["done"], &body["done_reason"]), (&json!(true), &json!(reason)));
        assert_eq!(asked.keep_alive.map(i64::from), Some(secs), "{reason}");
    }
    double.set_state(InstanceState::Unloaded);
    for reply in [
        generate(server.addr, json!({"prompt": "", "keep_alive": "0s"})),
        generate(server.addr, json!({"prompt": "", "keep_alive": null})),
    ] {
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let count = double.asked.lock().unwrap().len();
    assert_eq!(count, asked.len() + 1, "what is unloaded is loaded, and not unloaded again");
    assert_eq!(generate(server.addr, json!({"prompt": "", "model": "x"})).status, 404);
}

#[test]
fn options_reach_the_cluster() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let options = json!({
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "seed": 11,
        "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25,
        "num_predict": 9, "num_ctx": 100, "stop": "xyz", "num_gpu": 99,
    });
    let reply = chat(server.addr, json!({"options": options, "format": schema, "logprobs": true}));
    assert_eq!(reply.status, 200, "{reply:?}");
    let asked = double.asked.lock().unwrap().last().unwrap().clone();
    let found = &asked.sampling;
    assert_eq!((found.temperature, found.top_k, found.top_p, found.min_p), (0.5, 7, 0.25, 0.125));
    assert_eq!((found.seed, found.repetition_penalty), (11, 1.5));
    assert_eq!((found.presence_penalty, found.frequency_penalty), (0.5, 0.25));
    assert_eq!((asked.max_tokens, asked.logprobs), (9, Some(0)));
    assert!(format!("{:?}", asked.grammar).contains("integer"), "{:?}", asked.grammar);

    chat(server.addr, json!({"options": {"num_ctx": 100}, "format": "json"}));
    let asked = double.asked.lock().unwrap().last().unwrap().clone();
    assert_eq!(asked.max_tokens + asked.prompt.len(), 100, "prompt and answer together");
    assert!(matches!(asked.grammar, Some(Grammar::JsonSchema(_) | Grammar::Lark(_))));
    chat(server.addr, json!({"options": {"num_predict": -1}, "format": ""}));
    let asked = double.asked.lock().unwrap().last().unwrap().clone();
    assert_eq!((asked.max_tokens + asked.prompt.len(), asked.grammar), (1024, None));
}

#[test]
fn calls_of_tools_come_whole() {
    let call = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"at\": \"Rome\"}}</tool_call>";
    let double = thinker(&[Act::Say(call), Act::Say(call), Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    let weather = json!({"type": "function", "function": {
        "name": "weather", "description": "d",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    }});
    let tools = json!([weather]);
    let body = chat(server.addr, json!({"tools": tools, "stream": false})).json();
    let calls = body["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &body["done_reason"]), (2, &json!("stop")));
    for (index, call) in calls.iter().enumerate() {
        let function = json!({"index": index, "name": "weather", "arguments": {"at": "Rome"}});
        assert_eq!(call["function"], function);
    }
    let streamed = chat(server.addr, json!({"tools": tools}));
    let found: Vec<Value> = lines(&streamed)
        .iter()
        .filter_map(|line| line.pointer("/message/tool_calls/0").cloned())
        .collect();
    assert_eq!((found.len(), &found[1]["function"]["index"]), (2, &json!(1)));

    let back = json!({"tools": tools, "stream": false, "messages": [
        {"role": "user", "content": "Rain?"}, body["message"],
        {"role": "tool", "tool_name": "weather", "content": "Sun."},
    ]});
    assert_eq!(chat(server.addr, back).status, 200);
    let prompt = double.last_prompt();
    assert!(prompt.contains("<tool_call>weather</tool_call>"), "{prompt}");
    assert!(prompt.contains("<tool>weatherSun."), "{prompt}");
}

#[test]
fn thoughts_stand_apart_from_the_text() {
    let double = thinker(&[Act::Say("<think>Hmm.</think>Yes."), Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    let asked = |think: Value| {
        let body = chat(server.addr, json!({"think": think, "stream": false})).json();
        let streamed = chat(server.addr, json!({"think": think}));
        assert_eq!(said(&streamed, "/message/content"), "Yes.");
        let thinking = said(&streamed, "/message/thinking");
        assert_eq!(thinking, body["message"]["thinking"].as_str().unwrap_or_default());
        let response = generate(server.addr, json!({"think": think}));
        assert_eq!(said(&response, "/thinking"), thinking);
        (thinking, double.last_prompt())
    };
    for (think, thinking, prompt) in [
        (json!(true), "Hmm.", "thinks=True"),
        (json!("high"), "Hmm.", "effort=high"),
        (json!(false), "", "thinks=False"),
        (Value::Null, "Hmm.", "Say hello"),
    ] {
        let (found, asked) = asked(think.clone());
        assert!(found == thinking && asked.contains(prompt), "{think}: {found} {asked}");
    }
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let plain = Arc::new(Double::with_header(fixture_with_template(plain), &FINE));
    let server = Server::start(&plain);
    let refused = chat(server.addr, json!({"think": true}));
    assert_eq!(refused.status, 400);
    assert!(error(&refused).contains("does not support thinking"));
}

#[test]
fn what_cannot_be_is_refused_by_name_with_a_plain_text() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let image = json!([{"role": "user", "content": "x", "images": ["aGk="]}]);
    let cases = [
        (json!({"options": {"temperature": -1}}), "options.temperature"),
        (json!({"options": {"num_ctx": 4096}}), "options.num_ctx is 4096"),
        (json!({"options": {"mirostat": 1}}), "options.mirostat"),
        (json!({"options": {"unheard_of": 1}}), "options.unheard_of"),
        (json!({"options": {"repeat_last_n": -2}}), "options.repeat_last_n is -2"),
        (json!({"keep_alive": "soon"}), "keep_alive"),
        (json!({"keep_alive": []}), "keep_alive"),
        (json!({"think": "deeply"}), "think"),
        (json!({"format": "xml"}), "format"),
        (json!({"top_logprobs": 3}), "logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"truncate": true}), "truncate"),
        (json!({"shift": true}), "shift"),
        (json!({"model": ""}), "model"),
        (json!({"options": []}), "options"),
    ];
    for (extra, named) in cases {
        for reply in [chat(server.addr, extra.clone()), generate(server.addr, extra.clone())] {
            assert_eq!(reply.status, 400, "{extra}: {reply:?}");
            let message = error(&reply);
            let named = if extra["options"].is_array() { "expected a map" } else { named };
            assert!(message.contains(named), "{extra}: {message}");
        }
    }
    for (extra, named) in [
        (json!({"messages": image}), "reads text only"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "robot"),
        (json!({"tools": [{"name": "f"}]}), "tools[0]"),
        (
            json!({"tools": [{"function": {"name": "f"}}, {"function": {"name": "f", "x": 1}}]}),
            "tools[1] is another definition",
        ),
    ] {
        let reply = chat(server.addr, extra.clone());
        assert_eq!(reply.status, 400, "{extra}: {reply:?}");
        assert!(error(&reply).contains(named), "{extra}: {reply:?}");
    }
    for (extra, named) in [
        (json!({"suffix": "end"}), "suffix"),
        (json!({"template": "{{ .Prompt }}"}), "template"),
        (json!({"context": [1]}), "context"),
        (json!({"images": ["aGk="]}), "reads text only"),
        (json!({"images": ["?"]}), "images[0]"),
        (json!({"raw": true, "system": "x"}), "system"),
    ] {
        let reply = generate(server.addr, extra.clone());
        assert_eq!(reply.status, 400, "{extra}: {reply:?}");
        assert!(error(&reply).contains(named), "{extra}: {reply:?}");
    }
    assert!(double.asked.lock().unwrap().is_empty());
}

#[test]
fn whatever_refuses_does_so_with_a_plain_text() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.api_keys = Some(serve::ApiKeys::fixed(&[KEY]));
        config.limits.body_bytes_max = 10_000;
    });
    let far = ("x-forwarded-for", "10.0.0.9");
    let bearer = format!("Bearer {KEY}");
    let key = ("authorization", bearer.as_str());
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(20_000)}]});
    let evil = ("origin", "https://evil.example");
    let cases = [
        (get(server.addr, "/api/tags", &[far]), 401),
        (get(server.addr, "/api/tags", &[evil]), 403),
        (chat(server.addr, long), 413),
        (chat(server.addr, json!({"model": "llama3.2"})), 404),
        (get(server.addr, "/api/chat", &[]), 405),
        (get(server.addr, "/api/nothing", &[]), 404),
        (post(server.addr, "/api/embed", &[], &json!({"model": "m", "input": "x"})), 404),
        (post(server.addr, "/api/embeddings", &[], &json!({"model": "m", "prompt": "x"})), 404),
        (post(server.addr, "/api/pull", &[], &json!({"model": ""})), 400),
        (post(server.addr, "/api/pull", &[far, key], &json!({"model": "llama3.2"})), 403),
        (post(server.addr, "/api/create", &[far, key], &json!({"model": "m"})), 403),
        (post(server.addr, "/api/push", &[], &json!({"model": "m"})), 501),
    ];
    for (reply, status) in cases {
        assert_eq!((reply.status, reply.whole), (status, true), "{reply:?}");
        assert!(error(&reply).len() > 10);
    }
    let delete = client::request("DELETE", "/api/delete", server.addr, &[far, key], "");
    let delete = client::send(server.addr, delete.as_bytes());
    assert!(delete.status == 403 && error(&delete).contains("sinew rm"), "{delete:?}");
    assert_eq!(get(server.addr, "/api/tags", &[far, key]).status, 200);
    let pulled = post(server.addr, "/api/pull", &[], &json!({"model": "tiny/qwen3:latest"}));
    assert_eq!(pulled.json(), json!({"status": "success"}));
}

#[test]
fn a_path_is_no_name_to_pull_or_to_delete() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    for name in ["/etc/passwd", "/etc/../etc/passwd", "//etc/passwd"] {
        let body = json!({"model": name}).to_string();
        let length = [("content-length", &*body.len().to_string())];
        for (method, path) in [("POST", "/api/pull"), ("DELETE", "/api/delete")] {
            let request = client::request(method, path, server.addr, &length, &body);
            let reply = client::send(server.addr, request.as_bytes());
            assert!(reply.status == 400 && error(&reply).contains("a path"), "{reply:?}");
        }
        let shown = post(server.addr, "/api/show", &[], &json!({"model": name}));
        assert_eq!(shown.status, 404, "{shown:?}");
    }
    assert!(double.calls.lock().unwrap().is_empty());
}

#[test]
fn a_pull_is_told_in_ollama_s_words() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let at = |stage, done| PullStatus {
        model: "org/m".to_owned(),
        stage,
        note: "the disk is full".to_owned(),
        file: "m-Q4_K_M.gguf".to_owned(),
        sha256: Some("0123456789abcdef".repeat(4)),
        file_done_bytes: done,
        file_total_bytes: 100,
        done_bytes: done,
        total_bytes: 100,
        bytes_per_sec: 1.0,
    };
    let told = |stages: &[(PullStage, u64)]| {
        *double.pulls.lock().unwrap() = stages.iter().map(|(s, done)| at(*s, *done)).collect();
        let reply = post(server.addr, "/api/pull", &[], &json!({"name": "org/m"}));
        let lines = reply.body.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let lines = told(&[
        (PullStage::Looking, 0),
        (PullStage::Pulling, 0),
        (PullStage::Pulling, 60),
        (PullStage::Verifying, 60),
        (PullStage::Done, 100),
    ]);
    assert_eq!(
        lines,
        [
            json!({"status": "pulling manifest"}),
            json!({"status": "pulling 0123456789ab", "digest": digest, "total": 100}),
            json!({"status": "pulling 0123456789ab", "digest": digest, "total": 100, "completed": 60}),
            json!({"status": "verifying sha256 digest"}),
            json!({"status": "writing manifest"}),
            json!({"status": "success"}),
        ]
    );
    // A client that joins a running pull also gets its first line.
    let lines = told(&[(PullStage::Pulling, 60), (PullStage::Failed, 60)]);
    assert_eq!(lines[0], json!({"status": "pulling manifest"}));
    assert_eq!(lines.last().unwrap(), &json!({"error": "the disk is full"}));
    let whole = post(server.addr, "/api/pull", &[], &json!({"model": "org/m", "stream": false}));
    assert!(whole.status == 502 && error(&whole).contains("disk is full"), "{whole:?}");
    assert_eq!(*double.calls.lock().unwrap(), ["pull org/m"; 3]);
}

#[test]
fn json_that_calls_itself_a_form_is_read_where_no_browser_speaks() {
    let server = Server::start(&Double::new(&FINE));
    let body = json!({"model": "tiny/qwen3", "prompt": "hi", "stream": false});
    let form = ("content-type", "application/x-www-form-urlencoded");
    assert_eq!(post(server.addr, "/api/generate", &[form], &body).status, 200);
    let origin = format!("http://{}", server.addr);
    for browser in [("origin", origin.as_str()), ("sec-fetch-site", "same-origin")] {
        let reply = post(server.addr, "/api/generate", &[form, browser], &body);
        assert_eq!(reply.status, 415, "{browser:?}: {reply:?}");
    }
    assert_eq!(post(server.addr, client::CHAT, &[form], &body).status, 415);
}

#[test]
fn menus_show_the_models_that_are_served() {
    let server = Server::start(&Double::new(&FINE));
    let version = get(server.addr, "/api/version", &[]).json()["version"].clone();
    let parts: Vec<u32> =
        version.as_str().unwrap().split('.').map(|part| part.parse().unwrap()).collect();
    assert!(parts >= vec![0, 13, 4], "{version}");
    let tags = get(server.addr, "/api/tags", &[]).json();
    let ps = get(server.addr, "/api/ps", &[]).json();
    for model in [&tags["models"][0], &ps["models"][0]] {
        assert_eq!((&model["name"], &model["model"]), (&json!("tiny/qwen3"), &json!("tiny/qwen3")));
        assert_eq!(model["size"], 10u64 << 30);
        assert_eq!(model["digest"].as_str().unwrap().len(), 64);
        let details = &model["details"];
        assert_eq!((&details["format"], &details["family"]), (&json!("gguf"), &json!("qwen3")));
        assert!(!details["parameter_size"].as_str().unwrap().is_empty());
    }
    assert_eq!(ps["models"][0]["context_length"], 1024);
    assert!(ps["models"][0]["expires_at"].as_str().unwrap() > "2100");
}

#[test]
fn a_model_says_what_it_is_and_can() {
    let server = Server::start(&thinker(&FINE));
    for body in [json!({"model": "tiny/qwen3"}), json!({"name": "tiny/qwen3:latest"})] {
        let reply = post(server.addr, "/api/show", &[], &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let show = reply.json();
        assert_eq!(show["capabilities"], json!(["completion", "tools", "thinking"]));
        assert_eq!(show["model_info"]["qwen3.context_length"], 1024, "as it is served");
        assert_eq!(show["model_info"]["general.architecture"], "qwen3");
        assert_eq!(show["model_info"]["tokenizer.ggml.tokens"], Value::Null);
        assert_eq!(
            (&show["template"], &show["details"]["family"]),
            (&json!(THINKER), &json!("qwen3"))
        );
    }
    assert_eq!(post(server.addr, "/api/show", &[], &json!({"model": "x"})).status, 404);
    assert_eq!(post(server.addr, "/api/show", &[], &json!({})).status, 400);
}

#[test]
fn a_model_that_is_not_ready_is_waited_for_with_empty_pieces() {
    let script = [
        Act::Waiting("loading 10 %"),
        Act::Pause(Duration::from_millis(350)),
        Act::Waiting("loading 90 %"),
        Act::Say("Late but whole."),
        Act::Done(FinishReason::Stop),
    ];
    let server = Server::start(&Double::new(&script));
    let reply = chat(server.addr, json!({}));
    assert_eq!(said(&reply, "/message/content"), "Late but whole.");
    let empty = lines(&reply);
    let empty =
        empty.iter().filter(|line| line["message"]["content"] == "" && line["done"] == false);
    assert!(empty.count() >= 3, "{}", reply.body);
    let last = lines(&reply).pop().unwrap();
    assert!(last["load_duration"].as_u64().unwrap() > 300_000_000, "{last}");
}
