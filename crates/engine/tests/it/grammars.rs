//! A running model under constraint: whatever it prefers, its answer fits the grammar, as the only
//! request and among others, on one rank and on several.

use std::sync::Arc;
use std::time::Duration;

use engine::{EngineError, Local, LocalOptions};
use gguf::{File, Source};
use protocol::{
    GenerateRequest, Grammar, Sampling, Split, SplitOptions, StageSize, Token, Transport,
    WorkerEvent,
};
use text::{Special, Tokenizer, json_text, tight_schema};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model/sinew-demo.gguf");

fn start(shares: &[u32], stages: &[StageSize]) -> Local {
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions { transport: Transport::Tcp, ..SplitOptions::default() },
        split: Split {
            shares: shares.to_vec(),
            stages: stages.to_vec(),
            whole_experts: false,
            context_tokens: 256,
            sequences_max: 4,
            cache_tokens: 4096,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 1,
    };
    Local::start(Arc::new(File::open(MODEL).unwrap()), &options).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_gguf(File::open(MODEL).unwrap().directory()).unwrap()
}

fn request(tokenizer: &Tokenizer, prompt: &str, grammar: Option<Grammar>) -> GenerateRequest {
    GenerateRequest {
        prompt: tokenizer.encode(prompt, Special::Plain, true),
        sampling: Sampling { temperature: 0.9, seed: 5, ..Sampling::default() },
        max_tokens: 60,
        end_tokens: tokenizer.end_ids().to_vec(),
        grammar,
        ..GenerateRequest::default()
    }
}

fn text(tokenizer: &Tokenizer, answer: &[Token]) -> String {
    tokenizer.decode(answer)
}

#[test]
fn answers_are_held_to_their_grammars_beside_one_that_is_free() {
    let tokenizer = tokenizer();
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "n": { "type": "integer", "minimum": 3, "maximum": 7 } },
        "required": ["n"],
        "additionalProperties": false,
    });
    let requests = [
        Some(Grammar::Regex("(cat|dog), [0-9]{2}".into())),
        None,
        // As requests have it: white space ends as well.
        Some(Grammar::JsonSchema(json_text(&tight_schema(&schema)))),
    ];
    let requests: Vec<_> =
        requests.into_iter().map(|grammar| request(&tokenizer, "Once", grammar)).collect();
    let mut whole = start(&[1], &[]);
    let layers = whole.rank().config().layers;
    let stage = |layers| StageSize { ranks: 1, layers };
    let stages = [stage(layers / 2), stage(layers - layers / 2)];
    let expected = whole.serve(requests.clone()).unwrap();
    let words = text(&tokenizer, &expected[0]);
    let (animal, number) = words.split_once(", ").unwrap();
    assert!(["cat", "dog"].contains(&animal) && number.len() == 2, "{words}");
    assert!(number.parse::<u32>().is_ok(), "{words}");
    let object: serde_json::Value = serde_json::from_str(&text(&tokenizer, &expected[2])).unwrap();
    assert!((3.0..=7.0).contains(&object["n"].as_f64().unwrap()), "{object}");
    assert!(expected[2].len() < 60, "it ends once it is whole");

    let alone = whole.serve(vec![requests[1].clone()]).unwrap();
    assert_eq!(alone[0], expected[1], "a free answer is as it would be alone");
    for mut split in [start(&[2, 1], &[]), start(&[1, 1], &stages)] {
        assert_eq!(split.serve(requests.clone()).unwrap(), expected);
    }
}

#[test]
fn a_grammar_that_cannot_be_used_fails_its_request_alone() {
    let tokenizer = tokenizer();
    let mut local = start(&[1], &[]);
    let broken = request(&tokenizer, "Once", Some(Grammar::Regex("(".into())));
    let good = request(&tokenizer, "Once", Some(Grammar::Regex("a+b".into())));
    let error = local.serve(vec![broken, good.clone()]).unwrap_err();
    let EngineError::Protocol(reason) = error else { panic!("{error}") };
    assert!(reason.contains("grammar"), "{reason}");
    let answer = local.serve(vec![good]).unwrap();
    assert!(text(&tokenizer, &answer[0]).ends_with('b') || answer[0].len() == 60);
}

#[test]
fn an_answer_that_goes_on_is_where_its_grammar_was() {
    let tokenizer = tokenizer();
    let request = request(&tokenizer, "Once", Some(Grammar::Regex("(cat|dog), [0-9]{9}".into())));
    let mut local = start(&[1], &[]);
    let whole = local.serve(vec![request.clone()]).unwrap().remove(0);
    for cut in 1..=whole.len() {
        let answered = whole[..cut].to_vec();
        let rest = local.serve(vec![GenerateRequest { answered, ..request.clone() }]).unwrap();
        assert_eq!(rest[0], whole[cut..], "after {cut} tokens");
    }
}

/// Grammars that take seconds: where they begin, and after their first token.
fn slow_grammars() -> Vec<Grammar> {
    let chain: String = (0..12_000).map(|at| format!("r{at}: r{} | \"a\"\n", at + 1)).collect();
    let rules = |start: &str| format!("start: {start}\n{chain}r12000: \"b\"\n");
    let property = |at| (format!("p{at}"), serde_json::json!({"type": "integer"}));
    let properties: serde_json::Map<_, _> = (0..4000).map(property).collect();
    let schema = serde_json::json!({"type": "object", "properties": properties});
    vec![
        Grammar::Lark(rules("r0")),
        Grammar::Lark(rules("\"c\" r0")),
        Grammar::Regex(".?".repeat(5000)),
        Grammar::JsonSchema(schema.to_string()),
    ]
}

/// A plain answer ends, and so does one with a simple grammar, long before a hostile grammar does:
/// no step of the model waits for it.
#[test]
fn a_slow_grammar_holds_no_other_answer_up() {
    let tokenizer = tokenizer();
    for slow in slow_grammars() {
        let mut local = start(&[1], &[]);
        let simple = Grammar::Regex("(cat|dog), [0-9]{9}".into());
        let others = [None, Some(simple)].map(|grammar| request(&tokenizer, "Once", grammar));
        let alone = local.serve(others.to_vec()).unwrap();
        let hostile = GenerateRequest { client: 7, ..request(&tokenizer, "Once", Some(slow)) };
        let mut answers = vec![Vec::new(); 3];
        let mut ended = Vec::new();
        let requests = [&[hostile][..], &others].concat();
        // It may be refused in the end.
        let _ = local.run(requests, |event| match event {
            WorkerEvent::Token { request, answer } => answers[request as usize].push(answer.token),
            WorkerEvent::Done(done) => ended.push(done.request),
            _ => {}
        });
        assert_eq!(answers[1..], alone, "the others answer as ever");
        ended.truncate(2);
        ended.sort_unstable();
        assert_eq!(ended, [1, 2], "the others do not wait");
    }
}
