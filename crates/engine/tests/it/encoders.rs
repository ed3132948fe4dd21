//! Encoders: the pooled hidden states are those of transformers, with the same bits on every split
//! and beside any other text.

use std::sync::Arc;
use std::time::Duration;

use engine::{Local, LocalOptions};
use gguf::File;
use protocol::{
    EmbeddingOptions, GenerateRequest, Pooling, Split, SplitOptions, StageSize, Token, Transport,
    WorkerEvent,
};
use serde::Deserialize;

/// How far a number may be from that of transformers, which adds in another order.
const TOLERANCE: f32 = 1e-4;
/// The longest text of the fixtures, to which the context is cut.
const CONTEXT: usize = 160;

#[derive(Deserialize)]
struct Fixture {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    ids: Vec<Token>,
    /// Those of a pair's first text.
    first_tokens: Option<usize>,
    hf: Reference,
}

#[derive(Deserialize)]
struct Reference {
    hidden: Vec<Vec<f32>>,
    /// Of a classifier.
    scores: Option<Vec<f32>>,
    /// Behind dense layers, of the mean.
    embedding: Option<Vec<f32>>,
}

fn prompts(name: &str) -> Vec<Prompt> {
    let about: Fixture = serde_json::from_value(fixtures::about(name)).unwrap();
    about.prompts
}

fn start(name: &str, shares: &[u32], stages: &[usize]) -> Local {
    let file = File::open(fixtures::path(&format!("{name}.gguf"))).unwrap();
    let layers = layout::Outline::read(gguf::Source::directory(&file)).unwrap().config.layers;
    let border = |stage: usize| layers * stage / stages.len();
    let size = |(stage, &ranks)| StageSize { ranks, layers: border(stage + 1) - border(stage) };
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions { transport: Transport::Tcp, ..SplitOptions::default() },
        split: Split {
            shares: shares.to_vec(),
            stages: stages.iter().enumerate().map(size).collect(),
            whole_experts: false,
            context_tokens: CONTEXT,
            sequences_max: 4,
            cache_tokens: 640,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 2,
    };
    Local::start(Arc::new(file), &options).unwrap()
}

fn request(prompt: &Prompt, pooling: Pooling, options: EmbeddingOptions) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.ids.clone(),
        max_tokens: 1,
        embedding: Some(pooling),
        embedding_options: EmbeddingOptions { first_tokens: prompt.first_tokens, ..options },
        ..GenerateRequest::default()
    }
}

fn raw() -> EmbeddingOptions {
    EmbeddingOptions { raw: true, ..EmbeddingOptions::default() }
}

fn embed(local: &mut Local, requests: Vec<GenerateRequest>) -> Vec<Vec<f32>> {
    local.embed(requests).unwrap().into_iter().map(|found| found.expect("an embedding")).collect()
}

fn check(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let far = (found - expected).abs();
        assert!(far < TOLERANCE, "{what}, number {at}: {found}, and {expected} is right");
    }
}

fn mean(rows: &[Vec<f32>]) -> Vec<f32> {
    let sum = |at: usize| rows.iter().map(|row| f64::from(row[at])).sum::<f64>();
    (0..rows[0].len()).map(|at| (sum(at) / rows.len() as f64) as f32).collect()
}

#[test]
fn hidden_states_are_those_of_transformers() {
    for name in fixtures::names("encoders") {
        let mut local = start(&name, &[1], &[]);
        for prompt in prompts(&name) {
            let what = |pooling| format!("{name}, {pooling} of {} tokens", prompt.ids.len());
            let hidden = &prompt.hf.hidden;
            let of = |pooling| request(&prompt, pooling, raw());
            let all = vec![of(Pooling::First), of(Pooling::Last), of(Pooling::Mean)];
            let found = embed(&mut local, all);
            if let Some(embedding) = &prompt.hf.embedding {
                check(&found[2], embedding, &what("dense layers of the mean"));
                continue;
            }
            check(&found[0], &hidden[0], &what("the first row"));
            check(&found[1], &hidden[hidden.len() - 1], &what("the last row"));
            check(&found[2], &mean(hidden), &what("the mean"));
        }
    }
}

#[test]
fn scores_are_those_of_transformers() {
    let mut with_scores = 0;
    for name in fixtures::names("encoders") {
        let options = EmbeddingOptions { scores: true, ..raw() };
        let mut local = start(&name, &[1], &[]);
        for prompt in prompts(&name) {
            let Some(scores) = &prompt.hf.scores else { continue };
            let found = embed(&mut local, vec![request(&prompt, Pooling::First, options.clone())]);
            check(&found[0], scores, &format!("{name}, {} tokens", prompt.ids.len()));
            with_scores += 1;
        }
    }
    assert!(with_scores > 4, "{with_scores}");
}

/// Alone, together in one step and on any split.
#[test]
fn a_text_has_the_same_bits_on_every_split_and_beside_any_other() {
    for name in fixtures::names("encoders") {
        let all: Vec<GenerateRequest> = prompts(&name)
            .iter()
            .flat_map(|prompt| {
                [Pooling::Mean, Pooling::First, Pooling::Last]
                    .map(|pooling| request(prompt, pooling, EmbeddingOptions::default()))
            })
            .collect();
        let mut whole = start(&name, &[1], &[]);
        let alone: Vec<Vec<f32>> =
            all.iter().map(|one| embed(&mut whole, vec![one.clone()]).remove(0)).collect();
        for (shares, stages) in [(&[1][..], &[][..]), (&[2, 1], &[]), (&[1, 1, 1], &[1, 2])] {
            let mut split = start(&name, shares, stages);
            assert_eq!(embed(&mut split, all.clone()), alone, "{name}, {shares:?} in {stages:?}");
        }
    }
}

/// Of two texts that begin alike, each is computed whole: what follows changes every row.
#[test]
fn no_text_reads_rows_of_another_that_begins_alike() {
    let long = prompts("encoders/bert").pop().unwrap();
    let short = Prompt { ids: long.ids[..130].to_vec(), ..prompts("encoders/bert").pop().unwrap() };
    let of = |prompt: &Prompt| request(prompt, Pooling::Last, raw());
    let mut local = start("encoders/bert", &[1], &[]);
    let alone = embed(&mut local, vec![of(&short)]);
    let mut again = start("encoders/bert", &[1], &[]);
    embed(&mut again, vec![of(&long)]);
    assert_eq!(embed(&mut again, vec![of(&short)]), alone);
}

#[test]
fn a_text_may_fill_the_context_and_not_exceed_it() {
    let mut local = start("encoders/bert", &[1], &[]);
    let of = |tokens: usize| {
        let prompt = (0..tokens).map(|at| 5 + (at % 400) as Token).collect();
        let embedding = Some(Pooling::Mean);
        GenerateRequest { prompt, max_tokens: 1, embedding, ..GenerateRequest::default() }
    };
    assert_eq!(embed(&mut local, vec![of(CONTEXT); 3]).len(), 3);
    let mut reasons = Vec::new();
    let answer = GenerateRequest { embedding: None, ..of(3) };
    for refused in [of(CONTEXT + 1), answer] {
        let error = local.run(vec![refused], |event| {
            if let WorkerEvent::Rejected { reason, .. } = event {
                reasons.push(reason);
            }
        });
        reasons.extend(error.err().map(|error| error.to_string()));
    }
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons[0].contains("161 tokens") && reasons[0].contains("160"), "{reasons:?}");
    assert!(reasons[1].contains("encoder"), "{reasons:?}");
}
