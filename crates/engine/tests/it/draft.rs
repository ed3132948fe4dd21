//! A draft model, an EAGLE-3 head, an assistant, or the model's own MTP block changes the time of an
//! answer, never its tokens.

use crate::checkpoints;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::{Local, LocalOptions};
use gguf::{File, Source};
use protocol::{
    EngineStats, GenerateRequest, Sampling, Speculation, Split, SplitOptions, StageSize, Token,
};

fn path(name: &str) -> PathBuf {
    let is_head = ["-eagle3", "-assistant"].iter().any(|end| name.ends_with(end));
    let folder = if is_head { "heads" } else { "models" };
    fixtures::path(&format!("{folder}/{name}.gguf"))
}

/// A fixture's file, or one of the test's own.
fn draft_path(draft: &str) -> PathBuf {
    if draft.contains(std::path::MAIN_SEPARATOR) { draft.into() } else { path(draft) }
}

/// Who guesses beside the text itself.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Guesses<'a> {
    No,
    Draft(&'a str),
    Mtp,
}

fn start(
    name: &str,
    split: (&[u32], &[usize]),
    guesses: Guesses<'_>,
) -> Result<Local, engine::EngineError> {
    start_file(File::open(path(name)).unwrap(), split, guesses)
}

fn start_file(
    file: File,
    (shares, stages): (&[u32], &[usize]),
    guesses: Guesses<'_>,
) -> Result<Local, engine::EngineError> {
    let borders = layout::Outline::read(file.directory()).unwrap().config.borders();
    let border = |stage: usize| borders[(borders.len() - 1) * stage / stages.len()];
    let size = |(stage, &ranks)| StageSize { ranks, layers: border(stage + 1) - border(stage) };
    let (speculation, draft) = match guesses {
        Guesses::No => (Speculation::Off, None),
        Guesses::Draft(draft) => (Speculation::Prompt, Some(draft)),
        Guesses::Mtp => (Speculation::Prompt, None),
    };
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions {
            speculation,
            draft: draft.map(draft_path),
            ..SplitOptions::default()
        },
        split: Split {
            shares: shares.to_vec(),
            stages: stages.iter().enumerate().map(size).collect(),
            whole_experts: false,
            context_tokens: 256,
            sequences_max: 6,
            cache_tokens: 1024,
            mtp: guesses == Guesses::Mtp,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 1,
    };
    Local::start(Arc::new(file), &options)
}

fn requests() -> Vec<GenerateRequest> {
    let request = |seed: usize| GenerateRequest {
        prompt: (0..10 + 20 * (seed % 6))
            .map(|at| ((at * 17 + seed * at * at) % 250) as Token)
            .collect(),
        sampling: match seed % 6 {
            0 | 2 | 4 => Sampling::default(),
            5 => odd_sampling(seed),
            _ => Sampling { temperature: 1.0, seed: seed as u64, ..Sampling::default() },
        },
        max_tokens: 50,
        ..GenerateRequest::default()
    };
    // Each tries a guess at least once, whatever guesses cost on this machine.
    (0..24).map(request).collect()
}

/// Samplers that look at more than the logits.
fn odd_sampling(seed: usize) -> Sampling {
    let warm = Sampling { temperature: 1.0, seed: seed as u64, ..Sampling::default() };
    match seed / 6 {
        0 => Sampling { mirostat: 2, ..warm },
        1 => Sampling { xtc_probability: 0.5, xtc_threshold: 0.01, top_k: 20, ..warm },
        2 => Sampling { dry_multiplier: 1.0, dry_allowed_length: 1, ..warm },
        _ => Sampling { typical_p: 0.5, repetition_penalty: 1.3, repeat_last_n: 8, ..warm },
    }
}

/// The answers one after the other, then together, and the counters.
fn answers(local: &mut Local) -> (Vec<Vec<Token>>, EngineStats) {
    let mut counted = EngineStats::default();
    let mut answers = Vec::new();
    let one_by_one = requests().into_iter().map(|request| vec![request]);
    for requests in one_by_one.chain([requests()]) {
        answers.extend(local.serve(requests).unwrap());
        counted.guessed_tokens += local.stats().guessed_tokens;
        counted.guessed_right_tokens += local.stats().guessed_right_tokens;
    }
    (answers, counted)
}

/// Models with drafts of their vocabulary: the model itself, which is always right, and an
/// unrelated one. Wrong guesses roll states back, in the model and in the draft.
#[test]
fn a_draft_guesses_and_every_answer_stays_the_same() {
    for (name, drafts) in [
        ("olmo3", &[("olmo3", true), ("llama-biases", false), ("qwen35-odd", false)][..]),
        ("qwen35-odd", &[("qwen35-odd", true), ("lfm2-odd", false), ("olmo3", false)]),
        ("qwen4exp", &[("qwen4exp", true), ("lfm2", false)]),
    ] {
        let (expected, _) = answers(&mut start(name, (&[1], &[]), Guesses::No).unwrap());
        for split in [(&[1][..], &[][..]), (&[2, 1], &[]), (&[1, 1], &[1, 1])] {
            for &(draft, is_right) in drafts {
                let (found, counted) =
                    answers(&mut start(name, split, Guesses::Draft(draft)).unwrap());
                let what = format!("{draft} for {name} over {split:?}");
                assert_eq!(found, expected, "{what}");
                let EngineStats { guessed_tokens: tried, guessed_right_tokens: right, .. } =
                    counted;
                let share = right as f32 / tried as f32;
                assert!(tried > 20, "{what}: {tried} guesses");
                assert!((share > 0.7) == is_right, "{what}: {right} of {tried}");
            }
        }
    }
}

/// The weights are random, so a block guesses wrong: what it leaves behind must not show.
#[test]
fn an_mtp_block_guesses_and_every_answer_stays_the_same() {
    for name in
        ["qwen35-mtp", "glm4moe-mtp", "deepseek32-mtp", "step35-mtp", "mimo2-mtp", "deepseek4-mtp"]
    {
        let (expected, _) = answers(&mut start(name, (&[1], &[]), Guesses::No).unwrap());
        for split in [(&[1][..], &[][..]), (&[2, 1], &[]), (&[1, 1], &[1, 1])] {
            let (found, counted) = answers(&mut start(name, split, Guesses::Mtp).unwrap());
            assert_eq!(found, expected, "{name} over {split:?}");
            assert!(counted.guessed_tokens > 20, "{name} over {split:?}: {counted:?}");
        }
    }
}

/// Heads have random weights too. In a pipeline they would read layers of other machines.
#[test]
fn an_eagle3_head_guesses_and_every_answer_stays_the_same() {
    for name in ["qwen3", "nemotron_h"] {
        let (expected, _) = answers(&mut start(name, (&[1], &[]), Guesses::No).unwrap());
        let head = format!("{name}-eagle3");
        for split in [(&[1][..], &[][..]), (&[2, 1], &[])] {
            let (found, counted) = answers(&mut start(name, split, Guesses::Draft(&head)).unwrap());
            assert_eq!(found, expected, "{name} over {split:?}");
            assert!(counted.guessed_tokens > 20, "{name} over {split:?}: {counted:?}");
        }
        let mut local = start(name, (&[1, 1], &[1, 1]), Guesses::Draft(&head)).unwrap();
        let told = local.rank().notes().iter().any(|note| note.contains("pipeline"));
        assert!(told, "{name}: {:?}", local.rank().notes());
        assert_eq!(answers(&mut local).0, expected, "{name} in a pipeline");
    }
}

/// Rank 0 keeps the keys and values that it reads, also those of heads that other ranks have; in a
/// pipeline they are in another stage.
#[test]
fn an_assistant_guesses_and_every_answer_stays_the_same() {
    for name in ["gemma4", "gemma4-e"] {
        let (expected, _) = answers(&mut start(name, (&[1], &[]), Guesses::No).unwrap());
        let assistant = format!("{name}-assistant");
        for (split, guesses) in
            [((&[1][..], &[][..]), true), ((&[1, 2], &[]), true), ((&[1, 1], &[1, 1]), false)]
        {
            let mut local = start(name, split, Guesses::Draft(&assistant)).unwrap();
            let notes = local.rank().notes().to_vec();
            let (found, counted) = answers(&mut local);
            assert_eq!(found, expected, "{name} over {split:?}");
            assert!(counted.guessed_tokens > 20, "{name} over {split:?}: {counted:?}");
            let told = notes.iter().any(|note| note.contains("other machines"));
            assert_eq!(told, !guesses, "{name} over {split:?}: {notes:?}");
        }
    }
}

#[test]
fn an_eagle3_head_for_another_model_is_refused() {
    let Err(error) = start("llama3-tied", (&[1], &[]), Guesses::Draft("qwen3-eagle3")) else {
        panic!("it was taken")
    };
    assert!(error.to_string().contains("vocabulary"), "{error}");
}

/// The file has an embedding and an output head of its own, or not.
#[test]
fn an_mtp_block_in_a_file_of_its_own_guesses_and_every_answer_stays_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["step35", "mimo2", "deepseek4"] {
        let whole = File::open(path(&format!("{name}-mtp"))).unwrap();
        let layers = layout::Outline::read(whole.directory()).unwrap().config.layers;
        let (expected, _) = answers(&mut start(name, (&[1], &[]), Guesses::No).unwrap());
        for (alone, split) in [(false, (&[1][..], &[][..])), (true, (&[1, 1], &[1, 1]))] {
            let draft = dir.path().join("mtp.gguf");
            write_block(&whole, &format!("blk.{layers}."), alone, &draft);
            let mut local = start_file(
                File::open(path(name)).unwrap(),
                split,
                Guesses::Draft(draft.to_str().unwrap()),
            );
            let (found, counted) = answers(local.as_mut().unwrap());
            assert_eq!(found, expected, "{name}");
            assert!(counted.guessed_tokens > 20, "{name}: {counted:?}");
        }
        let error =
            layout::Outline::read(File::open(dir.path().join("mtp.gguf")).unwrap().directory());
        assert!(error.unwrap_err().to_string().contains("--draft"), "{name}");
    }
}

/// Writes the tensors that begin with `block`; unless `alone`, those of the whole model too.
fn write_block(file: &File, block: &str, alone: bool, to: &std::path::Path) {
    let mut writer = gguf::Writer::new();
    for (key, value) in file.directory().metadata() {
        writer.set(key, value.clone());
    }
    for tensor in file.directory().tensors() {
        if tensor.name.starts_with(block) || !(alone || tensor.name.starts_with("blk.")) {
            writer.declare(&tensor.name, &tensor.dims, tensor.ty);
        }
    }
    let mut bytes = Vec::new();
    let fill = |name: &str, _, len: u64, out: &mut Vec<u8>| {
        let start = file.directory().find_tensor(name).unwrap().range.start;
        let at = out.len();
        out.resize(at + len as usize, 0);
        let pieces = gguf::Strided { start, piece: len, stride: len, count: 1 };
        file.read(pieces, &mut out[at..]).unwrap();
        Ok(())
    };
    writer.write(&mut bytes, fill).unwrap();
    std::fs::write(to, bytes).unwrap();
}

/// The blocks of folders, each with other numbers than those of the fixtures.
#[test]
fn the_block_of_a_folder_guesses_too() {
    for name in checkpoints::names().into_iter().filter(|name| name.ends_with("-mtp")) {
        let dir = tempfile::tempdir().unwrap();
        checkpoints::described(&name).write(dir.path(), 1);
        let start = |guesses| {
            let file = checkpoint::open(dir.path()).unwrap();
            start_file(file, (&[1, 1], &[]), guesses).unwrap()
        };
        let (expected, _) = answers(&mut start(Guesses::No));
        let (found, counted) = answers(&mut start(Guesses::Mtp));
        assert_eq!(found, expected, "{name}");
        assert!(counted.guessed_tokens > 20, "{name}: {counted:?}");
    }
}

/// A folder with a head has no vocabulary, and may leave out what it reads of its model.
#[test]
fn the_head_of_a_folder_guesses_too() {
    for (head, name, left_out) in [
        ("qwen3-eagle3", "qwen3", &[][..]),
        ("qwen3-eagle3", "qwen3", &["eagle_aux_hidden_state_layer_ids", "target_hidden_size"]),
        ("gemma4-assistant", "gemma4", &[]),
    ] {
        let (model, draft) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        checkpoints::described(name).write(model.path(), 1);
        let mut described = checkpoints::described(head);
        let config = described.config.as_object_mut().unwrap();
        left_out.iter().for_each(|key| drop(config.remove(*key)));
        described.write(draft.path(), 1);
        let start = |guesses| {
            let file = checkpoint::open(model.path()).unwrap();
            start_file(file, (&[1, 1], &[]), guesses).unwrap()
        };
        let (expected, _) = answers(&mut start(Guesses::No));
        let mut local = start(Guesses::Draft(draft.path().to_str().unwrap()));
        assert!(local.rank().notes().is_empty(), "{head}: {:?}", local.rank().notes());
        assert_eq!(answers(&mut local).0, expected, "{head}");
    }
}

#[test]
fn a_draft_of_another_vocabulary_is_refused_and_one_that_is_gone_is_told() {
    let Err(error) = start("llama-biases", (&[1], &[]), Guesses::Draft("llama3-tied")) else {
        panic!("it was taken")
    };
    assert!(error.to_string().contains("vocabulary"), "{error}");
    let local = start("llama-biases", (&[1], &[]), Guesses::Draft("not-there")).unwrap();
    assert!(local.rank().notes()[0].contains("not-there"), "{:?}", local.rank().notes());
}
