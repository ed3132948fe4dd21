//! Times a tower of a released model's shape, with random weights.
//!
//!     cargo run --release -p vision --example speed [THREADS] [WIDTH HEIGHT] [FILE]
//!
//! The shape is that of Qwen3-VL 4B: 24 layers of 1024, patches of 16 pixels. It prints the time of
//! a picture, the rate of its products and attention, and that of one large product alone, which
//! bounds it: 768 tokens in 7.1 s, 390 GFLOP/s of 478, on two cores of an AMD EPYC with AVX-512
//! (2026-11-26, best of three). llama.cpp of October 2026 takes 24.5 s for the same file, cores and
//! size of picture, one token of text included. With FILE the tower is also written there, for other programs; its rows have 48
//! numbers.

use std::io::Write;
use std::time::Instant;

use gguf::{Memory, Source, TensorType, Value, Writer};
use half::f16;
use kernels::{Forms, Input, Packer, Product, multiply};
use vision::{Config, Detail, Footprint, Picture, Pool, Tower};

const WIDTH: u64 = 1024;
const HIDDEN: u64 = 4096;
const LAYERS: u64 = 24;
const HEADS: u32 = 16;
const PATCH: u64 = 16;
const OUT: u64 = 48;
/// The layers with features: the first and the second.
const FEATURES: u64 = 2;

fn tower() -> Writer {
    let mut writer = Writer::new();
    let text = |text: &str| Value::String(text.to_owned());
    let flags: Vec<bool> = (0..LAYERS).map(|layer| layer < FEATURES).collect();
    writer
        .set("general.architecture", text("clip"))
        .set("clip.has_vision_encoder", Value::Bool(true))
        .set("clip.projector_type", text("qwen3vl_merger"))
        .set("clip.use_gelu", Value::Bool(true))
        .set("clip.vision.projection_dim", Value::U32(OUT as u32))
        .set("clip.vision.image_size", Value::U32(768))
        .set("clip.vision.patch_size", Value::U32(PATCH as u32))
        .set("clip.vision.embedding_length", Value::U32(WIDTH as u32))
        .set("clip.vision.feed_forward_length", Value::U32(HIDDEN as u32))
        .set("clip.vision.block_count", Value::U32(LAYERS as u32))
        .set("clip.vision.attention.head_count", Value::U32(HEADS))
        .set("clip.vision.spatial_merge_size", Value::U32(2))
        .set("clip.vision.attention.layer_norm_epsilon", Value::F32(1e-6))
        .set("clip.vision.is_deepstack_layers", Value::Array(gguf::Array::from_bools(&flags)))
        .set_f32s("clip.vision.image_mean", &[0.5; 3])
        .set_f32s("clip.vision.image_std", &[0.5; 3]);
    let mut matrix = |name: &str, cols: u64, rows: u64| {
        writer.declare(&format!("{name}.weight"), &[cols, rows], TensorType::F16);
        writer.declare(&format!("{name}.bias"), &[rows], TensorType::F32);
    };
    for layer in 0..LAYERS {
        let name = |part: &str| format!("v.blk.{layer}.{part}");
        matrix(&name("attn_qkv"), WIDTH, 3 * WIDTH);
        matrix(&name("attn_out"), WIDTH, WIDTH);
        matrix(&name("ffn_up"), WIDTH, HIDDEN);
        matrix(&name("ffn_down"), HIDDEN, WIDTH);
    }
    let joined = 4 * WIDTH;
    matrix("mm.0", joined, joined);
    matrix("mm.2", joined, OUT);
    for layer in 0..FEATURES {
        matrix(&format!("v.deepstack.{layer}.fc1"), joined, joined);
        matrix(&format!("v.deepstack.{layer}.fc2"), joined, OUT);
    }
    let norms = (0..LAYERS).flat_map(|layer| ["ln1", "ln2"].map(|n| format!("v.blk.{layer}.{n}")));
    let norms = norms.map(|name| (name, WIDTH)).chain([("v.post_ln".to_owned(), WIDTH)]);
    let features = (0..FEATURES).map(|layer| (format!("v.deepstack.{layer}.norm"), joined));
    for (name, len) in norms.chain(features) {
        writer.declare(&format!("{name}.weight"), &[len], TensorType::F32);
        writer.declare(&format!("{name}.bias"), &[len], TensorType::F32);
    }
    for second in ["", ".1"] {
        let name = format!("v.patch_embd.weight{second}");
        writer.declare(&name, &[PATCH, PATCH, 3, WIDTH], TensorType::F16);
    }
    writer.declare("v.patch_embd.bias", &[WIDTH], TensorType::F32);
    writer.declare("v.position_embd.weight", &[WIDTH, 48 * 48], TensorType::F32);
    writer
}

/// The file, with numbers of about 1 / sqrt(columns).
fn file() -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut out = Vec::new();
    let fill = |name: &str, ty, bytes: u64, out: &mut Vec<u8>| {
        let is_gain = name.ends_with("norm.weight") || name.contains("ln");
        let mut number = || if is_gain { 1.0 } else { (rng.f32() - 0.5) / 16.0 };
        match ty {
            TensorType::F16 => (0..bytes / 2)
                .try_for_each(|_| out.write_all(&f16::from_f32(number()).to_le_bytes())),
            _ => (0..bytes / 4).try_for_each(|_| out.write_all(&number().to_le_bytes())),
        }
    };
    tower().write(&mut out, fill).expect("memory takes all bytes");
    out
}

/// The rate of a product with many rows, GFLOP/s: what layers could reach at most.
fn product_rate(pool: &Pool) -> f64 {
    let (rows, cols, outputs) = (1056, WIDTH as usize, HIDDEN as usize);
    let mut packer = Packer::new(TensorType::F16, outputs, cols).expect("a small matrix");
    packer.push(pool, &vec![0x11; outputs * cols * 2]).expect("whole rows");
    let matrix = packer.finish().expect("all rows");
    let mut input = Input::new(rows, cols);
    input.load_for(pool, &vec![0.5; rows * cols], rows, Forms::FLOAT);
    let mut out = vec![0.0; rows * outputs];
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        let start = Instant::now();
        multiply(pool, [Product::new(&input, &matrix, &mut out)]);
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * (rows * cols * outputs) as f64 / best / 1e9
}

/// Operations of a picture's layers: products, attention.
fn operations(patches: f64) -> (f64, f64) {
    let (width, hidden, layers) = (WIDTH as f64, HIDDEN as f64, LAYERS as f64);
    let products = 2.0 * patches * layers * (4.0 * width * width + 2.0 * width * hidden);
    (products, 4.0 * patches * patches * width * layers)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a number"))
    };
    let (threads, width, height) = (number(0, 2), number(1, 1024), number(2, 768));
    let bytes = file();
    if let Some(path) = arguments.get(3) {
        std::fs::write(path, &bytes).expect("the file can be written");
    }
    let source = Memory::new(bytes).expect("a valid file");
    let pool = Pool::new(threads).expect("threads start");
    let config = Config::read(source.directory()).expect("a valid header");
    let footprint = Footprint::new(&config, source.directory());
    let start = Instant::now();
    let tower = Tower::load(&pool, &source, config).expect("a valid tower");
    println!("load: {:.0} ms; {footprint:?}", start.elapsed().as_secs_f64() * 1e3);
    let mut rng = fastrand::Rng::with_seed(2);
    let pixels = (0..width * height * 3).map(|_| rng.u8(..)).collect();
    let picture = Picture::new(width, height, pixels);
    for _ in 0..3 {
        let bound = product_rate(&pool);
        let start = Instant::now();
        let seen = tower.see(&pool, &picture, Detail::Auto).expect("a picture");
        let seconds = start.elapsed().as_secs_f64();
        let (products, attention) = operations((seen.plan.rows() * 4) as f64);
        let rate = (products + attention) / seconds / 1e9;
        println!(
            "{} tokens: {:.0} ms, {:.0} + {:.0} GFLOP, {rate:.0} GFLOP/s; a product alone {bound:.0}",
            seen.plan.rows(),
            seconds * 1e3,
            products / 1e9,
            attention / 1e9,
        );
    }
}
