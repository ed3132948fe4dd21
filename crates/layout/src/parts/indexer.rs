//! Layers that attend to a part of the earlier positions, chosen by an indexer.

pub(crate) mod wiring;

use crate::arch::IndexerKind;
use crate::capacity::PAGE_POSITIONS;
use crate::file::limits::{CONTEXT_MAX, WIDTH_MAX};
use crate::file::{Error, names};
use crate::file::{Metadata, in_range};

/// The sizes of an indexer. Its heads share one key a position, in a separate cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indexer {
    pub heads: usize,
    /// Elements of a query and of a key.
    pub dim: usize,
    /// Positions, or blocks, that each row attends to.
    pub count: usize,
    /// Positions of a block, and the number of always visible blocks: the row's own and those
    /// before it. With blocks, each head chooses for its key/value head (MiniMax M3), else all
    /// heads together.
    pub blocks: Option<(usize, usize)>,
    /// Keys of a pool, if it scores pools; `count` then counts pools.
    pub pool: Option<usize>,
}

impl Indexer {
    /// `None` for models with full attention.
    pub(crate) fn read(metadata: &Metadata<'_>, layers: usize) -> Result<Option<Self>, Error> {
        if metadata.arch.indexer.is_none() {
            return Ok(None);
        }
        let size = |name, max| metadata.size(name, max);
        let mut count = size("attention.indexer.top_k", CONTEXT_MAX)?;
        let pool = match metadata.arch.indexer {
            Some(IndexerKind::Pools) => Some(pool(metadata)?),
            Some(IndexerKind::Means) => Some(mean(metadata, layers)?),
            _ => None,
        };
        if let Some(pool) = pool {
            if !count.is_multiple_of(pool) {
                let what = format!("{count} positions in pools of {pool}");
                return Err(Error::Impossible { what });
            }
            count /= pool;
        }
        let blocks = match metadata.find_size("attention.indexer.block_size", CONTEXT_MAX)? {
            None => None,
            Some(block) => {
                let local = metadata.find_size("attention.indexer.local_blocks", CONTEXT_MAX)?;
                Some((block, local.unwrap_or(1)))
            }
        };
        let found = Self {
            heads: size("attention.indexer.head_count", WIDTH_MAX)?,
            dim: size("attention.indexer.key_length", WIDTH_MAX)?,
            count,
            blocks,
            pool,
        };
        in_range("an indexer's query", (found.heads * found.dim) as u64, WIDTH_MAX * 16)?;
        Ok(Some(found))
    }

    /// Its heads on a rank with `keys` key/value heads.
    pub fn own_heads(&self, keys: usize) -> usize {
        if self.blocks.is_some() { keys } else { self.heads }
    }

    /// Choices of each row, on a rank with `keys` key/value heads.
    pub fn groups(&self, keys: usize) -> usize {
        if self.blocks.is_some() { keys } else { 1 }
    }
}

/// Keys of a pool: a divisor of the page size.
fn pool(metadata: &Metadata<'_>) -> Result<usize, Error> {
    const TAIL: &str = "attention.indexer.kpool_select_tail";
    let pool = metadata.size("attention.indexer.kpool", PAGE_POSITIONS as u64)?;
    if metadata.find_bool(TAIL)? != Some(true) {
        let what = "an indexer that does not see what is after its last pool".to_owned();
        return Err(Error::Unsupported { what });
    }
    in_pages(pool)
}

/// The number of keys in a mean.
fn mean(metadata: &Metadata<'_>, layers: usize) -> Result<usize, Error> {
    const KEY: &str = "attention.compress_ratios";
    let ratios = metadata.of_layers(KEY, layers)?;
    let has_indexer = |layer: &usize| names::has_indexer(metadata.directory, *layer);
    let mut found = (0..layers).filter(has_indexer).map(|layer| ratios[layer].unwrap_or(0));
    let first = found.next().unwrap_or(0);
    if found.any(|ratio| ratio != first) {
        let what = "indexers over means of different numbers of keys".to_owned();
        return Err(Error::Unsupported { what });
    }
    in_pages(in_range(&metadata.key(KEY), first, PAGE_POSITIONS as u64)?)
}

fn in_pages(pool: usize) -> Result<usize, Error> {
    if PAGE_POSITIONS.is_multiple_of(pool) {
        return Ok(pool);
    }
    let what = format!("pools of {pool} keys in pages of {PAGE_POSITIONS}");
    Err(Error::Unsupported { what })
}

/// The layer whose choice each layer follows: its own, an earlier one, or none. `attends`: which
/// layers attend.
pub(crate) fn choosers(
    metadata: &Metadata<'_>,
    attends: &[bool],
) -> Result<Vec<Option<usize>>, Error> {
    let layers = attends.len();
    let Some(kind) = metadata.arch.indexer else { return Ok(vec![None; layers]) };
    // GLM-5.2 names the layers that choose; the others follow the last of them.
    let says = metadata.of_layers("attention.indexer.types", layers)?;
    let mut last = None;
    let mut chooser = |layer: usize| {
        if !attends[layer] {
            return None;
        }
        match names::has_indexer(metadata.directory, layer) && says[layer] != Some(0) {
            true => last = Some(layer),
            false if matches!(kind, IndexerKind::Latent(_) | IndexerKind::Pools) => {}
            false => last = None,
        }
        last
    };
    Ok((0..layers).map(&mut chooser).collect())
}
