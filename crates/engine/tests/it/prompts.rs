//! Prompts kept on disk: another process that serves the model reads them instead of computing
//! them, and gives the same answers, with every kind of cache and on every kind of split.

use std::path::Path;

use backend::Cpu;
use engine::Local;
use protocol::{GenerateRequest, PromptCache, Sampling, Secret, Speculation, Token};

use crate::sharing::{CONTEXT_TOKENS, MODELS, ROOM_FOR_WINDOWS, SPLITS, pieces, start_with};

const MIB: u64 = 1 << 20;

fn folder(path: &Path) -> PromptCache {
    PromptCache {
        folder: path.to_owned(),
        sealing_key: Secret([7; 32]),
        model: "a model".to_owned(),
        budget_bytes: 512 * MIB,
        reserve_bytes: 0,
        members: None,
    }
}

/// Three prompts of 290 to 370 tokens. Two begin alike.
fn requests() -> Vec<GenerateRequest> {
    let request = |at: usize| {
        let beginning = (0..280).map(|p| ((p * (3 + at / 2) + 11) % 250) as Token);
        let end = (0..10 + 40 * at).map(|p| ((p * 13 + at * 29) % 250) as Token);
        GenerateRequest {
            prompt: beginning.chain(end).collect(),
            sampling: match at {
                0 => Sampling::default(),
                _ => Sampling { temperature: 0.9, seed: at as u64, ..Sampling::default() },
            },
            max_tokens: 20 + 10 * at,
            ..GenerateRequest::default()
        }
    };
    (0..3).map(request).collect()
}

fn answers(
    name: &str,
    split: (&[u32], &[usize]),
    prompts: Option<PromptCache>,
) -> (Vec<Vec<Token>>, u64) {
    let room = (3, ROOM_FOR_WINDOWS.max(4 * CONTEXT_TOKENS));
    let mut model = start_with(name, split, room, Speculation::Prompt, prompts);
    let answers = model.serve(requests()).unwrap();
    (answers, model.stats().prompts.map_or(0, |stats| stats.loaded_tokens))
}

#[test]
fn what_was_read_from_disk_gives_the_answer_that_was_computed() {
    for name in MODELS {
        for split in SPLITS.into_iter().filter(|(_, stages)| stages.len() <= pieces(name)) {
            let what = format!("{name} on {split:?}");
            let dir = tempfile::tempdir().unwrap();
            let (due, _) = answers(name, split, None);
            let (first, loaded) = answers(name, split, Some(folder(dir.path())));
            assert_eq!((first, loaded), (due.clone(), 0), "{what}");
            // A disk that a busy machine lets wait is not waited for: then it is asked again.
            let again = (0..10).any(|_| {
                let (second, loaded) = answers(name, split, Some(folder(dir.path())));
                assert_eq!(second, due, "{what}");
                loaded >= 2 * 256
            });
            assert!(again, "{what}: nothing was read");
        }
    }
}

/// Of a prompt of whole pages only the last row is computed, at the end of a copy of its last page.
#[test]
fn the_last_page_of_a_prompt_is_read_too() {
    let dir = tempfile::tempdir().unwrap();
    let asked = || {
        let prompts = Some(folder(dir.path()));
        let room = (1, 4 * CONTEXT_TOKENS);
        let mut model = start_with("llama3-tied", SPLITS[0], room, Speculation::Off, prompts);
        let prompt = (0..320).map(|p| (p * 7 % 250) as Token).collect();
        let request = GenerateRequest { prompt, max_tokens: 5, ..GenerateRequest::default() };
        let answer = model.serve(vec![request]).unwrap();
        (answer, model.stats().prompts.as_ref().map_or(0, |stats| stats.loaded_tokens))
    };
    let (due, _) = asked();
    let all = (0..10).any(|_| {
        let (answer, loaded) = asked();
        assert_eq!(answer, due);
        loaded == 320
    });
    assert!(all, "its last page is computed");
}

#[test]
fn a_folder_in_use_is_taken_over_from_the_process_that_ends() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let room = (3, ROOM_FOR_WINDOWS.max(4 * CONTEXT_TOKENS));
        start_with(MODELS[0], SPLITS[0], room, Speculation::Prompt, Some(folder(dir.path())))
    };
    let mut first = start();
    let due = first.serve(requests()).unwrap();
    let mut second = start();
    let disk_bytes = |second: &mut Local<Cpu>| {
        assert_eq!(second.serve(requests()).unwrap(), due);
        second.stats().prompts.unwrap().disk_bytes
    };
    assert_eq!(disk_bytes(&mut second), 0);
    drop(first);
    assert!((0..1000).any(|_| disk_bytes(&mut second) > 0));
}

/// Gives each of `ranks` ranks what all ranks below `from` have written, as members do.
fn gather(from: &Path, ranks: usize) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let folders: Vec<_> = std::fs::read_dir(from).unwrap().map(|it| it.unwrap().path()).collect();
    for rank in 0..ranks {
        let own = to.path().join(rank.to_string());
        std::fs::create_dir(&own).unwrap();
        for (number, folder) in folders.iter().enumerate() {
            for line in records::notes(folder) {
                records::add_note(&own, &line, 64).unwrap();
            }
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if let Some(segment) = name.strip_suffix(".records") {
                    let segment = u32::from_str_radix(segment, 16).unwrap() + (number << 16) as u32;
                    std::fs::copy(&path, own.join(format!("{segment:08x}.records"))).unwrap();
                }
            }
        }
    }
    to
}

#[test]
fn what_another_split_has_written_gives_the_answer_that_was_computed() {
    for name in MODELS {
        let splits = SPLITS.into_iter().filter(|(_, stages)| stages.len() <= pieces(name));
        let splits: Vec<_> = splits.collect();
        let due = answers(name, splits[0], None).0;
        for (at, before) in splits.iter().enumerate() {
            let after = splits[(at + 1) % splits.len()];
            let what = format!("{name} on {after:?} after {before:?}");
            let dir = tempfile::tempdir().unwrap();
            assert_eq!(answers(name, *before, Some(folder(dir.path()))).0, due, "{what}");
            let gathered = gather(dir.path(), after.0.len());
            // A disk that a busy machine lets wait is not waited for: then it is asked again.
            let is_found = (0..10).any(|_| {
                let (found, loaded) = answers(name, after, Some(folder(gathered.path())));
                assert_eq!(found, due, "{what}");
                loaded >= 2 * 256
            });
            assert!(is_found, "{what}: nothing was read");
        }
    }
}

#[test]
fn a_prompt_is_found_under_its_own_salt_alone() {
    let dir = tempfile::tempdir().unwrap();
    let ask = |cache_salt| {
        let room = (3, 4 * CONTEXT_TOKENS);
        let prompts = Some(folder(dir.path()));
        let mut model = start_with("llama3-tied", SPLITS[0], room, Speculation::Prompt, prompts);
        let salted = requests().into_iter().map(|one| GenerateRequest { cache_salt, ..one });
        let answers = model.serve(salted.collect()).unwrap();
        (answers, model.stats().prompts.map_or(0, |stats| stats.loaded_tokens))
    };
    let (due, _) = ask(1);
    assert_eq!(ask(2), (due.clone(), 0), "of another key");
    // A disk that a busy machine lets wait is not waited for: then it is asked again.
    assert!((0..10).any(|_| ask(1).1 > 0), "of its own");
}

#[test]
fn damage_and_what_is_anothers_are_computed_again() {
    let (name, split) = ("gemma3", SPLITS[1]);
    let dir = tempfile::tempdir().unwrap();
    let (due, _) = answers(name, split, Some(folder(dir.path())));
    let other_key = PromptCache { sealing_key: Secret([8; 32]), ..folder(dir.path()) };
    let other_model = PromptCache { model: "another".to_owned(), ..folder(dir.path()) };
    let (found, loaded) = answers(name, split, Some(other_model));
    assert_eq!((found, loaded), (due.clone(), 0), "of another model");
    // Every second rank loses a part of its records.
    let mut damaged = 0;
    for entry in std::fs::read_dir(dir.path().join("1")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if bytes.len() > 1 << 16 {
            let half = bytes.len() / 2;
            bytes[half..].iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    let (found, _) = answers(name, split, Some(folder(dir.path())));
    assert_eq!(found, due, "with damaged files");
    let (found, loaded) = answers(name, split, Some(other_key));
    assert_eq!((found, loaded), (due, 0), "of another key");
}
