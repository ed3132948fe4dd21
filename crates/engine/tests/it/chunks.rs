//! Llama 4 over more positions than a chunk, compared with an independent computation
//! (`fixtures/generate/llama4_long.py`).

use std::sync::Arc;
use std::time::Duration;

use crate::references::path;
use engine::{Local, LocalOptions};
use gguf::File;
use protocol::{Split, SplitOptions, StageSize};
use serde::Deserialize;

/// As in `parity.rs`.
const ERROR_MAX: f32 = 2e-5;
/// Enough that layers with chunks keep fewer pages than the others.
const CONTEXT_TOKENS: usize = 40_000;
const PIECE: usize = 1000;

#[derive(Deserialize)]
struct Long {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

fn start(shares: &[u32], stages: &[(usize, usize)], threads: usize) -> Local {
    let stage = |&(ranks, layers): &(usize, usize)| StageSize { ranks, layers };
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions { checkpoints: Some(1), ..SplitOptions::default() },
        split: Split {
            shares: shares.to_vec(),
            stages: stages.iter().map(stage).collect(),
            whole_experts: false,
            context_tokens: CONTEXT_TOKENS,
            sequences_max: 1,
            cache_tokens: CONTEXT_TOKENS,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads,
    };
    let file = File::open(path("models/llama4", "gguf")).expect("the fixture is in the repository");
    Local::start(Arc::new(file), &options).expect("the model is supported")
}

#[test]
fn chunks_and_temperatures_agree_with_the_reference_in_pieces_and_on_every_split() {
    let about = fixtures::about("long/llama4");
    let Long { ids, logits } = serde_json::from_value(about).unwrap();
    let mut whole = start(&[1], &[], 2);
    let found = whole.feed(&ids).unwrap().to_vec();
    let spread = logits.iter().fold(f32::MIN, |top, x| top.max(*x))
        - logits.iter().fold(f32::MAX, |least, x| least.min(*x));
    let error = found.iter().zip(&logits).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
    println!("{error:e} of {:e}", ERROR_MAX * spread);
    assert!(error <= ERROR_MAX * spread, "{error}");
    for (shares, stages) in [(&[2, 1][..], &[][..]), (&[1, 1, 1], &[(2, 3), (1, 2)])] {
        let mut split = start(shares, stages, 1);
        let (last, before) = ids.split_last().unwrap();
        for piece in before.chunks(PIECE) {
            split.feed(piece).unwrap();
        }
        let pieces = split.feed(&[*last]).unwrap();
        let same = pieces.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{shares:?} in {stages:?}");
    }
}
