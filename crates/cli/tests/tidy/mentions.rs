//! Compares names of code in documents with the code. In backticks outside of code blocks, these
//! must exist:
//!
//! - a path (`model/src/arch.rs`, `serve/openai`): from the root, from `crates/`, within a crate's
//!   `src`, or within the document's folder; a file name without a folder may be anywhere;
//! - `Type::member` and `krate::item`, `krate` one of this repository: a definition;
//! - a name with an underscore or in camel case: a word of the code.
//!
//! Everything else (commands, options, other projects' crates, placeholders in capitals) is not
//! checked.

use std::collections::BTreeSet;

const DOCUMENTED_FILES: &[&str] = &[".rs", ".md", ".sh", ".py", ".toml"];
const CODE_FILES: &[&str] = &[".rs", ".sh", ".py"];

/// The parts of the repository that documents mention.
pub struct Code {
    /// Files and folders, relative to the root.
    paths: BTreeSet<String>,
    /// Path and text of each Rust file.
    rust: Vec<(String, String)>,
    words: BTreeSet<String>,
}

impl Code {
    /// `files`: path relative to the root, and text (empty for binary files).
    pub fn new(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut code = Self { paths: BTreeSet::new(), rust: Vec::new(), words: BTreeSet::new() };
        for (path, text) in files {
            for (at, _) in path.match_indices('/') {
                code.paths.insert(path[..at].to_string());
            }
            code.paths.insert(path.clone());
            if CODE_FILES.iter().any(|extension| path.ends_with(extension)) {
                code.words.extend(words(&text).map(str::to_string));
            }
            if path.ends_with(".rs") {
                code.rust.push((path, text));
            }
        }
        code
    }

    /// The mentions of a document that do not exist.
    pub fn missing(&self, document: &str, text: &str) -> Vec<String> {
        let home = document.rfind('/').map_or("", |at| &document[..=at]);
        let mentions = mentions(text);
        mentions.into_iter().filter(|mention| !self.is_real(mention, home)).collect()
    }

    fn is_real(&self, mention: &str, home: &str) -> bool {
        let mention = mention.strip_suffix("()").unwrap_or(mention);
        let parts: Vec<&str> = mention.split("::").collect();
        if parts.iter().all(|part| is_identifier(part)) {
            return match parts[..] {
                [name] => !is_telling(name) || self.words.contains(name),
                _ => self.has_item(&parts),
            };
        }
        let allowed = |c: char| c.is_alphanumeric() || "_-./{},".contains(c);
        if !mention.chars().all(allowed) || mention.starts_with(['-', '/']) {
            return true;
        }
        expand(mention).iter().all(|path| self.has_path(path, home))
    }

    fn has_path(&self, path: &str, home: &str) -> bool {
        let path = path.trim_start_matches("./").trim_end_matches('/');
        let is_ours = DOCUMENTED_FILES.iter().any(|extension| path.ends_with(extension));
        let Some((first, rest)) = path.split_once('/') else {
            let mut names = self.paths.iter().filter_map(|known| known.rsplit('/').next());
            return !is_ours || names.any(|name| name == path);
        };
        let known =
            |path: String| self.paths.contains(&format!("{path}.rs")) || self.paths.contains(&path);
        let from = ["", "crates/", home, &format!("{home}src/")];
        from.iter().any(|folder| known(format!("{folder}{path}")))
            || known(format!("crates/{first}/src/{rest}"))
            || !is_ours && !from.iter().any(|folder| known(format!("{folder}{first}")))
    }

    fn has_item(&self, parts: &[&str]) -> bool {
        let krate = format!("crates/{}", parts[0]);
        let (within, parts) = match self.paths.contains(&krate) {
            true => (krate.as_str(), &parts[1..]),
            false if is_type(parts[0]) => ("crates", parts),
            false => return true, // Another project's crate, or a module named without its crate.
        };
        let mut texts = self.rust.iter().filter(|(path, _)| path.starts_with(within));
        let (item, parents) = parts.split_last().expect("a path has parts");
        match parents.last() {
            Some(parent) if is_type(parent) => {
                texts.any(|(_, text)| has_member(text, parent, item))
            }
            _ => texts.any(|(path, text)| defines(text, item) || is_module(path, item)),
        }
    }
}

/// The contents of single backticks, outside of fenced blocks.
fn mentions(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2);
    let paragraphs = prose.flat_map(|prose| prose.split("\n\n"));
    paragraphs
        .flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2))
        .map(str::to_string)
        .collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn is_identifier(part: &str) -> bool {
    !part.is_empty() && words(part).eq([part]) && !part.starts_with(char::is_numeric)
}

fn is_type(part: &str) -> bool {
    part.starts_with(char::is_uppercase)
}

/// Whether a word can only be a name of code: `q4_k` is ambiguous, `Q4_0` is data.
fn is_telling(name: &str) -> bool {
    let lower = name.chars().filter(|c| c.is_lowercase()).count();
    let digits = name.contains(|c: char| c.is_numeric());
    !digits && lower > 2 && (name.contains('_') || is_type(name))
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expand(path: &str) -> Vec<String> {
    let Some((before, (choices, after))) =
        path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return vec![path.to_string()];
    };
    choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
}

fn is_module(path: &str, name: &str) -> bool {
    path.ends_with(&format!("/{name}.rs")) || path.ends_with(&format!("/{name}/mod.rs"))
}

fn defines(text: &str, name: &str) -> bool {
    const KINDS: &[&str] =
        &["struct", "enum", "trait", "fn", "type", "const", "static", "mod", "macro_rules"];
    text.lines().any(|line| {
        let line: Vec<&str> = words(line).collect();
        line.windows(2).any(|pair| KINDS.contains(&pair[0]) && pair[1] == name)
    })
}

/// Whether a block of `parent` (its definition, or an `impl`) has a function, constant, type, field
/// or variant of this name. Rustfmt's indentation shows the end of a block.
fn has_member(text: &str, parent: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().any(|(at, line)| {
        let head: Vec<&str> = words(line).collect();
        let opens = match head.first() {
            Some(&"impl") => head.contains(&parent),
            _ => head
                .windows(2)
                .any(|pair| ["struct", "enum", "trait"].contains(&pair[0]) && pair[1] == parent),
        };
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let mut body = lines[at + 1..].iter().take_while(|line| **line != end);
        opens && !line.ends_with([';', '}']) && body.any(|line| is_member(line, indent + 4, name))
    })
}

fn is_member(line: &str, indent: usize, name: &str) -> bool {
    let inner = line.trim_start();
    let mut found = words(inner).skip_while(|word| ["pub", "crate", "super"].contains(word));
    line.len() - inner.len() == indent
        && !inner.starts_with("//")
        && match found.next() {
            Some("fn" | "const" | "type" | "unsafe" | "async") => found.any(|word| word == name),
            first => first == Some(name),
        }
}

#[cfg(test)]
mod tests {
    use super::Code;

    fn code() -> Code {
        let ferry = "\
pub struct Ferry<'a> {
    pub decks: usize,
}

impl<'a> Ferry<'a> {
    pub fn sail(&self) {
        sink();
    }
}

enum Sail {
    Lateen,
}

pub fn all_ferries() {}
";
        Code::new([
            ("crates/boat/src/ferry.rs".to_string(), ferry.to_string()),
            ("crates/boat/src/oar/mod.rs".to_string(), String::new()),
            ("crates/pier/ALGORITHM.md".to_string(), String::new()),
            ("docs/one.md".to_string(), String::new()),
        ])
    }

    #[track_caller]
    fn check(text: &str, missing: &[&str]) {
        assert_eq!(code().missing("crates/pier/ALGORITHM.md", text), missing);
    }

    #[test]
    fn what_is_there_is_real() {
        check("`Ferry::sail`, `boat::Ferry::sail()`, `Ferry::decks`, `Sail::Lateen`", &[]);
        check("`boat::Ferry`, `boat::all_ferries`, `boat::oar`, `all_ferries`, `Sail`", &[]);
        check("`boat/src/ferry.rs`, `boat/{ferry,oar}`, `crates/boat/`, `ferry.rs`", &[]);
        check("`docs/one.md`, `./docs`", &[]);
    }

    #[test]
    fn a_wrong_name_is_found() {
        check("`Ferry::sail`, then `Ferry::sink`", &["Ferry::sink"]);
        check("`boat::Ferry::sink` and `Sail::sail`", &["boat::Ferry::sink", "Sail::sail"]);
        check("`pier::Ferry`, `boat::Raft`, `Raft`", &["pier::Ferry", "boat::Raft", "Raft"]);
        check("`boat/{ferry,raft}.rs`, `raft.rs`", &["boat/{ferry,raft}.rs", "raft.rs"]);
        check("`docs/two.md`, `one_ferry`", &["docs/two.md", "one_ferry"]);
    }

    #[test]
    fn other_code_is_not_looked_at() {
        check("`std::array::from_fn`, `axum::serve`, `--split 3,2,1`, `/v1/models`, `Q4_0`", &[]);
        check("```\n`Ferry::sink`\n```\n`sinew serve x/y.gguf`, `NAME.gguf`, `rope`, `ARCHS`", &[]);
    }
}
