//! Vocabularies with something odd about them: tokenizers that are not known, tokens that no text
//! becomes.

use gguf::{Directory, Value, Writer};
use text::{Special, TextError, Tokenizer};

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
    for model in ["t5", "bert"] {
        let mut writer = Writer::new();
        writer
            .set("tokenizer.ggml.model", Value::String(model.into()))
            .set_strings("tokenizer.ggml.tokens", &["<unk>", "a"]);
        let refused = parse(&writer).unwrap_err().to_string();
        assert!(refused.contains(&format!("\"{model}\"")), "{refused}");
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
