//! `sinew dev synth`: a file with random weights in a real model's shape, to measure with.
//!
//! No published weights can be part of this repository, and speed does not depend on their values.
//! The tokenizer is a stub: the 256 bytes and as many placeholders as the vocabulary needs.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use gguf::{TensorType, Value, Writer};

use crate::args::DevSynthArgs;
use crate::error::{CliError, Doing};
use crate::table;

struct Shape {
    name: &'static str,
    arch: &'static str,
    layers: u64,
    width: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    feed_forward: u64,
    vocab: u64,
    tied: bool,
    rope_base: f32,
    context: u32,
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "llama-150m",
        arch: "llama",
        layers: 16,
        width: 768,
        heads: 12,
        kv_heads: 4,
        head_dim: 64,
        feed_forward: 3072,
        vocab: 32_000,
        tied: true,
        rope_base: 10_000.0,
        context: 8192,
    },
    Shape {
        name: "llama-3.2-1b",
        arch: "llama",
        layers: 16,
        width: 2048,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        feed_forward: 8192,
        vocab: 128_256,
        tied: true,
        rope_base: 500_000.0,
        context: 131_072,
    },
    Shape {
        name: "llama-3.1-8b",
        arch: "llama",
        layers: 32,
        width: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 14_336,
        vocab: 128_256,
        tied: false,
        rope_base: 500_000.0,
        context: 131_072,
    },
    Shape {
        name: "qwen3-0.6b",
        arch: "qwen3",
        layers: 28,
        width: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 3072,
        vocab: 151_936,
        tied: true,
        rope_base: 1_000_000.0,
        context: 40_960,
    },
];

const QUANTS: [(&str, TensorType); 4] = [
    ("f32", TensorType::F32),
    ("f16", TensorType::F16),
    ("q8_0", TensorType::Q8_0),
    ("q4_0", TensorType::Q4_0),
];

pub fn synth(args: &DevSynthArgs) -> Result<(), CliError> {
    let shape = find("shape", &args.shape, SHAPES.iter().map(|shape| (shape.name, shape)))?;
    let quant = find("type", &args.quant.to_ascii_lowercase(), QUANTS.into_iter())?;
    let writer = describe(shape, quant);
    let path = args.output.display();
    let file = File::create(&args.output).doing(format!("cannot write {path}"))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut random = Random(args.seed);
    let mut written = 0;
    let write = writer.write(&mut out, |name, ty, bytes, out| {
        written += bytes;
        fill(name, ty, bytes, shape, &mut random, out)
    });
    write.and_then(|()| out.flush()).doing(format!("cannot write {path}"))?;
    say!("{path}: {} of tensors", table::bytes(written));
    Ok(())
}

fn find<T>(
    what: &str,
    wanted: &str,
    known: impl Iterator<Item = (&'static str, T)> + Clone,
) -> Result<T, CliError> {
    let found = known.clone().find(|(name, _)| *name == wanted);
    found.map(|(_, value)| value).ok_or_else(|| {
        let names: Vec<&str> = known.map(|(name, _)| name).collect();
        CliError::Usage(format!("no {what} \"{wanted}\"; there are: {}", names.join(", ")))
    })
}

fn describe(shape: &Shape, quant: TensorType) -> Writer {
    let mut writer = Writer::new();
    let key = |name: &str| format!("{}.{name}", shape.arch);
    let number = |value: u64| Value::U32(value as u32);
    writer
        .set("general.architecture", Value::String(shape.arch.into()))
        .set("general.name", Value::String(format!("{} (random weights)", shape.name)))
        .set(&key("block_count"), number(shape.layers))
        .set(&key("context_length"), Value::U32(shape.context))
        .set(&key("embedding_length"), number(shape.width))
        .set(&key("feed_forward_length"), number(shape.feed_forward))
        .set(&key("attention.head_count"), number(shape.heads))
        .set(&key("attention.head_count_kv"), number(shape.kv_heads))
        .set(&key("attention.key_length"), number(shape.head_dim))
        .set(&key("attention.value_length"), number(shape.head_dim))
        .set(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5))
        .set(&key("rope.dimension_count"), number(shape.head_dim))
        .set(&key("rope.freq_base"), Value::F32(shape.rope_base))
        .set(&key("vocab_size"), number(shape.vocab));
    describe_tokenizer(&mut writer, shape.vocab);
    describe_tensors(&mut writer, shape, quant);
    writer
}

fn describe_tokenizer(writer: &mut Writer, vocab: u64) {
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

/// The printable letters by which byte-level vocabularies write the 256 bytes.
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

fn describe_tensors(writer: &mut Writer, shape: &Shape, quant: TensorType) {
    let (width, hidden) = (shape.width, shape.feed_forward);
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let norm = TensorType::F32;
    writer.declare("token_embd.weight", &[width, shape.vocab], quant);
    for layer in 0..shape.layers {
        let name = |name: &str| format!("blk.{layer}.{name}.weight");
        writer
            .declare(&name("attn_norm"), &[width], norm)
            .declare(&name("attn_q"), &[width, q], quant)
            .declare(&name("attn_k"), &[width, kv], quant)
            .declare(&name("attn_v"), &[width, kv], quant)
            .declare(&name("attn_output"), &[q, width], quant)
            .declare(&name("ffn_norm"), &[width], norm)
            .declare(&name("ffn_gate"), &[width, hidden], quant)
            .declare(&name("ffn_up"), &[width, hidden], quant)
            .declare(&name("ffn_down"), &[hidden, width], quant);
        if shape.arch == "qwen3" {
            writer.declare(&name("attn_q_norm"), &[shape.head_dim], norm).declare(
                &name("attn_k_norm"),
                &[shape.head_dim],
                norm,
            );
        }
    }
    writer.declare("output_norm.weight", &[width], norm);
    if !shape.tied {
        writer.declare("output.weight", &[width, shape.vocab], quant);
    }
}

/// Writes one tensor: norms are 1, matrices random with a standard deviation that keeps
/// activations at their size.
fn fill(
    name: &str,
    ty: TensorType,
    bytes: u64,
    shape: &Shape,
    random: &mut Random,
    out: &mut impl Write,
) -> io::Result<()> {
    if name.contains("norm") {
        return (0..bytes / 4).try_for_each(|_| out.write_all(&1f32.to_le_bytes()));
    }
    let cols = if name.contains("ffn_down") { shape.feed_forward } else { shape.width };
    let deviation = 1.0 / (cols as f32).sqrt();
    let block = vec![0u8; ty.block_bytes()];
    for _ in 0..bytes / ty.block_bytes() as u64 {
        let mut block = block.clone();
        random.fill_block(ty, deviation, &mut block);
        out.write_all(&block)?;
    }
    Ok(())
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from -1 to 1, whose standard deviation is 1 / sqrt(3).
    fn even(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn fill_block(&mut self, ty: TensorType, deviation: f32, block: &mut [u8]) {
        // Standard deviations of an even byte and an even nibble, in steps of the scale.
        const BYTE_STEPS: f32 = 73.9;
        const NIBBLE_STEPS: f32 = 4.61;
        let value = self.even() * 3f32.sqrt() * deviation;
        match ty {
            TensorType::F32 => block.copy_from_slice(&value.to_le_bytes()),
            TensorType::F16 => block.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            _ => {
                let steps = if ty == TensorType::Q8_0 { BYTE_STEPS } else { NIBBLE_STEPS };
                let scale = half::f16::from_f32(deviation / steps);
                let (head, numbers) = block.split_at_mut(2);
                head.copy_from_slice(&scale.to_le_bytes());
                for bytes in numbers.chunks_exact_mut(8) {
                    bytes.copy_from_slice(&self.next().to_le_bytes());
                }
            }
        }
    }
}
