//! A stub of a tokenizer: the 256 bytes and the number of placeholders that the vocabulary needs.

use gguf::{Value, Writer};

pub fn describe(writer: &mut Writer, vocab: u64) {
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    let mut tokens: Vec<String> = byte_letters().collect();
    tokens.extend((tokens.len() as u64..vocab - 1).map(|n| format!("<{n}>")));
    tokens.push("<|end|>".to_owned());
    let mut types = vec![NORMAL; tokens.len()];
    types[tokens.len() - 1] = CONTROL;
    writer
        .set("tokenizer.ggml.model", Value::String("gpt2".into()))
        .set("tokenizer.ggml.pre", Value::String("gpt-2".into()))
        .set_strings("tokenizer.ggml.tokens", &tokens)
        .set_i32s("tokenizer.ggml.token_type", &types)
        .set_strings::<&str>("tokenizer.ggml.merges", &[])
        .set("tokenizer.ggml.eos_token_id", Value::U32(vocab as u32 - 1))
        .set("tokenizer.ggml.bos_token_id", Value::U32(vocab as u32 - 1));
}

/// The printable letters that represent the 256 bytes in byte-level vocabularies.
fn byte_letters() -> impl Iterator<Item = String> {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut shifted = 255;
    (0..256).map(move |byte| {
        let code = if printable(byte) {
            byte
        } else {
            shifted += 1;
            shifted
        };
        char::from_u32(code).expect("below 0x200, all are letters").to_string()
    })
}
