//! Pictures in prompts: the reference's tokens and probabilities, and the same bits over every
//! split, chunk and page.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::{Local, LocalOptions};
use gguf::Source;
use protocol::{
    AnswerToken, Detail, GenerateRequest, Picture, Split, SplitOptions, StageSize, Token,
    WorkerEvent,
};
use serde_json::Value;

const MODELS: [&str; 12] = [
    "gemma3-sees",
    "gemma4-e-sees",
    "gemma4-sees",
    "glm4moe-sees",
    "glm4v-sees",
    "kimi-k25-sees",
    "llama-sees",
    "llama4-sees",
    "llama4-tiles-sees",
    "mistral3-sees",
    "qwen35-sees",
    "qwen3vl-sees",
];
const CONTEXT_TOKENS: usize = 320;
const SEQUENCES_MAX: usize = 4;

fn reference(name: &str) -> Value {
    fixtures::about(&format!("sees/{name}"))
}

/// `stages`: ranks of each.
fn start(name: &str, shares: &[u32], stages: &[usize]) -> Local {
    start_file(&fixtures::path(&format!("sees/{name}.gguf")), shares, stages)
}

fn start_file(path: &Path, shares: &[u32], stages: &[usize]) -> Local {
    let file = checkpoint::open(path).unwrap();
    let layers = layout::Outline::read(file.directory()).unwrap().config.layers;
    let source: Arc<dyn Source> = Arc::new(file);
    let count = stages.len();
    let border = |stage: usize| layers * stage / count.max(1);
    let size = |(at, &ranks)| StageSize { ranks, layers: border(at + 1) - border(at) };
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions::default(),
        split: Split {
            shares: shares.to_vec(),
            stages: stages.iter().enumerate().map(size).collect(),
            context_tokens: CONTEXT_TOKENS,
            sequences_max: SEQUENCES_MAX,
            cache_tokens: CONTEXT_TOKENS * SEQUENCES_MAX,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 1,
    };
    Local::start(source, &options).unwrap()
}

fn tokens(list: &Value) -> Vec<Token> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

/// A request with a picture in place of the reference's, behind `before`.
fn request(reference: &Value, image: &str, before: &[Token]) -> GenerateRequest {
    let asked = &reference["prompts"][0];
    let ids = tokens(&asked["ids"]);
    let at = asked["image_at"].as_u64().unwrap() as usize;
    let file = std::fs::read(fixtures::path(&format!("vision/{image}"))).unwrap();
    let picture = Picture { at: before.len() + at, detail: Detail::Auto, file: file.into() };
    let of_row = reference["image_token"].as_u64().unwrap() as Token;
    let rows: Vec<Token> = picture.row_tokens().take(ids.len()).collect();
    let mut rows = rows.into_iter();
    let shown = |id: Token| if id == of_row { rows.next().unwrap() } else { id };
    let prompt = before.iter().copied().chain(ids.into_iter().map(shown)).collect();
    GenerateRequest {
        prompt,
        pictures: vec![picture],
        max_tokens: 24,
        logprobs: Some(20),
        ..GenerateRequest::default()
    }
}

/// The answers to requests that run together.
fn answers(local: &mut Local, requests: &[GenerateRequest]) -> Vec<Vec<AnswerToken>> {
    let mut answers = vec![Vec::new(); requests.len()];
    let report = |event| match event {
        WorkerEvent::Token { request, answer } => answers[request as usize].push(answer),
        WorkerEvent::Rejected { reason, .. } => panic!("{reason}"),
        _ => {}
    };
    local.run(requests.to_vec(), report).unwrap();
    answers
}

fn answer(local: &mut Local, request: &GenerateRequest) -> Vec<AnswerToken> {
    answers(local, std::slice::from_ref(request)).remove(0)
}

/// Tokens and probabilities are near the reference's.
fn check(name: &str, reference: &Value, found: &[AnswerToken]) {
    let hf = &reference["prompts"][0]["hf"];
    let logits: Vec<f64> =
        hf["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
    let top = &found[0].logprobs.as_ref().unwrap().top;
    for (token, found) in top {
        let due = logits[*token as usize] - max - sum.ln();
        assert!((f64::from(*found) - due).abs() < 1e-4, "{name}, {token}: {found}, {due}");
    }
    let (greedy, margins) = (tokens(&hf["greedy"]), hf["margins"].as_array().unwrap());
    let sure = margins.iter().take_while(|margin| margin.as_f64().unwrap() > 1e-3).count();
    let found: Vec<Token> = found.iter().map(|answer| answer.token).collect();
    assert_eq!(found[..sure], greedy[..sure], "{name}");
    assert!(sure > 3, "{name}: {sure}");
}

fn image_of(reference: &Value) -> String {
    reference["image"].as_str().unwrap().to_owned()
}

#[test]
fn answers_are_the_references_and_the_same_over_every_split() {
    for name in MODELS {
        let reference = reference(name);
        let asked = request(&reference, &image_of(&reference), &[]);
        let whole = answer(&mut start(name, &[1], &[]), &asked);
        check(name, &reference, &whole);
        for (shares, stages) in
            [(&[1, 1][..], &[][..]), (&[2, 1, 1], &[]), (&[1, 1], &[1, 1]), (&[1, 1, 1], &[2, 1])]
        {
            let found = answer(&mut start(name, shares, stages), &asked);
            assert_eq!(found, whole, "{name} over {shares:?} in {stages:?}");
        }
    }
}

/// Stages have chunks of 64 rows: they end before, inside and behind the picture, and pages end
/// there too.
#[test]
fn chunks_and_shared_pages_change_nothing() {
    for name in MODELS {
        let reference = reference(name);
        let image = image_of(&reference);
        let text: Vec<Token> = (0..150).map(|at| 20 + at * 7 % 200).collect();
        for before in [0, 45, 56, 57, 60, 120, 127] {
            let asked = request(&reference, &image, &text[..before]);
            let whole = answer(&mut start(name, &[1], &[]), &asked);
            let mut staged = start(name, &[1, 1], &[1, 1]);
            assert_eq!(answer(&mut staged, &asked), whole, "{name} behind {before}");
            // A second time with its pages in the cache, beside a text and a longer beginning.
            let more = request(&reference, &image, &text[..before + 3]);
            let plain = GenerateRequest {
                prompt: text[..70].to_vec(),
                max_tokens: 30,
                ..GenerateRequest::default()
            };
            let all = [asked.clone(), plain, more, asked];
            let found = answers(&mut staged, &all);
            assert_eq!(found[0], whole, "{name} behind {before}, again");
            assert_eq!(found[3], whole, "{name} behind {before}, once more");
        }
    }
}

#[test]
fn pictures_of_one_size_never_share_a_page() {
    for name in ["kimi-k25-sees", "qwen35-sees", "qwen3vl-sees"] {
        let reference = reference(name);
        let text: Vec<Token> = (0..100).map(|at| 20 + at * 7 % 200).collect();
        for before in [50, 64, 100] {
            let of = |image| request(&reference, image, &text[..before]);
            let (one, other) = (of("image-64x48.png"), of("waves-64x48.png"));
            let mut local = start(name, &[1], &[]);
            let first = answer(&mut local, &one);
            let second = answer(&mut local, &other);
            assert_eq!(answer(&mut start(name, &[1], &[]), &other), second, "{name}");
            assert_ne!(first, second, "{name}: the picture is seen");
            assert_eq!(answer(&mut local, &one), first, "{name}");
        }
    }
}

/// An answer that goes on elsewhere: the picture comes again with what was answered.
#[test]
fn an_answer_goes_on_where_it_was_cut() {
    for name in MODELS {
        let reference = reference(name);
        let asked = request(&reference, &image_of(&reference), &[]);
        let whole = answer(&mut start(name, &[1], &[]), &asked);
        let answered = whole[..9].iter().map(|answer| answer.token).collect();
        let rest = answer(&mut start(name, &[1, 1], &[]), &GenerateRequest { answered, ..asked });
        assert_eq!(rest, whole[9..], "{name}");
    }
}

/// A tower that lacks a tensor is left out, and the model reads text.
#[test]
fn a_model_with_a_broken_tower_reads_text() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("m.gguf");
    std::fs::copy(fixtures::path("sees/qwen3vl-sees.gguf"), &model).unwrap();
    let mut tower = std::fs::read(fixtures::path("sees/qwen3vl-sees.mmproj.gguf")).unwrap();
    let name = b"v.post_ln.weight";
    let at = tower.windows(name.len()).position(|bytes| bytes == name).unwrap();
    tower[at..at + name.len()].copy_from_slice(b"v.lost_ln.weight");
    std::fs::write(dir.path().join("mmproj.gguf"), tower).unwrap();
    let mut local = start_file(&model, &[1, 1], &[]);
    let notes = local.rank().notes().join("\n");
    assert!(notes.contains("no picture can be seen") && notes.contains("v.post_ln"), "{notes}");
    let text = GenerateRequest { prompt: vec![20, 21], max_tokens: 5, ..Default::default() };
    let found = answer(&mut local, &text);
    assert_eq!(found, answer(&mut start("qwen3vl-sees", &[1], &[]), &text));
    let reference = reference("qwen3vl-sees");
    let asked = request(&reference, &image_of(&reference), &[]);
    let refused = local.run(vec![asked], |_| {}).unwrap_err().to_string();
    assert!(refused.contains("reads text only"), "{refused}");
}

#[test]
fn what_cannot_be_seen_is_refused_and_nothing_else_is_disturbed() {
    let reference = reference("qwen3vl-sees");
    let good = request(&reference, &image_of(&reference), &[]);
    let with = |change: &dyn Fn(&mut GenerateRequest)| {
        let mut changed = good.clone();
        changed.pictures[0].file = good.pictures[0].file.clone();
        change(&mut changed);
        changed
    };
    let file = good.pictures[0].file.bytes().to_vec();
    // Damaged behind the header, with the tokens that its bytes ask for.
    let damaged = with(&|request| {
        let picture = &mut request.pictures[0];
        picture.file = file[..file.len() * 2 / 3].to_vec().into();
        let rows: Vec<Token> = picture.row_tokens().take(12).collect();
        let at = picture.at;
        request.prompt[at..at + 12].copy_from_slice(&rows);
    });
    let cases = [
        (with(&|request| request.pictures[0].file = b"no picture"[..].into()), "no PNG, JPEG"),
        (with(&|request| request.pictures[0].detail = Detail::Low), "other tokens in the prompt"),
        (with(&|request| request.prompt.truncate(10)), "other tokens in the prompt"),
        (
            with(&|request| {
                let again =
                    Picture { at: request.pictures[0].at + 1, ..request.pictures[0].clone() };
                request.pictures.push(again);
            }),
            "other tokens in the prompt",
        ),
        (with(&|request| request.prompt.push(1 << 24)), "other tokens in the prompt"),
        (damaged, "damaged or incomplete"),
    ];
    let mut local = start("qwen3vl-sees", &[1, 1], &[]);
    let whole = answer(&mut local, &good);
    for (bad, why) in cases {
        let mut reasons = Vec::new();
        let mut found = Vec::new();
        let report = |event| match event {
            WorkerEvent::Rejected { reason, .. } => reasons.push(reason),
            WorkerEvent::Token { request: 1, answer } => found.push(answer),
            _ => {}
        };
        let ran = local.run(vec![bad, good.clone()], report);
        match ran {
            Ok(()) => assert!(reasons.len() == 1 && reasons[0].contains(why), "{reasons:?}"),
            Err(error) => {
                assert!(error.to_string().contains(why), "{error}");
                found = answer(&mut local, &good);
            }
        }
        assert_eq!(found, whole, "{why}");
    }
}
