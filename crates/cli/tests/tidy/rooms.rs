//! The structure of one crate, read from its files: the names that each file uses, and the files
//! that define them. Text, not types.
//!
//! A file *uses* another one if it names something that the other defines, in a `use` declaration or
//! by a path that begins with `crate`, `self`, `super` or a child module; re-exports are seen
//! through. The crate's root, which lists its parts, uses nothing and is used by nobody, and neither
//! do modules for tests only.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{code_of, inline_paths, test_modules, uses};

/// A module's path below the crate, empty for the crate itself.
pub type Module = Vec<String>;

pub struct Rooms {
    /// The code of each module's file, without comments and tests.
    code: BTreeMap<Module, String>,
    /// Names that a module re-exports, and their full paths.
    exports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
    /// The files that each file uses.
    next: BTreeMap<Module, BTreeSet<Module>>,
}

impl Rooms {
    /// Reads the files of a crate: their paths below `src`, and their texts.
    pub fn new(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut all: BTreeMap<Module, String> = BTreeMap::new();
        for (path, text) in files {
            // Of a library with a program, the library is meant.
            all.entry(module_at(&path)).or_insert(text);
        }
        let declared = all.iter().flat_map(|(module, text)| {
            test_modules(text).into_iter().map(|path| join(module, &path))
        });
        let for_tests: Vec<Module> = declared.collect();
        let is_for_tests = |module: &Module| for_tests.iter().any(|one| module.starts_with(one));
        let code = all.iter().filter(|(module, _)| !is_for_tests(module));
        let code = code.map(|(module, text)| (module.clone(), code_of(text))).collect();
        let mut rooms = Self { code, exports: BTreeMap::new(), next: BTreeMap::new() };
        let exports = rooms.code.iter().map(|(module, code)| {
            let all = uses(code).into_iter().filter(|(is_public, _)| *is_public);
            let named = all.filter_map(|(_, path)| Some((path.last()?.clone(), path)));
            (module.clone(), named.collect())
        });
        rooms.exports = exports.collect();
        let files = rooms.code.keys().filter(|module| !module.is_empty());
        let next = files.map(|module| (module.clone(), rooms.neighbours(module)));
        rooms.next = next.collect();
        rooms
    }

    /// The modules with names that a module uses.
    fn neighbours(&self, module: &Module) -> BTreeSet<Module> {
        let code = &self.code[module];
        let declared = uses(code).into_iter().map(|(_, path)| path);
        let is_child = |name: &String| self.code.contains_key(&join(module, name));
        let is_ours = |path: &Vec<String>| {
            ["crate", "self", "super"].contains(&path[0].as_str()) || is_child(&path[0])
        };
        let paths = declared.chain(inline_paths(code).filter(is_ours));
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
                let child = join(from, first);
                self.code.contains_key(&child).then_some((child, &path[1..]))?
            }
        };
        while let Some((next, tail)) = rest.split_first() {
            let child = join(&at, next);
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

    /// The files by module, without comments and tests.
    pub fn files(&self) -> impl Iterator<Item = (String, &str)> {
        self.code.iter().map(|(module, code)| (module.join("/"), code.as_str()))
    }

    /// The first steps of all modules' paths.
    pub fn names(&self) -> BTreeSet<&str> {
        self.next.keys().map(|module| module[0].as_str()).collect()
    }

    /// The circles of files: in each, every file leads to every other one by what it uses.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.next.keys().map(|module| (module, self.reached(module))).collect();
        let mut circles = Vec::new();
        let mut done: BTreeSet<&Module> = BTreeSet::new();
        for (module, there) in &reached {
            let circle: Vec<&Module> =
                there.iter().filter(|one| reached[**one].contains(module)).copied().collect();
            if circle.len() > 1 && !done.contains(module) {
                circles.push(circle.iter().map(|one| one.join("/")).collect());
                done.extend(circle);
            }
        }
        circles
    }

    /// All files to which a file leads.
    fn reached(&self, from: &Module) -> BTreeSet<&Module> {
        let mut reached = BTreeSet::new();
        let mut ahead: Vec<&Module> = self.next[from].iter().collect();
        while let Some(at) = ahead.pop() {
            if reached.insert(at) {
                ahead.extend(&self.next[at]);
            }
        }
        reached
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

    /// Uses of modules in some rooms by modules in others.
    pub fn between(&self, from: &[&str], to: &[&str]) -> Vec<String> {
        let is_in = |module: &Module, rooms: &[&str]| {
            rooms.contains(&module.first().map_or("", String::as_str))
        };
        let users = self.code.keys().filter(|module| is_in(module, from));
        let wrong = users.flat_map(|module| {
            let used = self.next.get(module).into_iter().flatten();
            let used = used.filter(|one| is_in(one, to));
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

/// The module of a file, given by its path below `src`.
fn module_at(path: &str) -> Module {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_root = path == "lib" || path == "main";
    path.split('/').filter(|_| !is_root).map(str::to_owned).collect()
}

/// A module by its path from another one: `child`, or `../sibling`.
fn join(from: &Module, path: &str) -> Module {
    let (kept, path) = match path.strip_prefix("../") {
        Some(path) => (from.len().saturating_sub(1), path),
        None => (from.len(), path),
    };
    from[..kept].iter().cloned().chain([path.to_owned()]).collect()
}
