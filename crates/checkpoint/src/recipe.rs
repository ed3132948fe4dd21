//! How a tensor's bytes come from files of weights: an expression over byte strings, evaluated for
//! the range that a reader asks for.
//!
//! Four kinds of nodes suffice. [`Recipe::Stored`] is a piece of a file. [`Recipe::Joined`] puts
//! strings one after the other (experts, parts of a fused matrix). A [`View`] takes equal units in
//! another order: rows of heads, every other row, a transposed matrix, a repeated scale. A
//! [`Mapped`] computes each block from blocks of other strings: bf16 to f32, or scales and packed
//! quants to blocks of GGUF.

use std::io;
use std::sync::Arc;

use crate::folder::Weights;
pub(crate) use crate::view::View;

/// Bytes that a mapped read computes at once.
const CHUNK_BYTES: u64 = 256 << 10;

/// A byte string.
#[derive(Debug, Clone)]
pub(crate) enum Recipe {
    /// Bytes of a file.
    Stored {
        shard: usize,
        start: u64,
        len: u64,
    },
    /// Bytes computed when the folder was opened.
    Fixed(Arc<[u8]>),
    /// Strings one after the other, each with the offset of its end.
    Joined(Arc<[(u64, Recipe)]>),
    View(Arc<View>),
    Mapped(Arc<Mapped>),
}

/// Writes blocks. The inputs are the same number of blocks of each part.
pub(crate) type Map = fn(&[&[u8]], &mut [u8]);

/// Blocks computed from blocks of other strings.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Strings, each with the bytes of one of its blocks.
    pub parts: Vec<(Recipe, u64)>,
    /// Bytes of a computed block.
    pub block: u64,
    pub map: Map,
}

impl Recipe {
    pub fn joined(all: impl IntoIterator<Item = Recipe>) -> Self {
        let mut end = 0;
        let ends = all.into_iter().map(|one| {
            end += one.len();
            (end, one)
        });
        Self::Joined(ends.collect())
    }

    pub fn view(view: View) -> Self {
        Self::View(Arc::new(view))
    }

    pub fn mapped(parts: Vec<(Recipe, u64)>, block: u64, map: Map) -> Self {
        Self::Mapped(Arc::new(Mapped { parts, block, map }))
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Stored { len, .. } => *len,
            Self::Fixed(bytes) => bytes.len() as u64,
            Self::Joined(all) => all.last().map_or(0, |(end, _)| *end),
            Self::View(view) => view.unit * view.dims.iter().product::<u64>(),
            Self::Mapped(mapped) => {
                let (part, block) = &mapped.parts[0];
                part.len() / block * mapped.block
            }
        }
    }

    /// The file and offset of the first stored byte: readers that go through tensors in this order
    /// read the files forwards.
    pub fn first_byte(&self) -> (usize, u64) {
        match self {
            Self::Stored { shard, start, .. } => (*shard, *start),
            Self::Fixed(_) => (0, 0),
            Self::Joined(all) => all.first().map_or((0, 0), |(_, one)| one.first_byte()),
            Self::View(view) => view.of.first_byte(),
            Self::Mapped(mapped) => mapped.parts[0].0.first_byte(),
        }
    }

    /// Fills `out` with the bytes from `start` on, which must exist.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&self, weights: &Weights, start: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Stored { shard, start: from, .. } => {
                weights.shards[*shard].bytes.read(from + start, out)
            }
            Self::Fixed(bytes) => {
                let bytes = bytes.get(start as usize..start as usize + out.len());
                out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Self::Joined(all) => read_joined(all, weights, start, out),
            Self::View(view) => view.read(weights, start, out),
            Self::Mapped(mapped) => mapped.read(weights, start, out),
        }
    }
}

fn read_joined(
    all: &[(u64, Recipe)],
    weights: &Weights,
    mut start: u64,
    mut out: &mut [u8],
) -> io::Result<()> {
    let mut at = all.partition_point(|(end, _)| *end <= start);
    while !out.is_empty() {
        let (end, one) = all.get(at).ok_or(io::ErrorKind::UnexpectedEof)?;
        let (now, rest) = out.split_at_mut(out.len().min((end - start) as usize));
        one.read(weights, start - (end - one.len()), now)?;
        start += now.len() as u64;
        (out, at) = (rest, at + 1);
    }
    Ok(())
}

impl Mapped {
    fn read(&self, weights: &Weights, mut start: u64, mut out: &mut [u8]) -> io::Result<()> {
        let blocks_max = (CHUNK_BYTES / self.block).max(1);
        let mut computed = Vec::new();
        while !out.is_empty() {
            let (first, skip) = (start / self.block, (start % self.block) as usize);
            let wanted = (skip + out.len()).div_ceil(self.block as usize) as u64;
            let blocks = wanted.min(blocks_max);
            computed.resize((blocks * self.block) as usize, 0);
            self.compute(weights, first, blocks, &mut computed)?;
            let (now, rest) = out.split_at_mut(out.len().min(computed.len() - skip));
            now.copy_from_slice(&computed[skip..][..now.len()]);
            start += now.len() as u64;
            out = rest;
        }
        Ok(())
    }

    fn compute(
        &self,
        weights: &Weights,
        first: u64,
        blocks: u64,
        out: &mut [u8],
    ) -> io::Result<()> {
        let read = |(part, block): &(Recipe, u64)| {
            let mut bytes = vec![0; (blocks * block) as usize];
            part.read(weights, first * block, &mut bytes)?;
            Ok(bytes)
        };
        let inputs = self.parts.iter().map(read).collect::<io::Result<Vec<_>>>()?;
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        (self.map)(&inputs, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(bytes: impl IntoIterator<Item = u8>) -> Recipe {
        Recipe::Fixed(bytes.into_iter().collect())
    }

    /// All bytes, compared with every range of them.
    fn all(recipe: &Recipe) -> Vec<u8> {
        let read = |start: usize, len: usize| {
            let mut out = vec![0; len];
            recipe.read(&Weights::default(), start as u64, &mut out).unwrap();
            out
        };
        let whole = read(0, recipe.len() as usize);
        for start in 0..whole.len() {
            for len in 0..=whole.len() - start {
                assert_eq!(read(start, len), whole[start..start + len], "{start} {len}");
            }
        }
        whole
    }

    #[test]
    fn strings_are_joined_viewed_and_mapped_in_any_range() {
        let joined = Recipe::joined([fixed(0..5), fixed([]), fixed(5..12)]);
        assert_eq!(all(&joined), (0..12).collect::<Vec<u8>>());
        // Two rows of three units of two bytes, transposed.
        let view = |dims: &[u64], strides: &[u64], base| {
            let (dims, strides) = (dims.to_vec(), strides.to_vec());
            Recipe::view(View { of: joined.clone(), unit: 2, dims, strides, base })
        };
        assert_eq!(all(&view(&[3, 2], &[1, 3], 0)), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        assert_eq!(all(&view(&[2, 2], &[0, 1], 1)), [2, 3, 4, 5, 2, 3, 4, 5]);
        let map: Map = |parts, out| {
            for (at, out) in out.chunks_exact_mut(3).enumerate() {
                out.copy_from_slice(&[parts[1][at], parts[0][2 * at + 1], parts[0][2 * at]]);
            }
        };
        let mapped = Recipe::mapped(vec![(fixed(0..6), 2), (fixed(10..13), 1)], 3, map);
        assert_eq!(all(&mapped), [10, 1, 0, 11, 3, 2, 12, 5, 4]);
    }

    #[test]
    fn long_reads_go_in_pieces() {
        let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 7) as u8).collect();
        let source = fixed(bytes.clone());
        let negate: Map = |parts, out| out.iter_mut().zip(parts[0]).for_each(|(o, i)| *o = !i);
        let mapped = Recipe::mapped(vec![(source, 16)], 16, negate);
        let rows = View { of: mapped, unit: 1 << 18, dims: vec![12], strides: vec![1], base: 0 };
        let mut out = vec![0; bytes.len() - 5];
        Recipe::view(rows).read(&Weights::default(), 5, &mut out).unwrap();
        assert!(out.iter().zip(&bytes[5..]).all(|(a, b)| *a == !b));
    }
}
