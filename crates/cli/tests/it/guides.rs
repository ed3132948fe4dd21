//! What the documents tell people to type: every command has the options that it is shown with, and
//! every plan whose output is shown prints just that: all of it, or as many lines as `head` leaves.
//!
//! `SINEW_WRITE_GUIDES=1` writes the plans' output into the documents.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{SINEW, repository};

/// The documents that people read, not the decisions.
fn documents() -> Vec<PathBuf> {
    let root = repository();
    let of = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).unwrap().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|it| it == "md"))
    };
    let files = ["README.md", "SECURITY.md", "CONTRIBUTING.md"].map(|name| root.join(name));
    let mut all: Vec<PathBuf> = of("docs").chain(of("docs/guides")).chain(files).collect();
    all.sort();
    all
}

/// The lines of code in a document, without the indentation.
fn code(text: &str) -> Vec<&str> {
    let (mut lines, mut is_fenced) = (Vec::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced {
            lines.push(line);
        } else if let Some(code) = line.strip_prefix("    ") {
            lines.push(code);
        }
    }
    lines
}

/// The arguments of a line that calls the program; `None` if it does not.
fn arguments(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start_matches("$ ");
    // What follows a comment, a pipe, or the column in which some pages explain.
    let ends = [" #", "  ", " | ", " &", " > ", "; ", " \\"];
    let end = ends.iter().filter_map(|end| line.find(end)).min().unwrap_or(line.len());
    let mut words = line[..end].split(' ').skip_while(|word| {
        word.contains('=')
            && !word.starts_with('-')
            && word.to_uppercase().split('=').next() == word.split('=').next()
    });
    if !matches!(words.next()?, "sinew" | "target/release/sinew") {
        return None;
    }
    let mut arguments: Vec<String> = Vec::new();
    let mut is_quoted = false;
    for word in words {
        let part = word.replace('"', "");
        match arguments.last_mut().filter(|_| is_quoted) {
            Some(last) => *last += &format!(" {part}"),
            None => arguments.push(part),
        }
        is_quoted ^= word.matches('"').count() % 2 == 1;
    }
    Some(arguments)
}

#[test]
fn every_command_of_the_documents_has_its_options() {
    let mut tried = 0;
    let mut wrong = Vec::new();
    // A format is read with the options.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("city.json"), "{}").unwrap();
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in code(&text) {
            let Some(mut arguments) = arguments(line) else { continue };
            // The help ends a command before it acts, and after its options were read.
            arguments.push("--help".to_owned());
            let mut command = Command::new(SINEW);
            let output = command.args(&arguments).current_dir(&folder).output().unwrap();
            tried += 1;
            if !output.status.success() {
                let told = String::from_utf8_lossy(&output.stderr).into_owned();
                wrong.push(format!("{}: {line}: {told}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 80, "{tried} commands were tried");
}

/// A document in which each plan's output is what the program prints now.
fn with_plans(text: &str) -> (String, usize) {
    let (mut out, mut plans) = (String::new(), 0);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        out += &format!("{line}\n");
        let Some(arguments) = line.strip_prefix("$ ").and_then(arguments) else { continue };
        while lines.next_if(|line| !line.starts_with("```") && !line.starts_with("$ ")).is_some() {}
        assert_eq!(arguments[0], "plan", "only plans are the same each time: {line}");
        let output = Command::new(SINEW)
            .args(&arguments)
            .current_dir(repository())
            .env("COLUMNS", "110")
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let told = String::from_utf8(output.stdout).unwrap();
        let shown =
            line.split_once(" | head -").map_or(usize::MAX, |(_, count)| count.parse().unwrap());
        let told: Vec<&str> = told.lines().map(str::trim_end).take(shown).collect();
        out += &format!("{}\n", told.join("\n"));
        if lines.peek().is_some_and(|line| line.starts_with("$ ")) {
            out.push('\n');
        }
        plans += 1;
    }
    (out, plans)
}

#[test]
fn plans_in_the_guides_are_what_the_program_prints() {
    let mut plans = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        if !text.contains("\n$ sinew plan ") {
            continue;
        }
        let (wanted, count) = with_plans(&text);
        plans += count;
        if std::env::var_os("SINEW_WRITE_GUIDES").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        } else if wanted != text {
            let differs = wanted.lines().zip(text.lines()).find(|(now, then)| now != then);
            panic!(
                "{} shows another plan than the program prints: {differs:?}. Type: \
                 SINEW_WRITE_GUIDES=1 cargo test -p sinew --test it guides",
                name(&path)
            );
        }
    }
    assert!(plans >= 6, "{plans} plans");
}

fn name(path: &Path) -> String {
    path.strip_prefix(repository()).unwrap_or(path).display().to_string()
}
