//! String literals of Rust sources, and those with line breaks that would appear in the output.

/// A literal as written, without its quotes.
pub struct Literal<'a> {
    pub line: usize,
    pub text: &'a str,
    /// `r"..."`, without escapes.
    pub is_raw: bool,
}

/// The string literals of a source. Skips comments and characters.
pub fn literals(source: &str) -> Vec<Literal<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = source[at..].chars().next() {
        let rest = &source[at..];
        at += match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '\'' => character(rest),
            '"' => {
                let end = plain_end(&rest[1..]);
                let line = source[..at].matches('\n').count() + 1;
                found.push(Literal { line, text: &rest[1..=end], is_raw: false });
                end + 2
            }
            'r' if !source[..at].ends_with(is_word) || source[..at].ends_with('b') => {
                match raw(&rest[1..]) {
                    Some((hashes, text)) => {
                        let line = source[..at].matches('\n').count() + 1;
                        found.push(Literal { line, text, is_raw: true });
                        "r\"\"".len() + 2 * hashes + text.len()
                    }
                    None => 1,
                }
            }
            other => other.len_utf8(),
        };
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a character, or of the quote of a lifetime.
fn character(rest: &str) -> usize {
    match rest[1..].chars().next() {
        Some('\\') => 3 + rest[3..].find('\'').map_or(0, |end| end + 1),
        Some(c) if rest[1 + c.len_utf8()..].starts_with('\'') => c.len_utf8() + 2,
        _ => 1,
    }
}

/// The position of a plain literal's closing quote.
fn plain_end(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.find(|c: char| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    end.unwrap_or(text.len() - 1)
}

fn raw(text: &str) -> Option<(usize, &str)> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let text = text[hashes..].strip_prefix('"')?;
    let end = text.find(&format!("\"{}", "#".repeat(hashes)))?;
    Some((hashes, &text[..end]))
}

impl Literal<'_> {
    /// The fault in its line breaks, if a user would see it.
    pub fn fault(&self) -> Option<&'static str> {
        let mut lines = self.text.split('\n').peekable();
        while let Some(line) = lines.next() {
            let Some(next) = lines.peek() else { break };
            let backslashes = line.len() - line.trim_end_matches('\\').len();
            let continues = !self.is_raw && backslashes % 2 == 1;
            if !self.is_raw && backslashes > 0 && !continues {
                return Some("it shows a backslash and breaks its line");
            }
            if !continues && next.starts_with("  ") {
                return Some("it breaks its line and shows the blanks of the code");
            }
            let before = line.trim_end_matches('\\');
            let ends_with_word = before.ends_with(is_word) && !before.ends_with("\\n");
            if continues && ends_with_word && next.trim_start().starts_with(is_word) {
                return Some("two words run together at the line's end");
            }
        }
        None
    }
}

#[test]
fn literals_are_found_among_comments_characters_and_lifetimes() {
    let source = r###"
        // "no"
        fn f<'a>(c: char) -> &'a str { /* "no" */ if c == '"' || c == '\'' { "one \" \\" }
        else { r"two\" } br#"three " "# b"four" for"five" }
    "###;
    let found: Vec<_> = literals(source).iter().map(|literal| literal.text).collect();
    assert_eq!(found, ["one \\\" \\\\", "two\\", "three \" ", "four", "five"]);
}

#[test]
fn line_breaks_that_a_person_would_see_are_found() {
    let fault = |source: &str| literals(source)[0].fault();
    for good in
        ["\"look \\\n     at it\"", "\"a\\n  b\"", "\"a\\n\\\n    b\"", "\"a\n\nb\"", "r\"a\nb\""]
    {
        assert_eq!(fault(good), None, "{good}");
    }
    assert!(fault("\"look \\\\\n     at it\"").unwrap().contains("backslash"));
    assert!(fault("\"look\n     at it\"").unwrap().contains("blanks"));
    assert!(fault("r\"look \\\n     at it\"").unwrap().contains("blanks"));
    assert!(fault("\"look\\\n     at it\"").unwrap().contains("run together"));
}
