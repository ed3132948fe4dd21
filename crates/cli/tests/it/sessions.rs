//! Two sessions of an agent: the second finds nearly all of its prompt in the cache.

use serde_json::{Value, json};

use crate::common::{Node, changed_model, demo_model, fixture, request};

/// Requests of Claude Code at the start of two sessions in one project: its form and fields, with
/// shorter texts.
const FIRST: &str = include_str!("sessions/claude_code_first.json");
const SECOND: &str = include_str!("sessions/claude_code_second.json");

/// Tools first, then the instructions, as in the templates of Qwen and others.
const TEMPLATE: &str = "{{ '<|im_start|>system\n' }}{% for tool in tools or [] %}{{ tool | tojson }}\n\
    {% endfor %}{% for message in messages %}{% if message.role != 'system' %}\
    {{ '<|im_end|>\n<|im_start|>' + message.role + '\n' }}{% endif %}{{ message.content }}\
    {% endfor %}{{ '<|im_end|>\n<|im_start|>assistant\n' }}";

fn post(node: &Node, path: &str, body: &Value) -> Value {
    let mut response = request(&format!("{}{path}", node.api), body);
    let answer: Value = response.body_mut().read_json().unwrap();
    assert_eq!(response.status(), 200, "{answer}");
    answer
}

/// The tokens of an answer's prompt, and those of them that came from the cache.
fn tokens(answer: &Value) -> (u64, u64) {
    let count = |name: &str| answer["usage"][name].as_u64().unwrap_or_default();
    let cached = count("cache_read_input_tokens");
    (count("input_tokens") + cached, cached)
}

#[test]
fn the_second_session_comes_from_the_cache() {
    let files = tempfile::tempdir().unwrap();
    // Its vocabulary is small, so that the prompts have many tokens.
    let large = [
        ("qwen3.context_length", gguf::Value::U32(16_384)),
        ("tokenizer.chat_template", gguf::Value::String(TEMPLATE.to_owned())),
    ];
    let node = Node::start("a");
    node.run(&[
        "serve",
        &changed_model(&files, "sinew-demo", &fixture("models/qwen3.gguf"), &large),
    ]);
    let [first, second]: [Value; 2] =
        [FIRST, SECOND].map(|text| serde_json::from_str(text).unwrap());
    assert_ne!(first["system"][0], second["system"][0], "the line that differs");

    let (prompt, cached) = tokens(&post(&node, "/v1/messages", &first));
    assert!(prompt > 1500 && cached < 64, "{prompt} {cached}");
    let (prompt, cached) = tokens(&post(&node, "/v1/messages", &second));
    assert!(cached * 10 >= prompt * 9, "{cached} of {prompt} tokens came from the cache");

    let mut counted = second.clone();
    let only_of_answers = ["max_tokens", "stream", "metadata"];
    counted.as_object_mut().unwrap().retain(|name, _| !only_of_answers.contains(&name.as_str()));
    let count = post(&node, "/v1/messages/count_tokens", &counted);
    assert_eq!(count["input_tokens"], json!(prompt));
    // Without the line the prompt is the same.
    counted["system"].as_array_mut().unwrap().remove(0);
    assert_eq!(post(&node, "/v1/messages/count_tokens", &counted), count);
}

/// Such a model can go on only from a kept state: that of the first prompt's end is of no use to the
/// second, which leaves one where the two part.
#[test]
fn the_third_session_of_a_model_with_states_comes_from_the_cache() {
    let files = tempfile::tempdir().unwrap();
    let large = [("qwen35.context_length", gguf::Value::U32(16_384))];
    let node = Node::start("a");
    node.run(&["serve", &changed_model(&files, "sinew-demo", &demo_model(), &large)]);
    let [first, second]: [Value; 2] =
        [FIRST, SECOND].map(|text| serde_json::from_str(text).unwrap());
    let mut third = second.clone();
    third["messages"][0]["content"][1]["text"] = json!("Which harbours are in it?");
    post(&node, "/v1/messages", &first);
    post(&node, "/v1/messages", &second);
    let (prompt, cached) = tokens(&post(&node, "/v1/messages", &third));
    assert!(cached * 10 >= prompt * 9, "{cached} of {prompt} tokens came from the cache");
}
