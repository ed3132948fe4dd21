//! Experts on disk: a model of which only some experts are in memory computes the same bits as one
//! that is in memory as a whole, with any budget and on every kind of split.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{EngineError, Local, LocalOptions};
use gguf::{Directory, File, ReadError, Source, Strided};
use protocol::{ExpertCache, GenerateRequest, Speculation, Token};

use crate::sharing::{CONTEXT_TOKENS, options, path, pieces};

/// Every kind of expert: with and without gates, biases, a shared one, a latent space, choices by
/// token; of several types; beside layers with windows, states, indexers and streams.
const MIXTURES: [&str; 16] = [
    "mixtral",
    "gpt-oss",
    "kimi-k2",
    "qwen3moe",
    "qwen3moe-odd",
    "qwen35moe-fused",
    "llama4",
    "gemma4-moe",
    "deepseek4",
    "deepseek4-mxfp4",
    "glm4moe",
    "nemotron_h_moe-latent",
    "granitehybrid",
    "lfm2moe",
    "kimi-k3",
    "phimoe",
];
const SPLITS: [(&[u32], &[usize]); 5] =
    [(&[1], &[]), (&[2, 1], &[]), (&[1, 1, 1], &[]), (&[1, 1], &[1, 1]), (&[1, 2, 1], &[2, 1])];
const MIB: u64 = 1 << 20;

fn start(
    name: &str,
    split: (&[u32], &[usize]),
    whole_experts: bool,
    experts: Option<ExpertCache>,
) -> Result<Local, EngineError> {
    let options = options(name, split, (1, CONTEXT_TOKENS), Speculation::Off, None);
    let split = protocol::Split { whole_experts, ..options.split };
    let options = LocalOptions { experts, split, ..options };
    let source: Arc<dyn Source> = Arc::new(File::open(path(name)).unwrap());
    Local::start(source, &options)
}

fn cache(folder: &Path, budget_bytes: u64) -> ExpertCache {
    let (folder, model) = (folder.to_owned(), "a model".to_owned());
    ExpertCache { folder, model, budget_bytes, reserve_bytes: 0, bytes_per_sec_max: None }
}

/// The bits of all logits of a prompt in one chunk, and of tokens one by one.
fn bits(local: &mut Local) -> Vec<u32> {
    find_bits(local).unwrap()
}

fn find_bits(local: &mut Local) -> Result<Vec<u32>, EngineError> {
    let tokens: Vec<Token> = (0..90).map(|at| ((at * at * 7 + at) % 250) as Token).collect();
    let (prompt, rest) = tokens.split_at(60);
    let mut found = Vec::new();
    for piece in std::iter::once(prompt).chain(rest.chunks(1)) {
        found.extend(local.feed(piece)?.iter().map(|logit| logit.to_bits()));
    }
    Ok(found)
}

/// The bytes of one expert of rank 0, from the refusal of a budget below it.
fn least(name: &str, split: (&[u32], &[usize]), whole: bool, folder: &Path) -> u64 {
    let Err(refused) = start(name, split, whole, Some(cache(folder, 1))) else {
        panic!("{name}: a budget of one byte was taken");
    };
    let text = refused.to_string();
    let number = text.split("one of them takes ").nth(1).and_then(|rest| rest.split(':').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

#[test]
fn streamed_experts_give_the_bits_of_resident_ones() {
    for name in MIXTURES {
        for split in SPLITS.into_iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let dir = tempfile::tempdir().unwrap();
            let due = bits(&mut start(name, split, false, None).unwrap());
            // One rank tells its least budget; the shares of the others may be larger.
            let least =
                if split.0.len() == 1 { least(name, split, false, dir.path()) } else { MIB };
            for budget in [least, 3 * least, 64 * MIB] {
                let what = format!("{name} on {split:?} with {budget} bytes");
                let mut local = start(name, split, false, Some(cache(dir.path(), budget)))
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(bits(&mut local) == due, "{what}: other bits");
            }
        }
    }
}

#[test]
fn guesses_over_experts_on_disk_change_no_answer() {
    let mut right = 0;
    for name in ["qwen3moe", "gpt-oss", "lfm2moe", "deepseek4"] {
        for split in SPLITS.into_iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let requests = || {
                (1..4).map(|at| GenerateRequest {
                    prompt: (0..70).map(|token| (token % (at + 2)) as Token).collect(),
                    max_tokens: 30,
                    ..GenerateRequest::default()
                })
            };
            let due = start(name, split, false, None).unwrap().serve(requests().collect()).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let room = (3, 3 * CONTEXT_TOKENS);
            let options = options(name, split, room, Speculation::Prompt, None);
            let options = LocalOptions { experts: Some(cache(dir.path(), MIB / 4)), ..options };
            let source: Arc<dyn Source> = Arc::new(File::open(path(name)).unwrap());
            let mut local = Local::start(source, &options).unwrap();
            assert_eq!(local.serve(requests().collect()).unwrap(), due, "{name} on {split:?}");
            right += local.stats().guessed_right_tokens;
        }
    }
    assert!(right > 20, "{right} guesses were right: too easy");
}

#[test]
fn whole_experts_are_streamed_too() {
    for name in ["qwen3moe", "deepseek4", "gpt-oss"] {
        let (split, dir): ((&[u32], &[usize]), _) = ((&[1, 1], &[]), tempfile::tempdir().unwrap());
        let due = bits(&mut start(name, split, true, None).unwrap());
        let mut local = start(name, split, true, Some(cache(dir.path(), MIB))).unwrap();
        assert!(bits(&mut local) == due, "{name}: other bits");
    }
}

/// The files of slabs.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join("0")).unwrap();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "slabs"));
    found.sort();
    found
}

#[test]
fn damaged_slabs_are_an_error_or_written_anew_and_never_other_bits() {
    let (name, split, dir) = ("mixtral", SPLITS[0], tempfile::tempdir().unwrap());
    let due = bits(&mut start(name, split, false, None).unwrap());
    let open = || start(name, split, false, Some(cache(dir.path(), MIB)));
    drop(open().unwrap());
    let seed = 7;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut refused = 0;
    for round in 0..100 {
        let files = files(dir.path());
        let path = &files[rng.usize(..files.len())];
        let mut content = std::fs::read(path).unwrap();
        match round % 4 {
            0 => content.truncate(rng.usize(..content.len())),
            _ => {
                let at = rng.usize(..content.len());
                content[at] ^= 1 << rng.u8(..8);
            }
        }
        std::fs::write(path, content).unwrap();
        let mut local = open().unwrap();
        match find_bits(&mut local) {
            Ok(bits) => assert!(bits == due, "seed {seed}, round {round}"),
            Err(error) => {
                assert!(error.to_string().contains("written anew"), "{error}");
                refused += 1;
            }
        }
        drop(local);
        assert!(bits(&mut open().unwrap()) == due, "seed {seed}, round {round}");
    }
    assert!(refused > 10, "seed {seed}: {refused} of 100 were refused in a step");
}

#[test]
fn slabs_are_kept_for_their_model_and_split_alone() {
    let (name, dir) = ("qwen3moe", tempfile::tempdir().unwrap());
    let written = |split, experts: ExpertCache| {
        let before = std::time::SystemTime::now();
        let due = bits(&mut start(name, split, false, None).unwrap());
        assert!(bits(&mut start(name, split, false, Some(experts)).unwrap()) == due);
        let is_new = |path: &PathBuf| path.metadata().unwrap().modified().unwrap() > before;
        files(dir.path()).iter().filter(|path| is_new(path)).count()
    };
    let own = || cache(dir.path(), MIB);
    let all = written(SPLITS[0], own());
    assert!(all > 0);
    assert_eq!(written(SPLITS[0], own()), 0, "they are there");
    assert_eq!(written(SPLITS[1], own()), all, "another split");
    assert_eq!(written(SPLITS[0], own()), all, "back");
    let other = ExpertCache { model: "another".to_owned(), ..own() };
    assert_eq!(written(SPLITS[0], other), all, "another model");
}

/// A disk that has nothing left.
fn full(folder: &Path, budget_bytes: u64) -> ExpertCache {
    ExpertCache { reserve_bytes: u64::MAX / 2, ..cache(folder, budget_bytes) }
}

const KEPT_FREE: &str = "of which 9223372036854775807 are kept free";

#[test]
fn without_room_for_slabs_experts_are_read_from_the_models_file_with_the_same_bits() {
    for name in MIXTURES {
        for split in SPLITS.into_iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let dir = tempfile::tempdir().unwrap();
            let due = bits(&mut start(name, split, false, None).unwrap());
            let mut local = start(name, split, false, Some(full(dir.path(), MIB))).unwrap();
            assert!(bits(&mut local) == due, "{name} on {split:?}: other bits");
            let notes = local.rank().notes().concat();
            // The first of several stages may have no experts.
            assert!(split.0.len() > 1 || notes.contains("read from the model's file"), "{notes}");
            assert!(notes.is_empty() || notes.contains(KEPT_FREE), "{notes}");
            assert_eq!(files(dir.path()).len(), 0);
        }
    }
    let (split, dir): ((&[u32], &[usize]), _) = ((&[1, 1], &[]), tempfile::tempdir().unwrap());
    let due = bits(&mut start("qwen3moe", split, true, None).unwrap());
    let mut whole = start("qwen3moe", split, true, Some(full(dir.path(), MIB))).unwrap();
    assert!(bits(&mut whole) == due, "whole experts: other bits");
}

#[test]
fn slabs_are_written_as_far_as_the_disk_has_room() {
    let (name, split, dir) = ("qwen3moe", SPLITS[0], tempfile::tempdir().unwrap());
    let due = bits(&mut start(name, split, false, None).unwrap());
    let open = |experts| start(name, split, false, Some(experts)).unwrap();
    drop(open(cache(dir.path(), MIB)));
    let all = files(dir.path());
    all.iter().skip(1).for_each(|path| std::fs::remove_file(path).unwrap());
    let mut local = open(full(dir.path(), MIB));
    assert!(bits(&mut local) == due);
    assert_eq!(files(dir.path()), all[..1], "what is there is used");
    let notes = local.rank().notes().concat();
    assert!(notes.contains(&format!("the experts of {} layers", all.len() - 1)), "{notes}");
    drop(local);
    let mut local = open(cache(dir.path(), MIB));
    assert!(bits(&mut local) == due);
    assert_eq!((files(dir.path()), local.rank().notes().len()), (all, 0), "room again");
}

/// A model's file that is at another node.
struct Elsewhere(File);

impl Source for Elsewhere {
    fn directory(&self) -> &Arc<Directory> {
        self.0.directory()
    }

    fn is_local(&self) -> bool {
        false
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        self.0.read(pieces, out)
    }
}

#[test]
fn a_disk_without_room_and_without_the_file_is_refused_in_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let source = |name| Arc::new(Elsewhere(File::open(path(name)).unwrap()));
    let options = options("mixtral", SPLITS[0], (1, CONTEXT_TOKENS), Speculation::Off, None);
    let start = |experts| {
        Local::start(source("mixtral"), &LocalOptions { experts: Some(experts), ..options.clone() })
    };
    let Err(refused) = start(full(dir.path(), MIB)) else { panic!("a full disk was taken") };
    assert!(refused.to_string().contains(KEPT_FREE), "{refused}");
    assert_eq!(files(dir.path()).len(), 0);
    assert!(start(cache(dir.path(), MIB)).is_ok());
}

#[test]
fn a_start_reads_the_experts_that_were_used_last() {
    let (name, split, dir) = ("qwen3moe", SPLITS[0], tempfile::tempdir().unwrap());
    let least = least(name, split, false, dir.path());
    let run = || {
        let mut local = start(name, split, false, Some(cache(dir.path(), 6 * least))).unwrap();
        let before = local.rank().expert_stats().unwrap();
        local.feed(&[1]).unwrap();
        (before.memory_bytes / least, local.rank().expert_stats().unwrap().hits)
    };
    assert_eq!(run(), (0, 0), "nobody has used any");
    let (held, hits) = run();
    assert!(held == hits && hits > 0, "{held} experts in memory, {hits} hits");
    // Whatever the list says, it is a hint.
    std::fs::write(dir.path().join("0/hot"), "99 1\n0 4000000000\n1 0\n").unwrap();
    assert_eq!(run().0, 1);
}
