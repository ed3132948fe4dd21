//! WordPiece and unigram vocabularies, and tokens that no text becomes. The expected tokens are
//! those of the `tokenizers` library for the same vocabularies.

use gguf::{Directory, Value, Writer};
use text::{Special, Tokenizer};

fn load(writer: &Writer) -> Tokenizer {
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
    let directory = Directory::parse(&bytes, bytes.len() as u64).unwrap();
    Tokenizer::from_gguf(&directory).unwrap()
}

/// The texts of the tokens of `text`.
fn pieces(tokenizer: &Tokenizer, text: &str, around: bool) -> Vec<String> {
    let ids = tokenizer.encode(text, Special::Parse, around);
    let piece = |id: &u32| String::from_utf8(tokenizer.token_bytes(*id).to_vec()).unwrap();
    ids.iter().map(piece).collect()
}

fn bert(options: &[(&str, bool)]) -> Tokenizer {
    let tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "▁un",
        "aff",
        "able",
        "▁affable",
        "▁,",
        "▁漢",
        "▁cafe",
        "▁ᄀ",
        "ᅡ",
        "▁café",
        "▁A",
        "ff",
    ];
    let kinds: Vec<i32> = (0..tokens.len()).map(|id| if id < 4 { 3 } else { 1 }).collect();
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("bert".into()))
        .set_strings("tokenizer.ggml.tokens", &tokens)
        .set_i32s("tokenizer.ggml.token_type", &kinds)
        .set("tokenizer.ggml.unknown_token_id", Value::U32(1))
        .set("tokenizer.ggml.cls_token_id", Value::U32(2))
        .set("tokenizer.ggml.seperator_token_id", Value::U32(3));
    for (name, value) in options {
        writer.set(&format!("tokenizer.ggml.normalizer.{name}"), Value::Bool(*value));
    }
    load(&writer)
}

#[test]
fn wordpiece() {
    let uncased = bert(&[]);
    let long = "un".repeat(51);
    let cases: &[(&str, &[&str])] = &[
        ("", &[]),
        (" \t\n", &[]),
        ("unaffable", &[" un", "aff", "able"]),
        ("Affable,UNaffable", &[" affable", " ,", " un", "aff", "able"]),
        // A word of which a part is unknown is unknown as a whole.
        ("unknown affable", &["[UNK]", " affable"]),
        ("un\u{0}aff\u{200d}able", &[" un", "aff", "able"]),
        ("漢漢", &[" 漢", " 漢"]),
        ("CAFÉ cafe\u{301}", &[" cafe", " cafe"]),
        ("가", &[" ᄀ", "ᅡ"]),
        ("un[SEP]able", &[" un", "[SEP]", "[UNK]"]),
        (&long, &["[UNK]"]),
    ];
    for (text, expected) in cases {
        assert_eq!(pieces(&uncased, text, false), *expected, "{text:?}");
    }
    assert_eq!(pieces(&uncased, "un", true), ["[CLS]", " un", "[SEP]"]);
    let ids = uncased.encode("unaffable affable", Special::Plain, true);
    assert_eq!(uncased.decode(&ids), "unaffable affable");

    let cased = bert(&[("lowercase", false)]);
    assert_eq!(pieces(&cased, "Aff CAFÉ café", false), [" A", "ff", "[UNK]", " café"]);
    let accents = bert(&[("strip_accents", false)]);
    assert_eq!(pieces(&accents, "CAFÉ", false), [" café"]);
}

fn unigram(extra: &[&str], suffix: bool) -> Tokenizer {
    let mut tokens = vec!["<s>", "</s>", "<unk>", "▁", "▁a", "b", "ab", "▁ab", "c", "bc"];
    let mut scores = vec![0.0, 0.0, 0.0, -3.0, -2.5, -2.0, -3.5, -4.4, -2.0, -4.1];
    tokens.extend(extra);
    scores.resize(tokens.len(), -1.0);
    let kinds: Vec<i32> =
        (0..tokens.len()).map(|id| [3, 3, 2].get(id).copied().unwrap_or(1)).collect();
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("t5".into()))
        .set_strings("tokenizer.ggml.tokens", &tokens)
        .set_f32s("tokenizer.ggml.scores", &scores)
        .set_i32s("tokenizer.ggml.token_type", &kinds)
        .set("tokenizer.ggml.add_space_prefix", Value::Bool(true))
        .set("tokenizer.ggml.treat_whitespace_as_suffix", Value::Bool(suffix))
        .set("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(!suffix))
        .set("tokenizer.ggml.eos_token_id", Value::U32(1));
    load(&writer)
}

#[test]
fn the_likeliest_path_wins() {
    let tokenizer = unigram(&[], false);
    let cases: &[(&str, &[&str])] = &[
        ("", &[]),
        ("  ", &[]),
        // -4.4 against -2.5 - 2.0, though the former is not the best beginning.
        ("ab", &[" ab"]),
        // -2.5 - 2.0 - 2.0 against -4.4 - 2.0 and -2.5 - 4.1.
        ("abc", &[" ab", "c"]),
        ("  ab \t b ", &[" ab", " ", "<unk>", " ", "b"]),
        // A run of what is unknown is one token.
        ("bxyzb", &[" ", "b", "<unk>", "b"]),
        ("漢漢 漢", &[" ", "<unk>", " ", "<unk>"]),
    ];
    for (text, expected) in cases {
        assert_eq!(pieces(&tokenizer, text, false), *expected, "{text:?}");
    }
    assert_eq!(pieces(&tokenizer, "b", true), [" ", "b", "</s>"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("ab b", Special::Plain, true)), "ab b");
}

#[test]
fn tokens_across_words_are_found_too() {
    let tokenizer = unigram(&["b▁a"], false);
    assert_eq!(pieces(&tokenizer, "b a", false), [" ", "b a"]);
    let behind = unigram(&["b▁"], true);
    assert_eq!(pieces(&behind, "b b", false), ["b ", "b "]);
}

#[test]
fn a_megabyte_without_spaces_is_no_trouble() {
    let text = "abxc".repeat(1 << 18);
    for tokenizer in [unigram(&[], false), unigram(&["b▁a"], false), bert(&[])] {
        let ids = tokenizer.encode(&text, Special::Plain, false);
        assert!(!ids.is_empty() && ids.len() <= text.len(), "{}", ids.len());
    }
}

#[test]
fn a_byte_level_token_outside_the_alphabet_is_never_made() {
    // Command-R has both U+200D itself and its three bytes in the alphabet of byte-level tokens.
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("gpt2".into()))
        .set("tokenizer.ggml.pre", Value::String("gpt-2".into()))
        .set_strings("tokenizer.ggml.tokens", &["\u{200d}", "â", "Ģ", "į", "âĢ", "âĢį"])
        .set_strings("tokenizer.ggml.merges", &["â Ģ", "âĢ į"]);
    let tokenizer = load(&writer);
    assert_eq!(tokenizer.encode("\u{200d}", Special::Plain, false), [5]);
    assert_eq!(tokenizer.decode(&[0]), "\u{200d}");
}

#[test]
fn tokens_to_fill_in_the_middle_are_not_what_a_user_writes() {
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("llama".into()))
        .set_strings("tokenizer.ggml.tokens", &["<unk>", "<fim_prefix>", "<mine>", "x"])
        .set_i32s("tokenizer.ggml.token_type", &[2, 4, 4, 1])
        .set("tokenizer.ggml.add_space_prefix", Value::Bool(false))
        .set("tokenizer.ggml.unknown_token_id", Value::U32(0));
    let tokenizer = load(&writer);
    assert_eq!(tokenizer.encode("x<mine>", Special::Plain, false), [3, 2]);
    assert_eq!(tokenizer.encode("x<fim_prefix>", Special::Parse, false), [3, 1]);
    assert!(!tokenizer.encode("x<fim_prefix>", Special::Plain, false).contains(&1));
}
