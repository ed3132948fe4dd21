//! Layers that see a window, and before it blocks of positions, each as one compressed entry
//! (DeepSeek V4).

pub(crate) mod wiring;

use protocol::CacheType;

use crate::arch::IndexerKind;
use crate::capacity::{GUESSES_MAX, PAGE_POSITIONS};
use crate::file::limits::WIDTH_MAX;
use crate::file::{Error, names};
use crate::file::{Metadata, in_range};

/// The sizes of such layers. All heads share one key a position, which is also its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compressed {
    /// Numbers of a compressed query.
    pub q_rank: usize,
    /// The number of rotated elements of a head, its last ones.
    pub rope_dim: usize,
    /// The heads' outputs are compressed in `out_groups` groups, to `out_rank` elements each.
    pub out_groups: usize,
    pub out_rank: usize,
    /// The compression of each layer, if it has one.
    blocks: Vec<Option<Blocks>>,
}

/// Blocks of positions; each becomes one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Positions of a block.
    pub positions: usize,
    /// An entry also includes the block before its own.
    pub overlap: bool,
}

impl Compressed {
    /// `None` for models without such layers.
    pub(crate) fn read(metadata: &Metadata<'_>, layers: usize) -> Result<Option<Self>, Error> {
        if metadata.arch.indexer != Some(IndexerKind::Compressed) {
            return Ok(None);
        }
        let key = "attention.compress_ratios";
        let ratios = metadata.of_layers(key, layers)?;
        let blocks = ratios.into_iter().enumerate().map(|(layer, ratio)| {
            let Some(ratio) = ratio.filter(|ratio| *ratio > 0) else { return Ok(None) };
            let positions = in_range(&metadata.key(key), ratio, WIDTH_MAX)?;
            let page = PAGE_POSITIONS;
            if !page.is_multiple_of(positions) && !positions.is_multiple_of(page) {
                let what = format!("blocks of {positions} positions in pages of {page}");
                return Err(Error::Unsupported { what });
            }
            let overlap = names::has_indexer(metadata.directory, layer);
            Ok(Some(Blocks { positions, overlap }))
        });
        let size = |name| metadata.size(name, WIDTH_MAX);
        Ok(Some(Self {
            q_rank: size("attention.q_lora_rank")?,
            rope_dim: size("rope.dimension_count")?,
            out_groups: size("attention.output_group_count")?,
            out_rank: size("attention.output_lora_rank")?,
            blocks: blocks.collect::<Result<_, _>>()?,
        }))
    }

    /// The compression of layer `layer`, if it has one.
    pub fn blocks(&self, layer: usize) -> Option<Blocks> {
        self.blocks[layer]
    }

    /// The number of positions up to one, including it, that are needed to continue from it.
    pub(crate) fn reach(&self) -> Option<usize> {
        self.blocks.iter().flatten().map(Blocks::reach).max()
    }
}

impl Blocks {
    /// Positions in an entry.
    pub fn reach(&self) -> usize {
        self.positions * self.parts()
    }

    /// Blocks in an entry: each position has this many keys.
    pub fn parts(&self) -> usize {
        if self.overlap { 2 } else { 1 }
    }

    /// The last positions of a page that are kept until their entries exist: enough to continue
    /// from any of them after rejected guesses.
    pub fn row_slots(&self) -> usize {
        (self.reach() + GUESSES_MAX).next_power_of_two().min(PAGE_POSITIONS)
    }

    /// Entries in a page.
    pub fn entries_a_page(&self) -> usize {
        (PAGE_POSITIONS / self.positions).max(1)
    }
}

/// The block cache of a layer on a rank, for its heads or for its indexer: entries, and the inputs
/// of the next ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryCache {
    pub blocks: Blocks,
    /// Elements of an entry.
    pub dim: usize,
    pub cache_type: CacheType,
    pub pages: usize,
    /// Pages of the inputs of entries.
    pub row_pages: usize,
}

impl EntryCache {
    /// Bytes of one entry, in the CPU's layout: no other device has entries.
    pub fn entry_bytes(&self) -> u64 {
        let numbers = self.dim.next_multiple_of(2);
        match self.cache_type {
            CacheType::F32 => (size_of::<f32>() * numbers) as u64,
            // Integers and their scale.
            _ => (size_of::<i16>() * numbers + size_of::<f32>()) as u64,
        }
    }

    /// Bytes of one layer.
    pub fn bytes(&self) -> u64 {
        let entries = (self.pages as u64).saturating_mul(self.blocks.entries_a_page() as u64);
        // A key and its weight.
        let row = (2 * size_of::<f32>() * self.dim * self.blocks.parts()) as u64;
        let rows = (self.row_pages as u64).saturating_mul(self.blocks.row_slots() as u64);
        entries.saturating_mul(self.entry_bytes()).saturating_add(rows.saturating_mul(row))
    }
}
