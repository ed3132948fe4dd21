//! Folders of every architecture that the engine runs can be read, and the engine reads what they
//! become.

use std::collections::BTreeSet;

use crate::common::{described, names};
use gguf::Source;

/// Architectures without a folder, and why.
const WITHOUT: [(&str, &str); 7] = [
    ("bert", NOT_YET),
    ("eurobert", NOT_YET),
    ("gemma-embedding", NOT_YET),
    ("jina-bert-v3", NOT_YET),
    ("modern-bert", NOT_YET),
    ("nomic-bert", NOT_YET),
    ("nomic-bert-moe", NOT_YET),
];
const NOT_YET: &str = "the pooling of an encoder's folder is not read yet";

/// Those that guess for a model, their fixtures, and the model's.
const GUESSES: [(&str, &str, &str); 2] =
    [("gemma4-assistant", "gemma4-assistant", "gemma4"), ("eagle3", "qwen3-eagle3", "qwen3")];

#[test]
fn every_architecture_has_a_table_or_a_reason() {
    let guess: BTreeSet<&str> = GUESSES.iter().map(|(name, ..)| *name).collect();
    let known = checkpoint::architectures().into_iter().filter(|name| !guess.contains(name));
    let known: BTreeSet<&str> = known.collect();
    let run: BTreeSet<&str> = layout::architectures().collect();
    let without: BTreeSet<&str> = WITHOUT.iter().map(|(name, _)| *name).collect();
    assert_eq!(known.difference(&run).collect::<Vec<_>>(), [] as [&&str; 0], "no engine runs them");
    let missing: BTreeSet<&str> = run.difference(&known).copied().collect();
    assert_eq!(missing, without);
}

#[test]
fn every_table_has_a_folder_which_the_engine_reads_whole() {
    let mut left: BTreeSet<&str> = checkpoint::architectures().into_iter().collect();
    let mut failed = Vec::new();
    for name in names() {
        let dir = tempfile::tempdir().unwrap();
        described(&name).write(dir.path(), 1);
        let file = checkpoint::open(dir.path()).unwrap();
        left.remove(file.directory().str("general.architecture").unwrap());
        if let Some((.., model)) = GUESSES.iter().find(|(_, guess, _)| *guess == name) {
            let path = fixtures::path(&format!("models/{model}.gguf"));
            let model = gguf::File::open(path).unwrap();
            let config = layout::Outline::read(model.directory()).unwrap().config;
            let due = (model.directory().as_ref(), &config);
            let read = layout::BlockFile::read(file.directory(), due);
            failed.extend(read.err().map(|error| format!("{name}: {error}")));
            continue;
        }
        match layout::Outline::read(file.directory()) {
            Err(error) => failed.push(format!("{name}: {error}")),
            Ok(outline) => {
                assert_eq!(outline.mtp.is_some(), name.ends_with("-mtp"), "{name}");
                failed.extend(outline.not_read.map(|it| format!("{name}: {it}")));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(left.is_empty(), "no checkpoint of {left:?} is in fixtures/checkpoints");
}
