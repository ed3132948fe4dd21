//! Odd vocabularies: unknown tokenizers, and tokens that no text produces.

use gguf::{Directory, Value, Writer};
use text::{FillTokens, Special, TextError, Tokenizer};

fn parse(writer: &Writer) -> Result<Tokenizer, TextError> {
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
    Tokenizer::from_gguf(&Directory::parse(&bytes, bytes.len() as u64).unwrap())
}

fn load(writer: &Writer) -> Tokenizer {
    parse(writer).unwrap()
}

#[test]
fn tokenizers_that_no_served_model_has_are_refused_by_name() {
    for model in ["rwkv", "plamo2"] {
        let mut writer = Writer::new();
        writer
            .set("tokenizer.ggml.model", Value::String(model.into()))
            .set_strings("tokenizer.ggml.tokens", &["<unk>", "a"]);
        let refused = parse(&writer).unwrap_err().to_string();
        assert!(refused.contains(&format!("\"{model}\"")), "{refused}");
    }
}

#[test]
fn an_encoders_vocabulary_without_words_finds_none() {
    for (model, kinds) in [("bert", [3, 3, 3, 1]), ("t5", [2, 3, 3, 1])] {
        let mut writer = Writer::new();
        writer
            .set("tokenizer.ggml.model", Value::String(model.into()))
            .set("tokenizer.ggml.unknown_token_id", Value::U32(0))
            .set("tokenizer.ggml.bos_token_id", Value::U32(1))
            .set("tokenizer.ggml.eos_token_id", Value::U32(2))
            .set("tokenizer.ggml.add_eos_token", Value::Bool(true))
            .set_strings("tokenizer.ggml.tokens", &["[UNK]", "[CLS]", "[SEP]", ""])
            .set_i32s("tokenizer.ggml.token_type", &kinds);
        let tokenizer = load(&writer);
        let found = tokenizer.encode("hello", Special::Plain, true);
        assert_eq!(found, [1, 0, 2], "{model}");
        let (pair, first) = tokenizer.encode_pair(["hello", ""], 99);
        assert!(pair.starts_with(&[1, 0, 2]) && first >= 3, "{model}: {pair:?}");
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
fn a_special_token_outside_the_vocabulary_is_absent() {
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("llama".into()))
        .set_strings("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "x"])
        .set_i32s("tokenizer.ggml.token_type", &[2, 3, 3, 1])
        .set("tokenizer.ggml.add_space_prefix", Value::Bool(false))
        .set("tokenizer.ggml.unknown_token_id", Value::U32(0))
        .set("tokenizer.ggml.bos_token_id", Value::U32(4))
        .set("tokenizer.ggml.eos_token_id", Value::I32(-1))
        .set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    let tokenizer = load(&writer);
    assert_eq!(tokenizer.encode("x", Special::Plain, true), [3]);
    for about in ["bos_token_id\" is token 4 of 4", "eos_token_id", "beginning-of-sequence"] {
        let warned = tokenizer.warnings().iter().filter(|warning| warning.contains(about));
        assert_eq!(warned.count(), 1, "{about}: {:?}", tokenizer.warnings());
    }
}

#[test]
fn bytes_of_tokens_that_are_no_utf_8_are_kept() {
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("llama".into()))
        .set_strings("tokenizer.ggml.tokens", &["<unk>", "a", "b#", "\u{2581}##"])
        .set_i32s("tokenizer.ggml.token_type", &[2, 1, 1, 1])
        .set_f32s("tokenizer.ggml.scores", &[0.0, -1.0, -2.0, -3.0]);
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
    // The first half of an umlaut, and bytes that no text contains.
    for (written, odd) in [(b"b#", b"b\xc3"), (b"##", b"\xff\xfe")] {
        let at = bytes.windows(written.len()).position(|part| part == written).unwrap();
        bytes[at..at + odd.len()].copy_from_slice(odd);
    }
    let directory = Directory::parse(&bytes, bytes.len() as u64).unwrap();
    let tokenizer = Tokenizer::from_gguf(&directory).unwrap();
    assert_eq!(tokenizer.token_bytes(2), b"b\xc3");
    assert_eq!(tokenizer.token_bytes(3), b" \xff\xfe");
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

/// A vocabulary of these tokens, all user-defined, and further keys.
fn code_model(tokens: &[&str], keys: &[(&str, u32)]) -> Tokenizer {
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("gpt2".into()))
        .set("tokenizer.ggml.pre", Value::String("gpt-2".into()))
        .set_strings("tokenizer.ggml.tokens", tokens)
        .set_i32s("tokenizer.ggml.token_type", &vec![4; tokens.len()])
        .set_strings("tokenizer.ggml.merges", &[] as &[&str]);
    for (key, id) in keys {
        writer.set(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(*id));
    }
    load(&writer)
}

#[test]
fn tokens_to_fill_in_are_found_by_key_or_by_name() {
    let names = ["x", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|file_sep|>"];
    let fill = |prefix, suffix, middle, repo, file| {
        Some(FillTokens { prefix, suffix, middle, repo, file })
    };
    let by_name = code_model(&names, &[]);
    assert_eq!(by_name.fill_tokens(), fill(1, 2, 3, None, Some(4)));
    assert!(by_name.is_special(1), "a client's text does not mean it");
    let by_key = code_model(&names, &[("fim_pre", 0), ("suffix", 4), ("fim_rep", 3)]);
    assert_eq!(by_key.fill_tokens(), fill(0, 4, 3, Some(3), Some(4)));
    assert!(by_key.is_special(0));
    let both = ["<PRE>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    assert_eq!(code_model(&both, &[]).fill_tokens().unwrap().prefix, 1, "the best-known name");
    assert_eq!(code_model(&names[..3], &[]).fill_tokens(), None);
    assert_eq!(code_model(&names, &[("fim_pre", 99)]).fill_tokens().unwrap().prefix, 1);
}
