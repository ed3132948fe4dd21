use std::time::Duration;

use backend::{Cpu, Segment};
use gguf::File;
use layout::GUESSES_MAX;
use protocol::{GenerateRequest, Split, SplitOptions};
use serde_json::Value;

use super::*;
use crate::step::{Limits, StepSegment};
use crate::{Local, LocalOptions};

fn open(name: &str) -> (Arc<dyn Source>, Value) {
    let file = File::open(fixtures::path(&format!("{name}.gguf"))).unwrap();
    (Arc::new(file), fixtures::about(name))
}

/// The tables of the text that a model has read; layers with a window have another one.
fn tables() -> [Arc<[u32]>; 2] {
    [(0..8).collect(), (0..8).rev().collect()]
}

/// Such tables as a rank has them, in slot 1.
fn tables_of_rank(tokens: usize) -> Tables {
    let limits = Limits {
        slots: 2,
        context_tokens: 512,
        pages: 8,
        rows_max: 512,
        outputs_max: 512,
        width: 1,
        window: Some(layout::Window { positions: 12, pages: 8 }),
        keeps_all: false,
        has_states: false,
        checkpoints: 0,
        picture_room: 0,
        additions: 0,
        is_encoder: false,
    };
    let [pages, window_pages] = tables().map(|pages| pages.to_vec());
    let segment = StepSegment { pages: pages.len(), ..StepSegment::new(1, 0, tokens) };
    let step = Step { segments: vec![segment], pages, window_pages, ..Step::default() };
    let mut tables = Tables::new(&limits);
    tables.update(&step).unwrap();
    tables
}

/// A model after a text, what a block reads of it, `[tokens, width]`, and its next token.
fn trunk(
    backend: &mut Cpu,
    file: &Arc<dyn Source>,
    text: &[Token],
    tapped: &[usize],
) -> (Model<Cpu>, Vec<f32>, Token) {
    let outline = Outline::read(file.directory()).unwrap();
    let whole = Layout::new(&[1], &[], outline.config.layers).unwrap();
    let capacity = Capacity {
        context_tokens: 512,
        sequences_max: 512,
        cache_tokens: 512,
        cache_type: protocol::CacheType::Auto,
        whole_rows: 0,
        is_encoder: false,
        checkpoints: 0,
    };
    let mut model = Model::load(backend, file, &outline, &whole, 0, capacity, &mut |_| {}).unwrap();
    model.tap(tapped);
    let mut input = Vec::new();
    let mut embedding = Embedding::open(file.clone(), model.config()).unwrap();
    embedding.look_up(backend, text, &[], &mut input).unwrap();
    let segment = |table| [Segment { table, first_pos: 0, rows: text.len(), sees_to: None }];
    let [segments, windows] = tables().map(segment);
    let rows: Vec<usize> = (0..text.len()).collect();
    let positions: Vec<u32> = (0..text.len() as u32).collect();
    let state = backend::StateSegment {
        slot: 0,
        rows: text.len(),
        begin: backend::Begin::Zero,
        guesses: 0,
        save: None,
    };
    let states: &[_] = &[state];
    let states = if model.config().recurrence.is_some() { states } else { &[] };
    let outputs = Outputs { rows: &rows, segments: &segments, windows: &windows };
    let batch = Batch {
        segments: &segments,
        windows: &windows,
        positions: &positions,
        pictures: BatchPictures::default(),
        states,
        outputs,
    };
    model.forward(backend, &mut Alone, &batch, &input).unwrap();
    let found = model.state(backend).unwrap().to_vec();
    let vocab = model.config().vocab;
    let logits = model.logits(backend).unwrap();
    let last = &logits[logits.len() - vocab..];
    let next = largest(last);
    (model, found, next)
}

fn largest(logits: &[f32]) -> Token {
    let larger = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]);
    (0..logits.len()).max_by(larger).unwrap() as Token
}

/// The largest difference of logits, without those that the reference has as -infinity.
fn far(own: &[f32], due: &Value) -> f32 {
    let due = due.as_array().unwrap();
    assert_eq!(own.len(), due.len());
    let known = own.iter().zip(due).filter_map(|(own, due)| Some((own, due.as_f64()?)));
    known.map(|(own, due)| (own - due as f32).abs()).fold(0.0, f32::max)
}

fn tokens(prompt: &Value) -> Vec<Token> {
    let ids = prompt["ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

/// The block of a file as if it were alone in it, and the same model without a block, if there
/// is one.
fn alone(file: &Arc<dyn Source>, name: &str) -> Option<[Arc<dyn Source>; 2]> {
    let base = name.strip_suffix("-mtp")?;
    if !["step35", "mimo2", "deepseek4"].contains(&base) {
        return None;
    }
    let (model, _) = open(&format!("models/{base}"));
    let layers = Outline::read(model.directory()).unwrap().config.layers;
    let of_block = format!("blk.{layers}.");
    let directory = file.directory();
    let metadata = directory.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
    let own = directory.tensors().iter().filter(|tensor| tensor.name.starts_with(&of_block));
    let directory = directory.with(metadata.collect(), own.cloned().collect());
    Some([Arc::new(BlockSource::new(directory, file, file)), model])
}

#[test]
fn a_block_gives_the_logits_of_its_reference() {
    for (name, by) in [
        ("qwen35-mtp", "llama_cpp_f32_draft"),
        ("glm4moe-mtp", "llama_cpp_f32_draft"),
        ("deepseek32-mtp", "llama_cpp_f32_draft"),
        ("step35-mtp", "llama_cpp_f32_draft"),
        ("mimo2-mtp", "llama_cpp_f32_draft"),
        ("deepseek4-mtp", "llama_cpp_f32_draft"),
    ] {
        let (file, reference) = open(&format!("models/{name}"));
        for prompt in reference["prompts"].as_array().unwrap() {
            let mut text = tokens(prompt);
            let mut backend = Cpu::new(1, &[]).unwrap();
            let (mut model, states, next) = trunk(&mut backend, &file, &text, &[]);
            text.push(next);
            let own = Mtp::load(&mut backend, &file, 512).unwrap().unwrap();
            let apart = alone(&file, name).map(|[block, model]| {
                let config = Outline::read(model.directory()).unwrap().config;
                Mtp::load_file(&mut backend, &block, (&model, &config), 512).unwrap()
            });
            for mtp in std::iter::once(own).chain(apart) {
                check(&mut backend, mtp, &mut model, (&text, &states), &prompt[by], name);
            }
        }
    }
}

/// Compares the logits of a block after a text and the model's next token, its last one.
fn check(
    backend: &mut Cpu,
    mut mtp: Mtp<Cpu>,
    model: &mut Model<Cpu>,
    (text, states): (&[Token], &[f32]),
    due: &Value,
    name: &str,
) {
    // The last row sees no more of a single layer with a window.
    let seen = mtp.config().window().unwrap_or(usize::MAX);
    let rows = states.chunks_exact(mtp.widths().1).enumerate();
    for (at, state) in rows.skip((text.len() - 1).saturating_sub(seen)) {
        mtp.rows.push(text[at + 1], at + 1, state);
    }
    mtp.rows.end(0, &mtp.places[0].tables.clone(), 0);
    mtp.pass(backend, model).unwrap();
    let far = far(mtp.model.logits(backend).unwrap(), &due["logits"]);
    assert!(far < 1e-4, "{name}, {} tokens: {far}", text.len());
}

#[test]
fn a_block_in_a_file_of_its_own_gives_the_logits_of_its_reference() {
    // llama.cpp's block of GLM-5 attends to all positions, this one to those that it chooses.
    let chosen = 16;
    for (name, tokens_max) in [
        ("qwen35moe", usize::MAX),
        ("qwen3next", usize::MAX),
        ("deepseek-v3", usize::MAX),
        ("glm-dsa", chosen),
        ("hy_v3", usize::MAX),
    ] {
        let (file, _) = open(&format!("models/{name}"));
        let (block, reference) = open(&format!("heads/{name}-mtp"));
        let config = Outline::read(file.directory()).unwrap().config;
        for prompt in reference["prompts"].as_array().unwrap() {
            let mut text = tokens(prompt);
            if text.len() >= tokens_max {
                continue;
            }
            let mut backend = Cpu::new(1, &[]).unwrap();
            let (mut model, states, next) = trunk(&mut backend, &file, &text, &[]);
            text.push(next);
            let mtp = Mtp::load_file(&mut backend, &block, (&file, &config), 512).unwrap();
            let due = &prompt["llama_cpp_f32_draft"];
            check(&mut backend, mtp, &mut model, (&text, &states), due, name);
        }
    }
}

#[test]
fn a_head_gives_the_logits_of_its_reference() {
    for name in ["qwen3", "nemotron_h"] {
        let (file, _) = open(&format!("models/{name}"));
        let (head, reference) = open(&format!("heads/{name}-eagle3"));
        let config = Outline::read(file.directory()).unwrap().config;
        for prompt in reference["prompts"].as_array().unwrap() {
            let mut backend = Cpu::new(1, &[]).unwrap();
            let mut mtp = Mtp::load_file(&mut backend, &head, (&file, &config), 512).unwrap();
            let mut text = tokens(prompt);
            let (mut model, states, next) = trunk(&mut backend, &file, &text, mtp.tapped_layers());
            text.push(next);
            for (at, state) in states.chunks_exact(states.len() / (text.len() - 1)).enumerate() {
                mtp.rows.push(text[at + 1], at + 1, state);
            }
            let tables = mtp.places[0].tables.clone();
            mtp.rows.end(0, &tables, 0);
            mtp.fuse(&mut backend).unwrap();
            for due in prompt["llama_cpp_f32_heads"].as_array().unwrap() {
                mtp.pass(&mut backend, &mut model).unwrap();
                let state = mtp.model.state(&mut backend).unwrap().to_vec();
                let own = mtp.model.logits(&mut backend).unwrap();
                let logits = match &mut mtp.fewer {
                    Some(fewer) => fewer.spread(own),
                    None => own,
                };
                let far = far(logits, due);
                assert!(far < 1e-4, "{name}, {} tokens: {far}", text.len());
                let guess = largest(logits);
                mtp.rows.clear();
                mtp.rows.push(guess, text.len(), &state);
                mtp.rows.end(0, &tables, text.len() - 1);
                text.push(guess);
            }
        }
    }
}

#[test]
fn an_assistant_gives_the_logits_of_its_references() {
    for name in ["gemma4", "gemma4-e"] {
        let (file, _) = open(&format!("models/{name}"));
        let (assistant, reference) = open(&format!("heads/{name}-assistant"));
        let config = Outline::read(file.directory()).unwrap().config;
        for prompt in reference["prompts"].as_array().unwrap() {
            let mut backend = Cpu::new(1, &[]).unwrap();
            let mut mtp = Mtp::load_file(&mut backend, &assistant, (&file, &config), 512).unwrap();
            let mut text = tokens(prompt);
            let (mut model, states, next) = trunk(&mut backend, &file, &text, &[]);
            let last = states.chunks_exact(mtp.widths().1).last().unwrap();
            let (mut token, mut state, mut due) = (next, last.to_vec(), Vec::new());
            for at in 0..2 {
                mtp.rows.clear();
                mtp.rows.push(token, text.len(), &state);
                mtp.rows.end(0, &tables(), text.len() - 1);
                mtp.pass(&mut backend, &mut model).unwrap();
                state = mtp.model.state(&mut backend).unwrap().to_vec();
                let logits = mtp.model.logits(&mut backend).unwrap();
                token = largest(logits);
                due.push(token);
                // llama.cpp rounds the GELU of each number to 16 bits.
                for (by, limit) in [("hf_heads", 1e-4), ("llama_cpp_f32_heads", 1e-2)] {
                    let far = far(logits, &prompt[by][at]);
                    assert!(far < limit, "{name}, {} tokens, {by}: {far}", text.len());
                }
            }
            let (id, request) = (7, GenerateRequest { prompt: text.clone(), ..Default::default() });
            let place = mtp.place_of(id);
            // Wrong guesses gave states too.
            for at in 0..=GUESSES_MAX {
                let state = if at == 0 { last } else { &vec![0.0; last.len()] };
                mtp.places[place].wait(text.len() + at, state, mtp.waiting_max);
            }
            text.push(next);
            let job = DraftJob { id, slot: 1, request: &request, text: &text, count: 2 };
            let tables = tables_of_rank(text.len() - 1);
            let mut target = Target { model: &mut model, tables: &tables };
            let mut guesses = [Vec::new()];
            mtp.guess(&mut backend, &mut target, &[job], &mut guesses).unwrap();
            assert_eq!(guesses[0], due, "{name}, {} tokens", text.len());
        }
    }
}

/// Rank 0 keeps the keys and values of all heads in the layers that an assistant reads.
#[test]
fn an_assistant_guesses_the_same_beside_any_rank() {
    for name in ["gemma4", "gemma4-e"] {
        let (file, _) = open(&format!("models/{name}"));
        let (_, reference) = open(&format!("heads/{name}-assistant"));
        let draft = fixtures::path(&format!("heads/{name}-assistant.gguf"));
        for shares in [&[1][..], &[1, 1], &[1, 3], &[1, 1, 1]] {
            let options = LocalOptions {
                prompts: None,
                experts: None,
                options: SplitOptions { draft: Some(draft.clone()), ..Default::default() },
                split: Split {
                    shares: shares.to_vec(),
                    stages: Vec::new(),
                    whole_experts: false,
                    context_tokens: 256,
                    sequences_max: 1,
                    cache_tokens: 256,
                    mtp: false,
                    ..Split::default()
                },
                ring: false,
                link_latency: Duration::ZERO,
                threads: 1,
            };
            let mut local = Local::start(file.clone(), &options).unwrap();
            for prompt in reference["prompts"].as_array().unwrap() {
                let mut text = tokens(prompt);
                local.truncate(0);
                let next = largest(local.feed(&text).unwrap());
                let request = GenerateRequest { prompt: text.clone(), ..Default::default() };
                text.push(next);
                let job = DraftJob { id: 0, slot: 0, request: &request, text: &text, count: 2 };
                let logits = prompt["hf_heads"].as_array().unwrap().iter();
                let logits = logits.map(|one| serde_json::from_value(one.clone()).unwrap());
                let due: Vec<Token> = logits.map(|one: Vec<f32>| largest(&one)).collect();
                assert_eq!(local.guess(job), due, "{name} over {shares:?}, {} tokens", text.len());
            }
        }
    }
}
