//! `sinew dev synth`: a file with random weights in a real model's shape, for measurements.
//!
//! No published weights can be part of this repository, and speed does not depend on their values.
//! [`hub::shapes`] has the models' sizes and the type of each tensor in a quantised file,
//! [`blocks`] the random numbers in each type, and `models` the sizes of small ones that nobody
//! published. The file is written as it is generated: memory does not grow with the model.

mod blocks;
mod skew;
mod tokenizer;

use std::fs::File;
use std::io::{self, BufWriter, Write};

use gguf::{TensorType, Writer};
use hub::shapes::{self, Fill, MIXES, Mix, Shape, Tensor};

use crate::args::SynthArgs;
use crate::error::{Doing, Error};
use crate::size;
use blocks::Random;

/// Bytes generated and written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Shapes for tests and measurements.
const OWN: &[(&str, &str)] = &[
    ("llama-150m", include_str!("models/llama-150m.json")),
    ("llama-thin", include_str!("models/llama-thin.json")),
    ("qwen3-moe", include_str!("models/qwen3-moe.json")),
    ("qwen3-moe-many", include_str!("models/qwen3-moe-many.json")),
    ("qwen3.5-150m", include_str!("models/qwen3.5-150m.json")),
    ("qwen3.5-moe", include_str!("models/qwen3.5-moe.json")),
    ("glm-5", include_str!("models/glm-5.json")),
    ("glm-5-few", include_str!("models/glm-5-few.json")),
    ("deepseek-v4-few", include_str!("models/deepseek-v4-few.json")),
];

/// Writes the file; returns its name and length as text.
///
/// # Errors
/// The name is unknown, or the file cannot be written.
pub fn synth(args: &SynthArgs) -> Result<String, Error> {
    let shape = find(&args.shape)?;
    let mix = Mix::find(&args.quant).ok_or_else(|| unknown_type(&args.quant))?;
    let path = args.output.display();
    if args.header {
        let header = shape.declared(mix, args.pure).padded_header();
        std::fs::write(&args.output, &header).doing(format!("cannot write {path}"))?;
        return Ok(format!("{path}: {} of header, no weights", size(header.len() as u64)));
    }
    let mut writer = Writer::new();
    let vocab = shape.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    tokenizer::describe(&mut writer, vocab.map_or(0, |tensor| tensor.dims[1]));
    shape.declare(&mut writer, mix, args.pure);
    let file = File::create(&args.output).doing(format!("cannot write {path}"))?;
    let mut out = BufWriter::with_capacity(CHUNK_BYTES, file);
    let mut random = Random::new(args.seed);
    let mut written = 0;
    let mut next = shape.tensors.iter();
    let experts = shape.number("expert_count").unwrap_or(0);
    let used = shape.number("expert_used_count").unwrap_or(0) as usize;
    let write = writer.write(&mut out, |_, ty, bytes, out| {
        written += bytes;
        let tensor = next.next().expect("each tensor is written once, in the order declared");
        match tensor.fill() {
            Fill::Ids => by_token(bytes, experts, out),
            _ if args.skew > 0.0 && tensor.name.ends_with("ffn_gate_inp.weight") => {
                let sizes = (tensor.dims[0] as usize, tensor.dims[1] as usize, used);
                skew::fill(sizes, args.skew, ty, &mut random, out)
            }
            _ => fill(tensor, ty, bytes, &mut random, out),
        }
    });
    write.and_then(|()| out.flush()).doing(format!("cannot write {path}"))?;
    Ok(format!("{path}: {} of tensors", size(written)))
}

/// A shape by its name, or by a short name of the catalogue.
fn find(name: &str) -> Result<Shape, Error> {
    let own = OWN.iter().find(|(own, _)| *own == name);
    if let Some((own, text)) = own {
        return Shape::parse(own, text).map_err(Error::Usage);
    }
    let published = shapes::find(name).filter(|asked| asked.quant.is_none());
    let found = published.and_then(|asked| shapes::shape(asked.shape));
    found.ok_or_else(|| {
        let names: Vec<&str> = OWN.iter().map(|(name, _)| *name).chain(shapes::names()).collect();
        Error::Usage(format!("no shape \"{name}\"; there are: {}", names.join(", ")))
    })
}

fn unknown_type(name: &str) -> Error {
    let names: Vec<&str> = MIXES.iter().map(|mix| mix.names[0]).collect();
    Error::Usage(format!("no type \"{name}\"; there are: {}", names.join(", ")))
}

/// Writes the experts of each token: consecutive ones, so that no token has one twice.
fn by_token(bytes: u64, experts: u64, out: &mut impl Write) -> io::Result<()> {
    (0..bytes / 4).try_for_each(|at| out.write_all(&((at % experts) as i32).to_le_bytes()))
}

/// Writes one tensor: norms are 1, decays -0.5, matrices random with a standard deviation that
/// preserves the magnitude of activations.
fn fill(
    tensor: &Tensor,
    ty: TensorType,
    bytes: u64,
    random: &mut Random,
    out: &mut impl Write,
) -> io::Result<()> {
    let constant = match tensor.fill() {
        Fill::One => Some(1f32),
        Fill::Decay => Some(-0.5),
        _ => None,
    };
    if let Some(constant) = constant {
        return (0..bytes / 4).try_for_each(|_| out.write_all(&constant.to_le_bytes()));
    }
    let deviation = 1.0 / (tensor.dims[0] as f32).sqrt();
    let block_bytes = ty.block_bytes();
    let mut chunk = vec![0; CHUNK_BYTES / block_bytes * block_bytes];
    let mut left = bytes as usize;
    while left > 0 {
        let part = left.min(chunk.len());
        for block in chunk[..part].chunks_exact_mut(block_bytes) {
            random.fill_block(ty, deviation, block);
        }
        out.write_all(&chunk[..part])?;
        left -= part;
    }
    Ok(())
}
