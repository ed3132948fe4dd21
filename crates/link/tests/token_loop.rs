//! Once its buffers have grown, no thread of any rank allocates for a token. The count covers the
//! whole process, so this binary has one test.
//!
//! Messages of another stage that arrive before their receive need a buffer, which grows once;
//! their number depends on the system's scheduler. So a count may be repeated until no buffer is
//! new; an allocation for each token would appear in all of them.

mod counting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Local, LocalOptions};
use gguf::File;
use protocol::{
    GenerateRequest, Sampling, Speculation, Split, SplitOptions, StageSize, Transport, WireType,
};

use counting::of_all_threads;

/// Tokens in one count.
const TOKENS: usize = 8;

const COUNTS_MAX: usize = 20;

/// A split of a model.
struct Case {
    shares: &'static [u32],
    /// Ranks of each stage; empty for one stage.
    stages: &'static [usize],
    transport: Transport,
    ring: bool,
    wire_type: WireType,
    threads: usize,
}

const ONE: Case = Case {
    shares: &[1],
    stages: &[],
    transport: Transport::Shm,
    ring: false,
    wire_type: WireType::F32,
    threads: 1,
};
const TCP: Transport = Transport::Tcp;

const SPLITS: [Case; 10] = [
    ONE,
    Case { threads: 2, ..ONE },
    Case { shares: &[2, 1], ..ONE },
    Case { shares: &[2, 1], transport: TCP, ..ONE },
    Case { shares: &[1, 1], transport: TCP, wire_type: WireType::Q8, ..ONE },
    Case { shares: &[1, 1, 1], transport: TCP, ..ONE },
    Case { shares: &[1, 1], stages: &[1, 1], ..ONE },
    Case { shares: &[1, 1], stages: &[1, 1], transport: TCP, ..ONE },
    Case { shares: &[1, 1, 1], stages: &[2, 1], transport: TCP, ..ONE },
    Case { shares: &[1; 4], transport: TCP, ring: true, ..ONE },
];

#[test]
fn a_token_costs_no_allocation_on_any_rank() {
    assert!(of_all_threads() > 0, "the allocator counts");
    for name in ["llama3-tied", "gemma3", "qwen3moe", "gpt-oss", "deepseek-v3"] {
        let layers = start(name, &ONE, 0).rank().config().layers;
        for split in &SPLITS {
            let case = format!("{name} over {:?} in {:?}", split.shares, split.stages);
            let case = format!("{case}, {:?} {}", split.transport, split.ring);
            let mut local = start(name, split, layers);
            steps_allocate_nothing(&mut local, &case);
            requests_allocate_alike_however_long_the_answer(&mut local, &case);
        }
    }
}

/// Counts the bare step, which the tools measure.
fn steps_allocate_nothing(local: &mut Local, case: &str) {
    // The first steps grow the buffers: here for all experts, and past a page of the cache.
    let mut token = local.next(&[7; 20]).unwrap();
    for _ in 0..60 {
        token = local.next(&[token]).unwrap();
    }
    let mut count = || {
        let before = of_all_threads();
        for _ in 0..TOKENS {
            token = local.next(&[token]).unwrap();
        }
        of_all_threads() - before
    };
    let counts: Vec<usize> = first_until(&mut count, |count| *count == 0);
    assert_eq!(counts.last(), Some(&0), "{case}: {counts:?}");
}

/// Counts a worker's loop: scheduler, sampler and its report of each token.
fn requests_allocate_alike_however_long_the_answer(local: &mut Local, case: &str) {
    let mut count = |max_tokens| {
        let request = GenerateRequest {
            prompt: vec![7; 5],
            sampling: Sampling { temperature: 0.7, top_k: 40, ..Sampling::default() },
            max_tokens,
            ..GenerateRequest::default()
        };
        let requests = vec![request.clone(), request];
        let (before, start) = (of_all_threads(), Instant::now());
        let answers = local.serve(requests).unwrap();
        assert!(answers.iter().all(|answer| answer.len() == max_tokens));
        let (made, took) = (of_all_threads() - before, start.elapsed());
        // Signs of life allocate by time, which a busy machine makes long.
        let before = of_all_threads();
        // Sleeps: as long as the answers took, to count these alone.
        std::thread::sleep(took);
        made.saturating_sub(of_all_threads() - before)
    };
    let mut pair = || [count(5 * TOKENS), count(TOKENS)];
    // The two long answers have 8 * TOKENS tokens more in all: one allocation a token would exceed
    // the limit eightfold.
    let is_alike = |[long, short]: &[usize; 2]| *long <= short + TOKENS;
    let counts = first_until(&mut pair, is_alike);
    assert!(counts.last().is_some_and(is_alike), "{case}: {counts:?}");
}

/// The results of `act`, up to the first good one.
fn first_until<T>(mut act: impl FnMut() -> T, is_good: impl Fn(&T) -> bool) -> Vec<T> {
    let mut found = Vec::new();
    while found.len() < COUNTS_MAX && !found.last().is_some_and(&is_good) {
        found.push(act());
    }
    found
}

/// `layers`: layers of the model, split over the stages.
fn start(name: &str, split: &Case, layers: usize) -> Local {
    let path = fixtures::path(&format!("models/{name}.gguf"));
    let cut = |at: usize| layers * at / split.stages.len();
    let stages = split.stages.iter().enumerate();
    let stages =
        stages.map(|(at, ranks)| StageSize { ranks: *ranks, layers: cut(at + 1) - cut(at) });
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions {
            wire_type: split.wire_type,
            transport: split.transport,
            // The number of speculated rows, and so of their buffers, varies.
            speculation: Speculation::Off,
            ..SplitOptions::default()
        },
        split: Split {
            shares: split.shares.to_vec(),
            stages: stages.collect(),
            whole_experts: false,
            context_tokens: 256,
            sequences_max: 2,
            cache_tokens: 512,
            ..Split::default()
        },
        ring: split.ring,
        link_latency: Duration::ZERO,
        threads: split.threads,
    };
    Local::start(Arc::new(File::open(path).unwrap()), &options).unwrap()
}
