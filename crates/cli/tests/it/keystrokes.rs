//! An editor completes code with every keystroke, and leaves half of the answers: the cache serves
//! the text before the cursor, and nothing is left behind.

use std::io::{BufRead, BufReader};

use crate::common::{Node, changed_model, demo_model, request, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

const KEYSTROKES: usize = 200;

/// The demo model with tokens for filling in, under the name of its file.
fn code_model(dir: &TempDir) -> String {
    let token = |(name, id)| (name, gguf::Value::U32(id));
    let tokens = [
        ("tokenizer.ggml.fim_pre_token_id", 300),
        ("tokenizer.ggml.fim_suf_token_id", 301),
        ("tokenizer.ggml.fim_mid_token_id", 302),
    ];
    changed_model(dir, "code", &demo_model(), &tokens.map(token))
}

/// The pages of the cache in this state.
fn pages(node: &Node, state: &str) -> f64 {
    let metrics =
        node.request("GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let is_wanted = |line: &&str| {
        line.contains("kv_cache_pages{") && line.contains(&format!("state=\"{state}\""))
    };
    let line = metrics.lines().find(is_wanted).unwrap_or_else(|| panic!("{metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn two_hundred_keystrokes_leave_no_page_behind() {
    let files = tempfile::tempdir().unwrap();
    let node = Node::start("a");
    node.run(&["serve", &code_model(&files)]);
    let lines = |from: usize| (from..from + 12).map(|n| format!("let v{n} = {n};\n"));
    let (before, after): (String, String) = (lines(0).collect(), lines(50).collect());
    let typed: String = lines(12).chain(lines(24)).collect();
    let mut cached = 0;
    for (at, (end, _)) in typed.char_indices().cycle().take(KEYSTROKES).enumerate() {
        let text = format!("{before}{}", &typed[..end]);
        let (prefix, line) = text.split_at(text.rfind('\n').map_or(0, |at| at + 1));
        let body = json!({"input_prefix": prefix, "input_suffix": after, "prompt": line,
            "n_predict": 8, "stream": true, "ignore_eos": true});
        let response = request(&format!("{}/infill", node.api), &body);
        assert_eq!(response.status(), 200, "keystroke {at}");
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        let events = lines.map_while(Result::ok);
        let mut events = events.filter_map(|line| Some(line.strip_prefix("data: ")?.to_owned()));
        let first: Value = serde_json::from_str(&events.next().expect("a first event")).unwrap();
        assert_eq!(first["stop"], false, "{first}");
        // The editor moves on after the first token of every other answer.
        if at % 2 == 1 {
            let last: Value = serde_json::from_str(&events.last().unwrap()).unwrap();
            assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("limit")));
            cached += last["timings"]["cache_n"].as_u64().unwrap();
        }
    }
    assert!(cached / (KEYSTROKES as u64 / 2) >= 64, "{cached} tokens came from the cache");
    // Both numbers are 0 until the engine first reports its pages.
    wait_for("pages in the cache", || (pages(&node, "cached") > 0.0).then_some(()));
    wait_for("no request to hold a page", || (pages(&node, "used") == 0.0).then_some(()));
}

#[test]
fn any_name_means_the_only_model() {
    let chat = json!({"model": "gpt-4o", "max_tokens": 4,
        "messages": [{"role": "user", "content": "Who are you?"}]});
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with("a", dir, "127.0.0.1:0", |command| {
        command.arg("--any-name");
    });
    node.run(&["serve", &demo_model()]);
    let mut answer = request(&format!("{}/v1/chat/completions", node.api), &chat);
    let body: Value = answer.body_mut().read_json().unwrap();
    assert_eq!((answer.status().as_u16(), &body["model"]), (200, &json!("sinew-demo")), "{body}");
    drop(node);
    let node = Node::start("a");
    node.run(&["serve", &demo_model()]);
    let answer = request(&format!("{}/v1/chat/completions", node.api), &chat);
    assert_eq!(answer.status(), 404);
}
