//! Towers compared with transformers, on tiny models with random weights.

use std::path::{Path, PathBuf};

use gguf::{File, Source};
use serde::Deserialize;
use vision::{Config, Detail, Picture, Pool, Projector, Seen, TOKENS_MAX, Tower};

/// Each fixture, and the largest difference to transformers that is accepted.
const MODELS: &[(&str, f32)] = &[
    ("qwen3vl-sees", 1e-5),
    ("qwen35-sees", 1e-5),
    ("gemma4-sees", 1e-5),
    ("kimi-k25-sees", 1e-5),
    ("gemma3-sees", 1e-5),
    ("pixtral-sees", 1e-5),
    ("pixtral-single-sees", 1e-5),
    ("llama4-sees", 1e-5),
    ("glm4v-sees", 1e-5),
];

#[derive(Deserialize)]
struct Fixture {
    image: String,
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    image_tokens: usize,
    hf: Reference,
}

#[derive(Deserialize)]
struct Reference {
    image_embeddings: Vec<Vec<f32>>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/vision")
}

fn fixture(name: &str) -> Fixture {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn file(name: &str) -> File {
    File::open(folder().join(format!("{name}.mmproj.gguf"))).unwrap()
}

/// A tower that looks at pictures of `tokens` tokens as they are: Gemma 4 enlarges them to its
/// budget, and Qwen to at least 64 tokens.
fn tower(pool: &Pool, name: &str, tokens: usize) -> Tower {
    let file = file(name);
    let config = Config::read(file.directory()).unwrap();
    let most = if config.projector == Projector::Gemma4 { tokens } else { TOKENS_MAX };
    let config = config.with_tokens(1, most);
    Tower::load(pool, &file, config).unwrap()
}

fn see(pool: &Pool, name: &str) -> (Seen, Fixture) {
    let fixture = fixture(name);
    let tower = tower(pool, name, fixture.prompts[0].image_tokens);
    let picture = Picture::decode(&std::fs::read(folder().join(&fixture.image)).unwrap()).unwrap();
    (tower.see(pool, &picture, Detail::Auto).unwrap(), fixture)
}

#[test]
fn rows_are_those_of_transformers() {
    let pool = Pool::new(2).unwrap();
    for (name, limit) in MODELS {
        let (seen, fixture) = see(&pool, name);
        let prompt = &fixture.prompts[0];
        assert_eq!(seen.plan.rows(), prompt.image_tokens, "{name}");
        let expected = prompt.hf.image_embeddings.concat();
        assert_eq!(seen.rows.len(), expected.len(), "{name}");
        let errors = seen.rows.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let error = errors.fold(0.0, f32::max);
        let largest = expected.iter().fold(0.0, |top: f32, x| top.max(x.abs()));
        println!("{name}: {error:.1e} of {largest:.2}, on {}", kernels::isa());
        assert!(error <= *limit, "{name}: {error} of {largest}");
    }
}
