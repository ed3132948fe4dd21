//! The keys and values of single positions of a cache, as f32.

use super::cache::{Head, KvCache};
use super::chosen::{Chosen, positions};
use super::gather::Seen;
use super::ints::Ints;
use super::page::PAGE_POSITIONS;
use super::quants::{BLOCK, Quants, blocks};
use super::rotation::Rotate;
use super::shape::AttendShape;
use super::tile::Convert;
use crate::isa::{Isa, run};

/// Reads a cache position by position.
pub(super) struct Positions<'a> {
    pub isa: Isa,
    pub cache: &'a KvCache,
    /// Elements of a value.
    pub v_dim: usize,
    /// Whether a value is the start of its key.
    pub values_in_keys: bool,
}

/// The positions chosen by an indexer for each row.
pub(super) struct ChosenPositions<'a> {
    pub positions: Positions<'a>,
    pub chosen: &'a Chosen,
    /// The page table of each row of the batch.
    pub tables: Vec<&'a [u32]>,
}

impl Seen for ChosenPositions<'_> {
    fn of(&self, row: usize, found: &mut Vec<u32>) {
        found.clear();
        found.extend(positions(self.chosen.of(row, 0).expect("only such rows are gathered")));
    }

    fn read(&self, row: usize, kv_head: usize, seen: u32, key: &mut [f32], value: &mut [f32]) {
        self.positions.at(self.tables[row], (seen as usize, kv_head), key, value);
    }

    fn v_stride(&self) -> usize {
        self.positions.cache.v_stride()
    }
}

impl<'a> Positions<'a> {
    /// The positions for heads of this shape.
    pub fn new(isa: Isa, cache: &'a KvCache, shape: &AttendShape) -> Self {
        Self { isa, cache, v_dim: shape.v_dim, values_in_keys: shape.values_in_keys }
    }
}

impl Positions<'_> {
    /// The key and value at `position` of the sequence with this table, for a head of the cache.
    pub fn at(
        &self,
        table: &[u32],
        (position, head): (usize, usize),
        key: &mut [f32],
        value: &mut [f32],
    ) {
        let head = self.cache.head(table[position / PAGE_POSITIONS], head);
        self.read(&head, position % PAGE_POSITIONS, key, value);
    }

    /// The key and the value of one position, not rotated. If a value is the start of its key, it
    /// is read once: keys are spread across the page.
    fn read(&self, head: &Head<'_>, slot: usize, key: &mut [f32], value: &mut [f32]) {
        let own = if self.values_in_keys { self.v_dim } else { 0 };
        match head {
            Head::F32(keys, values) => {
                value.copy_from_slice(&values[slot * value.len()..][..value.len()]);
                across(&mut key[own..], &keys[own * PAGE_POSITIONS..], slot);
            }
            Head::F16(keys, values) => {
                let from = &values[slot * value.len()..][..value.len()];
                run(self.isa, Convert { from, to: value });
                for (d, number) in key.iter_mut().enumerate().skip(own) {
                    *number = half(keys[d * PAGE_POSITIONS + slot]);
                }
            }
            Head::I16(ints) => read_ints(ints, slot, own, key, value),
            Head::Q8(quants) => self.read_quants(quants, slot, own, key, value),
        }
        key[..own].copy_from_slice(&value[..own]);
    }

    fn read_quants(
        &self,
        quants: &Quants<'_>,
        slot: usize,
        own: usize,
        key: &mut [f32],
        value: &mut [f32],
    ) {
        let v_dim = self.v_dim;
        let (key_scales, value_scales) = quants.scales.split_at(blocks(key.len()) * PAGE_POSITIONS);
        let scale = |scales: &[u16], d: usize| half(scales[d / BLOCK * PAGE_POSITIONS + slot]);
        for (d, number) in value.iter_mut().enumerate().take(v_dim) {
            let quant = quants.values[slot * self.cache.v_stride() + d];
            *number = f32::from(quant) * scale(value_scales, d);
        }
        run(self.isa, Rotate(&mut value[..v_dim]));
        // Keys are rotated in blocks; either the rest is a whole number of blocks, or all is read.
        let rotated = 1 << key.len().trailing_zeros();
        let first = if own.is_multiple_of(rotated) { own } else { 0 };
        for (d, number) in key.iter_mut().enumerate().skip(first) {
            let quant = quants.keys[d * PAGE_POSITIONS + slot];
            *number = f32::from(quant) * scale(key_scales, d);
        }
        for block in key[first..].chunks_exact_mut(rotated) {
            run(self.isa, Rotate(block));
        }
    }
}

/// The elements of one position, which are spread across a page.
fn across(to: &mut [f32], from: &[f32], slot: usize) {
    for (number, of_dim) in to.iter_mut().zip(from.chunks_exact(PAGE_POSITIONS)) {
        *number = of_dim[slot];
    }
}

fn read_ints(ints: &Ints<'_>, slot: usize, own: usize, key: &mut [f32], value: &mut [f32]) {
    let (key_scale, value_scale) = (ints.scales[slot], ints.scales[PAGE_POSITIONS + slot]);
    let of_pair = &ints.values[slot / 2 * 2 * value.len()..][..2 * value.len()];
    for (number, pair) in value.iter_mut().zip(of_pair.chunks_exact(2)) {
        *number = f32::from(pair[slot % 2]) * value_scale;
    }
    for (d, number) in key.iter_mut().enumerate().skip(own) {
        let int = ints.keys[d / 2 * 2 * PAGE_POSITIONS + 2 * slot + d % 2];
        *number = f32::from(int) * key_scale;
    }
}

/// A half-precision number as f32.
fn half(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}
