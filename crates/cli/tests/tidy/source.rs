//! Reads Rust source as text, laid out as rustfmt does: what is code, which paths it names, which
//! modules are for tests only, how long its functions are.

/// A file's text without comments, without its unit tests, and without the first line of each item
/// for tests only.
pub fn code_of(text: &str) -> String {
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
pub fn uses(code: &str) -> Vec<(bool, Vec<String>)> {
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

/// All paths in code of more than one step.
pub fn inline_paths(code: &str) -> impl Iterator<Item = Vec<String>> {
    let is_path = |char: char| char.is_alphanumeric() || char == '_' || char == ':';
    let words = code.split(move |char| !is_path(char));
    // The beginning of a brace is no path; `uses` reads its contents.
    let paths = words.filter(|word| word.contains("::") && !word.ends_with(':'));
    paths.map(|path| path.split("::").map(str::to_owned).collect())
}

/// Modules in other files that a file declares for its tests only, by their paths from this one.
pub fn test_modules(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let declared = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod "));
        let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        let attributes: Vec<&str> = attributes.copied().collect();
        if let Some((_, name)) = declared.filter(|_| attributes.contains(&"#[cfg(test)]")) {
            let path = attributes.iter().find_map(|one| one.strip_prefix("#[path = \""));
            match path.and_then(|path| path.split(".rs").next()) {
                // Beside this file, which has a folder of its own or shares one.
                Some(path) => found.extend([path.to_owned(), format!("../{path}")]),
                None => found.push(name.to_owned()),
            }
        }
    }
    found
}

/// Functions of more than `most` lines, by name and with the type they belong to, from the line
/// with `fn` to the closing brace.
pub fn long_functions(code: &str, most: usize) -> Vec<(String, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        // A signature ends the line with its brace; a declaration without a body has none.
        let signature = lines[at..].iter().position(|line| line.ends_with(['{', '}', ';']));
        let opens = signature.is_some_and(|more| lines[at + more].ends_with('{'));
        let end = format!("{}}}", " ".repeat(indent(line)));
        let Some(len) = lines[at..].iter().position(|line| *line == end).filter(|_| opens) else {
            continue;
        };
        let around = lines[..at].iter().rposition(|one| {
            let head = one.trim_start();
            indent(one) < indent(line) && (head.starts_with("impl") || head.contains("trait "))
        });
        let owner = around.map_or(String::new(), |at| {
            let len = lines[at..].iter().position(|line| line.ends_with('{')).unwrap_or(0);
            format!("{}::", owner(&lines[at..=at + len].join(" ")))
        });
        if len + 1 > most {
            found.push((format!("{owner}{name}"), len + 1));
        }
    }
    found
}

/// The name of the function that a line begins to define.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_word = |word: &str| {
        let qualifiers = ["async", "const", "unsafe", "extern"];
        word.starts_with("pub") || word.starts_with('"') || qualifiers.contains(&word)
    };
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (before.split_whitespace().all(is_word) && !name.is_empty()).then_some(name)
}

/// `Thing` of `impl<'a> Other for Thing<'a> {`.
fn owner(head: &str) -> &str {
    let head = head.split_once(" for ").map_or(head, |(_, of)| of).trim_start();
    let head = head.split_once("trait ").map_or(head, |(_, of)| of);
    let head = match head.strip_prefix("impl") {
        Some(of) if of.starts_with('<') => of.split_once("> ").map_or(of, |(_, of)| of),
        Some(of) => of,
        None => head,
    };
    head.trim_start().split(['<', ' ', ':', '{']).next().unwrap_or_default()
}
