//! Splits text into words before byte-pair encoding, as in each model family's training.
//!
//! A pre-tokenizer is a list of rules. Each rule splits the pieces of the previous one: every match
//! becomes a piece, and so does the text between two matches.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space gives its last character to
//! the following word. Code replaces that look-ahead, so that all patterns are true regular
//! expressions: linear in the text, with no slow inputs.

use regex_automata::meta::{Cache, Regex};
use regex_automata::{Anchored, Input};

use super::schemes::{self, Rule, Scheme};
use super::vocab::Writing;
use crate::TextError;

/// The most bytes of a compiled pattern; the largest one below needs about 1 MB.
const COMPILED_BYTES_MAX: usize = 16 << 20;

/// A pattern that matches nowhere.
const NOTHING: &str = r"[^\s\S]";

/// A compiled scheme.
pub(super) struct Pretokenizer {
    rules: Vec<Compiled>,
    prefer_whole: bool,
    writing: Writing,
}

enum Compiled {
    /// Pattern 0 is the published one; pattern 1, if present, is a final run of white space.
    Cut(Regex),
    /// The same, and such a run is cut further.
    CutInPowers(Regex),
    /// Pattern 0 is a run of digits inside a word, pattern 1 one at the end of a word.
    DigitTriples(Regex),
}

impl Pretokenizer {
    pub(super) fn new(scheme: Scheme) -> Self {
        let rules = scheme.rules.iter().map(|rule| match *rule {
            Rule::Cut(pattern) => Compiled::Cut(compile(&[pattern])),
            Rule::CutSpaces(pattern) => Compiled::Cut(compile(&[pattern, r"\s+"])),
            Rule::CutSpacesInPowers(pattern) => Compiled::CutInPowers(compile(&[pattern, r"\s+"])),
            Rule::Triples(pattern) => Compiled::DigitTriples(compile(&[NOTHING, pattern])),
            Rule::DigitTriples => {
                let inside = r"\d+[\p{Alphabetic}\p{M}\p{N}\p{Pc}&&[^\d]]";
                Compiled::DigitTriples(compile(&[inside, r"\d+"]))
            }
        });
        Self { rules: rules.collect(), prefer_whole: scheme.prefer_whole, writing: scheme.writing }
    }

    /// The scheme with a name from a file.
    ///
    /// # Errors
    /// The name is unknown.
    pub(super) fn find(name: &str) -> Result<Scheme, TextError> {
        schemes::find(name).ok_or_else(|| TextError::PreTokenizer { found: name.to_owned() })
    }

    pub(super) fn writing(&self) -> Writing {
        self.writing
    }

    /// Whether `word` becomes one token if the vocabulary has it. Gemma 4 does so for line breaks.
    pub(super) fn prefers_whole(&self, word: &str) -> bool {
        self.prefer_whole || (self.writing == Writing::SentencePiece && word.starts_with('\n'))
    }

    /// Calls `emit` for each word of `text`, in order; together they are the text.
    pub(super) fn split<'t>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
        split(&self.rules, text, emit);
    }
}

fn compile(patterns: &[&str]) -> Regex {
    let config = Regex::config().nfa_size_limit(Some(COMPILED_BYTES_MAX));
    Regex::builder().configure(config).build_many(patterns).expect("the patterns are constants")
}

fn split<'t>(rules: &[Compiled], text: &'t str, emit: &mut dyn FnMut(&'t str)) {
    let Some((rule, rest)) = rules.split_first() else { return emit(text) };
    match rule {
        Compiled::Cut(regex) => {
            let mut cache = regex.create_cache();
            cut(regex, &mut cache, text, &mut |_, piece| split(rest, piece, emit));
        }
        Compiled::CutInPowers(regex) => {
            let mut cache = regex.create_cache();
            cut(regex, &mut cache, text, &mut |is_space, piece| match is_space {
                true => in_powers(piece, &mut |piece| split(rest, piece, emit)),
                false => split(rest, piece, emit),
            });
        }
        Compiled::DigitTriples(runs) => {
            digit_triples(runs, text, &mut |piece| split(rest, piece, emit));
        }
    }
}

/// Splits `text` into matches and the text between them. The first argument of `emit` is whether a
/// piece is white space found by pattern 1.
fn cut<'t>(regex: &Regex, cache: &mut Cache, text: &'t str, emit: &mut dyn FnMut(bool, &'t str)) {
    let mut at = 0;
    while at < text.len() {
        // Most patterns match everywhere, and an anchored search reads the text once instead of
        // twice.
        let here = Input::new(text).range(at..).anchored(Anchored::Yes);
        let found = regex
            .search_with(cache, &here)
            .or_else(|| regex.search_with(cache, &here.clone().anchored(Anchored::No)));
        let Some(found) = found else { return emit(false, &text[at..]) };
        if at < found.start() {
            emit(false, &text[at..found.start()]);
        }
        let mut end = found.end();
        let is_space = found.pattern().as_usize() == 1;
        if is_space && end < text.len() {
            // The run's last character belongs to the following word.
            let last = text[found.range()].chars().next_back().map_or(0, char::len_utf8);
            end -= if end - last > found.start() { last } else { 0 };
        }
        emit(is_space, &text[found.start()..end]);
        at = end;
    }
}

/// Cuts a run into pieces of at most 512 characters, each a power of two, the longest first.
fn in_powers<'t>(mut run: &'t str, emit: &mut dyn FnMut(&'t str)) {
    let mut left = run.chars().count();
    while left > 0 {
        let count = (1 << left.ilog2()).min(512);
        let end = run.char_indices().nth(count).map_or(run.len(), |(end, _)| end);
        emit(&run[..end]);
        (run, left) = (&run[end..], left - count);
    }
}

/// Splits each run of digits at the end of a word into threes from its right end, and text from
/// runs.
fn digit_triples<'t>(runs: &Regex, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
    let mut at = 0;
    for run in runs.find_iter(text).filter(|run| run.pattern().as_usize() == 1) {
        if at < run.start() {
            emit(&text[at..run.start()]);
        }
        let mut digits = &text[run.range()];
        let mut left = digits.chars().count();
        while left > 0 {
            let first = (left - 1) % 3 + 1;
            let end = digits.char_indices().nth(first).map_or(digits.len(), |(end, _)| end);
            emit(&digits[..end]);
            (digits, left) = (&digits[end..], left - first);
        }
        at = run.end();
    }
    if at < text.len() {
        emit(&text[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let pretokenizer = Pretokenizer::new(schemes::find(name).unwrap());
        pretokenizer.split(text, &mut |word| words.push(word.to_owned()));
        assert_eq!(words.concat(), text, "{name} loses text");
        words
    }

    #[test]
    fn cases() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("gpt-2", "Hello  big world's 123", &["Hello", " ", " big", " world", "'s", " 123"]),
            ("gpt-2", "a \n b  ", &["a", " \n", " b", "  "]),
            ("llama-bpe", "I'M 12345\n\n  x", &["I", "'M", " ", "123", "45", "\n\n", " ", " x"]),
            ("qwen2", "12 ab", &["1", "2", " ab"]),
            ("gpt-4o", "helloWorld's", &["hello", "World's"]),
            ("tekken", "helloWorld's", &["hello", "World", "'s"]),
            ("deepseek-v3", "12345漢字\n#include", &["123", "45", "漢字", "\n", "#include"]),
            ("kimi-k2", "漢字abc漢", &["漢字", "abc", "漢"]),
            ("smollm", "a 12", &["a", " ", "1", "2"]),
            ("falcon", "12345!x", &["123", "45", "!", "x"]),
            ("deepseek-llm", "ab  𝐀", &["ab", "  𝐀"]),
            ("deepseek-coder", "a1 b\n", &["a", "1", " b", "\n"]),
            ("tiny_aya", "1234567 x 1234a", &["1", "234", "567", " x", " ", "123", "4", "a"]),
            ("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]),
            ("jais-2", "a        \tb  1 ", &["a", "        ", "\tb", " ", " ", "1", " "]),
            ("afmoe", "x12345 1234a", &["x", "12", "345", " ", "1", "234", "a"]),
            ("superbpe", "1234 ab cd", &["1", "234", " ab cd"]),
            ("spark2_5", "1234.\n\nab", &["1", "2", "3", "4", ".", "\n", "\n", "ab"]),
            ("chameleon", "a  b\t12", &["a", "  ", "b", "\t", "1", "2"]),
            ("glm5", "1234 ab", &["123", "4", " ab"]),
        ];
        for (name, text, expected) in cases {
            assert_eq!(words(name, text), *expected, "{name} {text:?}");
        }
    }

    #[test]
    fn every_known_name_compiles_and_keeps_all_text() {
        for name in schemes::names() {
            words(name, "Ünï 12345 \t\r\n\n  x漢字かな한글 🦀's 'LL ... \u{85}\u{a0} end   ");
        }
        assert!(matches!(Pretokenizer::find("x-1"), Err(TextError::PreTokenizer { .. })));
    }
}
