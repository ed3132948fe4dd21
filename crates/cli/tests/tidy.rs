//! Checks the promises of the architecture: the dependencies between crates and between the rooms
//! of `cluster`, the places of `unsafe`, and that the repository is self-contained. What does not
//! hold everywhere yet is counted, and may only get better.
//!
//! Needs nothing of the program: only the repository's texts.

#[path = "tidy/cluster.rs"]
mod cluster;
#[path = "tidy/mentions.rs"]
mod mentions;
#[path = "tidy/ratchet.rs"]
mod ratchet;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/tree.rs"]
mod tree;
#[path = "tidy/waits.rs"]
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tree::{below, crates, files, read, repository};

/// Allowed dependencies of each crate, from `ARCHITECTURE.md`. Arrows only point down.
const MAY_USE: &[(&str, &[&str])] = &[
    (
        "cli",
        &[
            "bench",
            "chats",
            "checkpoint",
            "cluster",
            "engine",
            "ggml",
            "gguf",
            "hub",
            "layout",
            "link",
            "placement",
            "protocol",
            "serve",
            "store",
            "text",
            "vision",
            "win32",
        ],
    ),
    (
        "bench",
        &[
            "backend",
            "checkpoint",
            "cluster",
            "collective",
            "engine",
            "ggml",
            "gguf",
            "hub",
            "layout",
            "link",
            "placement",
            "protocol",
            "text",
        ],
    ),
    ("serve", &["chats", "cluster", "gguf", "protocol", "text", "vision"]),
    ("chats", &["store"]),
    (
        "cluster",
        &[
            "checkpoint",
            "gguf",
            "hub",
            "layout",
            "placement",
            "protocol",
            "records",
            "store",
            "vision",
            "win32",
        ],
    ),
    (
        "engine",
        &[
            "backend",
            "checkpoint",
            "collective",
            "constrain",
            "gguf",
            "layout",
            "link",
            "model",
            "protocol",
            "records",
            "store",
            "vision",
            "win32",
        ],
    ),
    ("constrain", &["gguf", "protocol", "text"]),
    ("placement", &["layout", "protocol"]),
    ("hub", &["checkpoint", "gguf", "store", "win32"]),
    ("store", &["checkpoint", "gguf", "win32"]),
    ("records", &["win32"]),
    ("text", &["gguf"]),
    ("model", &["backend", "gguf", "layout", "protocol", "records"]),
    ("vision", &["gguf", "kernels", "protocol"]),
    ("backend", &["ggml", "gguf", "kernels", "records", "sumtree"]),
    ("kernels", &["gguf", "sumtree"]),
    ("ggml", &[]),
    ("collective", &["link", "sumtree"]),
    ("layout", &["gguf", "protocol", "sumtree"]),
    ("link", &["win32"]),
    ("protocol", &[]),
    ("checkpoint", &["gguf"]),
    ("gguf", &[]),
    ("fakehub", &[]),
    ("fixtures", &[]),
    ("sumtree", &[]),
    ("win32", &[]),
];

/// The only crates that may contain `unsafe`.
const MAY_BE_UNSAFE: &[&str] = &["ggml", "kernels", "link", "win32"];

const LINES_MAX: usize = 500;
const COLUMNS_MAX: usize = 100;
/// Documents short enough to read in one sitting.
const PERFORMANCE_WORDS_MAX: usize = 2000;
const DECISION_WORDS_MAX: usize = 300;
const GLOSSARY_LINES_MAX: usize = 40;

#[test]
fn arrows_only_point_down() {
    let rules: BTreeMap<&str, BTreeSet<&str>> =
        MAY_USE.iter().map(|(name, may)| (*name, may.iter().copied().collect())).collect();
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(crates()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(may) = rules.get(name.as_str()) else {
            wrong.push(format!("crate {name} is not in the picture"));
            continue;
        };
        let manifest = read(&entry.path().join("Cargo.toml"));
        // Also those of one system: `[target.'cfg(windows)'.dependencies]`.
        let sections = manifest.split("\n[").filter_map(|section| section.split_once("]\n"));
        let used = sections
            .filter(|(title, _)| *title == "dependencies" || title.ends_with(".dependencies"))
            .flat_map(|(_, lines)| lines.lines());
        for line in used {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if rules.contains_key(dependency) && !may.contains(dependency) {
                wrong.push(format!("{name} -> {dependency}"));
            }
        }
    }
    assert!(wrong.is_empty(), "not in ARCHITECTURE.md: {wrong:?}");
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let mut wrong = Vec::new();
    for (name, _) in MAY_USE {
        let manifest = read(&crates().join(name).join("Cargo.toml"));
        let forbids = manifest.contains("[lints]\nworkspace = true");
        if forbids == MAY_BE_UNSAFE.contains(name) {
            wrong.push(*name);
        }
    }
    assert!(wrong.is_empty(), "the workspace's lints forbid unsafe code; wrong in {wrong:?}");
}

#[test]
fn files_and_lines_fit_a_reader() {
    let mut wrong = Vec::new();
    for path in files(&crates(), &[".rs"]) {
        let text = read(&path);
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{} has {lines} lines", path.display()));
        }
        // Text that rustfmt cannot break may be wider: long strings, and the data of tests.
        if !path.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            if line.chars().count() > COLUMNS_MAX && !line.contains('"') {
                wrong.push(format!("{}:{} is wider than {COLUMNS_MAX}", path.display(), at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nothing_is_left_for_later_and_nothing_points_outside() {
    // Assembled, so that this file does not contain them.
    let words =
        ["TO\u{44}O", "FIX\u{4d}E", "to\u{64}o!(", "unimpl\u{65}mented!(", "../\u{73}hared"];
    let mut wrong = Vec::new();
    for path in files(&repository(), &[".rs", ".md", ".sh", ".toml", ".py", ".js", ".html"]) {
        let text = read(&path);
        for word in words.iter().filter(|word| text.contains(**word)) {
            wrong.push(format!("{}: {word}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_dependency_has_its_reason() {
    let workspace = read(&repository().join("Cargo.toml"));
    let reasons = read(&repository().join("docs/decisions/dependencies.md"));
    let dependencies = workspace.split("[workspace.dependencies]").nth(1).unwrap();
    let dependencies = dependencies.split("\n[").next().unwrap();
    let ours: BTreeSet<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    let names =
        dependencies.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim());
    let names = names.filter(|name| !name.starts_with('#') && !ours.contains(name));
    let missing: Vec<_> = names.filter(|name| !reasons.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/decisions/dependencies.md has no reason for {missing:?}");
}

#[test]
fn every_dependency_is_the_one_that_was_looked_at() {
    let lock = read(&repository().join("Cargo.lock"));
    let ours: Vec<String> = std::fs::read_dir(crates())
        .unwrap()
        .map(|entry| read(&entry.unwrap().path().join("Cargo.toml")))
        .filter_map(|manifest| {
            Some(manifest.split("name = \"").nth(1)?.split('"').next()?.to_owned())
        })
        .collect();
    let mut others = 0;
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let start = package.split(&format!("\n{name} = \"")).nth(1)?;
            start.split('"').next()
        };
        let (name, source) = (field("name").unwrap(), field("source"));
        if source.is_none() {
            assert!(ours.iter().any(|one| one == name), "{name} comes from a folder");
            continue;
        }
        others += 1;
        assert_eq!(source, Some("registry+https://github.com/rust-lang/crates.io-index"), "{name}");
        assert_eq!(field("checksum").map(str::len), Some(64), "{name}");
    }
    assert!(others > 100, "{others} packages of others");
    // No build uses other versions than the locked ones.
    for script in ["test.sh", ".ci/run", "scripts/package.sh", "demo.sh"] {
        let text = read(&repository().join(script));
        let builds = text.lines().filter(|line| line.trim_start().starts_with("cargo "));
        let unlocked = |line: &&str| {
            ["cargo build", "cargo test", "cargo run"].iter().any(|build| line.contains(build))
                && !line.contains("--locked")
        };
        assert_eq!(builds.clone().find(unlocked), None, "{script}");
    }
}

#[test]
fn every_relative_link_of_the_documents_leads_somewhere() {
    let mut wrong = Vec::new();
    for path in files(&repository(), &[".md"]) {
        let text = read(&path);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = target.contains("://") || file.is_empty() || file.contains(' ');
            if !outside && !path.parent().unwrap().join(file).exists() {
                wrong.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn word_count(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[test]
fn documents_are_short_and_decisions_have_an_index() {
    let docs = repository().join("docs");
    let mut wrong = Vec::new();
    let words = word_count(&read(&docs.join("performance.md")));
    if words > PERFORMANCE_WORDS_MAX {
        wrong.push(format!("performance.md has {words} words"));
    }
    let index = read(&docs.join("decisions/README.md"));
    for path in files(&docs.join("decisions"), &[".md"]) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_numbered = name.starts_with(char::is_numeric);
        let words = word_count(&read(&path));
        if is_numbered && words > DECISION_WORDS_MAX {
            wrong.push(format!("decision {name} has {words} words"));
        }
        if name != "README.md" && !index.contains(&format!("({name})")) {
            wrong.push(format!("decision {name} is not in the index"));
        }
    }
    let map = read(&repository().join("ARCHITECTURE.md"));
    let glossary = map.split("## Glossary").nth(1).expect("the map ends with a glossary");
    let lines = glossary.split("\n## ").next().unwrap().trim().lines().count();
    if lines > GLOSSARY_LINES_MAX {
        wrong.push(format!("the glossary has {lines} lines"));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Documents of formats and data (fixtures, vocabularies) use names of other projects' code.
#[test]
fn documents_name_only_what_is_there() {
    let root = repository();
    let relative = |path: &Path| below(&root, path);
    let all = files(&root, &[""]);
    let code = mentions::Code::new(all.iter().map(|path| {
        let kind = path.extension().unwrap_or_default();
        let is_code = ["rs", "sh", "py"].iter().any(|code| kind == *code);
        (relative(path), if is_code { read(path) } else { String::new() })
    }));
    let mut wrong = Vec::new();
    for path in files(&root, &[".md"]) {
        let document = relative(&path);
        if document.starts_with("fixtures/") || document.contains("/tests/") {
            continue;
        }
        for mention in code.missing(&document, &read(&path)) {
            wrong.push(format!("{document}: `{mention}` is nowhere in the code"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
