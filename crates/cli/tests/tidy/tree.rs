//! The files of this repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that git ignores, by name.
const NOT_OURS: &[&str] = &["target", ".git", "corpus", "artifacts", "results", "venv", ".venv"];

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn crates() -> PathBuf {
    repository().join("crates")
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `dir` with one of these extensions.
pub fn files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
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

/// The files that git tracks; without git, as in an archive, all of them.
pub fn tracked() -> Vec<PathBuf> {
    let root = repository();
    let git = Command::new("git").arg("-C").arg(&root).args(["ls-files", "-z"]).output();
    let listed = git.ok().filter(|git| git.status.success()).map(|git| git.stdout);
    let listed = listed.map(|names| String::from_utf8_lossy(&names).into_owned());
    match listed.filter(|names| !names.is_empty()) {
        Some(names) => {
            let names = names.split('\0').filter(|name| !name.is_empty());
            names.map(|name| root.join(name)).filter(|path| path.exists()).collect()
        }
        None => files(&root, &[""]),
    }
}

/// A path below `dir`, with slashes on every system.
pub fn below(dir: &Path, path: &Path) -> String {
    let path = path.strip_prefix(dir).expect("a file of this folder");
    let parts = path.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    parts.collect::<Vec<String>>().join("/")
}

/// The Rust files below a folder, and their texts.
pub fn sources(dir: &Path) -> Vec<(String, String)> {
    files(dir, &[".rs"]).iter().map(|path| (below(dir, path), read(path))).collect()
}

/// The crates by name.
pub fn crate_names() -> Vec<String> {
    let all = std::fs::read_dir(crates()).unwrap().flatten();
    let mut names: Vec<String> =
        all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
