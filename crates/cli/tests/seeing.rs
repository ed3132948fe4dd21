//! Pictures over real nodes: every dialect sees them, answers go on over losses, and what is
//! hostile is refused.

mod common;

use std::io::{BufRead, BufReader};

use common::{Node, fixture, kill_9, request, wait_for};
use data_encoding::BASE64;
use serde_json::{Value, json};

const MODEL: &str = "qwen3vl-sees";

/// A node whose folder has a model and the file of its tower.
fn start(name: &str) -> Node {
    let node = Node::start(name);
    for file in ["qwen3vl-sees.gguf", "qwen3vl-sees.mmproj.gguf"] {
        let to = node.dir.path().join("models").join(file);
        std::fs::copy(fixture(&format!("sees/{file}")), to).unwrap();
    }
    node
}

fn picture(name: &str) -> String {
    BASE64.encode(&std::fs::read(fixture(&format!("vision/{name}"))).unwrap())
}

/// A chat completion about a picture.
fn about(data: &str, max_tokens: usize) -> Value {
    let url = format!("data:image/png;base64,{data}");
    json!({
        "model": MODEL, "temperature": 0, "max_tokens": max_tokens,
        "messages": [{ "role": "user", "content": [
            { "type": "text", "text": "the river" },
            { "type": "image_url", "image_url": { "url": url } },
            { "type": "text", "text": "bends" },
        ]}],
    })
}

fn ask(node: &Node, path: &str, body: &Value) -> (u16, Value) {
    let mut response = request(&format!("{}{path}", node.api), body);
    let status = response.status().as_u16();
    (status, response.body_mut().read_json().unwrap())
}

fn text_of(answer: &Value) -> String {
    let text = answer["choices"][0]["message"]["content"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The text of a streamed answer; `at` is called with the number of each piece.
fn stream(node: &Node, mut body: Value, mut at: impl FnMut(usize)) -> String {
    body["stream"] = true.into();
    let response = request(&format!("{}/v1/chat/completions", node.api), &body);
    let lines = BufReader::new(response.into_body().into_reader()).lines().map_while(Result::ok);
    let events = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    let mut text = String::new();
    for (number, event) in events.take_while(|event| event != "[DONE]").enumerate() {
        let event: Value = serde_json::from_str(&event).unwrap();
        assert!(event.get("error").is_none(), "{event}");
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        at(number);
    }
    text
}

#[test]
fn pictures_are_seen_over_nodes_and_answers_go_on_over_losses() {
    let (a, b) = (start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", MODEL, "--nodes", "1"]);
    let (one, other) = (picture("image-64x48.png"), picture("waves-64x48.png"));
    let whole = text_of(&ask(&a, "/v1/chat/completions", &about(&one, 300)).1);
    let else_ = text_of(&ask(&a, "/v1/chat/completions", &about(&other, 300)).1);
    assert!(whole.len() > 50 && whole != else_, "{whole}\n{else_}");
    a.run(&["stop", MODEL]);

    a.run(&["serve", MODEL, "--nodes", "2", "--copies", "2"]);
    let copies = [".gguf", ".mmproj.gguf"];
    let copies = copies.map(|end| b.dir.path().join(format!("models/{MODEL}{end}")));
    wait_for("a second copy", || copies.iter().all(|file| file.is_file()).then_some(()));
    assert_eq!(text_of(&ask(&b, "/v1/chat/completions", &about(&other, 300)).1), else_);
    let workers = a.worker_pids(MODEL);
    let kill = |number| {
        if number == 5 {
            kill_9(workers[1]);
        }
    };
    assert_eq!(stream(&b, about(&one, 300), kill), whole, "a worker was killed");
    wait_for("the model is ready", || {
        (a.instance(MODEL)?["state"]["state"] == "ready").then_some(())
    });
    // The machine that leads is gone: the other one has the model and its tower.
    let mut a = Some(a);
    let kill = |number| {
        if number == 5 {
            drop(a.take().map(Node::kill));
        }
    };
    assert_eq!(stream(&b, about(&one, 300), kill), whole, "the leading node was killed");
}

#[test]
fn every_dialect_sees_and_what_is_hostile_is_refused() {
    let node = start("a");
    node.run(&["serve", MODEL]);
    let data = picture("image-64x48.png");
    let said = ask(&node, "/v1/chat/completions", &about(&data, 8));
    let prompt_tokens = said.1["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(said.0 == 200 && prompt_tokens > 20, "{said:?}");
    let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
    let content =
        json!([{ "type": "image", "source": source }, { "type": "text", "text": "bends" }]);
    let messages = json!([{ "role": "user", "content": content }]);
    let body = json!({ "model": MODEL, "max_tokens": 8, "messages": messages });
    let (status, said) = ask(&node, "/v1/messages", &body);
    assert!(status == 200 && said["usage"]["input_tokens"].as_u64() > Some(12), "{said}");
    let (status, counted) = ask(&node, "/v1/messages/count_tokens", &body);
    assert_eq!((status, &counted["input_tokens"]), (200, &said["usage"]["input_tokens"]));
    let messages = json!([{ "role": "user", "content": "bends", "images": [data] }]);
    let body = json!({ "model": MODEL, "stream": false, "messages": messages });
    let (status, said) = ask(&node, "/api/chat", &body);
    assert!(status == 200 && said["prompt_eval_count"].as_u64() > Some(12), "{said}");

    let file = BASE64.decode(data.as_bytes()).unwrap();
    // A GIF that claims 60,000 by 60,000 pixels.
    let huge = b"GIF89a\x60\xea\x60\xea\x00\x00\x00\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0\x3b";
    let many = json!([{ "role": "user", "content": vec![
        json!({ "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{data}") } });
        100
    ]}]);
    let cases = [
        (about(&BASE64.encode(&file[..file.len() / 2]), 8), "damaged"),
        (about(&BASE64.encode(huge), 8), "60000 x 60000"),
        (about("AAAA", 8), "no PNG, JPEG"),
        (json!({ "model": MODEL, "messages": many }), "64"),
    ];
    for (body, why) in cases {
        let (status, said) = ask(&node, "/v1/chat/completions", &body);
        let message = said["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(why), "{status}: {said}");
    }
    let mut body = about(&data, 8);
    body["messages"][0]["content"][1]["image_url"]["url"] = "http://127.0.0.1/a.png".into();
    assert_eq!(ask(&node, "/v1/chat/completions", &body).0, 400);
    assert_eq!(ask(&node, "/v1/chat/completions", &about(&data, 8)).0, 200, "nothing is disturbed");
    node.run(&["stop", MODEL]);

    // A text model says that it reads text.
    node.run(&["serve", &fixture("models/qwen3.gguf"), "--name", MODEL]);
    let (status, said) = ask(&node, "/v1/chat/completions", &about(&data, 8));
    assert!(status == 400 && said.to_string().contains("text only"), "{said}");
}

#[test]
fn a_tower_in_another_place_is_named() {
    let node = Node::start("a");
    let model = node.dir.path().join("models/plain.gguf");
    std::fs::copy(fixture("sees/qwen3vl-sees.gguf"), &model).unwrap();
    let tower = fixture("sees/qwen3vl-sees.mmproj.gguf");
    let wrong = fixture("sees/gemma4-sees.mmproj.gguf");
    let refused = node.refused(&["serve", "plain", "--mmproj", &wrong]);
    assert!(refused.contains("cannot be the vision tower of"), "{refused}");
    node.run(&["serve", "plain", "--mmproj", &tower]);
    let mut body = about(&picture("image-64x48.png"), 8);
    body["model"] = "plain".into();
    assert_eq!(ask(&node, "/v1/chat/completions", &body).0, 200);
}
