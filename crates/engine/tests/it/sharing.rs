//! Requests that share pages of the cache, preempt each other, and have their next tokens
//! speculated get the same answers as single ones: on every kind of split, with every kind of
//! attention.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::{Local, LocalOptions};
use gguf::{File, Source};
use protocol::{
    EngineStats, GenerateRequest, PromptCache, Sampling, Speculation, Split, SplitOptions,
    StageSize, Token,
};

pub(crate) const CONTEXT_TOKENS: usize = 448;

/// Windows, sinks, latent attention, experts; and each kind of layer with a state.
pub(crate) const MODELS: [&str; 19] = [
    "llama3-tied",
    "gemma3",
    "gpt-oss",
    "kimi-k2",
    "mixtral",
    "qwen35",
    "granitehybrid",
    "lfm2",
    "kimi-linear",
    "kimi-k3",
    "gemma4",
    "gemma4-e",
    "mimo2",
    "deepseek32",
    "glm-dsa",
    "minimax-m3",
    "deepseek4",
    "glm5-next",
    "qwen4exp",
];
/// Models in which some layers carry a state or have a window, and do not keep all positions.
const FORGETFUL: [&str; 13] = [
    "gemma3",
    "gpt-oss",
    "qwen35",
    "nemotron_h",
    "granitehybrid",
    "lfm2",
    "kimi-linear",
    "kimi-k3",
    "gemma4",
    "gemma4-e",
    "deepseek4",
    "glm5-next",
    "qwen4exp",
];
/// In a smaller cache, windows would save nothing, and layers keep everything.
pub(crate) const ROOM_FOR_WINDOWS: usize = 12 * CONTEXT_TOKENS;

/// Shares of the ranks, and the ranks of each stage: tensor, pipeline, hybrid.
pub(crate) const SPLITS: [(&[u32], &[usize]); 4] =
    [(&[1], &[]), (&[2, 1], &[]), (&[1, 1], &[1, 1]), (&[1, 2, 1], &[2, 1])];

pub(crate) fn path(name: &str) -> PathBuf {
    fixtures::path(&format!("models/{name}.gguf"))
}

/// The layers before which a pipeline may cut the model, and both ends.
fn borders(name: &str) -> Vec<usize> {
    let file = File::open(path(name)).expect("the fixture is in the repository");
    layout::Outline::read(file.directory()).expect("the model is supported").config.borders()
}

/// The most stages of the model.
pub(crate) fn pieces(name: &str) -> usize {
    borders(name).len() - 1
}

pub(crate) fn start(
    name: &str,
    (shares, stages): (&[u32], &[usize]),
    sequences_max: usize,
    cache_tokens: usize,
    speculation: Speculation,
) -> Local {
    start_with(name, (shares, stages), (sequences_max, cache_tokens), speculation, None)
}

/// The same, with prompts kept in a folder.
pub(crate) fn start_with(
    name: &str,
    split: (&[u32], &[usize]),
    room: (usize, usize),
    speculation: Speculation,
    prompts: Option<PromptCache>,
) -> Local {
    let file = File::open(path(name)).expect("the fixture is in the repository");
    let options = options(name, split, room, speculation, prompts);
    Local::start(Arc::new(file), &options).expect("the model is supported")
}

/// The options of a fixture's model.
pub(crate) fn options(
    name: &str,
    (shares, stages): (&[u32], &[usize]),
    (sequences_max, cache_tokens): (usize, usize),
    speculation: Speculation,
    prompts: Option<PromptCache>,
) -> LocalOptions {
    let borders = borders(name);
    let border = |stage: usize| borders[(borders.len() - 1) * stage / stages.len().max(1)];
    let size = |(stage, &ranks)| StageSize { ranks, layers: border(stage + 1) - border(stage) };
    LocalOptions {
        prompts,
        experts: None,
        options: SplitOptions { speculation, ..SplitOptions::default() },
        split: Split {
            shares: shares.to_vec(),
            stages: stages.iter().enumerate().map(size).collect(),
            whole_experts: false,
            context_tokens: CONTEXT_TOKENS,
            sequences_max,
            cache_tokens,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 1,
    }
}

/// Prompts with three common beginnings, of 30 to 330 tokens.
fn requests() -> Vec<GenerateRequest> {
    let request = |at: usize| {
        let beginning = (0..30 * (1 + at)).map(|p| ((p * (3 + at % 3) + 11) % 250) as Token);
        let end = (0..1 + 7 * at).map(|p| ((p * 13 + at * 29) % 250) as Token);
        GenerateRequest {
            prompt: beginning.chain(end).collect(),
            sampling: match at % 3 {
                0 => Sampling::default(),
                1 => Sampling { temperature: 0.9, top_k: 30, seed: 5, ..Sampling::default() },
                _ => Sampling { temperature: 1.2, seed: at as u64, ..Sampling::default() },
            },
            max_tokens: 40 + 10 * (at * 7 % 9),
            client: at as u64 % 2,
            ..GenerateRequest::default()
        }
    };
    (0..9).map(request).collect()
}

#[test]
fn who_shares_or_gives_pages_up_or_guesses_gets_the_answer_that_it_gets_alone() {
    let (mut hits, mut preemptions, mut right, mut wrong) = (0, 0, 0, 0);
    for name in MODELS {
        let mut one = start(name, SPLITS[0], 1, CONTEXT_TOKENS, Speculation::Off);
        let alone: Vec<_> = requests()
            .into_iter()
            .map(|one_of| one.serve(vec![one_of]).unwrap().remove(0))
            .collect();
        assert_eq!(one.stats().prefix_hit_tokens, 0, "every call begins anew");
        for split in SPLITS.iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            // One after the other, at once with too few pages for all, and with many.
            for (sequences_max, cache_tokens) in
                [(1, 2 * CONTEXT_TOKENS), (5, 8 * 64), (3, ROOM_FOR_WINDOWS)]
            {
                let mut split_model =
                    start(name, *split, sequences_max, cache_tokens, Speculation::Prompt);
                let found = split_model.serve(requests()).unwrap();
                assert_eq!(found, alone, "{name} over {split:?}, {sequences_max} at once");
                let stats: &EngineStats = split_model.stats();
                hits += stats.prefix_hit_tokens;
                preemptions += stats.preemptions;
                right += stats.guessed_right_tokens;
                wrong += stats.guessed_tokens - stats.guessed_right_tokens;
                assert_eq!(stats.pages.used, 0);
            }
        }
    }
    assert!(hits > 5_000 && preemptions > 20, "{hits} tokens shared, {preemptions} preemptions");
    assert!(right > 300 && wrong > 100, "{right} guesses were right and {wrong} wrong");
}

/// A text that leaves another one inside of its last page goes on from there, over what the other
/// one has left in the page.
#[test]
fn the_next_request_goes_on_inside_of_a_page() {
    let text =
        |count: usize, seed: usize| (0..count).map(move |at| (at * at + seed) as Token % 250);
    for name in ["llama3-tied", "mixtral", "kimi-k2", "deepseek32", "glm-dsa"] {
        let request = |prompt| GenerateRequest { prompt, max_tokens: 10, ..Default::default() };
        let mut one = start(name, SPLITS[0], 1, CONTEXT_TOKENS, Speculation::Off);
        let mut alone =
            |prompt: &[Token]| one.serve(vec![request(prompt.to_vec())]).unwrap().remove(0);
        let first: Vec<Token> = text(100, 1).collect();
        let typed = |seed| first[..90].iter().copied().chain(text(3, seed)).collect::<Vec<_>>();
        let second = [&first[..], &alone(&first), &typed(4)[..5]].concat();
        let third = [&second[..], &alone(&second), &[5]].concat();
        // Leaves a full page in its middle, and the others as they were.
        let edited = [&first[..40], &typed(5)[85..]].concat();
        let turns = [typed(2), typed(3), first, second, third.clone(), edited, third];
        let expected: Vec<_> = turns.iter().map(|turn| alone(turn)).collect();
        for split in SPLITS.iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let mut other = start(name, *split, 1, 2 * CONTEXT_TOKENS, Speculation::Off);
            let found = other.serve(turns.clone().map(request).into()).unwrap();
            assert_eq!(found, expected, "{name} over {split:?}");
            // Of 93, 100, 115, 126, 48 and 126; the last token of an answer is never computed.
            let hits = other.stats().prefix_hit_tokens;
            assert_eq!(hits, 90 + 90 + 109 + 124 + 40 + 125, "{name} over {split:?}");
        }
    }
}

#[test]
fn thousands_of_requests_leave_no_page_behind() {
    let mut local = start("llama3-tied", (&[1], &[]), 4, 10 * 64, Speculation::Prompt);
    for round in 0..100 {
        let request = |at: usize| GenerateRequest {
            prompt: (0..1 + (at * 37 + round) % 90).map(|p| ((p * at) % 250) as Token).collect(),
            max_tokens: 1 + at % 5,
            ..GenerateRequest::default()
        };
        local.serve((0..30).map(request).collect()).unwrap();
        let pages = &local.stats().pages;
        assert_eq!((pages.used, pages.total), (0, 10), "round {round}");
    }
}

/// As after the loss of a node: the rest of each answer is computed elsewhere, on another split.
#[test]
fn an_answer_goes_on_elsewhere_as_it_would_have_gone_on() {
    for name in MODELS {
        let mut one = start(name, SPLITS[0], 3, 3 * CONTEXT_TOKENS, Speculation::Off);
        let mut requests = requests();
        for (at, request) in requests.iter_mut().enumerate() {
            request.min_tokens = 20 * (at % 2);
            request.sampling.repetition_penalty = 1.0 + 0.2 * (at % 3) as f32;
            request.sampling.frequency_penalty = 0.5 * (at % 2) as f32;
            request.end_tokens = vec![7, 11, 13];
        }
        let whole = one.serve(requests.clone()).unwrap();
        for split in SPLITS.into_iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let room =
                if FORGETFUL.contains(&name) { ROOM_FOR_WINDOWS } else { 2 * CONTEXT_TOKENS };
            let mut other = start(name, split, 3, room, Speculation::Prompt);
            let cut = |at: usize| whole[at].len() * (at % 5) / 5;
            let resumed = requests.iter().enumerate().map(|(at, request)| GenerateRequest {
                answered: whole[at][..cut(at)].to_vec(),
                ..request.clone()
            });
            let rests = other.serve(resumed.collect()).unwrap();
            for (at, rest) in rests.iter().enumerate() {
                assert_eq!(*rest, whole[at][cut(at)..], "{name} {split:?}: answer {at}");
            }
        }
    }
}

/// If layers do not keep all positions, the next turn of a conversation continues after the last
/// page of the answer, the same prompt after its own last page, and another one where it diverges
/// from the first.
#[test]
fn what_layers_kept_is_gone_on_with_where_the_texts_are_alike() {
    let tokens = |count: usize, seed: usize| -> Vec<Token> {
        (0..count).map(|at| ((at * at * 3 + seed * 7 + at) % 250) as Token).collect()
    };
    let request = |prompt: &[Token]| GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens: 80,
        ..GenerateRequest::default()
    };
    for name in FORGETFUL {
        let mut one = start(name, SPLITS[0], 1, CONTEXT_TOKENS, Speculation::Off);
        let first = tokens(150, 1);
        let answer = one.serve(vec![request(&first)]).unwrap().remove(0);
        let next = [&first[..], &answer, &tokens(20, 2)].concat();
        // Two that diverge from the first prompt after its 64th token: the second one finds a
        // checkpoint that the first one saved there.
        let others = [3, 4].map(|seed| [&first[..70], &tokens(60, seed)].concat());
        let turns = [first.clone(), next, first.clone(), others[0].clone(), others[1].clone()];
        let expected = turns.iter().map(|turn| one.serve(vec![request(turn)]).unwrap().remove(0));
        let expected: Vec<_> = expected.collect();
        for split in SPLITS.into_iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            for speculation in [Speculation::Off, Speculation::Prompt] {
                let mut other = start(name, split, 1, ROOM_FOR_WINDOWS, speculation);
                let found = other.serve(turns.iter().map(|turn| request(turn)).collect()).unwrap();
                assert_eq!(found, expected, "{name} over {split:?}");
                // 192 of 150 + 80 + 20, 128 of 150, none and 64 of 130. The inputs of entries of
                // 128 positions form a window of that size, so the first page is still there.
                let first = if name == "deepseek4" { 64 } else { 0 };
                let hits = other.stats().prefix_hit_tokens;
                assert_eq!(hits, 192 + 128 + first + 64, "{name} over {split:?}");
            }
        }
    }
}
