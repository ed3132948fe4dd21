//! Pictures in every dialect over real HTTP, in front of a scripted cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::client::{CHAT, MESSAGES, Reply, get, post};
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use crate::support::sight::{file, header, with_tower};
use data_encoding::BASE64;
use gguf::Value as Entry;
use protocol::{Detail, FinishReason, GenerateRequest, is_of_picture};
use serde_json::{Value, json};

const FINE: [Act; 2] = [Act::Say("A river."), Act::Done(FinishReason::Stop)];
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}";
const RESPONSES: &str = "/v1/responses";

/// A model that sees.
fn seeing(name: &str) -> Arc<Double> {
    let [model, mmproj] = ["gguf", "mmproj.gguf"].map(|end| header(&format!("{name}-sees.{end}")));
    let template = ("tokenizer.chat_template".to_owned(), Entry::String(TEMPLATE.to_owned()));
    let entries = model.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
    let model = model.with(entries.chain([template]).collect(), model.tensors().to_vec());
    Arc::new(Double::with_header(with_tower(&model, &mmproj), &FINE))
}

fn blind() -> Arc<Double> {
    Double::new(&FINE)
}

/// The tokens of that picture for Qwen3-VL, which sees at least 64: 10 columns and 7 rows.
const ROWS: usize = 70;

/// Base64 of a picture of 64 x 48.
fn river() -> String {
    BASE64.encode(&file("image-64x48.png"))
}

fn data(base64: &str) -> String {
    format!("data:image/png;base64,{base64}")
}

/// A PNG file that ends where its pixels would begin.
fn png(width: u32, height: u32) -> Vec<u8> {
    let crc = |bytes: &[u8]| {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
            })
        })
    };
    let mut header = b"IHDR".to_vec();
    header.extend(width.to_be_bytes().into_iter().chain(height.to_be_bytes()));
    header.extend([8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    file.extend_from_slice(&header);
    file.extend(crc(&header).to_be_bytes());
    file.extend(b"\0\0\x10\0IDAT");
    file
}

fn chat_with(server: &Server, content: Value) -> Reply {
    let messages = json!([{"role": "user", "content": content}]);
    post(server.addr, CHAT, &[], &json!({"model": "tiny/qwen3", "messages": messages}))
}

fn image_url(url: &str, detail: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url, "detail": detail}})
}

fn last(double: &Double) -> GenerateRequest {
    double.asked.lock().unwrap().last().expect("something was asked").clone()
}

#[test]
fn every_dialect_asks_the_same() {
    let double = seeing("qwen3vl");
    let server = Server::start(&double);
    let (base64, url) = (river(), data(&river()));
    let text = "What flows here?";
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let source = json!({"type": "base64", "media_type": "image/jpeg", "data": base64});
    let requests = [
        (
            CHAT,
            json!({"messages": user(json!([
                {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text},
            ]))}),
        ),
        (
            CHAT,
            json!({"messages": user(json!([
                {"type": "image_url", "image_url": url}, {"type": "text", "text": text},
            ]))}),
        ),
        (
            RESPONSES,
            json!({"input": user(json!([
                {"type": "input_image", "image_url": url, "detail": "auto"},
                {"type": "input_text", "text": text},
            ]))}),
        ),
        (
            MESSAGES,
            json!({"max_tokens": 9, "messages": user(json!([
                {"type": "image", "source": source}, {"type": "text", "text": text},
            ]))}),
        ),
        (
            MESSAGES,
            json!({"max_tokens": 9, "messages": user(json!([
                {"type": "image", "source": {"type": "url", "url": url}}, {"type": "text", "text": text},
            ]))}),
        ),
        (
            "/api/chat",
            json!({"messages": [
                {"role": "user", "content": text, "images": [base64]},
            ]}),
        ),
        ("/api/generate", json!({"prompt": text, "images": [base64]})),
    ];
    let mut first: Option<GenerateRequest> = None;
    for (path, mut body) in requests {
        body["model"] = "tiny/qwen3".into();
        let reply = post(server.addr, path, &[], &body);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        let asked = last(&double);
        let picture = &asked.pictures[0];
        assert_eq!(picture.file.bytes(), file("image-64x48.png"), "{path}");
        let rows: Vec<u32> = picture.row_tokens().take(ROWS).collect();
        assert_eq!(asked.prompt[picture.at..picture.at + ROWS], rows, "{path}");
        assert!(!is_of_picture(asked.prompt[picture.at + ROWS]), "{path}");
        let written = double.last_prompt();
        assert!(written.contains("<|vision_start|><|vision_end|>What flows here?"), "{written}");
        let first = first.get_or_insert_with(|| asked.clone());
        assert_eq!((&asked.prompt, &asked.pictures), (&first.prompt, &first.pictures), "{path}");
    }
}

#[test]
fn pictures_stand_where_the_conversation_has_them() {
    let double = seeing("qwen35");
    let server = Server::start(&double);
    let (river, other) = (river(), BASE64.encode(&file("waves-64x64.png")));
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let reply = post(
        server.addr,
        CHAT,
        &[],
        &json!({"model": "tiny/qwen3", "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "one"}, image_url(&data(&river), "auto"),
                {"type": "text", "text": "two"}, {"type": "text", "text": "three"},
                image_url(&data(&other), "auto"), image_url(&data(&river), "low"),
            ]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [image_url(&data(&other), "high")]},
            {"role": "user", "content": "and?"},
        ]}),
    );
    assert_eq!(reply.status, 200, "{reply:?}");
    let asked = last(&double);
    let details: Vec<Detail> = asked.pictures.iter().map(|one| one.detail).collect();
    assert_eq!(details, [Detail::Auto, Detail::Auto, Detail::Low, Detail::High]);
    for (number, sent) in [(0, &river), (1, &other), (2, &river), (3, &other)] {
        assert_eq!(BASE64.encode(asked.pictures[number].file.bytes()), **sent, "{number}");
    }
    let picture = "<|vision_start|><|vision_end|>";
    let written = double.last_prompt();
    assert!(written.contains(&format!("one{picture}two\nthree{picture}{picture}\n")), "{written}");
    assert!(written.contains(&format!("{picture}\n<user>and?")), "{written}");
    assert_eq!(reply.json()["usage"]["prompt_tokens"], asked.prompt.len());
}

#[test]
fn results_of_tools_may_hold_pictures_in_every_dialect() {
    let double = seeing("qwen3vl");
    let server = Server::start(&double);
    let (base64, url) = (river(), data(&river()));
    let source = json!({"type": "base64", "media_type": "image/png", "data": base64});
    let call = json!({"function": {"name": "look", "arguments": {}}});
    let requests = [
        (
            RESPONSES,
            json!({"input": [
                {"role": "user", "content": "Look."},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1",
                    "output": [{"type": "input_image", "image_url": url}]},
            ]}),
        ),
        (
            MESSAGES,
            json!({"max_tokens": 9, "messages": [
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "seen:"}, {"type": "image", "source": source}]}]},
            ]}),
        ),
        (
            "/api/chat",
            json!({"messages": [
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_name": "look", "content": "", "images": [base64]},
            ]}),
        ),
    ];
    for (path, mut body) in requests {
        body["model"] = "tiny/qwen3".into();
        let reply = post(server.addr, path, &[], &body);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        assert_eq!(last(&double).pictures.len(), 1, "{path}");
    }
}

#[test]
fn tokens_of_pictures_are_counted() {
    let double = seeing("gemma4");
    let server = Server::start(&double);
    let source = json!({"type": "base64", "media_type": "image/png", "data": river()});
    let mut body = json!({"model": "tiny/qwen3", "max_tokens": 9, "messages": [
        {"role": "user", "content": [{"type": "image", "source": source}]},
    ]});
    let reply = post(server.addr, MESSAGES, &[], &body).json();
    let prompt_tokens = last(&double).prompt.len();
    assert_eq!(reply["usage"]["input_tokens"], prompt_tokens);
    body.as_object_mut().unwrap().remove("max_tokens");
    let counted = post(server.addr, "/v1/messages/count_tokens", &[], &body).json();
    assert_eq!(counted, json!({"input_tokens": prompt_tokens}));
    let without = json!({"model": "tiny/qwen3", "messages": [{"role": "user", "content": "x"}]});
    let counted = post(server.addr, "/v1/messages/count_tokens", &[], &without).json();
    assert!(counted["input_tokens"].as_u64().unwrap() + 12 < prompt_tokens as u64, "{counted}");
}

#[test]
fn detail_decides_how_many_tokens_a_picture_has() {
    let double = seeing("qwen3vl");
    double.status.lock().unwrap().instances[0].context_tokens = 8192;
    let server = Server::start(&double);
    let url = data(&BASE64.encode(&png(1024, 768)));
    let rows = |detail| {
        let reply = chat_with(&server, json!([image_url(&url, detail)]));
        assert_eq!(reply.status, 200, "{reply:?}");
        last(&double).prompt.iter().filter(|token| is_of_picture(**token)).count()
    };
    assert_eq!((rows("auto"), rows("high"), rows("original")), (3072, 3072, 3072));
    assert!((1..=256).contains(&rows("low")));
    // More than the context has, which is found before anything is encoded.
    double.status.lock().unwrap().instances[0].context_tokens = 100;
    let reply = chat_with(&server, json!([image_url(&url, "auto")]));
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (400, "context_length_exceeded"),
        "{reply:?}"
    );
    assert!(reply.body.contains("3072"), "{reply:?}");
}

#[test]
fn hostile_pictures_are_refused_with_numbers_and_nothing_else_is_disturbed() {
    let double = seeing("qwen3vl");
    let server = Server::start(&double);
    let content = |file: &[u8]| json!([image_url(&data(&BASE64.encode(file)), "auto")]);
    let whole = file("image-64x48.png");
    let many = vec![image_url(&data(&river()), "auto"); 100];
    let cases = [
        (content(&png(60_000, 60_000)), "messages[0].content[0]", "60000 x 60000"),
        (content(&png(0, 5)), "messages[0].content[0]", "PNG"),
        (content(&png(16_384, 16_384)), "messages[0].content[0]", "67108864"),
        (content(&png(3, 16_000)), "messages[0].content[0]", "200"),
        (content(&whole[..20]), "messages[0].content[0]", "damaged"),
        (content(b""), "messages[0].content[0]", "0 bytes"),
        (content(b"%PDF-1.7"), "messages[0].content[0]", "%PDF-1.7"),
        (json!(many), "messages[0].content[64]", "64"),
        (
            json!([image_url("data:image/png;base64,??", "auto")]),
            "messages[0].content[0]",
            "byte 0",
        ),
        (json!([image_url(&data(&river()), "medium")]), "messages[0].content[0]", "medium"),
        (json!([image_url("https://a.example/b.png", "auto")]), "messages[0].content[0]", "data:"),
        (json!([image_url("http://10.0.0.1/b.png", "auto")]), "messages[0].content[0]", "data:"),
        (json!([image_url("file:///etc/hosts", "auto")]), "messages[0].content[0]", "data:"),
        (json!([{"type": "image_url"}]), "messages[0].content[0]", "data:"),
        (json!([{"type": "input_audio"}]), "messages[0].content[0]", "input_audio"),
    ];
    for (content, param, word) in cases {
        let reply = chat_with(&server, content);
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, error["param"].as_str()),
            (400, Some(param)),
            "{word}: {reply:?}"
        );
        assert!(error["message"].as_str().unwrap().contains(word), "{word}: {reply:?}");
    }
    assert!(double.asked.lock().unwrap().is_empty());
    // The content decides, not the name; and the next request is served.
    let named = format!("data:image/jpeg;base64,{}", river());
    assert_eq!(chat_with(&server, json!([image_url(&named, "auto")])).status, 200);
}

#[test]
fn an_assistant_sends_no_pictures() {
    let server = Server::start(&seeing("qwen3vl"));
    let base64 = river();
    let source = json!({"type": "base64", "media_type": "image/png", "data": base64});
    let said = |content: Value| {
        json!({"model": "tiny/qwen3", "max_tokens": 9, "messages": [
            {"role": "user", "content": "hi"}, {"role": "assistant", "content": content},
            {"role": "user", "content": "hi"},
        ]})
    };
    let mut ollama = said(json!("hi"));
    ollama["messages"][1]["images"] = json!([base64]);
    let cases = [
        (CHAT, said(json!([image_url(&data(&base64), "auto")]))),
        (MESSAGES, said(json!([{"type": "image", "source": source}]))),
        ("/api/chat", ollama),
    ];
    for (path, body) in cases {
        let reply = post(server.addr, path, &[], &body);
        assert_eq!(reply.status, 400, "{path}: {reply:?}");
        assert!(reply.body.contains("messages[1]"), "{path}: {reply:?}");
        assert!(reply.body.contains("a user's message"), "{path}: {reply:?}");
    }
    let raw = json!({"model": "tiny/qwen3", "prompt": "x", "raw": true, "images": [base64]});
    let reply = post(server.addr, "/api/generate", &[], &raw);
    assert_eq!(reply.status, 400, "{reply:?}");
}

#[test]
fn a_text_model_says_that_it_reads_text_only() {
    let server = Server::start(&blind());
    let reply = chat_with(&server, json!([image_url(&data(&river()), "auto")]));
    assert_eq!((reply.status, reply.code().as_str()), (400, "unsupported"), "{reply:?}");
    for word in ["tiny/qwen3 reads text only", "mmproj"] {
        assert!(reply.body.contains(word), "{reply:?}");
    }
    let source = json!({"type": "base64", "media_type": "image/png", "data": river()});
    let body = json!({"model": "tiny/qwen3", "messages": [
        {"role": "user", "content": [{"type": "image", "source": source}]},
    ]});
    let reply = post(server.addr, "/v1/messages/count_tokens", &[], &body);
    assert_eq!(reply.status, 400, "{reply:?}");
}

#[test]
fn menus_say_which_models_see() {
    for (double, sees) in [(seeing("gemma4"), true), (blind(), false)] {
        let server = Server::start(&double);
        let about = post(server.addr, "/api/show", &[], &json!({"model": "tiny/qwen3"})).json();
        let capabilities = about["capabilities"].as_array().unwrap();
        assert_eq!(capabilities.contains(&json!("vision")), sees, "{about}");
        let props = get(server.addr, "/props", &[]).json();
        assert_eq!(props["modalities"], json!({"vision": sees, "audio": false}));
    }
}

#[test]
fn lists_say_what_each_model_reads_and_wait_for_none() {
    for (double, reads) in
        [(seeing("gemma4"), json!(["text", "image"])), (blind(), json!(["text"]))]
    {
        let server = Server::start(&double);
        let told = json!({"input_modalities": reads, "output_modalities": ["text"]});
        // Before its first request, and after.
        for _ in 0..2 {
            let listed = get(server.addr, "/v1/models", &[]).json();
            assert_eq!(listed["data"][0]["architecture"], told, "{listed}");
            let shown = get(server.addr, "/v1/models/tiny/qwen3", &[]).json();
            assert_eq!(shown["architecture"], told, "{shown}");
            assert_eq!(
                post(server.addr, "/api/show", &[], &json!({"model": "tiny/qwen3"})).status,
                200
            );
        }
    }
    // A node that does not answer is not waited for.
    let double = seeing("gemma4");
    double.header_hangs.store(true, Ordering::Relaxed);
    let server = Server::start(&double);
    let listed = get(server.addr, "/v1/models", &[]).json();
    assert_eq!(listed["data"][0]["id"], "tiny/qwen3");
    assert_eq!(listed["data"][0].get("architecture"), None, "{listed}");
}

#[test]
fn a_damaged_picture_is_named_by_its_place() {
    let double = seeing("qwen3vl");
    let server = Server::start(&double);
    double.play(&[Act::Refused("picture 2 cannot be used: the PNG file is damaged")]);
    let url = data(&river());
    let reply = chat_with(&server, json!([image_url(&url, "auto"), image_url(&url, "auto")]));
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, &error["param"]), (400, &json!("messages[0].content[1]")), "{error}");
}

#[test]
fn a_template_shows_the_places_of_pictures() {
    let double = seeing("qwen3vl");
    let server = Server::start(&double);
    let content = json!([{"type": "text", "text": "a"}, image_url(&data(&river()), "auto")]);
    let body = json!({"model": "tiny/qwen3", "messages": [{"role": "user", "content": content}]});
    let prompt = post(server.addr, "/apply-template", &[], &body).json()["prompt"].clone();
    let prompt = prompt.as_str().unwrap();
    assert!(prompt.contains("a<|vision_start|><__media__><|vision_end|>"), "{prompt}");
}

#[test]
fn a_picture_larger_than_the_context_is_named_with_its_tokens() {
    let double = seeing("qwen3vl");
    double.status.lock().unwrap().instances[0].context_tokens = ROWS;
    let server = Server::start(&double);
    let reply = chat_with(&server, json!([image_url(&data(&river()), "auto")]));
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, &error["param"]), (400, &json!("messages[0].content[0]")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("70 tokens"), "{error}");
}
