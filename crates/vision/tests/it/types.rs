//! The same tower with weights of other types.

use std::io::Write;

use gguf::{Directory, File, Memory, Source, Strided, TensorInfo, TensorType, Writer};
use half::{bf16, f16};
use kernels::Dequantizer;
use vision::{Config, Detail, Picture, Pool, TOKENS_MAX, Tower};

/// Numbers of a block of Q8_0.
const BLOCK: usize = 32;

fn open(name: &str) -> File {
    File::open(fixtures::path(&format!("vision/{name}.mmproj.gguf"))).unwrap()
}

fn numbers(source: &dyn Source, tensor: &TensorInfo) -> Vec<f32> {
    let piece = tensor.range.end - tensor.range.start;
    let mut bytes = vec![0; piece as usize];
    let pieces = Strided { start: tensor.range.start, piece, stride: piece, count: 1 };
    source.read(pieces, &mut bytes).unwrap();
    let mut numbers = vec![0.0; tensor.columns() * tensor.rows()];
    Dequantizer::default().run(tensor.ty, tensor.columns(), &bytes, &mut numbers).unwrap();
    numbers
}

fn bytes_of(ty: TensorType, numbers: &[f32]) -> Vec<u8> {
    match ty {
        TensorType::BF16 => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        TensorType::Q8_0 => numbers.chunks(BLOCK).flat_map(q8_0).collect(),
        _ => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// A block of 8-bit numbers after their scale in half precision.
fn q8_0(block: &[f32]) -> Vec<u8> {
    let top = block.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
    let scale = f16::from_f32(top / 127.0);
    let quant = |x: &f32| (x / scale.to_f32()).round().clamp(-127.0, 127.0) as i8 as u8;
    [&scale.to_le_bytes()[..], &block.iter().map(quant).collect::<Vec<_>>()].concat()
}

/// The file with matrices of type `ty`, where their rows are whole blocks.
fn converted(source: &dyn Source, ty: TensorType) -> Memory {
    let directory: &Directory = source.directory();
    let mut writer = Writer::new();
    for (key, value) in directory.metadata() {
        writer.set(key, value.clone());
    }
    for tensor in directory.tensors() {
        let fits = tensor.dims.len() == 2 && tensor.columns() % ty.block_len() == 0;
        let is_table = tensor.name.contains("position_embd");
        let ty = if fits && !is_table { ty } else { TensorType::F32 };
        writer.declare(&tensor.name, &tensor.dims, ty);
    }
    let mut out = Vec::new();
    let fill = |name: &str, ty, _, out: &mut Vec<u8>| {
        out.write_all(&bytes_of(ty, &numbers(source, directory.tensor(name).unwrap())))
    };
    writer.write(&mut out, fill).unwrap();
    Memory::new(out).unwrap()
}

fn rows(source: &dyn Source) -> Vec<f32> {
    let pool = Pool::new(2).unwrap();
    let config = Config::read(source.directory()).unwrap().with_tokens(1, TOKENS_MAX);
    let tower = Tower::load(&pool, source, config).unwrap();
    let pixels = (0..64 * 64 * 3).map(|at| (at * at % 251) as u8).collect();
    tower.see(&pool, &Picture::new(64, 64, pixels), Detail::Auto).unwrap().rows
}

#[test]
fn float_types_that_hold_the_same_weights_give_the_same_bits() {
    for name in ["qwen3vl-sees", "gemma3-sees", "llama4-sees"] {
        let file = open(name);
        let expected = rows(&file);
        for ty in [TensorType::F32, TensorType::BF16] {
            assert_eq!(rows(&converted(&file, ty)), expected, "{name} in {ty}");
        }
    }
}

/// The rest of the error is that of activations in eight bits.
#[test]
fn quantised_weights_are_those_of_the_file() {
    for name in ["qwen3vl-sees", "kimi-k25-sees", "llama4-sees"] {
        let quantised = converted(&open(name), TensorType::Q8_0);
        let exact = rows(&converted(&quantised, TensorType::F32));
        let largest = exact.iter().fold(0.0, |top: f32, x| top.max(x.abs()));
        let errors = rows(&quantised).into_iter().zip(&exact).map(|(a, b)| (a - b).abs());
        let error = errors.fold(0.0, f32::max) / largest;
        println!("{name}: {error:.1e}");
        assert!(error > 0.0 && error < 0.02, "{name}: {error} of the largest");
    }
}
