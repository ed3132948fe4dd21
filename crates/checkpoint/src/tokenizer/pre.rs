//! Pre-tokenizers, recognised by their regular expressions: `tokenizer.json` spells out what GGUF
//! names. The names are those of `text`.

use serde_json::Value;

use super::stored::Stored;
use crate::Error;
use crate::config::shown;

/// Cutting as GPT-2 did, which its step has built in.
const GPT2: &str = "words of GPT-2";
/// Single digits.
const DIGITS: &str = "digits";

macro_rules! contractions {
    () => {
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}
macro_rules! letters {
    () => {
        r"[^\r\n\p{L}\p{N}]?\p{L}+"
    };
}
macro_rules! lines_and_spaces {
    () => {
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}
/// Words of any letters, with digits as given.
macro_rules! words {
    ($digits:literal) => {
        concat!(
            contractions!(),
            "|",
            letters!(),
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
            lines_and_spaces!()
        )
    };
}
/// Words that break where lower case turns into upper case, each with an ending; digits.
macro_rules! cased_words {
    ($ending:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $ending,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $ending,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*",
            lines_and_spaces!()
        )
    };
}

const CL100K: &str = words!(r"\p{N}{1,3}");
const QWEN2: &str = words!(r"\p{N}");
const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    lines_and_spaces!()
);
const O200K: &str = cased_words!(concat!(contractions!(), "?"), r"\p{N}{1,3}");
const TEKKEN: &str = cased_words!("", r"\p{N}");
const SEED_CODER: &str = concat!(
    contractions!(),
    "|",
    letters!(),
    r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+",
    lines_and_spaces!()
);
const BAILINGMOE: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|",
    letters!(),
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
);
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    lines_and_spaces!()
);
const TRIPLES: &str = r"\p{N}{1,3}";
const CJK_KANA: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const CJK_HANGUL: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";

/// Steps, their name, and their name if a word that is a token is not merged from its bytes.
type Row = (&'static [&'static str], &'static str, &'static str);

const ROWS: &[Row] = &[
    (&[CL100K], "dbrx", "llama-bpe"),
    (&[QWEN2], "qwen2", ""),
    (&[QWEN35], "qwen35", ""),
    (&[O200K], "gpt-4o", "granite-embed-multi-97m"),
    (&[TEKKEN], "", "tekken"),
    (&[SEED_CODER], "seed-coder", ""),
    (&[BAILINGMOE], "bailingmoe", ""),
    (&[TRIPLES, CJK_KANA, DEEPSEEK_V3], "deepseek-v3", ""),
    (&[TRIPLES, words!(r"\p{N}+")], "", "minicpm5"),
    (&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_HANGUL, DIGITS], "deepseek-coder", ""),
    (&[DIGITS, GPT2], "smollm", ""),
    (&[r"\p{N}", GPT2], "smollm", ""),
    (&[GPT2], "gpt-2", ""),
];

/// The name of a pre-tokenizer.
///
/// # Errors
/// It is unknown.
pub(super) fn name(stored: &Stored) -> Result<&'static str, Error> {
    if let Some(name) = stored.pre {
        return Ok(name);
    }
    let steps = Stored::steps(&stored.pre_tokenizer, "pretokenizers");
    let steps: Vec<String> = steps.into_iter().filter_map(step).collect();
    let row = ROWS.iter().find(|row| row.0 == steps);
    let named = row.map(|row| if stored.model.ignore_merges { row.2 } else { row.1 });
    named.filter(|name| !name.is_empty()).ok_or_else(|| {
        let shown = shown(&Value::from(steps));
        Error::tokenizer(format!(
            "this version does not know how its texts are cut into words: {shown}. Use a GGUF \
             file of this model instead"
        ))
    })
}

/// What a step does; `None` if it cuts nothing.
fn step(step: &Value) -> Option<String> {
    match step["type"].as_str() {
        Some("Split") => {
            let pattern = &step["pattern"];
            let pattern = pattern["Regex"].as_str().or(pattern["String"].as_str());
            Some(pattern.map_or_else(|| step.to_string(), canonical))
        }
        Some("Digits") if step["individual_digits"] == true => Some(DIGITS.to_owned()),
        Some("ByteLevel") if step["add_prefix_space"] == true => Some(step.to_string()),
        Some("ByteLevel") if step["use_regex"] == false => None,
        Some("ByteLevel") => Some(GPT2.to_owned()),
        _ => Some(step.to_string()),
    }
}

/// A pattern in the form of this table: possessive repetitions, which make no difference here,
/// become greedy ones, and line breaks are written out.
fn canonical(pattern: &str) -> String {
    let written = pattern.replace('\r', r"\r").replace('\n', r"\n");
    written.replace("++", "+").replace("?+", "?").replace("{1}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(pre: &str, ignore_merges: bool) -> Result<&'static str, String> {
        let model = format!(r#"{{"vocab":{{}},"merges":[],"ignore_merges":{ignore_merges}}}"#);
        let text = format!(r#"{{"pre_tokenizer":{pre},"model":{model}}}"#);
        name(&Stored::parse(text.as_bytes()).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn published_ones_are_recognised_and_others_refused() {
        let sequence = |steps: &[String]| {
            format!(r#"{{"type":"Sequence","pretokenizers":[{}]}}"#, steps.join(","))
        };
        let split = |pattern: &str| {
            let pattern = Value::from(pattern);
            format!(r#"{{"type":"Split","pattern":{{"Regex":{pattern}}},"behavior":"Isolated"}}"#)
        };
        let bytes = r#"{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}"#;
        let of = |pattern: &str| sequence(&[split(pattern), bytes.to_owned()]);
        let qwen2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        assert_eq!(name_of(&of(qwen2), false), Ok("qwen2"));
        let llama3 = qwen2.replace(r"|\p{N}|", r"|\p{N}{1,3}|");
        assert_eq!(name_of(&of(&llama3), true), Ok("llama-bpe"));
        assert_eq!(name_of(&of(&llama3), false), Ok("dbrx"));
        assert_eq!(name_of(r#"{"type":"ByteLevel","add_prefix_space":false}"#, false), Ok("gpt-2"));
        let digits = r#"{"type":"Digits","individual_digits":true}"#.to_owned();
        let gpt2 =
            r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true}"#.to_owned();
        assert_eq!(name_of(&sequence(&[digits, gpt2]), false), Ok("smollm"));
        for unknown in [of(r"\p{L}+"), "null".to_owned(), r#"{"type":"Whitespace"}"#.to_owned()] {
            let error = name_of(&unknown, false).unwrap_err();
            assert!(error.contains("cut into words"), "{error}");
        }
    }
}
