//! Measures encoding: `cargo run --release -p text --example encode_speed -- FILE.gguf TEXT`.
//! Prints the best of five rounds in megabytes a second, and the load time of the vocabulary.

use std::time::Instant;

use text::{Special, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(text)) = (args.next(), args.next()) else {
        return Err("usage: encode_speed FILE.gguf TEXT_FILE".into());
    };
    let bytes = std::fs::read(&model)?;
    let gguf = gguf::Directory::parse(&bytes, bytes.len() as u64)?;
    let text = std::fs::read_to_string(&text)?;

    let start = Instant::now();
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;

    let mut best_s = f64::INFINITY;
    let mut tokens = 0;
    for _ in 0..5 {
        let start = Instant::now();
        tokens = tokenizer.encode(&text, Special::Plain, false).len();
        best_s = best_s.min(start.elapsed().as_secs_f64());
    }
    let megabytes = text.len() as f64 / 1e6;
    println!("load {load_ms:.0} ms, {tokens} tokens, {:.1} MB/s", megabytes / best_s);
    Ok(())
}
