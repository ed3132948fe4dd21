//! Checks the promises of the architecture: the dependencies between crates, the places of
//! `unsafe`, and that the repository is self-contained.

mod common;
#[path = "tidy/mentions.rs"]
mod mentions;
#[path = "tidy/rooms.rs"]
mod rooms;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Allowed dependencies of each crate, from `ARCHITECTURE.md`. Arrows only point down.
const MAY_USE: &[(&str, &[&str])] = &[
    (
        "cli",
        &[
            "bench",
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
    ("serve", &["cluster", "gguf", "protocol", "text", "vision"]),
    (
        "cluster",
        &[
            "checkpoint",
            "gguf",
            "hub",
            "layout",
            "placement",
            "protocol",
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
            "store",
            "vision",
            "win32",
        ],
    ),
    ("constrain", &["gguf", "protocol", "text"]),
    ("placement", &["layout", "protocol"]),
    ("hub", &["checkpoint", "gguf", "store", "win32"]),
    ("store", &["checkpoint", "gguf", "win32"]),
    ("text", &["gguf"]),
    ("model", &["backend", "gguf", "layout", "protocol"]),
    ("vision", &["gguf", "kernels", "protocol"]),
    ("backend", &["ggml", "gguf", "kernels", "sumtree"]),
    ("kernels", &["gguf", "sumtree"]),
    ("ggml", &[]),
    ("collective", &["link", "sumtree"]),
    ("layout", &["gguf", "protocol", "sumtree"]),
    ("link", &["win32"]),
    ("protocol", &[]),
    ("checkpoint", &["gguf"]),
    ("gguf", &[]),
    ("fakehub", &[]),
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

fn crates() -> PathBuf {
    common::repository().join("crates")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Folders that git ignores, by name.
const NOT_OURS: &[&str] = &["target", ".git", "corpus", "artifacts", "results", "venv", ".venv"];

/// Every file below `dir` with one of these extensions.
fn files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if !NOT_OURS.contains(&name.as_str()) {
                found.extend(files(&path, extensions));
            }
        } else if extensions.iter().any(|extension| name.ends_with(extension)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

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
    for path in files(&common::repository(), &[".rs", ".md", ".sh", ".toml", ".py", ".js", ".html"])
    {
        let text = read(&path);
        for word in words.iter().filter(|word| text.contains(**word)) {
            wrong.push(format!("{}: {word}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_dependency_has_its_reason() {
    let workspace = read(&common::repository().join("Cargo.toml"));
    let reasons = read(&common::repository().join("docs/decisions/dependencies.md"));
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
    let lock = read(&common::repository().join("Cargo.lock"));
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
        let text = read(&common::repository().join(script));
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
    for path in files(&common::repository(), &[".md"]) {
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

/// The rooms of `cluster` with state and decisions. They know no sockets, processes or files, and
/// never block, so that a simulation can run them.
const PURE: &[&str] = &[
    "admission",
    "api",
    "context",
    "core",
    "desired",
    "files",
    "instance",
    "instances",
    "membership",
    "paths",
    "peers",
    "requests",
    "wire",
    "workers",
];
const OUTSIDE: &[&str] = &[
    ".await",
    "async fn",
    "tokio::fs",
    "tokio::net",
    "tokio::process",
    "tokio::spawn",
    "tokio::time",
    "std::fs",
    "std::process",
    "TcpStream",
    "UdpSocket",
    "Instant::now",
    "SystemTime",
];
/// The rooms that act for the others, and what these may hold of theirs: an open file, a secret
/// that was read.
const ABOVE: &[&str] = &["io", "node", "transfer"];
const HANDLES: &[&str] = &["io/fleet_key", "transfer/model_file"];
/// Files with methods of one type. `Instance` is one state machine with one state, in four files.
const FILES_OF_A_TYPE_MAX: usize = 2;
const SPREAD: &[&str] = &["instance::Instance"];

/// The rooms with state, in the order of `ARCHITECTURE.md`: each uses only later ones.
const OWNERS: &[&str] = &[
    "core",
    "requests",
    "instances",
    "admission",
    "workers",
    "files",
    "paths",
    "peers",
    "context",
    "instance",
    "membership",
    "desired",
];

/// Plain data of owners that calls to the outside carry.
const DATA: &[&str] = &["admission/code", "admission/pake", "files/source", "paths/measurements"];

#[test]
fn the_rooms_of_cluster_form_no_knot() {
    let src = crates().join("cluster/src");
    let relative = |path: &Path| path.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
    let cluster =
        rooms::Rooms::new(files(&src, &[".rs"]).iter().map(|path| (relative(path), read(path))));
    assert_eq!(cluster.circle(), None, "files that use each other in a circle");
    let wrong = cluster.using(PURE, OUTSIDE);
    assert!(wrong.is_empty(), "what decides must not touch the outside: {wrong:#?}");
    let wrong = cluster.between(PURE, ABOVE, HANDLES);
    assert!(wrong.is_empty(), "what decides must not know what acts for it: {wrong:#?}");
    let upward = OWNERS.iter().enumerate();
    let upward = upward.flat_map(|(at, room)| cluster.between(&[room], &OWNERS[..at], DATA));
    let upward: Vec<String> = upward.collect();
    assert!(upward.is_empty(), "calls go down, news go up: {upward:#?}");
    let mut spread = cluster.spread(FILES_OF_A_TYPE_MAX);
    spread.retain(|one| !SPREAD.iter().any(|known| one.starts_with(&format!("{known} "))));
    assert!(spread.is_empty(), "types with methods all over: {spread:#?}");
}

/// Tests the rules above on a small crate that breaks each of them.
#[test]
fn knots_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let good = [
        file("lib.rs", "mod core;\nmod io;\nmod types;\npub use types::Id;\n"),
        file("types.rs", "pub struct Id;\nimpl Id {\n}\n"),
        file("core/mod.rs", "mod table;\npub use table::Table;\nuse crate::Id;\n"),
        file("core/table.rs", "use crate::types::Id;\npub struct Table(Id);\n"),
        file("io/mod.rs", "use crate::core::Table;\nasync fn run(_: Table) {}\n"),
    ];
    let knot = |more: &[(String, String)]| rooms::Rooms::new([&good[..], more].concat());
    let rooms = knot(&[]);
    assert_eq!(rooms.circle(), None);
    assert!(rooms.using(&["core", "types"], OUTSIDE).is_empty() && rooms.spread(1).is_empty());
    assert_eq!(rooms.using(&["io"], OUTSIDE), ["io: async fn"]);
    assert_eq!(rooms.between(&["io"], &["core"], &[]), ["io -> core/table"]);
    assert!(rooms.between(&["io"], &["core"], &["core/table"]).is_empty());
    assert!(rooms.between(&["core"], &["io"], &[]).is_empty());

    // Through a re-export, through a brace, and by a path in code.
    for back in
        ["use crate::core::Table;", "use super::{core::{Table}};", "type T = crate::core::Table;"]
    {
        let circle = knot(&[file("types.rs", back)]).circle();
        assert_eq!(circle.map(|files| files.len()), Some(3), "{back}");
    }
    let tests = "#[cfg(test)]\nmod tests {\nuse crate::core::Table;\n}\n";
    assert_eq!(knot(&[file("types.rs", tests)]).circle(), None, "tests may look at everything");
    let more = file("core/more.rs", "use crate::Id;\nimpl Id {\n}\nimpl From<u8> for Id {\n}\n");
    assert_eq!(knot(&[more]).spread(1), [r#"types::Id in {"core/more", "types"}"#]);
}

fn word_count(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[test]
fn documents_are_short_and_decisions_have_an_index() {
    let docs = common::repository().join("docs");
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
    let map = read(&common::repository().join("ARCHITECTURE.md"));
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
    let root = common::repository();
    let relative = |path: &Path| path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
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
