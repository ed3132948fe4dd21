//! The structure of one crate, read from its files: the names that each file uses, and the files
//! that define them. Text, not types: `use` declarations and paths that begin with `crate` or
//! `super`.

use std::collections::{BTreeMap, BTreeSet};

/// A module's path below the crate, empty for the crate itself.
pub type Module = Vec<String>;

pub struct Rooms {
    /// The code of each module's file, without comments and tests.
    code: BTreeMap<Module, String>,
    /// Names that a module re-exports, and their full paths.
    exports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

impl Rooms {
    /// Reads the files of a crate: their paths below `src`, and their texts.
    pub fn new(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut rooms = Self { code: BTreeMap::new(), exports: BTreeMap::new() };
        for (path, text) in files {
            let module: Module = path
                .trim_end_matches(".rs")
                .split('/')
                .filter(|part| !["mod", "lib"].contains(part))
                .map(str::to_owned)
                .collect();
            let is_test = |part: &String| ["simulation", "tests"].contains(&part.as_str());
            if !module.iter().any(is_test) {
                rooms.code.insert(module, without_comments_and_tests(&text));
            }
        }
        let exports = rooms.code.iter().map(|(module, code)| {
            let all = uses(code).into_iter().filter(|(is_public, _)| *is_public);
            let named = all.filter_map(|(_, path)| Some((path.last()?.clone(), path)));
            (module.clone(), named.collect())
        });
        rooms.exports = exports.collect();
        rooms
    }

    /// The modules with names that a module uses.
    fn neighbours(&self, module: &Module) -> BTreeSet<Module> {
        let code = &self.code[module];
        let declared = uses(code).into_iter().map(|(_, path)| path);
        let paths = declared.chain(inline_paths(code));
        let found = paths.filter_map(|path| self.module_of(module, &path, 0));
        found.filter(|one| one != module && !one.is_empty()).collect()
    }

    /// The module behind a path in another one, through re-exports.
    fn module_of(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => (from[..from.len().checked_sub(1)?].to_vec(), &path[1..]),
            first => {
                let mut child = from.clone();
                child.push(first.to_owned());
                self.code.contains_key(&child).then_some((child, &path[1..]))?
            }
        };
        while let Some((next, tail)) = rest.split_first() {
            let mut child = at.clone();
            child.push(next.clone());
            if next == "super" {
                at.pop();
            } else if self.code.contains_key(&child) {
                at = child;
            } else {
                break;
            }
            rest = tail;
        }
        let exported = rest.first().and_then(|name| self.exports.get(&at)?.get(name));
        let through = exported.filter(|_| depth < 8);
        let target = through.and_then(|path| self.module_of(&at, path, depth + 1));
        Some(target.unwrap_or(at))
    }

    /// A circle of files, each of which uses a name of the next, if there is one.
    pub fn circle(&self) -> Option<Vec<String>> {
        let mut done = BTreeSet::new();
        self.code.keys().filter(|module| !module.is_empty()).find_map(|module| {
            let mut way = Vec::new();
            self.walk(module, &mut way, &mut done)
                .then(|| way.iter().map(|m| m.join("/")).collect())
        })
    }

    fn walk(&self, at: &Module, way: &mut Vec<Module>, done: &mut BTreeSet<Module>) -> bool {
        if let Some(start) = way.iter().position(|module| module == at) {
            way.drain(..start);
            way.push(at.clone());
            return true;
        }
        if done.contains(at) {
            return false;
        }
        way.push(at.clone());
        if self.neighbours(at).iter().any(|next| self.walk(next, way, done)) {
            return true;
        }
        way.pop();
        done.insert(at.clone());
        false
    }

    /// Modules of these rooms that use one of these words.
    pub fn using(&self, rooms: &[&str], words: &[&str]) -> Vec<String> {
        let is_in = |module: &Module| rooms.contains(&module.first().map_or("", String::as_str));
        let wrong =
            self.code.iter().filter(|(module, _)| is_in(module)).flat_map(|(module, code)| {
                let found = words.iter().filter(|word| code.contains(**word));
                found.map(|word| format!("{}: {word}", module.join("/")))
            });
        wrong.collect()
    }

    /// Uses of modules in some rooms by modules in others, but for the allowed ones.
    pub fn between(&self, from: &[&str], to: &[&str], allowed: &[&str]) -> Vec<String> {
        let is_in = |module: &Module, rooms: &[&str]| {
            rooms.contains(&module.first().map_or("", String::as_str))
        };
        let users = self.code.keys().filter(|module| is_in(module, from));
        let wrong = users.flat_map(|module| {
            let used = self.neighbours(module).into_iter();
            let used = used.filter(|one| is_in(one, to) && !allowed.contains(&&*one.join("/")));
            used.map(|one| format!("{} -> {}", module.join("/"), one.join("/"))).collect::<Vec<_>>()
        });
        wrong.collect()
    }

    /// The types with inherent methods in more than `most` files, and these files.
    pub fn spread(&self, most: usize) -> Vec<String> {
        let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, code) in &self.code {
            for line in code.lines().filter(|line| line.starts_with("impl") && line.ends_with('{'))
            {
                let head = line.trim_start_matches("impl").trim_end_matches('{').trim();
                let head = head.split_once("> ").map_or(head, |(_, name)| name);
                if !line.contains(" for ") {
                    let name = head.split('<').next().unwrap_or_default().trim().to_owned();
                    files
                        .entry(self.full_name(module, &name))
                        .or_default()
                        .insert(module.join("/"));
                }
            }
        }
        let spread = files.into_iter().filter(|(_, files)| files.len() > most);
        spread.map(|(name, files)| format!("{name} in {files:?}")).collect()
    }

    /// A type's name with the module that defines it: two types may have one name.
    fn full_name(&self, module: &Module, name: &str) -> String {
        let is_here = |kind| self.code[module].contains(&format!("{kind} {name}"));
        let declared = uses(&self.code[module]).into_iter().map(|(_, path)| path);
        let mut used = declared.filter(|path| path.last().is_some_and(|last| last == name));
        let home = match is_here("struct") || is_here("enum") {
            true => Some(module.clone()),
            false => used.next().and_then(|path| self.module_of(module, &path, 0)),
        };
        format!("{}::{name}", home.unwrap_or_default().join("::"))
    }
}

fn without_comments_and_tests(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let mut code = String::new();
    let mut skips_next = false;
    for line in text[..end].lines() {
        let line = line.split("//").next().unwrap_or_default();
        if line.trim() == "#[cfg(test)]" {
            skips_next = true;
        } else if !std::mem::take(&mut skips_next) {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// The paths of all `use` declarations, and whether each is visible outside.
fn uses(code: &str) -> Vec<(bool, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let line_start = rest[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = rest[line_start..at].trim();
        let Some(len) = rest[at..].find(';') else { break };
        if before.is_empty() || before.starts_with("pub") {
            let mut paths = Vec::new();
            expand(Vec::new(), &rest[at + 4..at + len], &mut paths);
            found.extend(paths.into_iter().map(|path| (!before.is_empty(), path)));
        }
        rest = &rest[at + len..];
    }
    found
}

/// `a::{b, c::d}` as `a::b` and `a::c::d`.
fn expand(prefix: Vec<String>, tree: &str, found: &mut Vec<Vec<String>>) {
    let mut depth = 0;
    for part in tree.split(|char| {
        depth += i32::from(char == '{') - i32::from(char == '}');
        char == ',' && depth == 0
    }) {
        let part = part.trim();
        let steps = |path: &str| {
            let steps = path.split("::").map(str::trim).filter(|step| !step.is_empty());
            prefix.iter().cloned().chain(steps.map(str::to_owned)).collect::<Vec<String>>()
        };
        match part.split_once('{') {
            Some((path, inner)) => {
                expand(
                    steps(path),
                    inner.rsplit_once('}').map_or(inner, |(inner, _)| inner),
                    found,
                );
            }
            None if part.is_empty() => {}
            None => found.push(steps(part.split(" as ").next().unwrap_or_default())),
        }
    }
}

/// Paths in code that begin with `crate` or `super`.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let is_path = |char: char| char.is_alphanumeric() || char == '_' || char == ':';
    let words = code.split(|char| !is_path(char));
    // The beginning of a brace is no path; `uses` reads its contents.
    let words = words.filter(|word| !word.ends_with(':'));
    let paths = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    let steps = |path: &str| path.split("::").map(str::to_owned).collect();
    paths.map(steps).collect()
}
