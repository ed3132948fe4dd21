//! Embeddings of the last few tokens of each position, found in one table by hashes
//! (Qwen3.8-Flash-Next). One layer reads them, through a convolution over the earlier positions.

pub(crate) mod wiring;

use gguf::Directory;

use crate::file::Metadata;
use crate::file::limits::{LAYERS_MAX, TAPS_MAX, WIDTH_MAX};
use crate::file::{Error, names};
use crate::parts::{LayerHalves, Mixer};
use crate::tensors::checked;

const SIZE_MAX: u64 = 8;
const HEADS_MAX: u64 = 64;
const ROWS_MAX: u64 = u32::MAX as u64;

/// A model's n-grams: of 2 tokens, of 3 and so on, each with several heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ngrams {
    /// The layer that reads their embeddings.
    pub layer: usize,
    /// Tokens of the longest n-gram.
    pub size: usize,
    /// Heads of each length, and elements of a head's embedding.
    heads: usize,
    pub dim: usize,
    /// Positions that the convolution sees, `size` apart.
    pub taps: usize,
    /// The token that replaces a missing one: it and all before it are ignored.
    end: u32,
    /// A hash's factor for each token, the newest first.
    factors: Vec<u64>,
    /// For each head: its first row of the table, and its number of rows.
    ranges: Vec<(u64, u64)>,
}

impl Ngrams {
    /// Marks a token before the first.
    pub const NONE: u32 = u32::MAX;

    /// `None` for models without them.
    pub(crate) fn read(
        metadata: &Metadata<'_>,
        halves: &[LayerHalves],
    ) -> Result<Option<Self>, Error> {
        let impossible = |what: String| Err(Error::Impossible { what });
        if !metadata.arch.ngrams || metadata.get("ple.layers").is_none() {
            return Ok(None);
        }
        let layers = integers(metadata, "ple.layers", 0, LAYERS_MAX)?;
        let [layer] = layers[..] else {
            let what = format!("n-gram embeddings in {} layers; 1 is possible", layers.len());
            return Err(Error::Unsupported { what });
        };
        let layer = layer as usize;
        if halves.get(layer).is_none_or(|halves| halves.mixer != Some(Mixer::Recurrence)) {
            return impossible(format!("n-gram embeddings in layer {layer}, which has no state"));
        }
        let size = metadata.size("ple.ngram_size", SIZE_MAX)?;
        let heads = metadata.size("ple.heads_per_ngram", HEADS_MAX)?;
        let taps = metadata.size("ple.conv_kernel", TAPS_MAX)?;
        let all = (size - 1) * heads;
        let factors = integers(metadata, "ple.layer_multipliers", size, i64::MAX as u64)?;
        let offsets = integers(metadata, "ple.head_offsets", all, ROWS_MAX)?;
        let sizes = integers(metadata, "ple.head_vocab_sizes", all, ROWS_MAX)?;
        if all == 0 || sizes.contains(&0) {
            return impossible("n-grams of one token, or a head without embeddings".to_owned());
        }
        let found = Self {
            layer,
            size,
            heads,
            dim: metadata.size("embedding_length_per_layer_input", WIDTH_MAX)?,
            taps,
            end: end(metadata)?,
            factors,
            ranges: offsets.into_iter().zip(sizes).collect(),
        };
        if found.reach() as u64 > TAPS_MAX {
            let what = format!("a convolution over {} positions", found.reach());
            return Err(Error::Unsupported { what: format!("{what}; {TAPS_MAX} are possible") });
        }
        found.check_table(metadata.directory)?;
        Ok(Some(found))
    }

    fn check_table(&self, directory: &Directory) -> Result<(), Error> {
        let rows = directory.tensor(names::BY_LAYER)?.rows();
        checked(directory, names::BY_LAYER, [self.dim, rows])?;
        let needed = self.ranges.iter().map(|(first, len)| first + len).max();
        match needed.filter(|needed| *needed > ROWS_MAX.min(rows as u64)) {
            None => Ok(()),
            Some(needed) => {
                let what = format!("n-gram embeddings of {needed} rows in {rows}");
                Err(Error::Impossible { what })
            }
        }
    }

    /// Heads of all lengths.
    pub fn heads_all(&self) -> usize {
        self.ranges.len()
    }

    /// Elements of all embeddings of a position.
    pub fn width(&self) -> usize {
        self.heads_all() * self.dim
    }

    /// The number of earlier tokens that affect a position.
    pub fn before(&self) -> usize {
        self.size - 1
    }

    /// From the first position of the convolution to the row's own.
    pub fn reach(&self) -> usize {
        (self.taps - 1) * self.size + 1
    }

    /// The row of the table for each head, from `token` and the tokens `before` it, the nearest
    /// first.
    pub fn rows(&self, token: u32, before: &[u32]) -> impl Iterator<Item = u32> {
        let mut hash = u64::from(token).wrapping_mul(self.factors[0]);
        let mut is_over = false;
        let lengths = before.iter().zip(&self.factors[1..]).zip(self.ranges.chunks(self.heads));
        lengths.flat_map(move |((token, factor), ranges)| {
            is_over |= [self.end, Self::NONE].contains(token);
            let token = if is_over { self.end } else { *token };
            hash ^= u64::from(token).wrapping_mul(*factor);
            ranges.iter().map(move |(first, len)| (first + hash % len) as u32)
        })
    }
}

fn end(metadata: &Metadata<'_>) -> Result<u32, Error> {
    let key = metadata.key("ple.eos_token_id");
    let found = metadata.directory.u64(&key)?;
    let impossible = || Error::Impossible { what: format!("{key} is {found}") };
    u32::try_from(found).map_err(|_| impossible())
}

/// The first `count` integers of an array, each up to `max`; all, if `count` is 0.
fn integers(
    metadata: &Metadata<'_>,
    name: &str,
    count: usize,
    max: u64,
) -> Result<Vec<u64>, Error> {
    let array = metadata.get(name).and_then(|value| value.as_array());
    let all = array.and_then(|array| array.integers()).map(|numbers| {
        let in_range = |number| u64::try_from(number).ok().filter(|number| *number <= max);
        numbers.map(in_range).collect::<Option<Vec<u64>>>()
    });
    match all.flatten() {
        Some(mut all) if all.len() >= count => {
            all.truncate(if count == 0 { all.len() } else { count });
            Ok(all)
        }
        _ => {
            let what = format!("{} is no list of {count} numbers", metadata.key(name));
            Err(Error::Impossible { what })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_before_an_end_does_not_count() {
        let ngrams = Ngrams {
            layer: 1,
            size: 3,
            heads: 2,
            dim: 4,
            taps: 4,
            end: 9,
            factors: vec![u64::MAX - 4, 7, 11],
            ranges: vec![(0, 5), (5, 7), (12, 11), (23, 13)],
        };
        let rows = |token, before: [u32; 2]| ngrams.rows(token, &before).collect::<Vec<_>>();
        let hash = 3u64.wrapping_mul(u64::MAX - 4) ^ (2 * 7);
        let longer = hash ^ 11;
        let expected = [hash % 5, 5 + hash % 7, 12 + longer % 11, 23 + longer % 13];
        assert_eq!(rows(3, [2, 1]), expected.map(|row| row as u32));
        assert_eq!(rows(3, [9, 1]), rows(3, [9, 9]));
        assert_eq!(rows(3, [Ngrams::NONE, 1]), rows(3, [9, 9]));
        assert_eq!(rows(3, [2, Ngrams::NONE]), rows(3, [2, 9]));
        assert_ne!(rows(9, [2, 1]), rows(9, [9, 9]));
        assert_eq!(ngrams.reach(), 10);
    }
}
