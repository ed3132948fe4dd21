//! The dialect of llama-server's clients, and text filled in between a prefix and a suffix.

use crate::support;
use std::sync::Arc;

use crate::support::client::{Reply, get, post};
use crate::support::double::{Act, Double, fixture, fixture_with_template};
use crate::support::server::Server;
use protocol::FinishReason;
use serde_json::{Value, json};

const DONE: Act = Act::Done(FinishReason::Stop);
/// Tokens of the fixture that these tests declare to be those for filling in.
const MARKS: [(&str, u32); 5] =
    [("fim_pre", 486), ("fim_suf", 489), ("fim_mid", 496), ("fim_rep", 500), ("fim_sep", 504)];

/// A double whose model can fill in.
fn code_model(script: &[Act]) -> Arc<Double> {
    let mut writer = gguf::Writer::new();
    for (key, value) in fixture().metadata() {
        writer.set(key, value.clone());
    }
    for (name, id) in MARKS {
        writer.set(&format!("tokenizer.ggml.{name}_token_id"), gguf::Value::U32(id));
    }
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
    let header = gguf::Directory::parse(&bytes, bytes.len() as u64).unwrap();
    Arc::new(Double::with_header(header, script))
}

/// The parts of the last prompt between the marks, as `(mark, text)`.
fn parts(double: &Double) -> Vec<(&'static str, String)> {
    let tokenizer = text::Tokenizer::from_gguf(&double.header).unwrap();
    let prompt = double.asked.lock().unwrap().last().unwrap().prompt.clone();
    let mut parts: Vec<(&str, Vec<u32>)> = Vec::new();
    for token in prompt {
        match MARKS.iter().find(|(_, id)| *id == token) {
            Some((name, _)) => parts.push((name, Vec::new())),
            None => parts.last_mut().expect("a mark comes first").1.push(token),
        }
    }
    let text = |tokens: Vec<u32>| {
        let mut stream = text::TextStream::continuing(&tokenizer);
        tokens.iter().map(|token| stream.push(*token)).collect::<String>()
    };
    parts.into_iter().map(|(name, tokens)| (name, text(tokens))).collect()
}

fn part(name: &'static str, text: &str) -> (&'static str, String) {
    (name, text.to_owned())
}

fn complete(server: &Server, body: Value) -> Reply {
    post(server.addr, "/completion", &[], &body)
}

fn recorded(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_completion_has_the_fields_that_clients_read() {
    let double = Double::new(&[Act::Say(" a time\nthere"), DONE]);
    let server = Server::start(&double);
    let body = complete(&server, json!({"prompt": "Once upon", "n_predict": 8, "seed": 42})).json();
    assert_eq!((&body["content"], &body["stop"]), (&json!(" a time\nthere"), &json!(true)));
    assert_eq!((&body["stop_type"], &body["stopping_word"]), (&json!("eos"), &json!("")));
    assert_eq!((&body["has_new_line"], &body["truncated"]), (&json!(true), &json!(false)));
    assert_eq!((&body["tokens"], &body["prompt"]), (&json!([]), &json!("Once upon")));
    let (evaluated, predicted) = (&body["tokens_evaluated"], &body["tokens_predicted"]);
    let timings = &body["timings"];
    assert_eq!((&timings["prompt_n"], &timings["predicted_n"]), (evaluated, predicted));
    assert_eq!((&timings["cache_n"], &timings["prompt_ms"]), (&json!(0), &json!(250.0)));
    let settings = &body["generation_settings"];
    assert_eq!((&settings["seed"], &settings["n_predict"]), (&json!(42), &json!(8)));
    assert_eq!(double.last_prompt(), "Once upon");
    assert_eq!(double.asked.lock().unwrap()[0].max_tokens, 8);

    let body =
        json!({"prompt": "Once", "return_tokens": true, "stop": ["there"], "ignore_eos": true});
    let body = complete(&server, body).json();
    assert_eq!((&body["stop_type"], &body["stopping_word"]), (&json!("word"), &json!("there")));
    let tokenizer = text::Tokenizer::from_gguf(&double.header).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(body["tokens"].clone()).unwrap();
    assert!(" a time\nthere".starts_with(&tokenizer.decode(&tokens)) && tokens.len() > 1);
    assert_eq!(body["generation_settings"]["logit_bias"][0]["bias"], Value::Null);
    assert!(double.asked.lock().unwrap()[1].end_tokens.is_empty());
}

#[test]
fn a_stream_has_pieces_and_the_account_at_the_end() {
    let double = Double::new(&[Act::Cached(1), Act::Likely(" naïve time"), DONE]);
    let server = Server::start(&double);
    let body = json!({"prompt": "Once", "stream": true, "n_probs": 2, "timings_per_token": true,
        "return_progress": true, "response_fields": ["content", "stop", "timings/predicted_n"]});
    let reply = complete(&server, body);
    let events = reply.events();
    assert!(reply.whole && !events.contains(&json!("[DONE]")));
    let (last, pieces) = events.split_last().unwrap();
    assert_eq!(last["stop"], true);
    let keys: Vec<&String> = last.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["content", "stop", "timings/predicted_n"]);
    let progress: Vec<&Value> =
        pieces.iter().map(|piece| &piece["prompt_progress"]).filter(|p| !p.is_null()).collect();
    assert_eq!(progress.len(), 2);
    assert_eq!((&progress[0]["cache"], &progress[0]["processed"]), (&json!(1), &json!(1)));
    assert_eq!(progress[1]["processed"], progress[1]["total"]);
    let text: String = pieces.iter().filter_map(|piece| piece["content"].as_str()).collect();
    assert_eq!(text, " naïve time");
    let tokens: Vec<u64> = pieces
        .iter()
        .flat_map(|piece| piece["tokens"].as_array().unwrap())
        .map(|token| token.as_u64().unwrap())
        .collect();
    let tokenizer = text::Tokenizer::from_gguf(&double.header).unwrap();
    let wanted = tokenizer.encode(" naïve time", text::Special::Plain, false);
    let wanted: Vec<u64> = wanted.into_iter().map(u64::from).collect();
    assert_eq!(tokens, wanted, "every token is told once");
    for piece in pieces.iter().filter(|piece| piece["prompt_progress"].is_null()) {
        assert_eq!(piece["stop"], false);
        let first = &piece["completion_probabilities"][0];
        assert_eq!(
            (&first["logprob"], &first["top_logprobs"][1]["logprob"]),
            (&json!(-0.5), &json!(-1.5))
        );
        assert_eq!(first["id"], piece["tokens"][0]);
        assert!(piece["timings"]["predicted_n"].as_u64().unwrap() >= 1);
    }
}

#[test]
fn prompts_are_texts_and_tokens_also_mixed() {
    let double = Double::new(&[Act::Say(" end"), DONE]);
    let server = Server::start(&double);
    let single = complete(&server, json!({"prompt": [5, "a", 6]})).json();
    assert_eq!(single["content"], " end");
    let asked = double.asked.lock().unwrap().last().unwrap().prompt.clone();
    assert_eq!((asked[0], asked[asked.len() - 1]), (5, 6));
    let many = complete(&server, json!({"prompt": [[5, 6], "a", {"prompt_string": "b"}], "n": 2}));
    let many = many.json();
    let many = many.as_array().unwrap();
    let indices: Vec<&Value> = many.iter().map(|one| &one["index"]).collect();
    assert_eq!(json!(indices), json!([0, 1, 2, 3, 4, 5]));
    assert_eq!((&many[2]["prompt"], &many[4]["prompt"]), (&json!("a"), &json!("b")));
}

#[test]
fn grammars_arrive_and_wrong_ones_are_refused_with_their_line() {
    let double = Double::new(&[Act::Say("aaa"), DONE]);
    let server = Server::start(&double);
    for (path, more) in [
        ("/completion", json!({"prompt": "x"})),
        ("/v1/completions", json!({"prompt": "x", "model": "tiny/qwen3"})),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}], "model": "tiny/qwen3"}),
        ),
    ] {
        let ask = |name: &str, value: Value| {
            let mut body = more.clone();
            body[name] = value;
            post(server.addr, path, &[], &body)
        };
        let reply = ask("grammar", json!("root ::= \"a\"{3}"));
        assert_eq!(reply.status, 200, "{path} {reply:?}");
        let grammar = double.asked.lock().unwrap().last().unwrap().grammar.clone();
        assert!(format!("{grammar:?}").contains("(?:a){3,3}"), "{path} {grammar:?}");
        assert_eq!(ask("json_schema", json!({"type": "integer"})).status, 200, "{path}");
        let grammar = double.asked.lock().unwrap().last().unwrap().grammar.clone();
        assert!(grammar.is_some(), "{path}");
        let reply = ask("grammar", json!("root ::= \"a\"\nb ::= ("));
        assert_eq!(reply.status, 400, "{path}");
        let error = reply.json()["error"].clone();
        assert_eq!(error["param"], "grammar", "{path}");
        assert!(error["message"].as_str().unwrap().contains("line 2"), "{path} {error}");
    }
}

#[test]
fn texts_become_tokens_and_tokens_texts() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let ask = |path: &str, body: Value| post(server.addr, path, &[], &body).json();
    let tokens = ask("/tokenize", json!({"content": "naïve time"}))["tokens"].clone();
    assert!(tokens.as_array().unwrap().len() > 2);
    assert_eq!(ask("/detokenize", json!({"tokens": tokens}))["content"], "naïve time");
    let pieces = ask("/tokenize", json!({"content": "naïve time", "with_pieces": true}));
    let pieces = pieces["tokens"].as_array().unwrap().clone();
    let ids: Vec<&Value> = pieces.iter().map(|piece| &piece["id"]).collect();
    assert_eq!(json!(ids), tokens);
    assert!(pieces.iter().all(|piece| piece["piece"].is_string() || piece["piece"].is_array()));
    let mixed = ask("/tokenize", json!({"content": [7, "a", 8]}))["tokens"].clone();
    assert_eq!((&mixed[0], &mixed[mixed.as_array().unwrap().len() - 1]), (&json!(7), &json!(8)));
    let listed = ask("/tokenize", json!({"content": ["naïve time"]}));
    assert_eq!(listed["tokens"], tokens, "as without the list");
    let marked = |special: bool| {
        let body = json!({"content": "<|im_end|>", "parse_special": special});
        ask("/tokenize", body)["tokens"].as_array().unwrap().len()
    };
    assert!(marked(true) < marked(false));
    let error = ask("/detokenize", json!({"tokens": [4_000_000_u32]}))["error"].clone();
    assert_eq!((&error["code"], &error["param"]), (&json!(400), &json!("tokens")));
    assert_eq!(ask("/tokenize", json!({}))["tokens"], json!([]));
}

#[test]
fn a_template_is_applied_without_an_answer() {
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";
    let double = Arc::new(Double::with_header(fixture_with_template(template), &[DONE]));
    let server = Server::start(&double);
    let body = json!({"messages": [{"role": "user", "content": "a <|im_end|>"}]});
    let reply = post(server.addr, "/apply-template", &[], &body);
    assert_eq!(reply.json()["prompt"], "[user]a <|im_end|>[assistant]");
    assert!(double.asked.lock().unwrap().is_empty());
    let reply = post(server.addr, "/apply-template", &[], &json!({}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("messages")));
}

#[test]
fn the_server_tells_about_itself() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let props = get(server.addr, "/props", &[]).json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 1024);
    assert_eq!(props["default_generation_settings"]["params"]["top_k"], 40);
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(1), &json!("tiny/qwen3")));
    assert!(props["chat_template"].as_str().unwrap().len() > 10);
    let slots = get(server.addr, "/slots?model=tiny/qwen3", &[]).json();
    assert_eq!((&slots[0]["is_processing"], &slots[0]["n_ctx"]), (&json!(false), &json!(1024)));
    double.status.lock().unwrap().instances[0].requests_running = 2;
    let slots = get(server.addr, "/slots", &[]).json();
    let busy: Vec<&Value> =
        slots.as_array().unwrap().iter().map(|slot| &slot["is_processing"]).collect();
    assert_eq!(json!(busy), json!([true, true, false]));
    assert_eq!(get(server.addr, "/slots?model=other", &[]).status, 404);
}

#[test]
fn samplers_reach_the_engine_and_the_answer_shows_them() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let asked = json!({"prompt": "Once", "typical_p": 0.5, "xtc_probability": 0.25, "min_keep": 2,
        "dry_multiplier": 0.5, "dry_sequence_breakers": ["\n", "ab"], "repeat_last_n": 64,
        "repeat_penalty": 1.5, "samplers": ["temperature", "dry", "typ_p"], "top_k": 7});
    let body = complete(&server, asked).json();
    let settings = &body["generation_settings"];
    assert_eq!(settings["samplers"], json!(["temperature", "dry", "typ_p"]));
    assert_eq!((&settings["typical_p"], &settings["top_k"]), (&json!(0.5), &json!(7)));
    assert_eq!(settings["dry_sequence_breakers"], json!(["\n", "ab"]));
    let sampling = double.asked.lock().unwrap()[0].sampling.clone();
    assert_eq!((sampling.typical_p, sampling.min_keep, sampling.dry_multiplier), (0.5, 2, 0.5));
    // What the list leaves out is off, and what is off is not sent.
    assert_eq!((sampling.xtc_probability, sampling.repetition_penalty), (0.0, 1.0));
    assert_eq!((sampling.repeat_last_n, sampling.top_k), (-1, 0));
    let tokenizer = text::Tokenizer::from_gguf(&double.header).unwrap();
    let breakers = sampling.dry_breakers;
    for token in 0..tokenizer.len() as u32 {
        let text = tokenizer.token_bytes(token);
        let has = |part: &[u8]| text.windows(part.len()).any(|own| own == part);
        assert_eq!(breakers.is_breaker(token), has(b"\n") || has(b"ab"), "{token}");
        let begins = text.ends_with(b"a") && !has(b"ab");
        let heads = breakers.tails.iter().map(|(_, heads)| heads);
        assert_eq!(heads.flatten().any(|head| *head == token), begins, "{token}");
    }
    assert_eq!(breakers.tails[0].0, tokenizer.encode("b", text::Special::Plain, false));

    complete(&server, json!({"prompt": "a", "mirostat": 2, "mirostat_tau": 3, "top_p": 0.5}));
    let sampling = double.asked.lock().unwrap()[1].sampling.clone();
    assert_eq!((sampling.mirostat, sampling.mirostat_tau, sampling.top_p), (2, 3.0, 1.0));
    let chat = json!({"model": "tiny/qwen3", "messages": [{"role": "user", "content": "a"}],
        "top_n_sigma": 1.5, "dynatemp_range": 0.5, "samplers": "skt"});
    assert_eq!(post(server.addr, "/v1/chat/completions", &[], &chat).status, 200);
    let sampling = double.asked.lock().unwrap()[2].sampling.clone();
    assert_eq!((sampling.top_n_sigma, sampling.dynatemp_range), (1.5, 0.5));
    assert_eq!((sampling.samplers, sampling.top_p), (None, 1.0));
}

#[test]
fn errors_have_the_format_of_the_dialect() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let cases = [
        (json!({"prompt": []}), 400, "invalid_request_error"),
        (json!({"prompt": "a", "mirostat": 1}), 400, "invalid_request_error"),
        (json!({"prompt": "a", "model": "nothing"}), 404, "not_found_error"),
        (json!({"prompt": "word ".repeat(2000)}), 400, "exceed_context_size_error"),
    ];
    for (body, code, kind) in cases {
        let reply = complete(&server, body);
        let error = reply.json()["error"].clone();
        assert_eq!(
            (reply.status, &error["code"], &error["type"]),
            (code, &json!(code), &json!(kind))
        );
        let has_size = error["n_prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 1024);
        assert_eq!(has_size && error["n_ctx"] == 1024, kind.starts_with("exceed"), "{error}");
    }
    let reply = post(server.addr, "/completion", &[("content-type", "text/plain")], &json!({}));
    assert_eq!(reply.json()["error"]["code"], reply.status);
    double.play(&[Act::Say("half"), Act::Failed("node b was lost")]);
    let reply = complete(&server, json!({"prompt": "a", "stream": true}));
    assert!(!reply.whole);
    let last = reply.events().last().unwrap().clone();
    assert!(last["error"]["message"].as_str().unwrap().contains("node b"), "{last}");
}

#[test]
fn a_request_without_a_name_needs_one_model() {
    let double = Double::new(&[Act::Say("a"), DONE]);
    let server = Server::start(&double);
    assert_eq!(complete(&server, json!({"prompt": "a"})).json()["model"], "tiny/qwen3");
    let mut second = double.status.lock().unwrap().instances[0].clone();
    (second.id, second.model) = ("other-1".to_owned(), "other".to_owned());
    double.status.lock().unwrap().instances.push(second);
    let reply = complete(&server, json!({"prompt": "a"}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("model")));
    double.status.lock().unwrap().instances.clear();
    assert_eq!(complete(&server, json!({"prompt": "a"})).status, 404);
}

#[test]
fn any_name_is_for_programs_of_this_machine_and_one_model() {
    let double = Double::new(&[Act::Say("a"), DONE]);
    let server = Server::with(&double, |config| config.any_name = true);
    let messages = json!([{"role": "user", "content": "x"}]);
    let ask = |path: &str, model: Value, headers: &[(&str, &str)]| {
        let body = json!({"model": model, "messages": messages, "max_tokens": 4, "prompt": "x"});
        post(server.addr, path, headers, &body).status
    };
    for path in
        ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/completion"]
    {
        assert_eq!(ask(path, json!("gpt-4o"), &[]), 200, "{path}");
    }
    assert_eq!(ask("/v1/chat/completions", Value::Null, &[]), 200);
    assert!(double.calls.lock().unwrap().is_empty(), "nothing is placed or downloaded");
    let mut second = double.status.lock().unwrap().instances[0].clone();
    (second.id, second.model) = ("other-1".to_owned(), "other".to_owned());
    double.status.lock().unwrap().instances.push(second);
    assert_ne!(ask("/v1/chat/completions", json!("gpt-4o"), &[]), 200, "which of two?");

    let double = Double::new(&[Act::Say("a"), DONE]);
    let server = Server::with(&double, |config| {
        config.any_name = true;
        config.api_keys = Some(serve::ApiKeys::fixed(&[support::server::KEY]));
    });
    let elsewhere = [("x-forwarded-for", "203.0.113.9"), ("x-api-key", support::server::KEY)];
    let body = json!({"model": "gpt-4o", "messages": messages});
    let reply = post(server.addr, "/v1/chat/completions", &elsewhere, &body);
    assert_eq!((reply.status, reply.code().as_str()), (404, "model_not_found"));
}

#[test]
fn what_an_editor_has_around_the_cursor_is_filled_in() {
    let double = code_model(&[Act::Say("add(1, 2);"), DONE]);
    let server = Server::start(&double);
    let body = recorded(include_str!("requests/llama_vim.json"));
    let reply = post(server.addr, "/infill", &[], &body);
    let answer = reply.json();
    assert_eq!((reply.status, &answer["content"]), (200, &json!("add(1, 2);")));
    assert!(answer["timings/prompt_ms"].is_number() && answer["tokens_cached"].is_number());
    assert_eq!(answer.as_object().unwrap().len(), 11);
    let want = [
        part("fim_rep", "project\n"),
        part("fim_sep", "src/add.rs\nfn add(a: u32, b: u32) -> u32 {"),
        part("fim_sep", "file\n"),
        part("fim_pre", "fn main() {\n"),
        part("fim_suf", "\n}\n"),
        part("fim_mid", "    let sum = "),
    ];
    assert_eq!(parts(&double), want);
    let asked = double.asked.lock().unwrap().last().unwrap().clone();
    assert_eq!((asked.sampling.top_k, asked.sampling.min_p), (40, 0.0));
    assert!([486, 489, 496].iter().all(|mark| asked.end_tokens.contains(mark)));

    let body = recorded(include_str!("requests/llama_vim_warm_up.json"));
    let reply = post(server.addr, "/infill", &[], &body);
    assert_eq!((reply.status, reply.json()), (200, json!({})));
    assert_eq!(double.asked.lock().unwrap().last().unwrap().max_tokens, 1);
}

#[test]
fn lines_end_an_infill_by_their_indentation() {
    let double = code_model(&[Act::Say("a\n    b\n}\nc"), DONE]);
    let server = Server::start(&double);
    let body = json!({"input_prefix": "", "input_suffix": "", "n_indent": 4});
    let answer = post(server.addr, "/infill", &[], &body).json();
    assert_eq!((&answer["content"], &answer["stop_type"]), (&json!("a\n    b"), &json!("limit")));
}

#[test]
fn suffixes_are_filled_in_before_in_every_dialect() {
    let double = code_model(&[Act::Say("1"), DONE]);
    let server = Server::start(&double);
    let want = [
        part("fim_pre", "fn main() {\n"),
        part("fim_suf", "\n}\n"),
        part("fim_mid", "    let sum = "),
    ];
    let body = recorded(include_str!("requests/continue_ollama.json"));
    let reply = post(server.addr, "/api/generate", &[], &body);
    assert!(reply.status == 200 && reply.body.contains("\"response\":\"1\""), "{reply:?}");
    assert_eq!(parts(&double), want);
    let body = json!({"model": "tiny/qwen3", "prompt": body["prompt"], "suffix": body["suffix"],
        "echo": true});
    let reply = post(server.addr, "/v1/completions", &[], &body);
    assert_eq!(reply.json()["choices"][0]["text"], "fn main() {\n    let sum = 1");
    assert_eq!(parts(&double), want);
    let reply = post(server.addr, "/api/show", &[], &json!({"model": "tiny/qwen3"}));
    assert!(reply.json()["capabilities"].as_array().unwrap().contains(&json!("insert")));
}

#[test]
fn a_prompt_in_the_models_own_form_stays_as_it_is() {
    let double = code_model(&[Act::Say("x"), DONE]);
    let server = Server::start(&double);
    let body = recorded(include_str!("requests/continue_llama_cpp.json"));
    let events = complete(&server, body.clone()).events();
    let text: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(text, "x");
    assert_eq!(double.last_prompt(), body["prompt"].as_str().unwrap());
}

#[test]
fn a_text_that_does_not_fit_is_cut_around_the_cursor() {
    let double = code_model(&[Act::Say("x"), DONE]);
    let server = Server::start(&double);
    let lines = |from: usize, to: usize| {
        (from..to).map(|line| format!("let v{line} = {line};\n")).collect::<String>()
    };
    let ask = |prefix: &str, suffix: &str| {
        let extra =
            json!([{"filename": "a.rs", "text": lines(0, 400)}, {"filename": "b.rs", "text": "b"}]);
        let body = json!({"input_prefix": prefix, "input_suffix": suffix,
            "input_extra": extra, "n_predict": 16});
        assert_eq!(post(server.addr, "/infill", &[], &body).status, 200);
        let tokens = double.asked.lock().unwrap().last().unwrap().prompt.clone();
        assert!(tokens.len() <= 1024 - 16, "{}", tokens.len());
        parts(&double)
    };
    let around = |parts: Vec<(&'static str, String)>| {
        assert!(!parts.iter().any(|(_, text)| text.starts_with("a.rs")), "it fits nowhere");
        parts[parts.len() - 3..].to_vec()
    };
    let long = around(ask(&lines(0, 900), &lines(900, 1000)));
    assert!(long[0].1.ends_with("let v899 = 899;\n") && long[1].1.starts_with("let v900 = 900;"));
    let next = around(ask(&(lines(0, 900) + "let"), &lines(900, 1000)));
    assert_eq!((&next[0], &next[1], next[2].1.as_str()), (&long[0], &long[1], "let"));
    let short = ask("fn", "\n");
    assert!(short.contains(&part("fim_sep", "b.rs\nb")), "{short:?}");
    around(short);
}

#[test]
fn a_model_that_cannot_fill_in_says_so() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let cases = [
        ("/infill", json!({"input_prefix": "a", "input_suffix": "b"}), "input_suffix"),
        ("/v1/completions", json!({"model": "tiny/qwen3", "prompt": "a", "suffix": "b"}), "suffix"),
        ("/api/generate", json!({"model": "tiny/qwen3", "prompt": "a", "suffix": "b"}), ""),
    ];
    for (path, body, param) in cases {
        let reply = post(server.addr, path, &[], &body);
        assert_eq!(reply.status, 400, "{path} {reply:?}");
        assert!(reply.body.contains("cannot fill in"), "{path} {reply:?}");
        if !param.is_empty() {
            assert_eq!(reply.json()["error"]["param"], param);
        }
    }
    let cases = [
        json!({"input_suffix": "b"}),
        json!({"input_prefix": "a"}),
        json!({"input_prefix": "a", "input_suffix": "b", "input_extra": {}}),
        json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "ok"}]}),
        json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": 1, "text": "b"}]}),
        json!({"input_prefix": "a", "input_suffix": "b", "prompt": 7}),
    ];
    for body in cases {
        assert_eq!(post(server.addr, "/infill", &[], &body).status, 400, "{body}");
    }
}

#[test]
fn paths_without_v1_are_openais_too() {
    let double = Double::new(&[Act::Say("a"), DONE]);
    let server = Server::start(&double);
    let body = json!({"model": "tiny/qwen3", "prompt": "x", "input": "x",
        "messages": [{"role": "user", "content": "x"}]});
    for path in ["/chat/completions", "/completions", "/embeddings"] {
        let reply = post(server.addr, path, &[], &body);
        let old = post(server.addr, &format!("/v1{path}"), &[], &body);
        assert_eq!((reply.status, old.status), (200, 200), "{path}");
        assert_eq!(reply.json()["object"], old.json()["object"]);
    }
    assert_eq!(get(server.addr, "/models", &[]).body, get(server.addr, "/v1/models", &[]).body);
    assert_eq!(get(server.addr, "/models/tiny/qwen3", &[]).json()["id"], "tiny/qwen3");
}
