//! Pictures over real nodes: every dialect sees them, answers go on over losses, and what is
//! hostile is refused.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};

use crate::common::{Node, fixture, kill_9, request, wait_for};
use data_encoding::BASE64;
use serde_json::{Value, json};

const MODEL: &str = "qwen3vl-sees";

/// A node whose folder has a model and the file of its tower.
fn start(name: &str) -> Node {
    with_model(Node::start(name))
}

fn with_model(node: Node) -> Node {
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
fn a_prompt_with_a_picture_outlives_its_workers() {
    let dir = tempfile::tempdir().unwrap();
    let node = with_model(Node::start_with("a", dir, "127.0.0.1:0", |command| {
        command.args(["--prompt-cache", "256MiB"]);
    }));
    node.run(&["serve", MODEL]);
    let about = |name: &str| {
        let mut body = about(&picture(name), 40);
        body["messages"][0]["content"][2]["text"] = "bends ".repeat(100).into();
        ask(&node, "/v1/chat/completions", &body).1
    };
    let cached = |answer: &Value| {
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default();
        (cached, usage["prompt_tokens"].as_u64().unwrap())
    };
    let first = about("image-64x48.png");
    wait_for("a prompt from disk", || {
        let pids = node.worker_pids(MODEL);
        pids.iter().for_each(|pid| kill_9(*pid));
        let is_ready = || Some(node.instance(MODEL)?["state"]["state"] == "ready");
        wait_for("other workers", || {
            (node.worker_pids(MODEL) != pids && is_ready()?).then_some(())
        });
        let again = about("image-64x48.png");
        assert_eq!(text_of(&again), text_of(&first));
        let (cached, all) = cached(&again);
        (cached > all * 8 / 10).then_some(())
    });
    // Another picture is another text.
    let (cached, all) = cached(&about("waves-64x48.png"));
    assert!(cached < all / 10, "{cached} of {all}");
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

/// Asks about a picture in Anthropic's dialect: answers and counts give it the same tokens.
fn answers_anthropic(node: &Node, source: Value) {
    let content =
        json!([{ "type": "image", "source": source }, { "type": "text", "text": "bends" }]);
    let messages = json!([{ "role": "user", "content": content }]);
    let body = json!({ "model": MODEL, "max_tokens": 8, "messages": messages });
    let (status, said) = ask(node, "/v1/messages", &body);
    let count = |name: &str| said["usage"][name].as_u64().unwrap_or_default();
    let tokens = count("input_tokens") + count("cache_read_input_tokens");
    assert!(status == 200 && tokens > 12, "{said}");
    let (status, counted) = ask(node, "/v1/messages/count_tokens", &body);
    assert_eq!((status, counted["input_tokens"].as_u64()), (200, Some(tokens)));
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
    answers_anthropic(&node, source);
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
    let (status, said) = ask(&node, "/v1/chat/completions", &body);
    assert!(status == 400 && said.to_string().contains("--picture-hosts NAME"), "{said}");
    assert_eq!(ask(&node, "/v1/chat/completions", &about(&data, 8)).0, 200, "nothing is disturbed");
    node.run(&["stop", MODEL]);

    // A text model says that it reads text.
    node.run(&["serve", &fixture("models/qwen3.gguf"), "--name", MODEL]);
    let (status, said) = ask(&node, "/v1/chat/completions", &about(&data, 8));
    assert!(status == 400 && said.to_string().contains("text only"), "{said}");
}

/// A web site with one picture; each path says how it is answered.
fn site() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let file = std::fs::read(fixture("vision/image-64x48.png")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = stream;
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let (status, header, body) = match first.split(' ').nth(1).unwrap_or_default() {
                "/a.png" => ("200 OK", format!("content-length: {}", file.len()), &file[..]),
                "/near" => ("302 Found", "location: /a.png\r\ncontent-length: 0".into(), &[][..]),
                "/far" => {
                    let to = format!("location: http://localhost:{}/a.png", address.port());
                    ("302 Found", format!("{to}\r\ncontent-length: 0"), &[][..])
                }
                "/huge" => ("200 OK", "content-length: 30000000".into(), &[][..]),
                "/text" => ("200 OK", "content-length: 8".into(), &b"%PDF-1.7"[..]),
                _ => ("404 Not Found", "content-length: 0".into(), &[][..]),
            };
            let _ = write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\n{header}\r\n\r\n");
            let _ = stream.write_all(body);
        }
    });
    address
}

#[test]
fn pictures_are_fetched_from_listed_hosts_only() {
    let at = site();
    let node = Node::start_with("a", tempfile::tempdir().unwrap(), "127.0.0.1:0", |command| {
        command.args(["--picture-hosts", &format!("pictures.example,{at}")]);
    });
    let node = with_model(node);
    node.run(&["serve", MODEL]);
    let chat = |address: &str| {
        let mut body = about("", 8);
        body["messages"][0]["content"][1]["image_url"]["url"] = address.into();
        ask(&node, "/v1/chat/completions", &body)
    };
    let sent = ask(&node, "/v1/chat/completions", &about(&picture("image-64x48.png"), 8)).1;
    for path in ["a.png", "near"] {
        let (status, said) = chat(&format!("http://{at}/{path}"));
        assert_eq!((status, text_of(&said)), (200, text_of(&sent)), "{said}");
        assert_eq!(said["usage"]["prompt_tokens"], sent["usage"]["prompt_tokens"], "{said}");
    }
    let address = format!("http://{at}/a.png");
    let input = json!([{ "role": "user", "content": [
        { "type": "input_image", "image_url": address }, { "type": "input_text", "text": "bends" },
    ]}]);
    let body = json!({ "model": MODEL, "max_output_tokens": 8, "input": input });
    let (status, said) = ask(&node, "/v1/responses", &body);
    assert!(status == 200 && said["usage"]["input_tokens"].as_u64() > Some(12), "{said}");
    answers_anthropic(&node, json!({ "type": "url", "url": address }));

    let local = format!("localhost:{}", at.port());
    let cases = [
        (format!("http://{local}/a.png"), format!("--picture-hosts {local}")),
        (format!("http://{at}/far"), format!("redirects to {local}")),
        (format!("http://{at}/huge"), "30000000 bytes, and 25165824".to_owned()),
        (format!("http://{at}/none"), "answered 404".to_owned()),
        (format!("http://{at}/text"), "%PDF-1.7".to_owned()),
        (format!("http://user:secret@{at}/a.png"), "a user or a password".to_owned()),
        ("https://127.0.0.1/a.png".to_owned(), "no host to fetch from".to_owned()),
        ("file:///etc/hosts".to_owned(), "data:image/png".to_owned()),
    ];
    for (address, why) in cases {
        let (status, said) = chat(&address);
        let message = said["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(&why), "{address}: {status}: {said}");
        assert!(message.contains("messages[0].content[1]"), "{address}: {said}");
    }
    assert_eq!(chat(&address).0, 200, "nothing is disturbed");
}

#[test]
fn a_tower_in_another_place_is_named() {
    let node = Node::start("a");
    let model = node.dir.path().join("models/plain.gguf");
    std::fs::copy(fixture("sees/qwen3vl-sees.gguf"), &model).unwrap();
    let tower = fixture("sees/qwen3vl-sees.mmproj.gguf");
    let wrong = fixture("sees/gemma4-sees.mmproj.gguf");
    let refused = node.refused(&["serve", "plain", "--mmproj", &wrong]);
    let why = "it is for models of gemma4, and this one is qwen3vl";
    assert!(
        refused.contains("cannot be the vision tower of") && refused.contains(why),
        "{refused}"
    );
    node.run(&["serve", "plain", "--mmproj", &tower]);
    let mut body = about(&picture("image-64x48.png"), 8);
    body["model"] = "plain".into();
    assert_eq!(ask(&node, "/v1/chat/completions", &body).0, 200);
}

#[test]
fn a_damaged_tower_beside_a_model_is_named_and_text_is_read() {
    let node = start("a");
    let path = node.dir.path().join("models/qwen3vl-sees.mmproj.gguf");
    let whole = std::fs::read(&path).unwrap();
    for part in [100, whole.len() / 2] {
        std::fs::write(&path, &whole[..part]).unwrap();
        node.run(&["serve", MODEL]);
        let notes = node.instance(MODEL).unwrap()["notes"].to_string();
        assert!(notes.contains("no picture can be seen"), "{part} bytes: {notes}");
        assert!(notes.contains("qwen3vl-sees.mmproj.gguf"), "{part} bytes: {notes}");
        let body = json!({ "model": MODEL, "max_tokens": 4, "prompt": "the river" });
        assert_eq!(ask(&node, "/v1/completions", &body).0, 200);
        node.run(&["stop", MODEL]);
    }
}
