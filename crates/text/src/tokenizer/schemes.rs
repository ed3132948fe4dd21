//! The published pre-tokenizers by their names in GGUF files: data, no code.
//!
//! Source: the `pre_tokenizer` of each family's published `tokenizer.json`, under the names of
//! llama.cpp's GGUF converter.

use super::vocab::Writing;

/// One rule of a pre-tokenizer, which applies several in order.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// Split by this pattern.
    Cut(&'static str),
    /// The same, followed by `\s+(?!\S)|\s+`.
    CutSpaces(&'static str),
    /// The same, but white space outside words is split into runs of 512, 256 and so on down to 4,
    /// 2 and 1.
    CutSpacesInPowers(&'static str),
    /// Runs of digits in threes counted from the right: `\d{1,3}(?=(?:\d{3})*\b)`.
    DigitTriples,
    /// Matches in threes counted from the right.
    Triples(&'static str),
}

use Rule::{Cut, CutSpaces, CutSpacesInPowers, DigitTriples, Triples};

/// The meaning of a name in `tokenizer.ggml.pre`.
#[derive(Clone, Copy)]
pub(super) struct Scheme {
    pub(super) rules: &'static [Rule],
    /// A word that is a token is not merged from its bytes.
    pub(super) prefer_whole: bool,
    /// The family's default if the file has no `add_bos_token`.
    pub(super) add_bos: bool,
    pub(super) writing: Writing,
}

/// The scheme with a name.
pub(super) fn find(name: &str) -> Option<Scheme> {
    FAMILIES.iter().find(|(names, _)| names.contains(&name)).map(|(_, scheme)| *scheme)
}

const fn scheme(rules: &'static [Rule]) -> Scheme {
    Scheme { rules, prefer_whole: false, add_bos: false, writing: Writing::ByteLevel }
}

const fn whole(rules: &'static [Rule]) -> Scheme {
    Scheme { prefer_whole: true, ..scheme(rules) }
}

/// English contractions in either case.
macro_rules! contractions {
    () => {
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// Letters with one other character in front.
macro_rules! letters {
    () => {
        r"[^\r\n\p{L}\p{N}]?\p{L}+"
    };
}

/// Punctuation with a space in front and line breaks after; line breaks with spaces in front.
macro_rules! punctuation_and_lines {
    () => {
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    };
}

/// Words that break where lower case turns into upper case, each followed by `$end`.
macro_rules! cased_words {
    ($end:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $end
        )
    };
}

const GPT2: Rule = CutSpaces(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");

/// The pattern of GPT-4 (cl100k), digits in runs of one to three.
macro_rules! cl100k {
    () => {
        concat!(contractions!(), "|", letters!(), r"|\p{N}{1,3}|", punctuation_and_lines!())
    };
}

const CL100K: Rule = CutSpaces(cl100k!());

/// The same with single digits.
const QWEN2: Rule =
    CutSpaces(concat!(contractions!(), "|", letters!(), r"|\p{N}|", punctuation_and_lines!()));

/// The same with any number of digits.
const MINICPM5: Rule =
    CutSpaces(concat!(contractions!(), "|", letters!(), r"|\p{N}+|", punctuation_and_lines!()));

/// The same with combining marks as parts of words.
const QWEN35: Rule = CutSpaces(concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
));

/// The same without contractions, so that Turkish suffixes stay attached.
const UFAKZEKA: Rule = CutSpaces(concat!(letters!(), r"|\p{N}|", punctuation_and_lines!()));

/// The pattern of GPT-4o.
const O200K: Rule = CutSpaces(concat!(
    cased_words!(concat!(contractions!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
));

/// The same with single digits.
const YOUTU: Rule = CutSpaces(concat!(
    cased_words!(concat!(contractions!(), "?")),
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
));

/// The same without contractions.
const TEKKEN: Rule =
    CutSpaces(concat!(cased_words!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"));

/// GPT-4o's with runs of Chinese characters apart.
const KIMI_K2: Rule = CutSpaces(concat!(
    r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    contractions!(),
    r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    contractions!(),
    r"?|\p{N}{1,3}|",
    punctuation_and_lines!()
));

const DEEPSEEK_V3: Rule = CutSpaces(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
));

/// The same without line breaks after punctuation.
const SPARK: Rule = CutSpaces(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]"
));

const EXAONE_MOE: Rule = CutSpaces(concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
));

const BAILINGMOE: Rule = CutSpaces(concat!(
    r"'(?i:[sdmt]|ll|ve|re)|",
    letters!(),
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
));

const SEED_CODER: Rule = CutSpaces(concat!(
    contractions!(),
    "|",
    letters!(),
    r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
));

const CJK_KANA: Rule = Cut(r"[一-龥\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+");
const CJK_HANGUL: Rule = Cut(r"[一-龥\x{0800}-一가-\x{D7FF}]+");
const YOUTU_SCRIPTS: Rule = Cut(concat!(
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+",
    r"|[一-龥\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
));
/// Letters with case, without those of mathematics and of later versions of Unicode.
const DEEPSEEK_LLM_LETTERS: Rule = Cut(concat!(
    r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^\x{0560}-\x{0588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}",
    r"\x{2D00}-\x{2D2F}\x{A790}-\x{A7FF}\x{AB30}-\x{AB6F}\x{10570}-\x{105BF}",
    r"\x{10D50}-\x{10D85}\x{16E40}-\x{16E7F}\x{1D400}-\x{1D7FF}\x{1DF00}-\x{1DFFF}]]+"
));

const AFMOE_SCRIPTS: Rule = Cut(concat!(
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}",
    r"\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}",
    r"\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
));
const NOT_PUNCTUATION: Rule = Cut(r" ?[^(\s|.,!?…。，、।۔،)]+");
const LINES: Rule = Cut(r"[^\n]+|\n+");

/// Equivalent names, and their scheme.
#[rustfmt::skip]
const FAMILIES: &[(&[&str], Scheme)] = &[
    (
        &["default"],
        scheme(&[Cut(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, Cut(r"\p{N}+"), Cut("[0-9][0-9][0-9]")]),
    ),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
          "jina-v5-nano"],
        Scheme { add_bos: true, ..whole(&[CL100K]) },
    ),
    (&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], scheme(&[CL100K])),
    (&["glm5"], whole(&[CL100K])),
    (&["jais-2"], scheme(&[CutSpacesInPowers(cl100k!())])),
    (&["minicpm5"], whole(&[Cut(r"\p{N}{1,3}"), MINICPM5])),
    (
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "megrez",
          "solar-open", "grok-2"],
        scheme(&[QWEN2]),
    ),
    (&["qwen35"], scheme(&[QWEN35])),
    (&["laguna"], scheme(&[LINES, QWEN2])),
    (&["ufakzeka"], scheme(&[UFAKZEKA])),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], scheme(&[O200K])),
    (&["granite-embed-multi-97m"], whole(&[O200K])),
    (&["tiny_aya", "cohere2moe"], scheme(&[DigitTriples, O200K])),
    (&["tekken"], Scheme { add_bos: true, ..whole(&[TEKKEN]) }),
    (&["kimi-k2"], scheme(&[KIMI_K2])),
    (
        &["deepseek-llm"],
        scheme(&[
            Cut(r"[\r\n]"), DEEPSEEK_LLM_LETTERS,
            Cut(r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+"), Cut(r"\s+$"), CJK_HANGUL, Cut(r"\p{N}+"),
        ]),
    ),
    (
        &["deepseek-coder"],
        scheme(&[
            Cut(r"[\r\n]"), Cut(r"\s?\p{L}+"), Cut(r"\s?\p{P}+"), CJK_HANGUL, Cut(r"\p{N}"),
        ]),
    ),
    (
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        scheme(&[Cut(r"\p{N}{1,3}"), CJK_KANA, DEEPSEEK_V3]),
    ),
    (
        &["spark2_5"],
        scheme(&[Cut(r"\p{N}{1,3}"), CJK_KANA, SPARK, Cut(r"\p{N}")]),
    ),
    (&["afmoe"], scheme(&[Triples(r"\p{N}+"), AFMOE_SCRIPTS, DEEPSEEK_V3])),
    (&["superbpe"], scheme(&[Triples(r"\p{N}+")])),
    (
        &["chameleon"],
        Scheme {
            add_bos: true,
            ..scheme(&[
                Cut("<sentinel:[0-9]+>"), Cut("IMGIMG[A-I]{1,4}Z"), Cut(r"[\t\n]|    |  "),
                Cut(r"\p{N}"), Cut(r"[\p{P}!-/:-@\[-`{-~]"), GPT2,
            ])
        },
    ),
    (&["youtu"], whole(&[YOUTU_SCRIPTS, YOUTU])),
    (&["falcon"], scheme(&[Cut(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, Cut("[0-9][0-9][0-9]")])),
    (
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b",
          "mellum2"],
        scheme(&[Cut(r"\p{N}"), GPT2]),
    ),
    (
        &["gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "jina-es",
          "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe",
          "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4"],
        scheme(&[GPT2]),
    ),
    (&["exaone-moe"], scheme(&[EXAONE_MOE])),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], scheme(&[BAILINGMOE])),
    (&["seed-coder"], scheme(&[SEED_CODER])),
    (&["poro-chat", "bloom", "gpt3-finnish"], scheme(&[NOT_PUNCTUATION])),
    (&["viking"], scheme(&[NOT_PUNCTUATION, Cut(r"\p{N}")])),
    (
        &["gemma4", "granite-embed-multi-311m"],
        Scheme { writing: Writing::SentencePiece, add_bos: true, ..scheme(&[LINES]) },
    ),
    (&["sarvam-moe"], Scheme { writing: Writing::SentencePiece, ..scheme(&[LINES]) }),
];

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|(names, _)| names.iter().copied())
}
