//! Chat completions beyond plain text: thoughts, calls, several answers, log-probabilities,
//! formats, and each supported or rejected field.

use std::sync::Arc;

use crate::support::client::{self, Reply, chat};
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::Server;
use protocol::{FinishReason, Grammar};
use serde_json::{Value, json};

/// Writes all inputs to the prompt, and shows how the model thinks and calls.
const TEMPLATE: &str = "{% for tool in tools or [] %}TOOL {{ tool.function.name }}\n{% endfor %}\
    {% for message in messages %}{{ message.role }}: {{ message.content }}\
    {% if message.reasoning_content %} <think>{{ message.reasoning_content }}</think>{% endif %}\
    {% for call in message.tool_calls or [] %} <tool_call>{{ call.function.name }} \
    {{ call.function.arguments | tojson }} {{ call.id }}</tool_call>{% endfor %}\n{% endfor %}\
    effort {{ reasoning_effort }} thinking {{ enable_thinking }} extra {{ extra }}";

const THOUGHT: &str = "<think>\nHm, well.\n</think>\n\n";
const CALL: &str =
    "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
const DONE: Act = Act::Done(FinishReason::Stop);

fn server(script: &[Act]) -> (Arc<Double>, Server) {
    let double = Arc::new(Double::with_header(fixture_with_template(TEMPLATE), script));
    let server = Server::start(&double);
    (double, server)
}

fn weather() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "function": {"name": "weather", "parameters": schema}}])
}

/// The choice at an index in each chunk of a stream.
fn choices(reply: &Reply, index: usize) -> Vec<Value> {
    let events = reply.events();
    let all = events.iter().filter_map(|event| event["choices"].as_array()).flatten();
    all.filter(|choice| choice["index"] == index).cloned().collect()
}

fn joined(choices: &[Value], pointer: &str) -> String {
    choices.iter().filter_map(|choice| choice.pointer(pointer)?.as_str()).collect()
}

#[test]
fn thoughts_and_text_come_apart() {
    let (_double, server) = server(&[Act::Say(THOUGHT), Act::Say("It is 7."), DONE]);
    let body = chat(server.addr, json!({})).json();
    let message = &body["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("Hm, well."), &json!("It is 7."))
    );
    let reasoning = body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    assert!(reasoning > Some(1) && reasoning < body["usage"]["completion_tokens"].as_u64());
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);

    let reply = chat(server.addr, json!({"stream": true}));
    let found = choices(&reply, 0);
    assert_eq!(joined(&found, "/delta/reasoning_content"), "Hm, well.");
    assert_eq!(joined(&found, "/delta/content"), "It is 7.");
}

#[test]
fn calls_come_whole_and_in_pieces() {
    let (double, server) = server(&[Act::Say("Let me see."), Act::Say(CALL), Act::Say(CALL), DONE]);
    let body = chat(server.addr, json!({"tools": weather()})).json();
    assert!(double.last_prompt().starts_with("TOOL weather"), "{}", double.last_prompt());
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(
        (&calls[0]["type"], &calls[0]["function"]["name"]),
        (&json!("function"), &json!("weather"))
    );
    assert_eq!(calls[0]["function"]["arguments"], "{\"city\":\"Oslo\"}");

    let reply = chat(server.addr, json!({"tools": weather(), "stream": true}));
    let found = choices(&reply, 0);
    let pieces: Vec<&Value> =
        found.iter().filter_map(|choice| choice.pointer("/delta/tool_calls/0")).collect();
    for index in 0..2 {
        let of: Vec<&&Value> = pieces.iter().filter(|piece| piece["index"] == index).collect();
        assert_eq!(of[0]["function"], json!({"name": "weather", "arguments": ""}));
        assert!(of[0]["id"].as_str().unwrap().starts_with("call_") && of[0]["type"] == "function");
        let arguments: String =
            of.iter().filter_map(|piece| piece["function"]["arguments"].as_str()).collect();
        assert_eq!(arguments, "{\"city\":\"Oslo\"}");
        assert!(of[1..].iter().all(|piece| piece.get("id").is_none()));
    }
    assert_eq!(found.last().unwrap()["finish_reason"], "tool_calls");
}

#[test]
fn a_call_alone_has_no_content_and_ends_a_single_answer() {
    let (double, server) = server(&[Act::Say(CALL), Act::Say(CALL), Act::Hang]);
    let body = json!({"tools": weather(), "parallel_tool_calls": false});
    let choice = chat(server.addr, body).json()["choices"][0].clone();
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
    // Without tools the same output is text.
    double.play(&[Act::Say(CALL), DONE]);
    let choice = chat(server.addr, json!({})).json()["choices"][0].clone();
    assert!(choice["message"]["content"].as_str().unwrap().contains("Oslo"));
    assert!(choice["message"].get("tool_calls").is_none() && choice["finish_reason"] == "stop");
}

#[test]
fn the_older_form_of_tools_is_answered_in_its_own() {
    let (double, server) = server(&[Act::Say(CALL), DONE]);
    let body = json!({"functions": [weather()[0]["function"]]});
    let choice = chat(server.addr, body.clone()).json()["choices"][0].clone();
    let call = json!({"name": "weather", "arguments": "{\"city\":\"Oslo\"}"});
    assert_eq!(
        (&choice["message"]["function_call"], &choice["finish_reason"]),
        (&call, &json!("function_call"))
    );
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let found = choices(&chat(server.addr, streamed), 0);
    assert_eq!(joined(&found, "/delta/function_call/arguments"), "{\"city\":\"Oslo\"}");
    assert!(double.last_prompt().starts_with("TOOL weather"));
}

#[test]
fn a_schema_that_no_call_can_be_held_to_loosens_its_own_tool() {
    let (double, server) = server(&[Act::Say(CALL), DONE]);
    let odd =
        json!({"type": "object", "properties": {"q": {"type": "string", "pattern": "(?!x)"}}});
    let mut tools = weather();
    let odd_tool = json!({"type": "function", "function": {"name": "find", "parameters": odd}});
    tools.as_array_mut().unwrap().push(odd_tool);
    let reply = chat(server.addr, json!({"tools": tools, "tool_choice": "required"}));
    assert_eq!(reply.status, 200, "{reply:?}");
    let grammar = double.asked.lock().unwrap().last().unwrap().grammar.clone();
    let Some(Grammar::Lark(lark)) = grammar else { panic!("{grammar:?}") };
    assert!(lark.contains("\"city\"") && !lark.contains("(?!x)"), "{lark}");
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": odd}});
    let refused = chat(server.addr, json!({"response_format": schema}));
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body.contains("properties.q.pattern"), "{refused:?}");
}

#[test]
fn a_bound_may_be_larger_than_any_number() {
    let (_double, server) = server(&[Act::Say("7"), DONE]);
    let schema = r#"{"type": "number", "maximum": 1.8e308, "minimum": -1.8e308}"#;
    let body = format!(
        r#"{{"model": "tiny/qwen3", "messages": [{{"role": "user", "content": "hi"}}],
        "response_format": {{"type": "json_object", "schema": {schema}}}}}"#
    );
    let headers = [("content-type", "application/json")];
    let path = "/v1/chat/completions";
    let request = client::request("POST", path, server.addr, &headers, &body);
    assert_eq!(client::send(server.addr, request.as_bytes()).status, 200);
}

#[test]
fn a_conversation_with_calls_and_thoughts_reaches_the_template() {
    let (double, server) = server(&[Act::Say("So."), DONE]);
    let messages = json!([
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": "", "reasoning_content": "Ask.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
    ]);
    let reply = chat(
        server.addr,
        json!({"messages": messages, "reasoning_effort": "high",
            "chat_template_kwargs": {"extra": "yes", "enable_thinking": false}}),
    );
    assert_eq!(reply.status, 200, "{reply:?}");
    let prompt = double.last_prompt();
    for part in [
        "system: Be kind.",
        "user: Weather?",
        "<think>Ask.</think>",
        "<tool_call>weather {\"city\": \"Oslo\"} c1</tool_call>",
        "tool: rain",
        "effort high thinking False extra yes",
    ] {
        assert!(prompt.contains(part), "{part} in {prompt}");
    }
}

#[test]
fn several_answers_come_beside_each_other() {
    let (double, server) = server(&[Act::Say("Hello you."), DONE]);
    let body = chat(server.addr, json!({"n": 3, "seed": 5})).json();
    let found = body["choices"].as_array().unwrap();
    assert_eq!(found.len(), 3);
    for (index, choice) in found.iter().enumerate() {
        assert_eq!(
            (&choice["index"], &choice["message"]["content"]),
            (&json!(index), &json!("Hello you."))
        );
    }
    let asked = double.asked.lock().unwrap().clone();
    let seeds: Vec<u64> = asked.iter().map(|one| one.sampling.seed).collect();
    assert!(seeds[0] == 5 && seeds[1] != 5 && seeds[1] != seeds[2], "{seeds:?}");
    let usage = &body["usage"];
    assert_eq!(usage["prompt_tokens"], asked[0].prompt.len(), "the prompt counts once");
    let one = chat(server.addr, json!({})).json()["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["completion_tokens"], 3 * one);

    let reply = chat(
        server.addr,
        json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}}),
    );
    for index in 0..2 {
        let found = choices(&reply, index);
        assert_eq!(joined(&found, "/delta/content"), "Hello you.");
        assert_eq!(found[0]["delta"]["role"], "assistant");
        assert_eq!(found.last().unwrap()["finish_reason"], "stop");
    }
    let events = reply.events();
    assert_eq!(events[events.len() - 2]["usage"]["completion_tokens"], 2 * one);
    assert_eq!(events.last(), Some(&json!("[DONE]")));
}

#[test]
fn one_answer_of_several_that_fails_fails_the_stream() {
    let (double, server) = server(&[]);
    double
        .play_all(&[&[Act::Say("fine"), DONE], &[Act::Say("ba"), Act::Failed("node b was lost")]]);
    let reply = chat(server.addr, json!({"n": 2, "stream": true}));
    let events = reply.events();
    assert!(!reply.whole && !events.contains(&json!("[DONE]")), "{reply:?}");
    assert!(events.last().unwrap()["error"]["message"].as_str().unwrap().contains("node b"));
}

#[test]
fn log_probabilities_stand_beside_the_text() {
    let (double, server) = server(&[Act::Likely("Hello you."), DONE]);
    let body = json!({"logprobs": true, "top_logprobs": 2});
    let choice = chat(server.addr, body).json()["choices"][0].clone();
    assert_eq!(double.asked.lock().unwrap()[0].logprobs, Some(2));
    let tokens = choice["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(joined(&tokens, "/token"), "Hello you.");
    assert_eq!(
        (&tokens[0]["logprob"], tokens[0]["top_logprobs"].as_array().unwrap().len()),
        (&json!(-0.5), 2)
    );
    let bytes: Vec<u8> = serde_json::from_value(tokens[0]["bytes"].clone()).unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), tokens[0]["token"].as_str().unwrap());

    let reply = chat(server.addr, json!({"logprobs": true, "stream": true}));
    let found = choices(&reply, 0);
    let streamed: Vec<Value> = found
        .iter()
        .filter_map(|choice| choice["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(joined(&streamed, "/token"), "Hello you.");
    assert_eq!(chat(server.addr, json!({})).json()["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn what_is_asked_of_the_sampler_reaches_it() {
    let (double, server) = server(&[Act::Say("ok"), DONE]);
    let reply = chat(
        server.addr,
        json!({"repetition_penalty": 1.25, "frequency_penalty": 0.5, "presence_penalty": -0.5,
            "logit_bias": {"3": -100, "4": 5.5}, "min_tokens": 2, "max_tokens": 9,
            "ignore_eos": true}),
    );
    assert_eq!(reply.status, 200, "{reply:?}");
    let asked = double.asked.lock().unwrap()[0].clone();
    let sampling = asked.sampling;
    assert_eq!((sampling.repetition_penalty, sampling.frequency_penalty), (1.25, 0.5));
    assert_eq!((sampling.presence_penalty, asked.min_tokens), (-0.5, 2));
    assert_eq!(sampling.logit_bias, [(3, -100.0), (4, 5.5)]);
    assert!(asked.end_tokens.is_empty(), "no end token is left");
}

#[test]
fn forms_become_grammars() {
    let (double, server) = server(&[Act::Say("{}"), DONE]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let named = json!({"type": "function", "function": {"name": "weather"}});
    let forms = [
        (json!({"response_format": {"type": "json_object"}}), "\"type\":\"object\""),
        (
            json!({"response_format": {"type": "json_schema",
                "json_schema": {"name": "x", "strict": true, "schema": schema}}}),
            "\"integer\"",
        ),
        (json!({"structured_outputs": {"json": schema}}), "\"integer\""),
        (json!({"structured_outputs": {"regex": "[0-9]+"}}), "[0-9]+"),
        (json!({"structured_outputs": {"choice": ["yes", "no"]}}), "yes|no"),
        (json!({"structured_outputs": {"grammar": "start: \"mine\""}}), "mine"),
        (json!({"tools": weather(), "tool_choice": "required"}), "weather"),
        (json!({"tools": weather(), "tool_choice": named}), "weather"),
    ];
    for (body, part) in forms {
        let reply = chat(server.addr, body.clone());
        assert_eq!(reply.status, 200, "{reply:?}");
        let asked = double.asked.lock().unwrap().last().unwrap().clone();
        let (Grammar::Lark(text) | Grammar::Regex(text) | Grammar::JsonSchema(text)) =
            asked.grammar.unwrap();
        assert!(text.contains(part), "{body}: {text}");
    }
    chat(server.addr, json!({"tools": weather(), "tool_choice": "none"}));
    assert_eq!(double.asked.lock().unwrap().last().unwrap().grammar, None);
    assert!(!double.last_prompt().contains("TOOL"));
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    let (double, server) = server(&[DONE]);
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let cases = [
        (json!({"messages": image}), "messages[0].content[0]", "unsupported"),
        (json!({"tools": [{"type": "custom", "custom": {}}]}), "tools[0]", "invalid_value"),
        (
            json!({"tools": weather(), "tool_choice": {"type": "function", "function": {"name": "x"}}}),
            "tool_choice",
            "invalid_value",
        ),
        (json!({"audio": {"voice": "x"}}), "audio", "unsupported"),
        (json!({"web_search_options": {"a": 1}}), "web_search_options", "unsupported"),
        (json!({"store": true}), "store", "unsupported"),
        (json!({"prompt_logprobs": 1}), "prompt_logprobs", "unsupported"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias", "invalid_value"),
        (json!({"n": 129}), "n", "invalid_value"),
        (json!({"seed": "x"}), "seed", "invalid_value"),
    ];
    for (body, param, code) in cases {
        let reply = chat(server.addr, body.clone());
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["param"], &error["code"]),
            (400, &json!(param), &json!(code)),
            "{body}"
        );
        assert_eq!(error["type"], "invalid_request_error");
    }
    assert!(double.asked.lock().unwrap().is_empty(), "nothing was asked of the model");
}

#[test]
fn clients_that_ask_for_a_tier_are_told_theirs() {
    let (_double, server) = server(&[Act::Say("ok"), DONE]);
    let body = chat(server.addr, json!({"service_tier": "flex"})).json();
    assert_eq!(body["service_tier"], "default");
    assert!(body["system_fingerprint"].as_str().unwrap().starts_with("sinew-"));
    assert!(chat(server.addr, json!({})).json().get("service_tier").is_none());
}

#[test]
fn an_answer_cut_at_a_stop_string_has_the_account_of_its_prompt() {
    let double = Double::new(&[Act::Cached(3), Act::Say("one two three"), Act::Hang]);
    let server = Server::start(&double);
    for extra in [
        json!({"stop": "two"}),
        json!({"stop": "two", "stream": true, "stream_options": {"include_usage": true}}),
    ] {
        let reply = chat(server.addr, extra);
        let last = match reply.events().iter().rev().nth(1) {
            Some(last) => last.clone(),
            None => reply.json(),
        };
        assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 3, "{reply:?}");
        assert_eq!(last["timings"]["prompt_ms"], 250.0, "{reply:?}");
    }
}
