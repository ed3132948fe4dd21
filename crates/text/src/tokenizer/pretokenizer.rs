//! Cutting text into words before byte-pair encoding, as each model family was trained.
//!
//! A pre-tokenizer is a list of steps. Each step cuts every piece that the step before left: what
//! its pattern matches becomes a piece, and so does what lies between two matches.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space gives its last character to
//! the word that follows. That look-ahead is done here by hand, so that all patterns are true
//! regular expressions: linear in the text, with no input that makes them slow.
//!
//! Source: the `pre_tokenizer` of each family's published `tokenizer.json`, under the names that
//! the GGUF converter of llama.cpp gives them.

use regex_automata::meta::{Cache, Regex};
use regex_automata::{Anchored, Input};

use super::vocab::Writing;
use crate::TextError;

/// Compiled pattern bytes; the largest of the patterns below needs about 1 MB.
const COMPILED_BYTES_MAX: usize = 16 << 20;

/// A pattern as published; `contractions` and the like are spelled out below.
#[derive(Clone, Copy)]
enum Step {
    /// Cut by this pattern.
    Cut(&'static str),
    /// The same, followed by `\s+(?!\S)|\s+`.
    CutSpaces(&'static str),
    /// Runs of digits in threes counted from the right: `\d{1,3}(?=(?:\d{3})*\b)`.
    DigitTriples,
}

use Step::{Cut, CutSpaces, DigitTriples};

/// What a name in `tokenizer.ggml.pre` stands for.
#[derive(Clone, Copy)]
pub(super) struct Scheme {
    steps: &'static [Step],
    /// A word that is a token as a whole is not merged from its bytes.
    prefer_whole: bool,
    /// What the family does where the file has no `add_bos_token`.
    pub(super) add_bos: bool,
    writing: Writing,
}

const GPT2: Step = CutSpaces(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");

/// The pattern of GPT-4 (cl100k) with digits in runs of one to three.
const CL100K: Step = CutSpaces(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
);

/// The same with single digits.
const QWEN2: Step = CutSpaces(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
);

/// The pattern of GPT-4o: words break where lower case turns into upper case.
const O200K: Step = CutSpaces(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
));

const DEEPSEEK_V3_WORDS: Step = CutSpaces(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+",
));

const CJK_KANA: Step = Cut(r"[一-龥\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+");
const CJK_HANGUL: Step = Cut(r"[一-龥\x{0800}-一가-\x{D7FF}]+");

const fn scheme(steps: &'static [Step]) -> Scheme {
    Scheme { steps, prefer_whole: false, add_bos: false, writing: Writing::ByteLevel }
}

const fn whole(steps: &'static [Step]) -> Scheme {
    Scheme { prefer_whole: true, ..scheme(steps) }
}

/// The scheme of a name; one arm a family.
#[rustfmt::skip]
pub(super) fn find_scheme(name: &str) -> Option<Scheme> {
    const FALCON_PUNCTUATION: Step = Cut(r"[\p{P}\$\+<=>\^~\|`]+");
    const NOT_PUNCTUATION: Step = Cut(r" ?[^(\s|.,!?…。，、।۔،)]+");
    Some(match name {
        "default" => scheme(&[
            Cut(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, Cut(r"\p{N}+"), Cut("[0-9][0-9][0-9]"),
        ]),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" => Scheme { add_bos: true, ..whole(&[CL100K]) },
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => scheme(&[CL100K]),
        "minicpm5" => whole(&[Cut(r"\p{N}{1,3}"), CutSpaces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
        )]),
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "stablelm2" | "hunyuan" | "megrez"
        | "solar-open" | "grok-2" => scheme(&[QWEN2]),
        "qwen35" => scheme(&[CutSpaces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
        )]),
        "laguna" => scheme(&[Cut(r"[^\n]+|\n+"), QWEN2]),
        "ufakzeka" => scheme(&[CutSpaces(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
        )]),
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => scheme(&[O200K]),
        "granite-embed-multi-97m" => whole(&[O200K]),
        "tiny_aya" | "cohere2moe" => scheme(&[DigitTriples, O200K]),
        "tekken" => Scheme { add_bos: true, ..whole(&[CutSpaces(concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
        ))]) },
        "kimi-k2" => scheme(&[CutSpaces(concat!(
            r"\p{Han}+",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
        ))]),
        "deepseek-llm" => scheme(&[
            Cut(r"[\r\n]"), Cut(r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"),
            Cut(r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+"), Cut(r"\s+$"), CJK_HANGUL, Cut(r"\p{N}+"),
        ]),
        "deepseek-coder" => scheme(&[
            Cut(r"[\r\n]"), Cut(r"\s?\p{L}+"), Cut(r"\s?\p{P}+"), CJK_HANGUL, Cut(r"\p{N}"),
        ]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            scheme(&[Cut(r"\p{N}{1,3}"), CJK_KANA, DEEPSEEK_V3_WORDS])
        }
        "youtu" => whole(&[
            Cut(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"),
            CutSpaces(concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
            )),
        ]),
        "falcon" => scheme(&[FALCON_PUNCTUATION, GPT2, Cut("[0-9][0-9][0-9]")]),
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => scheme(&[Cut(r"\p{N}"), GPT2]),
        "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "jina-es"
        | "jina-de" | "jina-v1-en" | "jina-v2-es" | "jina-v2-de" | "jina-v2-code" | "roberta-bpe"
        | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert" | "exaone4" => scheme(&[GPT2]),
        "exaone-moe" => scheme(&[CutSpaces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]",
        )]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => scheme(&[CutSpaces(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]",
        )]),
        "seed-coder" => scheme(&[CutSpaces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+",
        )]),
        "poro-chat" | "bloom" | "gpt3-finnish" => scheme(&[NOT_PUNCTUATION]),
        "viking" => scheme(&[NOT_PUNCTUATION, Cut(r"\p{N}")]),
        "gemma4" | "granite-embed-multi-311m" => Scheme {
            writing: Writing::SentencePiece, add_bos: true, ..scheme(&[Cut(r"[^\n]+|\n+")])
        },
        "sarvam-moe" => Scheme {
            writing: Writing::SentencePiece, ..scheme(&[Cut(r"[^\n]+|\n+")])
        },
        _ => return None,
    })
}

/// A scheme ready to run.
pub(super) struct Pretokenizer {
    steps: Vec<Compiled>,
    prefer_whole: bool,
    writing: Writing,
}

enum Compiled {
    /// Pattern 0 is the published one; pattern 1, if there, is the run of white space at its end.
    Cut(Regex),
    /// Pattern 0 is a run of digits inside a word, pattern 1 one that ends a word.
    DigitTriples(Regex),
}

impl Pretokenizer {
    pub(super) fn new(scheme: Scheme) -> Self {
        let steps = scheme.steps.iter().map(|step| match *step {
            Cut(pattern) => Compiled::Cut(compile(&[pattern])),
            CutSpaces(pattern) => Compiled::Cut(compile(&[pattern, r"\s+"])),
            DigitTriples => {
                let inside = r"\d+[\p{Alphabetic}\p{M}\p{N}\p{Pc}&&[^\d]]";
                Compiled::DigitTriples(compile(&[inside, r"\d+"]))
            }
        });
        Self { steps: steps.collect(), prefer_whole: scheme.prefer_whole, writing: scheme.writing }
    }

    /// The scheme of a name in a file.
    ///
    /// # Errors
    /// A name that is not known.
    pub(super) fn find(name: &str) -> Result<Scheme, TextError> {
        find_scheme(name).ok_or_else(|| TextError::PreTokenizer { found: name.to_owned() })
    }

    pub(super) fn writing(&self) -> Writing {
        self.writing
    }

    /// Whether `word` is taken as one token where it is one. Gemma 4 does so for line breaks.
    pub(super) fn prefers_whole(&self, word: &str) -> bool {
        self.prefer_whole || (self.writing == Writing::SentencePiece && word.starts_with('\n'))
    }

    /// Calls `emit` for each word of `text`, in order; together they are the text.
    pub(super) fn split<'t>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
        split(&self.steps, text, emit);
    }
}

fn compile(patterns: &[&str]) -> Regex {
    let config = Regex::config().nfa_size_limit(Some(COMPILED_BYTES_MAX));
    Regex::builder().configure(config).build_many(patterns).expect("the patterns are constants")
}

fn split<'t>(steps: &[Compiled], text: &'t str, emit: &mut dyn FnMut(&'t str)) {
    let Some((step, rest)) = steps.split_first() else { return emit(text) };
    match step {
        Compiled::Cut(regex) => {
            let mut cache = regex.create_cache();
            cut(regex, &mut cache, text, &mut |piece| split(rest, piece, emit));
        }
        Compiled::DigitTriples(runs) => {
            digit_triples(runs, text, &mut |piece| split(rest, piece, emit));
        }
    }
}

/// Cuts `text` into matches and what lies between them.
fn cut<'t>(regex: &Regex, cache: &mut Cache, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
    let mut at = 0;
    while at < text.len() {
        // Most patterns match everywhere, and an anchored search reads the text once, not twice.
        let here = Input::new(text).range(at..).anchored(Anchored::Yes);
        let found = regex
            .search_with(cache, &here)
            .or_else(|| regex.search_with(cache, &here.clone().anchored(Anchored::No)));
        let Some(found) = found else { return emit(&text[at..]) };
        if at < found.start() {
            emit(&text[at..found.start()]);
        }
        let mut end = found.end();
        if found.pattern().as_usize() == 1 && end < text.len() {
            // The run's last character belongs to the word behind it.
            let last = text[found.range()].chars().next_back().map_or(0, char::len_utf8);
            end -= if end - last > found.start() { last } else { 0 };
        }
        emit(&text[found.start()..end]);
        at = end;
    }
}

/// Cuts each run of digits that ends a word into threes from its right end, and text from runs.
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
        let pretokenizer = Pretokenizer::new(find_scheme(name).unwrap());
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
            ("deepseek-coder", "a1 b\n", &["a", "1", " b", "\n"]),
            ("tiny_aya", "1234567 x 1234a", &["1", "234", "567", " x", " ", "123", "4", "a"]),
            ("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]),
        ];
        for (name, text, expected) in cases {
            assert_eq!(words(name, text), *expected, "{name} {text:?}");
        }
    }

    #[test]
    fn every_known_name_compiles_and_keeps_all_text() {
        let names = "default llama-bpe dbrx minicpm5 qwen2 qwen35 laguna ufakzeka gpt-4o tiny_aya \
            granite-embed-multi-97m tekken kimi-k2 deepseek-llm deepseek-coder deepseek-v3 youtu \
            falcon starcoder gpt-2 exaone-moe bailingmoe seed-coder poro-chat viking gemma4 \
            sarvam-moe";
        for name in names.split_whitespace() {
            words(name, "Ünï 12345 \t\r\n\n  x漢字かな한글 🦀's 'LL ... \u{85}\u{a0} end   ");
        }
        assert!(matches!(Pretokenizer::find("x-1"), Err(TextError::PreTokenizer { .. })));
    }
}
