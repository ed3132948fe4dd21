//! A folder as the bytes of one GGUF file.

use std::io;
use std::path::Path;

use gguf::{Bytes, Directory};

use crate::Error;
use crate::folder::Weights;
use crate::model;
use crate::recipe::Recipe;

/// The GGUF file that a folder appears as. Its header is in memory; its tensors are computed from
/// the folder's files when they are read.
#[derive(Debug)]
pub(crate) struct VirtualFile {
    /// Everything in front of the first tensor.
    header: Vec<u8>,
    /// Tensors in the order of their bytes.
    pieces: Vec<Piece>,
    weights: Weights,
    len: u64,
}

#[derive(Debug)]
struct Piece {
    /// Offset of its first byte in the file.
    start: u64,
    /// Bytes without padding.
    len: u64,
    recipe: Recipe,
}

impl VirtualFile {
    /// # Errors
    /// The folder is no model, or one that cannot be read.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let weights = Weights::open(folder)?;
        let (header, tensors) = model::read(folder, &weights)?;
        let mut writer = header.writer();
        for (name, weight) in &tensors {
            let dims: Vec<u64> = weight.shape.iter().rev().copied().collect();
            let is_whole = dims
                .first()
                .is_some_and(|columns| columns.is_multiple_of(weight.ty.block_len() as u64));
            if !is_whole || dims.len() > 4 {
                return Err(weight.wrong_shape("one to four dimensions of whole blocks"));
            }
            writer.declare(name, &dims, weight.ty);
        }
        let header = writer.padded_header();
        let directory = Directory::parse(&header, u64::MAX)?;
        let (mut pieces, mut len) = (Vec::new(), header.len() as u64);
        for (tensor, (_, weight)) in directory.tensors().iter().zip(tensors) {
            let (start, piece_len) = (tensor.range.start, tensor.range.end - tensor.range.start);
            if weight.recipe.len() != piece_len {
                let found = weight.recipe.len();
                return Err(weight.wrong_shape(&format!("{piece_len} bytes, not {found},")));
            }
            len = start + piece_len.next_multiple_of(PADDING);
            pieces.push(Piece { start, len: piece_len, recipe: weight.recipe });
        }
        Ok(Self { header, pieces, weights, len })
    }

    /// The piece, or header, or padding at an offset: its bytes' source, where in it the offset
    /// lies, and how many bytes of it are left.
    fn source_at(&self, at: u64) -> (Source<'_>, u64, u64) {
        let header_len = self.header.len() as u64;
        if at < header_len {
            return (Source::Header, at, header_len - at);
        }
        let after = self.pieces.partition_point(|piece| piece.start <= at);
        let next = self.pieces.get(after).map_or(self.len, |piece| piece.start);
        match after.checked_sub(1).map(|it| &self.pieces[it]) {
            Some(piece) if at < piece.start + piece.len => {
                (Source::Tensor(&piece.recipe), at - piece.start, piece.start + piece.len - at)
            }
            _ => (Source::Padding, 0, next - at),
        }
    }
}

/// Of GGUF's tensors, in bytes.
const PADDING: u64 = 32;

enum Source<'f> {
    Header,
    Tensor(&'f Recipe),
    Padding,
}

impl Bytes for VirtualFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, mut start: u64, mut out: &mut [u8]) -> io::Result<()> {
        if start.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !out.is_empty() {
            let (source, at, left) = self.source_at(start);
            let (now, rest) = out.split_at_mut(out.len().min(left as usize));
            match source {
                Source::Header => now.copy_from_slice(&self.header[at as usize..][..now.len()]),
                Source::Tensor(recipe) => recipe.read(&self.weights, at, now)?,
                Source::Padding => now.fill(0),
            }
            start += now.len() as u64;
            out = rest;
        }
        Ok(())
    }

    fn has_changed(&self) -> bool {
        self.weights.shards.iter().any(|shard| shard.bytes.has_changed())
    }
}
