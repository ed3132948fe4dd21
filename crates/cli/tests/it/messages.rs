//! Commands in messages can be typed: every option in a text of the program belongs to the program,
//! or to a tool listed here. And a text on several lines of code is one line of output.

#[path = "messages/literals.rs"]
mod literals;

use crate::common;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Options of the system's tools, which `sinew doctor` and `sinew service` call or name.
const OF_TOOLS: &[&str] = &[
    "--property",
    "--value",
    "--getglobalstate",
    "--add",
    "--permanent",
    "--add-port",
    "--reload",
    "--user",
    "--now",
    "--quiet",
    "--unit",
    "--user-unit",
    "--no-pager",
];
/// Options by which the program starts itself.
const OF_ITSELF: &[&str] =
    &["--as-rank", "--with-parent", "--hidden", "--seconds", "--memory-bytes"];

/// All occurrences of `--word` in a text.
fn options(text: &str) -> BTreeSet<String> {
    let is_inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let from = |(at, _): (usize, &str)| {
        let name = &text[at + 2..];
        let name = &name[..name.find(|c| !is_inside(c)).unwrap_or(name.len())];
        let begins = !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-');
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
        (begins && is_name).then(|| format!("--{}", name.trim_end_matches('-')))
    };
    text.match_indices("--").filter_map(from).collect()
}

/// Code without its comments and without the tests below it.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

/// The sources of the program.
fn all_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(common::repository().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        // What is for tests alone is no part of it.
        let is_for_tests = path.ends_with("fakehub") || path.ends_with("fixtures");
        if path.join("src").is_dir() && !is_for_tests {
            sources(&path.join("src"), &mut files);
        }
    }
    assert!(files.len() > 100, "{}", files.len());
    files
}

#[test]
fn no_message_shows_how_its_code_is_laid_out() {
    let mut wrong = Vec::new();
    for file in all_sources() {
        let text = std::fs::read_to_string(&file).unwrap();
        // The texts of tests are data.
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for literal in literals::literals(text) {
            if let Some(fault) = literal.fault() {
                wrong.push(format!("{}:{}: {fault}", file.display(), literal.line));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_option_that_a_message_names_can_be_typed() {
    let pages = tempfile::tempdir().unwrap();
    common::stdout(&["man", pages.path().to_str().unwrap()]);
    let pages = std::fs::read_dir(pages.path()).unwrap();
    let pages = pages.map(|page| std::fs::read_to_string(page.unwrap().path()).unwrap());
    let pages = pages.collect::<String>().replace("\\-", "-").replace("\\fB", " ");
    let known = options(&pages);
    assert!(known.contains("--data-dir") && known.contains("--ctx"), "{known:?}");

    for file in all_sources() {
        for option in options(&code(&file)) {
            let is_known = known.contains(&option)
                || [OF_TOOLS, OF_ITSELF].concat().contains(&option.as_str());
            assert!(is_known, "{}: no command has {option}", file.display());
        }
    }
}

#[test]
fn options_are_found_in_texts() {
    let found = options("try \"--ctx 5\", --no-such-thing, a--b, ---, and --lan.");
    assert_eq!(found, ["--ctx", "--lan", "--no-such-thing"].map(str::to_owned).into());
}
