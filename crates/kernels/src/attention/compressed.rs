//! Attention over a window and the entries of earlier blocks of positions (DeepSeek V4).
//!
//! A row attends to the entries of all ended blocks, or those chosen by an indexer, then to the
//! positions of its window, in their order: one softmax over all, page by page as if they were
//! positions, in f32.

use super::cache::KvCache;
use super::chosen::{Chosen, positions};
use super::entries::EntryCache;
use super::gather::{Gather, Seen};
use super::positions::Positions;
use super::range::Segment;
use super::shape::AttendShape;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::shared::SharedMut;

/// The bit that distinguishes a position from an entry.
const POSITION: u32 = 1 << 31;

/// Causal attention of a batch. Its keys and entries must already be cached.
///
/// `windows` and `segments`: the same rows, with the tables of `cache` and of `entries`. `chosen`:
/// the visible entries of each row, if not all. `q` and `out`: `[rows, heads, k_dim]` f32.
///
/// # Panics
/// If the shapes do not match, or a table is too short.
pub fn attend_compressed(
    pool: &Pool,
    (cache, windows): (&KvCache, &[Segment]),
    (entries, segments): (&EntryCache, &[Segment]),
    shape: &AttendShape,
    chosen: Option<&Chosen>,
    q: &[f32],
    out: &mut [f32],
) {
    let isa = Isa::chosen();
    let rows: usize = windows.iter().map(|window| window.rows).sum();
    assert_eq!((cache.k_dim(), cache.v_dim()), (shape.k_dim, shape.v_dim), "cache of other heads");
    assert_eq!((entries.shape().dim, shape.v_dim), (shape.k_dim, shape.k_dim), "values are keys");
    assert_eq!(q.len(), rows * shape.heads * shape.k_dim, "queries must be [{rows}, heads, dim]");
    assert_eq!(out.len(), q.len(), "output must be [{rows}, heads, dim]");
    assert!(chosen.is_none_or(|chosen| chosen.rows() == rows), "choices of other rows");
    let of_segment = |(window, segment): (&'_ Segment, &'_ Segment)| {
        assert_eq!((window.first_pos, window.rows), (segment.first_pos, segment.rows));
    };
    windows.iter().zip(segments).for_each(of_segment);
    let places = windows.iter().zip(segments).flat_map(|(window, segment)| {
        let (window, table) = (&*window.table, &*segment.table);
        let positions = segment.first_pos..segment.first_pos + segment.rows;
        positions.map(move |position| Place { window, table, position })
    });
    let seen = WindowAndEntries {
        positions: Positions::new(isa, cache, shape),
        entries,
        shape,
        chosen,
        places: places.collect(),
    };
    let (rows, shared) = ((0..rows).collect(), SharedMut::new(out.as_mut_ptr()));
    Gather { isa, seen, shape, rows, q, out: shared }.run(pool);
    if let Some(chosen) = chosen {
        chosen.taint(out);
    }
}

/// A row's tables and position.
struct Place<'a> {
    window: &'a [u32],
    table: &'a [u32],
    position: usize,
}

struct WindowAndEntries<'a> {
    positions: Positions<'a>,
    entries: &'a EntryCache,
    shape: &'a AttendShape,
    chosen: Option<&'a Chosen>,
    places: Vec<Place<'a>>,
}

impl Seen for WindowAndEntries<'_> {
    fn of(&self, row: usize, found: &mut Vec<u32>) {
        let Place { position, .. } = self.places[row];
        found.clear();
        match self.chosen.and_then(|chosen| chosen.of(row, 0)) {
            Some(words) => found.extend(positions(words)),
            None => found.extend(0..self.entries.shape().visible(position) as u32),
        }
        let first = self.shape.range.first_visible(position) as u32;
        found.extend((first..=position as u32).map(|position| POSITION | position));
    }

    fn read(&self, row: usize, kv_head: usize, seen: u32, key: &mut [f32], value: &mut [f32]) {
        let Place { window, table, .. } = self.places[row];
        if seen & POSITION != 0 {
            let position = (seen & !POSITION) as usize;
            return self.positions.at(window, (position, kv_head), key, value);
        }
        self.entries.read(table, seen as usize, key);
        value[..key.len()].copy_from_slice(key);
    }

    fn v_stride(&self) -> usize {
        self.positions.cache.v_stride()
    }
}
