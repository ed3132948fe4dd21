//! Properties of tokenizers over random text, and broken or hostile vocabularies.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use gguf::{Directory, Value, Writer};
use proptest::prelude::*;
use text::{Special, TextError, TextStream, Tokenizer};

fn fixture(name: &str) -> Arc<Tokenizer> {
    open(&fixtures::path(&format!("models/{name}.gguf")))
}

fn open(path: &Path) -> Arc<Tokenizer> {
    let bytes = std::fs::read(path).unwrap();
    let gguf = Directory::parse(&bytes, bytes.len() as u64).unwrap();
    Arc::new(Tokenizer::from_gguf(&gguf).unwrap())
}

static GPT2: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/vocab/ggml-vocab-gpt-2.gguf"))
});
static MODELS: LazyLock<Vec<Arc<Tokenizer>>> = LazyLock::new(|| {
    let names = "llama3-tied qwen3 gpt-oss deepseek-v3 kimi-k2 olmo2 minimax-m2 llama-spm gemma3";
    names.split(' ').map(fixture).chain([GPT2.clone()]).collect()
});

/// Text of all scripts, with the pieces that tokenizers treat specially.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "\\PC{0,6}",
        2 => "[a-zA-Z]{1,8}",
        2 => "[ \t\r\n]{1,5}",
        1 => "[0-9]{1,7}",
        1 => "('s|'LL|<\\|im_end\\|>|</s>|<s>|\\[INST\\]|漢字|かな|🦀|é|\u{301}|\u{2581})",
        1 => any::<String>(),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    // No file of past failures: proptest prints the seed of a failure, and cases belong in the tables.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encoding_loses_nothing(text in any_text()) {
        for tokenizer in MODELS.iter() {
            let ids = tokenizer.encode(&text, Special::Plain, false);
            prop_assert!(ids.iter().all(|id| (*id as usize) < tokenizer.len()));
            // SentencePiece writes a space as U+2581, so this character becomes a space.
            let spaced = text.replace('\u{2581}', " ");
            let decoded = tokenizer.decode(&ids);
            prop_assert!(decoded == text || decoded == spaced, "{decoded:?}");
        }
    }

    #[test]
    fn encoding_ends_early_and_never_has_fewer_tokens_than_bytes_allow(
        text in any_text(),
        tokens_max in 0usize..20,
    ) {
        for tokenizer in MODELS.iter() {
            let ids = tokenizer.encode(&text, Special::Parse, false);
            prop_assert!(tokenizer.tokens_min(&text) <= ids.len(), "{} tokens", ids.len());
            let some = tokenizer.encode_some(&text, Special::Parse, false, tokens_max);
            prop_assert_eq!(&some, &ids[..some.len()]);
            prop_assert!(some.len() == ids.len() || some.len() > tokens_max);
        }
    }

    #[test]
    fn streaming_is_decoding(ids in prop::collection::vec(0u32..600, 0..60)) {
        for tokenizer in MODELS.iter() {
            let mut stream = TextStream::new(Arc::clone(tokenizer));
            let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
            pieces.push(stream.finish());
            let bytes = ids.iter().filter(|id| !tokenizer.is_special(**id));
            let bytes: Vec<u8> = bytes.flat_map(|id| tokenizer.token_bytes(*id).to_vec()).collect();
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            let streamed = pieces.concat();
            let stripped = whole.strip_prefix(' ').unwrap_or(&whole);
            prop_assert!(streamed == whole || streamed == stripped, "{streamed:?} {whole:?}");
            prop_assert_eq!(streamed, tokenizer.decode(&ids));
        }
    }
}

#[test]
fn pieces_are_whole_characters() {
    let text = "🦀 naïve 漢字";
    let ids = GPT2.encode(text, Special::Plain, false);
    let mut stream = TextStream::new(&**GPT2);
    let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    assert!(pieces.iter().any(String::is_empty), "no token ended inside a character: {pieces:?}");
    assert_eq!(pieces.concat() + &stream.finish(), text);

    let crab = GPT2.encode("🦀", Special::Plain, false);
    let mut cut = TextStream::new(&**GPT2);
    assert_eq!(cut.push(crab[0]), "");
    assert_eq!(cut.finish(), "\u{FFFD}");
}

#[test]
fn a_leading_space_is_the_tokenizers_or_the_texts() {
    let spm = fixture("llama-spm");
    let ids = spm.encode("the", Special::Plain, false);
    let decode = |mut stream: TextStream<&Tokenizer>| -> String {
        ids.iter().map(|id| stream.push(*id)).collect()
    };
    assert_eq!(decode(TextStream::new(&spm)), "the");
    assert_eq!(decode(TextStream::continuing(&spm)), " the");
}

#[test]
fn control_tokens() {
    let oss = fixture("gpt-oss");
    let id = |text: &str| oss.find_token(text).unwrap();
    let text = "<|start|>user<|message|>Hi<|end|>";
    let parsed = oss.encode(text, Special::Parse, false);
    assert_eq!(parsed[0], id("<|start|>"));
    assert_eq!(*parsed.last().unwrap(), id("<|end|>"));
    let plain = oss.encode(text, Special::Plain, false);
    assert!(plain.iter().all(|id| !oss.is_special(*id)), "{plain:?}");
    assert_eq!(oss.decode(&plain), text);
    assert_eq!(oss.decode(&parsed), "userHi");
    let mut shown = TextStream::new(&*oss).with_special();
    assert_eq!(parsed.iter().map(|id| shown.push(*id)).collect::<String>(), text);

    // <|end|> ends a message within a reply; <|return|> and <|call|> end the reply.
    assert!(oss.is_end(id("<|return|>")) && oss.is_end(id("<|call|>")));
    assert!(!oss.is_end(id("<|end|>")));

    let qwen = fixture("qwen3");
    let ends: Vec<&[u8]> = qwen.end_ids().iter().map(|id| qwen.token_bytes(*id)).collect();
    assert_eq!(ends, [&b"<|endoftext|>"[..], b"<|im_end|>"]);
    assert!(qwen.token_bytes(u32::MAX).is_empty() && !qwen.is_end(u32::MAX));
}

#[test]
fn prompts_begin_with_one_bos() {
    let llama = fixture("llama3-tied");
    let bos = llama.bos().unwrap();
    let name = String::from_utf8(llama.token_bytes(bos).to_vec()).unwrap();
    for rendered in ["Hi".to_owned(), format!("{name}Hi")] {
        let ids = llama.encode_prompt(&rendered);
        assert_eq!(ids.iter().filter(|id| **id == bos).count(), 1, "{rendered}");
        assert_eq!(ids[0], bos);
    }
    let qwen = fixture("qwen3");
    assert_eq!(qwen.encode_prompt("Hi"), qwen.encode("Hi", Special::Plain, false));
}

/// A megabyte without a space is one word: quadratic merging would take hours.
#[test]
fn a_megabyte_without_spaces() {
    for tokenizer in [&*GPT2, &MODELS[7]] {
        for text in ["a".repeat(1 << 20), "abcdefghij".repeat(100_000), " ".repeat(1 << 20)] {
            let ids = tokenizer.encode(&text, Special::Plain, false);
            assert_eq!(tokenizer.decode(&ids), text);
        }
    }
}

/// A byte-level vocabulary of all bytes and `extra`, with `merges`.
fn byte_level(extra: &[&str], merges: &[&str]) -> Writer {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let others = (0x100..).take(68);
    let codes = (0..256u32).filter(printable).chain(others);
    let mut tokens: Vec<String> = codes.map(|c| char::from_u32(c).unwrap().into()).collect();
    tokens.extend(extra.iter().map(|token| token.to_string()));
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("gpt2".into()))
        .set("tokenizer.ggml.pre", Value::String("gpt-2".into()))
        .set_strings("tokenizer.ggml.tokens", &tokens)
        .set_strings("tokenizer.ggml.merges", merges);
    writer
}

fn load(writer: &Writer) -> Result<Tokenizer, TextError> {
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
    Tokenizer::from_gguf(&Directory::parse(&bytes, bytes.len() as u64).unwrap())
}

#[test]
fn odd_vocabularies_are_mended_with_a_warning() {
    let cases: &[(&[&str], &[&str], &str)] = &[
        (&["ab"], &["a b", "a zz", "", " ", "a", "a  b", "漢 字"], "6 of 7 merges"),
        (&["ab", "ab", "a"], &["a b"], "2 tokens repeat"),
    ];
    for (extra, merges, warning) in cases {
        let tokenizer = load(&byte_level(extra, merges)).unwrap();
        let warnings = tokenizer.warnings().join(" ");
        assert!(warnings.contains(warning), "{warnings}");
        let ids = tokenizer.encode("abab ba", Special::Plain, true);
        assert_eq!(ids[..2], [256, 256]);
        assert_eq!(tokenizer.decode(&ids), "abab ba");
    }
}

#[test]
fn missing_bytes_become_the_unknown_token() {
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("gpt2".into()))
        .set_strings("tokenizer.ggml.tokens", &["<unk>", "a", "b", "ab", ""])
        .set_i32s("tokenizer.ggml.token_type", &[2, 1, 1, 1, 1])
        .set_strings("tokenizer.ggml.merges", &["a b"]);
    let without = load(&writer).unwrap();
    assert_eq!(without.warnings().len(), 2, "{:?}", without.warnings());
    assert_eq!(without.encode("abxab", Special::Plain, false), [3, 3]);
    writer.set("tokenizer.ggml.unknown_token_id", Value::U32(0));
    assert_eq!(load(&writer).unwrap().encode("abxab", Special::Plain, false), [3, 0, 3]);
}

#[test]
fn broken_vocabularies_are_refused() {
    type Break = fn(&mut Writer);
    let cases: &[(Break, &str)] = &[
        (|w| _ = w.set_i32s("tokenizer.ggml.token_type", &[1, 1]), "2 entries for 256"),
        (|w| _ = w.set_f32s("tokenizer.ggml.scores", &[1.0]), "1 entries for 256"),
        (|w| _ = w.set_strings("tokenizer.ggml.scores", &["x"]), "array of floats"),
        (|w| _ = w.set("tokenizer.ggml.token_type", Value::U32(1)), "token_type"),
    ];
    for (index, (break_it, expected)) in cases.iter().enumerate() {
        let mut writer = byte_level(&[], &[]);
        break_it(&mut writer);
        let error = load(&writer).unwrap_err().to_string();
        assert!(error.contains(expected), "case {index}: {error}");
    }

    let named = |model: &str, pre: &str| {
        let mut writer = Writer::new();
        writer
            .set("tokenizer.ggml.model", Value::String(model.into()))
            .set("tokenizer.ggml.pre", Value::String(pre.into()))
            .set_strings("tokenizer.ggml.tokens", &["a"]);
        load(&writer).unwrap_err().to_string()
    };
    assert!(named("abacus", "x").contains("\"abacus\""));
    assert!(named("gpt2", "martian").contains("\"martian\""));
    assert!(named("gpt2", "gpt-2").contains("merges"));
    let empty = Writer::new();
    assert!(load(&empty).unwrap_err().to_string().contains("tokenizer.ggml.model"));
}

#[test]
fn vocabularies_have_a_limit() {
    let many = vec![""; (1 << 21) + 1];
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("llama".into()))
        .set_strings("tokenizer.ggml.tokens", &many);
    assert!(matches!(load(&writer), Err(TextError::TooMany { what: "tokens", .. })));

    let names: Vec<String> = (0..70_000).map(|at| format!("<{at}>")).collect();
    let mut writer = Writer::new();
    writer
        .set("tokenizer.ggml.model", Value::String("llama".into()))
        .set_strings("tokenizer.ggml.tokens", &names)
        .set_i32s("tokenizer.ggml.token_type", &vec![4; names.len()]);
    assert!(matches!(load(&writer), Err(TextError::TooMany { what: "special tokens", .. })));
}

#[test]
fn a_long_text_is_known_to_be_long_by_its_bytes() {
    let text = "a".repeat(2 << 20);
    for tokenizer in MODELS.iter() {
        let least = tokenizer.tokens_min(&text);
        assert!(least > 2_000, "{least} tokens at least");
        // The words of such a text are merged in parts: its end does not change its start.
        let some = tokenizer.encode_some(&text, Special::Plain, false, 1000);
        assert!(some.len() > 1000 && some.len() <= (1 << 20) + 1, "{} tokens", some.len());
    }
    let spaces = " ".repeat((1 << 20) + 9);
    for tokenizer in MODELS.iter() {
        assert_eq!(tokenizer.decode(&tokenizer.encode(&spaces, Special::Plain, false)), spaces);
    }
}
