//! `sinew dev synth`: a file with random weights in a real model's shape, for measurements.
//!
//! No published weights can be part of this repository, and speed does not depend on their values.
//! [`shape`] has the models' sizes, [`mix`] the type of each tensor in a quantised file, [`blocks`]
//! the random numbers in each type. The file is written as it is generated: memory does not grow
//! with the model.

mod blocks;
mod compressed;
mod delta;
mod latent;
mod mix;
mod shape;
mod tokenizer;

use std::fs::File;
use std::io::{self, BufWriter, Write};

use gguf::{Directory, TensorType, Value, Writer};

use crate::args::SynthArgs;
use crate::error::{Doing, Error};
use crate::size;
use blocks::Random;
use mix::{EXPERTS_ONLY, MIXES, Mix};
use shape::{Role, SHAPES, Shape, Tensor};

/// Bytes generated and written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Writes the file; returns its name and length as text.
///
/// # Errors
/// The name is unknown, or the file cannot be written.
pub fn synth(args: &SynthArgs) -> Result<String, Error> {
    let shape = find("shape", &args.shape, SHAPES, |shape| shape.names)?;
    let mix = find("type", &args.quant.to_ascii_lowercase(), MIXES, |mix| mix.names)?;
    let tensors = shape.tensors();
    let path = args.output.display();
    if args.header {
        let header = declared(shape, mix, args.pure, false).padded_header();
        std::fs::write(&args.output, &header).doing(format!("cannot write {path}"))?;
        return Ok(format!("{path}: {} of header, no weights", size(header.len() as u64)));
    }
    let writer = declared(shape, mix, args.pure, true);
    let file = File::create(&args.output).doing(format!("cannot write {path}"))?;
    let mut out = BufWriter::with_capacity(CHUNK_BYTES, file);
    let mut random = Random::new(args.seed);
    let mut written = 0;
    let mut next = tensors.iter();
    let experts = shape.experts.map_or(0, |experts| experts.count);
    let write = writer.write(&mut out, |_, ty, bytes, out| {
        written += bytes;
        let tensor = next.next().expect("each tensor is written once, in the order declared");
        match tensor.role {
            Role::ByToken => by_token(bytes, experts, out),
            _ => fill(tensor, ty, bytes, &mut random, out),
        }
    });
    write.and_then(|()| out.flush()).doing(format!("cannot write {path}"))?;
    Ok(format!("{path}: {} of tensors", size(written)))
}

/// The type of files that the hub's names mean without one.
const USUAL_TYPE: &str = "q4_k_m";

/// The directory of a file for `SHAPE` or `SHAPE:QUANT`, without its weights, which suffices for a
/// plan. Shapes have the short names that models have on the hub.
///
/// # Errors
/// The name is unknown.
pub fn header(name: &str) -> Result<Directory, Error> {
    let is_shape = |name: &str| SHAPES.iter().any(|shape| shape.names.contains(&name));
    let (shape, quant) = match name.rsplit_once(':') {
        Some((shape, quant)) if !is_shape(name) => (shape, quant),
        _ => (name, USUAL_TYPE),
    };
    let shape = find("shape", shape, SHAPES, |shape| shape.names)?;
    let mix = find("type", &quant.to_ascii_lowercase(), MIXES, |mix| mix.names)?;
    Ok(declared(shape, mix, false, false).directory()?)
}

/// A file's metadata and tensors, before any weight is written.
fn declared(shape: &Shape, mix: &Mix, pure: bool, tokenizer: bool) -> Writer {
    let mut writer = Writer::new();
    shape.describe(&mut writer);
    writer
        .set("general.file_type", Value::U32(mix.file_type))
        .set("general.quantization_version", Value::U32(2));
    if tokenizer {
        tokenizer::describe(&mut writer, shape.vocab);
    }
    for tensor in &shape.tensors() {
        writer.declare(&tensor.name, &tensor.dims, type_of(tensor, shape, mix, pure));
    }
    writer
}

fn find<T>(
    what: &str,
    wanted: &str,
    known: &'static [T],
    names: impl Fn(&T) -> &'static [&'static str],
) -> Result<&'static T, Error> {
    let found = known.iter().find(|entry| names(entry).contains(&wanted));
    found.ok_or_else(|| {
        let first: Vec<&str> = known.iter().map(|entry| names(entry)[0]).collect();
        Error::Usage(format!("no {what} \"{wanted}\"; there are: {}", first.join(", ")))
    })
}

/// Norms and routers stay f32 in every file.
fn type_of(tensor: &Tensor, shape: &Shape, mix: &Mix, pure: bool) -> TensorType {
    match tensor.role {
        Role::Norm | Role::Router | Role::Decay => TensorType::F32,
        Role::ByToken => TensorType::I32,
        _ if mix.names[0] == EXPERTS_ONLY && tensor.name.contains("_exps.") => mix.ty,
        _ if mix.names[0] == EXPERTS_ONLY => TensorType::BF16,
        _ if pure => mix.ty,
        role => mix.type_of(role, tensor.layer, shape),
    }
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
    let constant = match tensor.role {
        Role::Norm => Some(1f32),
        Role::Decay => Some(-0.5),
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
