//! Encoders and rerankers: texts in the order in which they answer a query, and what such models do
//! not do.

use std::sync::Arc;

use crate::support::client::{Reply, chat_body, get, post};
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use gguf::{Directory, Value as Metadata, Writer};
use protocol::{FinishReason, Pooling};
use serde_json::{Value, json};

const MODEL: &str = "tiny/qwen3";
const DONE: &[Act] = &[Act::Done(FinishReason::Stop)];
/// The double scores the longest pair best.
const DOCUMENTS: [&str; 3] = ["hello", "hello world, the quick brown fox", "hello fox"];

fn header(fixture: &str) -> Directory {
    let bytes = std::fs::read(fixtures::path(fixture)).unwrap();
    Directory::parse(&bytes, bytes.len() as u64).unwrap()
}

fn double(fixture: &str) -> Arc<Double> {
    Arc::new(Double::with_header(header(fixture), DONE))
}

/// A causal model whose name is that of a reranker, with the words of its answers.
fn causal_reranker() -> Arc<Double> {
    const NAME: &str = "general.name";
    const TOKENS: &str = "tokenizer.ggml.tokens";
    const KINDS: &str = "tokenizer.ggml.token_type";
    let mut writer = Writer::new();
    let fixture = header("models/qwen3.gguf");
    for (key, value) in fixture.metadata().filter(|(key, _)| ![NAME, TOKENS, KINDS].contains(key)) {
        writer.set(key, value.clone());
    }
    writer.set(NAME, Metadata::String("Qwen3 Reranker 0.6B".into()));
    let array = |key| fixture.find_array(key).unwrap().unwrap();
    let tokens = array(TOKENS).strings().unwrap().map(|text| String::from_utf8_lossy(text).into());
    let tokens: Vec<String> = tokens.chain(["yes", "no"].map(str::to_owned)).collect();
    let kinds = array(KINDS).integers().unwrap().map(|kind| kind as i32);
    writer.set_strings(TOKENS, &tokens).set_i32s(KINDS, &kinds.chain([1, 1]).collect::<Vec<_>>());
    Arc::new(Double::with_header(writer.directory().unwrap(), DONE))
}

fn ask(server: &Server, path: &str, extra: Value) -> Reply {
    let mut body = json!({ "model": MODEL });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    post(server.addr, path, &[], &body)
}

fn order(reply: &Value, list: &str) -> Vec<u64> {
    let entries = if list.is_empty() { reply } else { &reply[list] };
    entries.as_array().unwrap().iter().map(|one| one["index"].as_u64().unwrap()).collect()
}

#[test]
fn documents_come_in_the_order_of_their_scores() {
    let double = double("encoders/bert-rank.gguf");
    let server = Server::start(&double);
    for path in ["/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking"] {
        let reply = ask(&server, path, json!({"query": "fox", "documents": DOCUMENTS})).json();
        assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!(MODEL)), "{reply}");
        assert_eq!(order(&reply, "results"), [1, 2, 0], "{reply}");
        assert_eq!(reply["usage"]["prompt_tokens"], reply["usage"]["total_tokens"]);
        let first = &reply["results"][0];
        let score = first["relevance_score"].as_f64().unwrap();
        assert!(first["document"].is_null() && score > 0.5 && score < 0.51, "{first}");
    }
    let asked = double.asked.lock().unwrap().clone();
    for request in &asked {
        let options = &request.embedding_options;
        assert_eq!(request.embedding, Some(Pooling::First));
        assert!(options.scores && options.labels.is_empty(), "{options:?}");
        // `[CLS]` query `[SEP]` document `[SEP]`
        let (prompt, first) = (&request.prompt, options.first_tokens.unwrap());
        assert_eq!([prompt[0], prompt[first - 1], prompt[prompt.len() - 1]], [2, 3, 3]);
    }
}

#[test]
fn the_forms_of_other_servers_are_read() {
    let server = Server::start(&double("encoders/xlmr-rank.gguf"));
    let objects: Vec<Value> = DOCUMENTS.iter().map(|text| json!({"text": text})).collect();
    let body = json!({"query": "fox", "documents": objects, "top_n": 2, "return_documents": true});
    let reply = ask(&server, "/v1/rerank", body).json();
    assert_eq!(order(&reply, "results"), [1, 2]);
    assert_eq!(reply["results"][1]["document"]["text"], DOCUMENTS[2]);
    // Of text-embeddings-inference.
    let body = json!({"query": "fox", "texts": DOCUMENTS, "return_text": true, "raw_scores": true});
    let reply = ask(&server, "/rerank", body).json();
    assert_eq!(order(&reply, ""), [1, 2, 0]);
    assert_eq!(reply[0]["text"], DOCUMENTS[1]);
    assert!(reply[0]["score"].as_f64().unwrap() < 0.1, "a logit of the double: {reply}");
    // The only model that is served.
    let body = json!({"query": "fox", "documents": DOCUMENTS});
    assert_eq!(post(server.addr, "/rerank", &[], &body).status, 200);
}

#[test]
fn a_causal_reranker_is_asked_by_its_prompt() {
    let double = causal_reranker();
    let server = Server::start(&double);
    let body =
        json!({"query": "what <|im_end|> is", "documents": DOCUMENTS, "instruction": "Find"});
    let reply = ask(&server, "/v1/rerank", body).json();
    assert_eq!(order(&reply, "results"), [1, 2, 0], "{reply}");
    let asked = double.asked.lock().unwrap().pop().unwrap();
    assert_eq!(asked.embedding, Some(Pooling::Last));
    let options = &asked.embedding_options;
    assert_eq!((options.scores, options.labels.len(), options.first_tokens), (true, 2, None));
    let prompt = double.last_prompt();
    assert!(prompt.contains("<Instruct>: Find\n<Query>: what <|im_end|> is\n"), "{prompt}");
    assert!(prompt.ends_with("<think>\n\n</think>\n\n"), "{prompt}");
    assert_eq!(ask(&server, "/v1/chat/completions", chat_body(json!({}))).status, 200);
}

#[test]
fn long_documents_are_cut_unless_they_shall_not_be() {
    let double = double("encoders/bert-rank.gguf");
    let server = Server::start(&double);
    let long = "hello world ".repeat(3000);
    let body = |extra: Value| {
        let mut body = json!({"query": "fox", "documents": ["hello", long]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let reply = ask(&server, "/v1/rerank", body(json!({}))).json();
    assert_eq!(order(&reply, "results"), [1, 0], "{reply}");
    let context = double.asked.lock().unwrap().iter().map(|one| one.prompt.len()).max().unwrap();
    let reply = ask(&server, "/v1/rerank", body(json!({"max_tokens_per_doc": 20})));
    assert_eq!(reply.status, 200);
    assert_eq!(double.asked.lock().unwrap().last().unwrap().prompt.len(), 20);
    let reply = ask(&server, "/v1/rerank", body(json!({"truncate": false})));
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, reply.code().as_str()), (400, "context_length_exceeded"));
    let tokens = error["n_prompt_tokens"].as_u64().unwrap() as usize;
    assert!(tokens > context && error["n_ctx"].as_u64().unwrap() as usize >= context, "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("document 2") && message.contains(&tokens.to_string()), "{error}");
}

#[test]
fn what_cannot_be_ordered_is_refused_by_name() {
    let server = Server::start(&double("encoders/bert-rank.gguf"));
    for (extra, param) in [
        (json!({"documents": DOCUMENTS}), "query"),
        (json!({"query": "x"}), "documents"),
        (json!({"query": "x", "documents": []}), "documents"),
        (json!({"query": "x", "documents": "x"}), "documents"),
        (json!({"query": "x", "documents": ["a", 7]}), "documents"),
        (json!({"query": "x", "documents": [{"title": "a"}]}), "documents"),
        (json!({"query": "x", "texts": [[]]}), "texts"),
        (json!({"query": "x", "documents": vec!["x"; 2049]}), "documents"),
        (json!({"query": "x", "documents": DOCUMENTS, "top_n": 0}), "top_n"),
        (json!({"query": "x", "documents": DOCUMENTS, "rank_fields": ["a"]}), "rank_fields"),
    ] {
        let reply = ask(&server, "/v1/rerank", extra.clone());
        let found = (reply.status, reply.json()["error"]["param"].clone());
        assert_eq!(found, (400, json!(param)), "{extra}: {reply:?}");
    }
}

/// The error's message of a request for what the model is not made for.
fn refusal(server: &Server, path: &str, body: Value) -> String {
    let reply = ask(server, path, body);
    assert_eq!(reply.status, 400, "{path}: {reply:?}");
    let error = reply.json()["error"].clone();
    error["message"].as_str().unwrap_or_else(|| error.as_str().unwrap()).to_owned()
}

#[test]
fn a_model_does_what_it_is_made_for() {
    let pair = json!({"query": "x", "documents": DOCUMENTS});
    let text = json!({"input": "x"});
    let server = Server::start(&double("encoders/bert-rank.gguf"));
    assert!(refusal(&server, "/v1/embeddings", text.clone()).contains("/v1/rerank"));
    assert!(refusal(&server, "/v1/chat/completions", chat_body(json!({}))).contains("encoder"));
    assert!(refusal(&server, "/api/embed", text.clone()).contains("orders texts"));
    for (fixture, pooling) in
        [("encoders/bert.gguf", Pooling::First), ("encoders/nomic-bert.gguf", Pooling::Mean)]
    {
        let double = double(fixture);
        let server = Server::start(&double);
        assert!(refusal(&server, "/v1/rerank", pair.clone()).contains("orders no texts"));
        assert!(refusal(&server, "/v1/completions", json!({"prompt": "x"})).contains("encoder"));
        assert!(refusal(&server, "/completion", json!({"prompt": "x"})).contains("embeddings"));
        assert_eq!(ask(&server, "/v1/embeddings", text.clone()).status, 200);
        let asked = double.asked.lock().unwrap().pop().unwrap();
        assert_eq!((asked.embedding, asked.embedding_options.raw), (Some(pooling), false));
    }
}

#[test]
fn menus_tell_what_a_model_is_for() {
    for (fixture, wanted, capability) in [
        ("encoders/bert-rank.gguf", "rerank", "rerank"),
        ("encoders/modern-bert.gguf", "embeddings", "embedding"),
        ("models/qwen3.gguf", "text", "completion"),
    ] {
        let server = Server::start(&double(fixture));
        let listed = get(server.addr, "/v1/models", &[]).json();
        let modalities = &listed["data"][0]["architecture"]["output_modalities"];
        assert_eq!(*modalities, json!([wanted]), "{fixture}");
        let shown = ask(&server, "/api/show", json!({})).json();
        assert_eq!(shown["capabilities"][0], capability, "{fixture}");
    }
}

#[test]
fn vectors_get_the_form_that_is_asked_for() {
    let server = Server::start(&double("encoders/bert.gguf"));
    let of = |path: &str, extra: Value| {
        let mut body = json!({"input": "x"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ask(&server, path, body).json()
    };
    let vector = |reply: &Value| -> Vec<f32> {
        serde_json::from_value(reply["data"][0]["embedding"].clone()).unwrap()
    };
    for (extra, wanted) in [
        (json!({}), vec![0.6, -0.8]),
        (json!({"embd_normalize": -1}), vec![3.0, -4.0]),
        (json!({"embd_normalize": 0}), vec![24570.0, -32760.0]),
        (json!({"embd_normalize": 1}), vec![3.0 / 7.0, -4.0 / 7.0]),
        (json!({"dimensions": 1}), vec![1.0]),
        (json!({"dimensions": 1, "embd_normalize": -1}), vec![3.0]),
    ] {
        assert_eq!(vector(&of("/v1/embeddings", extra.clone())), wanted, "{extra}");
    }
    let reply = of("/api/embed", json!({"dimensions": 1}));
    assert_eq!(reply["embeddings"], json!([[1.0]]));
    // llama-server's own path has a list of vectors for each text.
    let body = json!({"content": ["a", "b"], "embd_normalize": -1});
    let reply = post(server.addr, "/embedding", &[], &body).json();
    let entry = |index: usize| json!({"index": index, "embedding": [[3.0, -4.0]]});
    assert_eq!(reply, json!([entry(0), entry(1)]));
    assert_eq!(post(server.addr, "/embedding", &[], &json!({"input": "a"})).status, 200);
    assert_eq!(post(server.addr, "/embedding", &[], &json!({})).status, 400);
}
