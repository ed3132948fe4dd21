//! Compares the engine with the reference of another implementation, and a split model with a whole
//! one.
//!
//! The fixtures contain tiny models with the f32 logits and greedy continuations of `transformers`
//! (see `fixtures/README.md`).

use std::sync::Arc;
use std::time::Duration;

use crate::recording::Recording;
use crate::references::{
    FLOAT_MODELS, Prompt, QUANTISED_MODELS, ROUTED_BY_TIES, Reference, borders, path, pieces,
    prompts,
};
use backend::{Backend, Cpu};
use engine::{EngineError, Local, LocalOptions, OpenDevice};
use gguf::File;
use protocol::{
    CacheType, GenerateRequest, Sampling, Split, SplitOptions, StageSize, Transport, WireType,
};

/// Largest logit error against the reference, as a fraction of the logits' spread.
const ERROR_MAX: f32 = 2e-5;
const CONTEXT_TOKENS: usize = 320;
const SEQUENCES_MAX: usize = 16;

/// One of each kind of layer that carries a state.
const RECURRENT_MODELS: [&str; 6] = [
    "models/qwen35",
    "models/nemotron_h",
    "models/lfm2moe",
    "models/kimi-linear",
    "models/kimi-k3",
    "models/qwen4exp",
];

/// `stages`: ranks of each; each gets an equal run of layers.
fn start_staged(
    name: &str,
    shares: &[u32],
    stages: &[usize],
    whole_experts: bool,
    transport: Transport,
    threads: usize,
) -> Local {
    let mut options = options(name, shares, stages);
    options.options.transport = transport;
    options.split.whole_experts = whole_experts;
    start_with(name, &LocalOptions { threads, ..options })
}

fn start_with(name: &str, options: &LocalOptions) -> Local {
    let file = File::open(path(name, "gguf")).expect("the fixture is in the repository");
    Local::start(Arc::new(file), options).expect("the model is supported")
}

fn options(name: &str, shares: &[u32], stages: &[usize]) -> LocalOptions {
    let borders = borders(name);
    let border = |stage: usize| borders[(borders.len() - 1) * stage / stages.len().max(1)];
    let size = |(stage, &ranks)| StageSize { ranks, layers: border(stage + 1) - border(stage) };
    let stages = stages.iter().enumerate().map(size).collect();
    LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions::default(),
        split: Split {
            shares: shares.to_vec(),
            stages,
            whole_experts: false,
            context_tokens: CONTEXT_TOKENS,
            sequences_max: SEQUENCES_MAX,
            cache_tokens: CONTEXT_TOKENS * SEQUENCES_MAX,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 1,
    }
}

fn start(name: &str, shares: &[u32], transport: Transport, threads: usize) -> Local {
    start_staged(name, shares, &[], false, transport, threads)
}

/// Logits after a prompt, and its greedy continuation.
fn run<B: Backend + 'static>(
    local: &mut Local<B>,
    prompt: &[u32],
    count: usize,
) -> (Vec<f32>, Vec<u32>) {
    local.truncate(0);
    let logits = local.feed(prompt).unwrap().to_vec();
    local.truncate(0);
    (logits, local.generate(prompt, count).unwrap())
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn spread(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    max - logits.iter().copied().fold(f32::INFINITY, f32::min)
}

/// The largest error of llama.cpp on the shipped file.
fn llama_cpp_error(prompts: &[Prompt], exact: impl Fn(&Prompt) -> Option<Reference>) -> f32 {
    let error = |prompt: &Prompt| {
        let (exact, found) = (exact(prompt).unwrap(), prompt.llama_cpp.as_ref().unwrap());
        largest_difference(&exact.logits, &found.logits)
    };
    prompts.iter().map(error).fold(0.0, f32::max)
}

/// Greedy tokens must agree up to the first step whose margin is within the error.
fn assert_greedy(name: &str, found: &[u32], reference: &Reference, error: f32) {
    let sure = reference.margins.iter().take_while(|margin| **margin > 2.0 * error).count();
    let sure = sure.min(reference.greedy.len());
    assert_eq!(found[..sure], reference.greedy[..sure], "{name}");
}

#[test]
fn float_models_agree_with_the_reference() {
    for &name in FLOAT_MODELS {
        let mut local = start(name, &[1], Transport::Auto, 2);
        for prompt in prompts(name) {
            let reference = prompt.hf.expect("models/ have a transformers reference");
            let (logits, greedy) = run(&mut local, &prompt.ids, reference.greedy.len());
            let error = largest_difference(&logits, &reference.logits);
            let limit = ERROR_MAX * spread(&reference.logits);
            println!("{name}, {} tokens: {error:e} of {limit:e}", prompt.ids.len());
            assert!(error <= limit, "{name}: {error} is over {limit}");
            assert_eq!(greedy, reference.greedy, "{name}");
        }
    }
}

#[test]
fn quantised_models_are_as_near_to_exact_arithmetic_as_llama_cpp() {
    // llama.cpp quantises activations too; the limit is 1.25 times its own error, since the
    // rounding of activations is chance.
    const FACTOR: f32 = 1.25;
    for &name in QUANTISED_MODELS {
        let mut local = start(name, &[1], Transport::Auto, 1);
        let prompts = prompts(name);
        // For models with no exacter weights than these, transformers has the same numbers.
        let exact =
            |prompt: &Prompt| prompt.llama_cpp_dequant_f32.as_ref().or(prompt.hf.as_ref()).cloned();
        let limit = FACTOR * llama_cpp_error(&prompts, exact);
        for prompt in prompts {
            let exact = exact(&prompt).unwrap();
            let (logits, greedy) = run(&mut local, &prompt.ids, exact.greedy.len());
            let error = largest_difference(&logits, &exact.logits);
            println!("{name}, {} tokens: {error} of {limit}", prompt.ids.len());
            assert!(error <= limit, "{name}: {error} is over {limit}");
            assert_greedy(name, &greedy, &exact, limit);
        }
    }
}

#[test]
fn a_device_that_records_gives_the_bits_of_the_cpu() {
    let splits: &[(&[u32], &[usize])] =
        &[(&[1], &[]), (&[1, 1], &[]), (&[5, 0, 1, 2], &[]), (&[1, 1, 1], &[2, 1])];
    let open: OpenDevice<_> =
        Arc::new(|threads, cpus: &[usize]| Ok(Recording::new(Cpu::new(threads, cpus)?)));
    for name in FLOAT_MODELS.iter().chain(QUANTISED_MODELS) {
        let prompts = prompts(name);
        let mut whole = start(name, &[1], Transport::Auto, 1);
        for (shares, stages) in splits.iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let file = File::open(path(name, "gguf")).expect("the fixture is in the repository");
            let options = options(name, shares, stages);
            let mut split = Local::start_on(open.clone(), Arc::new(file), &options).unwrap();
            for prompt in &prompts {
                let (found, expected) =
                    (run(&mut split, &prompt.ids, 12), run(&mut whole, &prompt.ids, 12));
                assert_eq!(found, expected, "{name} over {shares:?} in {stages:?}");
            }
        }
    }
}

#[test]
fn every_split_gives_the_bits_of_one_node() {
    // Shares of the ranks, and the ranks of each stage.
    let splits: &[(&[u32], &[usize], Transport)] = &[
        (&[1, 1], &[], Transport::Shm),
        (&[1, 1], &[], Transport::Tcp),
        (&[3, 2, 1], &[], Transport::Shm),
        (&[1, 1, 1], &[], Transport::Tcp),
        (&[5, 0, 1, 2], &[], Transport::Auto),
        (&[1; 7], &[], Transport::Auto),
        (&[1, 1], &[1, 1], Transport::Shm),
        (&[1, 1], &[1, 1], Transport::Tcp),
        (&[1, 1, 1], &[2, 1], Transport::Shm),
        (&[3, 2, 1, 1, 1], &[2, 3], Transport::Auto),
    ];
    for name in FLOAT_MODELS.iter().chain(QUANTISED_MODELS) {
        let prompts = prompts(name);
        let mut whole = start(name, &[1], Transport::Auto, 2);
        let expected: Vec<_> =
            prompts.iter().map(|prompt| run(&mut whole, &prompt.ids, 24)).collect();
        for (shares, stages, transport) in splits {
            if pieces(name) < stages.len() {
                continue;
            }
            let mut split = start_staged(name, shares, stages, false, *transport, 1);
            for (prompt, (logits, greedy)) in prompts.iter().zip(&expected) {
                let what = format!("{name} over {shares:?} in {stages:?} by {transport:?}");
                for repeat in 0..2 {
                    let found = run(&mut split, &prompt.ids, 24);
                    let same = found.0.iter().zip(logits).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{what}, run {repeat}: other logits");
                    assert_eq!(&found.1, greedy, "{what}, run {repeat}");
                }
            }
        }
    }
}

/// More ranks than can share one product, and more than can share the output head.
#[test]
fn eighteen_ranks_give_the_bits_of_one() {
    let name = "models/llama3-tied";
    let prompt = &prompts(name)[0];
    let mut whole = start(name, &[1], Transport::Auto, 2);
    let mut split = start_staged(name, &[1; 18], &[2, 16], false, Transport::Auto, 1);
    assert_eq!(run(&mut split, &prompt.ids, 6), run(&mut whole, &prompt.ids, 6));
}

#[test]
fn a_ring_of_ranks_that_do_not_all_link_gives_the_bits_of_one_node() {
    let splits: &[(&[u32], &[usize])] =
        &[(&[1; 4], &[]), (&[3, 2, 1, 1, 2], &[]), (&[1, 1, 1], &[2, 1]), (&[1; 6], &[4, 2])];
    for name in ["models/llama3-tied", "models/mixtral", "models/granitehybrid"] {
        let prompts = prompts(name);
        let mut whole = start(name, &[1], Transport::Auto, 2);
        for (shares, stages) in splits {
            for transport in [Transport::Shm, Transport::Tcp] {
                let options = options(name, shares, stages);
                let mut along_ring = LocalOptions { ring: true, ..options };
                along_ring.options.transport = transport;
                let mut ring = start_with(name, &along_ring);
                for prompt in &prompts {
                    let (found, expected) =
                        (run(&mut ring, &prompt.ids, 12), run(&mut whole, &prompt.ids, 12));
                    assert_eq!(found, expected, "{name} over {shares:?} in {stages:?}");
                }
            }
        }
    }
}

#[test]
fn whole_experts_agree_with_columns_and_give_the_same_bits_on_every_split() {
    let splits: &[(&[u32], &[usize])] =
        &[(&[1, 1], &[]), (&[3, 2, 1], &[]), (&[1; 7], &[]), (&[1, 2, 1], &[2, 1])];
    let experts = ["mixtral", "qwen2moe", "qwen3moe", "glm4moe", "gpt-oss", "deepseek-v3"];
    let experts = experts.into_iter().chain([
        "qwen35moe",
        "nemotron_h_moe-latent",
        "ernie4_5-moe",
        "llama4",
        "kimi-k3",
        "qwen4exp",
    ]);
    for name in experts.map(|name| format!("models/{name}")) {
        let prompts = prompts(&name);
        let run_all = |local: &mut Local| {
            let runs = prompts.iter().map(|prompt| run(local, &prompt.ids, 12));
            runs.collect::<Vec<_>>()
        };
        let columns = run_all(&mut start(&name, &[1], Transport::Auto, 1));
        let one = run_all(&mut start_staged(&name, &[1], &[], true, Transport::Auto, 2));
        for (one, columns) in one.iter().zip(&columns) {
            let error = largest_difference(&one.0, &columns.0);
            // Another order of sums may move a quantised activation by a step.
            let limit = if name.contains("gpt-oss") { 2e-2 } else { ERROR_MAX };
            assert!(error <= limit * spread(&columns.0), "{name}: {error}");
        }
        for (shares, stages) in splits.iter().filter(|(_, stages)| stages.len() <= pieces(&name)) {
            let mut split = start_staged(&name, shares, stages, true, Transport::Auto, 1);
            for (found, expected) in run_all(&mut split).iter().zip(&one) {
                let same = found.0.iter().zip(&expected.0).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same && found.1 == expected.1, "{name} over {shares:?} in {stages:?}");
            }
        }
    }
}

/// Requests of various lengths and samplings, more than run at once.
fn requests(prompts: &[Prompt]) -> Vec<GenerateRequest> {
    let request = |at: usize| GenerateRequest {
        prompt: prompts[at % 3].ids.iter().map(|id| (id + at as u32 / 3) % 256).collect(),
        sampling: match at % 4 {
            0 => Sampling::default(),
            1 => Sampling { temperature: 0.8, top_k: 40, seed: at as u64, ..Sampling::default() },
            _ => Sampling { temperature: 1.1, top_p: 0.9, seed: 7, ..Sampling::default() },
        },
        max_tokens: 3 + 2 * at,
        end_tokens: vec![3],
        ..GenerateRequest::default()
    };
    (0..20).map(request).collect()
}

#[test]
fn requests_that_run_together_get_the_answers_they_get_alone_on_any_split() {
    let splits: &[(&[u32], &[usize])] =
        &[(&[1], &[]), (&[1, 1], &[]), (&[1, 1], &[1, 1]), (&[1, 2, 1, 1], &[2, 1, 1])];
    let names = ["models/llama3-tied", "models/mixtral", "models/kimi-k2"];
    for name in names.into_iter().chain(RECURRENT_MODELS) {
        let prompts = prompts(name);
        let mut one = start(name, &[1], Transport::Auto, 1);
        let alone = requests(&prompts).into_iter();
        let alone: Vec<_> =
            alone.map(|request| one.serve(vec![request]).unwrap().remove(0)).collect();
        assert!(alone.iter().any(|answer| answer.len() > 9), "{alone:?}");
        for (shares, stages) in splits.iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let mut split = start_staged(name, shares, stages, false, Transport::Auto, 1);
            for _ in 0..2 {
                let together = split.serve(requests(&prompts)).unwrap();
                assert_eq!(together, alone, "{name} over {shares:?} in {stages:?}");
            }
        }
    }
}

#[test]
fn quantised_sums_depend_on_no_other_request() {
    let splits: &[(&[u32], &[usize])] = &[(&[1, 1], &[]), (&[3, 2, 1], &[]), (&[1, 2, 1], &[2, 1])];
    let names = ["models/llama3-tied", "models/mixtral", "models/kimi-k2"];
    for name in names.into_iter().chain(RECURRENT_MODELS) {
        let prompts = prompts(name);
        for (shares, stages) in splits.iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let wanted = SplitOptions { wire_type: WireType::Q8, ..SplitOptions::default() };
            let options = LocalOptions { options: wanted, ..options(name, shares, stages) };
            let mut local = start_with(name, &options);
            let mut alone = || -> Vec<_> {
                let requests = requests(&prompts).into_iter();
                requests.map(|request| local.serve(vec![request]).unwrap().remove(0)).collect()
            };
            let first = alone();
            assert_eq!(alone(), first, "{name} over {shares:?}, asked again");
            let together = local.serve(requests(&prompts)).unwrap();
            assert_eq!(together, first, "{name} over {shares:?}, together");
        }
    }
}

#[test]
fn all_logits_of_many_answers_fit_between_stages() {
    let request = |at: u64| GenerateRequest {
        prompt: vec![at as u32 + 5],
        sampling: Sampling { temperature: 1.0, seed: at, ..Sampling::default() },
        max_tokens: 4,
        ..GenerateRequest::default()
    };
    let requests = || (0..SEQUENCES_MAX as u64).map(request).collect();
    let name = "models/llama3-tied";
    let expected = start(name, &[1], Transport::Auto, 1).serve(requests()).unwrap();
    let mut staged = start_staged(name, &[1, 1], &[1, 1], false, Transport::Auto, 1);
    assert_eq!(staged.serve(requests()).unwrap(), expected);
}

#[test]
fn a_prompt_in_pieces_gives_the_bits_of_the_whole() {
    for name in FLOAT_MODELS.iter().chain(QUANTISED_MODELS) {
        let prompt = &prompts(name)[2].ids;
        let mut local = start(name, &[1], Transport::Auto, 2);
        let whole = local.feed(prompt).unwrap().to_vec();
        local.truncate(0);
        for piece in prompt[..prompt.len() - 1].chunks(13) {
            local.feed(piece).unwrap();
        }
        let last = local.feed(&prompt[prompt.len() - 1..]).unwrap();
        assert!(last.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
    }
}

#[test]
fn logits_after_each_token_are_those_of_feeding_that_far() {
    for (name, shares, stages) in [
        ("models/llama3-tied", &[1, 1][..], &[][..]),
        ("models/llama3-tied", &[1, 1], &[1, 1]),
        ("models/qwen35", &[1], &[]),
    ] {
        let prompt = &prompts(name)[1].ids;
        let mut local = start_with(name, &options(name, shares, stages));
        let mut each: Vec<Vec<f32>> = Vec::new();
        let ended = local.feed_each(prompt, |logits| {
            each.push(logits.to_vec());
            Ok::<_, EngineError>(())
        });
        ended.unwrap();
        assert_eq!(each.len(), prompt.len());
        local.truncate(0);
        for (token, expected) in prompt.iter().zip(&each) {
            let found = local.feed(&[*token]).unwrap();
            assert!(found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
        }
    }
}

#[test]
fn a_quantised_cache_is_near_an_exact_one_and_gives_the_same_bits_on_every_split() {
    let splits: &[(&[u32], &[usize])] =
        &[(&[1, 1], &[]), (&[3, 2, 1], &[]), (&[1, 1], &[1, 1]), (&[1, 2, 1], &[2, 1])];
    for name in FLOAT_MODELS.iter().chain(QUANTISED_MODELS) {
        let prompts = prompts(name);
        let run_all = |cache_type, threads, (shares, stages): (&[u32], &[usize])| {
            let mut options = LocalOptions { threads, ..options(name, shares, stages) };
            options.options.cache_type = cache_type;
            let mut local = start_with(name, &options);
            let runs = prompts.iter().map(|prompt| run(&mut local, &prompt.ids, 12));
            runs.collect::<Vec<_>>()
        };
        let exact = run_all(CacheType::F32, 2, (&[1], &[]));
        let near = |cache_type| {
            let limit = match cache_type {
                _ if ROUTED_BY_TIES.contains(name) => 0.3,
                CacheType::Q8_0 => 0.04,
                _ => 0.03,
            };
            let rounded = run_all(cache_type, 2, (&[1], &[]));
            for (exact, rounded) in exact.iter().zip(&rounded) {
                let error = largest_difference(&exact.0, &rounded.0) / spread(&exact.0);
                println!("{name}, {cache_type:?}: {error:e}");
                assert!(error <= limit, "{name}, {cache_type:?}: {error} is over {limit}");
            }
            rounded
        };
        near(CacheType::I16);
        near(CacheType::F16);
        let quantised = near(CacheType::Q8_0);
        for split in splits.iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let found = run_all(CacheType::Q8_0, 1, *split);
            for (found, expected) in found.iter().zip(&quantised) {
                let same = found.0.iter().zip(&expected.0).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same && found.1 == expected.1, "{name} over {split:?}");
            }
        }
    }
}

/// Near the exact logits, and the same bits on one split, whatever the transport and its speed.
#[test]
fn quantised_sums_are_near_exact_ones_and_repeat_to_the_bit() {
    let splits: &[(&[u32], &[usize])] = &[(&[1, 1], &[]), (&[3, 2, 1], &[]), (&[1, 2, 1], &[2, 1])];
    let (mut agreed, mut drawn, mut far) = (0, 0, Vec::new());
    for name in FLOAT_MODELS.iter().chain(QUANTISED_MODELS) {
        let prompts = prompts(name);
        let run_all = |wire_type, transport, (shares, stages): (&[u32], &[usize])| {
            let wanted = SplitOptions { wire_type, transport, ..SplitOptions::default() };
            let options = LocalOptions { options: wanted, ..options(name, shares, stages) };
            let mut local = start_with(name, &options);
            let runs = prompts.iter().map(|prompt| run(&mut local, &prompt.ids, 12));
            runs.collect::<Vec<_>>()
        };
        let exact = run_all(WireType::F32, Transport::Shm, (&[1], &[]));
        let limit = match name {
            // A prompt meets a near tie of experts.
            name if ROUTED_BY_TIES.contains(name) || *name == "models/kimi-k3" => 0.5,
            &"models/gpt-oss" | &"models/granitehybrid" | &"models/qwen3next" => 0.1,
            _ => 0.03,
        };
        for split in splits.iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let quantised = run_all(WireType::Q8, Transport::Shm, *split);
            for (quantised, exact) in quantised.iter().zip(&exact) {
                let error = largest_difference(&exact.0, &quantised.0) / spread(&exact.0);
                println!("{name} over {split:?}: {error:e}");
                let is_far = error > limit;
                far.extend(is_far.then(|| format!("{name} over {split:?}: {error} over {limit}")));
                agreed += exact.1.iter().zip(&quantised.1).take_while(|(a, b)| a == b).count();
                drawn += exact.1.len();
            }
            for (found, expected) in
                run_all(WireType::Q8, Transport::Tcp, *split).iter().zip(&quantised)
            {
                let same = found.0.iter().zip(&expected.0).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same && found.1 == expected.1, "{name} over {split:?}");
            }
        }
    }
    println!("{agreed} of {drawn} tokens before the first that differs");
    assert!(far.is_empty(), "{}", far.join("\n"));
}

#[test]
fn what_cannot_be_run_is_refused_in_words() {
    let mut local = start("models/qwen3", &[1], Transport::Auto, 1);
    let text = |result: Result<&[f32], _>| match result {
        Err::<_, engine::EngineError>(error) => error.to_string(),
        Ok(_) => panic!("it should be refused"),
    };
    assert!(text(local.feed(&[])).contains("empty"));
    assert!(text(local.feed(&[512])).contains("token 512 in a vocabulary of 512"));
    assert!(text(local.feed(&[1; CONTEXT_TOKENS + 1])).contains("321 tokens"));
}
