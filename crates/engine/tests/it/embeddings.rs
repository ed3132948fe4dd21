//! Embeddings: the pooled hidden states, of length one, equal on every split and beside other
//! requests.

use std::sync::Arc;
use std::time::Duration;

use engine::{Local, LocalOptions};
use gguf::{File, Source};
use protocol::{GenerateRequest, Pooling, Split, SplitOptions, StageSize, Token, Transport};

/// Plain attention, windows, states, embeddings by layer.
const MODELS: [&str; 4] = ["llama3-tied", "gemma3", "qwen35", "gemma4-e"];

fn start(model: &str, shares: &[u32], stages: &[usize]) -> Local {
    let file = File::open(fixtures::path(&format!("models/{model}.gguf"))).unwrap();
    let borders = layout::Outline::read(file.directory()).unwrap().config.borders();
    let border = |stage: usize| borders[(borders.len() - 1) * stage / stages.len()];
    let size = |(stage, &ranks)| StageSize { ranks, layers: border(stage + 1) - border(stage) };
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions { transport: Transport::Tcp, ..SplitOptions::default() },
        split: Split {
            shares: shares.to_vec(),
            stages: stages.iter().enumerate().map(size).collect(),
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
    Local::start(Arc::new(file), &options).unwrap()
}

fn text(len: usize, seed: usize) -> Vec<Token> {
    (0..len).map(|at| ((at * 13 + seed * 7 + at * at) % 250) as Token).collect()
}

fn request(prompt: Vec<Token>, pooling: Pooling) -> GenerateRequest {
    let embedding = Some(pooling);
    GenerateRequest { prompt, max_tokens: 1, embedding, ..GenerateRequest::default() }
}

fn embed(local: &mut Local, requests: Vec<GenerateRequest>) -> Vec<Vec<f32>> {
    local.embed(requests).unwrap().into_iter().flatten().collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn embeddings_are_alike_on_every_split_and_beside_answers() {
    MODELS.into_iter().for_each(are_alike_on_every_split_and_beside_answers);
}

fn are_alike_on_every_split_and_beside_answers(model: &str) {
    let requests: Vec<_> = [(70, Pooling::Last), (70, Pooling::Mean), (3, Pooling::Mean)]
        .into_iter()
        .map(|(len, pooling)| request(text(len, 1), pooling))
        .collect();
    let mut whole = start(model, &[1], &[]);
    let alone: Vec<Vec<f32>> =
        requests.iter().map(|request| embed(&mut whole, vec![request.clone()]).remove(0)).collect();
    for embedding in &alone {
        assert_eq!(embedding.len(), whole.rank().config().width);
        assert!((cosine(embedding, embedding) - 1.0).abs() < 1e-5);
    }
    assert!(cosine(&alone[0], &alone[1]) < 0.999, "poolings differ");
    let answers = (2..6).map(|seed| GenerateRequest {
        prompt: text(20 * seed, seed),
        max_tokens: 30,
        ..GenerateRequest::default()
    });
    let mut all = requests.clone();
    all.extend(answers);
    for (shares, stages) in [(&[1][..], &[][..]), (&[2, 1], &[]), (&[1, 1], &[1, 1])] {
        let mut split = start(model, shares, stages);
        assert_eq!(embed(&mut split, all.clone()), alone, "{model}, {shares:?} in {stages:?}");
    }
}

#[test]
fn the_mean_is_the_mean_of_what_the_last_of_every_beginning_gives() {
    MODELS.into_iter().for_each(has_the_mean_of_what_the_last_of_every_beginning_gives);
}

fn has_the_mean_of_what_the_last_of_every_beginning_gives(model: &str) {
    let mut local = start(model, &[1], &[]);
    let whole = text(9, 3);
    let mean = embed(&mut local, vec![request(whole.clone(), Pooling::Mean)]).remove(0);
    // Hidden states have nearly the same length after the norm, so the comparison is approximate.
    let beginnings = (1..=whole.len()).map(|end| request(whole[..end].to_vec(), Pooling::Last));
    let lasts = embed(&mut local, beginnings.collect());
    let sum: Vec<f32> = (0..mean.len()).map(|at| lasts.iter().map(|last| last[at]).sum()).collect();
    let length = cosine(&sum, &sum).sqrt();
    assert!(cosine(&mean, &sum) / length > 0.998, "{}", cosine(&mean, &sum) / length);
}
