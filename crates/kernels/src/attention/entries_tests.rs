//! Entries, choices of pools, and attention over entries and a window, compared with plain f64
//! references.

use std::sync::Arc;

use fastrand::Rng;

use super::choose::choose_on;
use super::chosen::positions;
use super::*;
use crate::format::reference::floats;
use crate::isa::Isa;
use crate::pool::Pool;

const POSITIONS: usize = 400;
const DIM: usize = 24;

fn table() -> Arc<[u32]> {
    (0..POSITIONS.div_ceil(PAGE_POSITIONS) as u32).rev().collect()
}

fn segment(first_pos: usize, rows: usize) -> Segment {
    Segment { table: table(), first_pos, rows, sees_to: None }
}

fn shape(positions: usize, overlap: bool, kind: CacheKind) -> EntryShape {
    let (pages, row_slots) = (table().len(), if positions > 8 { 64 } else { 16 });
    EntryShape { dim: DIM, positions, overlap, pages, kind, row_pages: pages, row_slots }
}

/// Keys and their weights.
struct Rows {
    keys: Vec<f32>,
    weights: Vec<f32>,
    compression: Compression,
}

impl Rows {
    fn new(rng: &mut Rng, shape: &EntryShape) -> Self {
        let width = shape.width();
        Self {
            keys: floats(rng, POSITIONS * width),
            weights: floats(rng, POSITIONS * width),
            compression: Compression {
                rotates_first: false,
                by_place: floats(rng, shape.positions * width),
                norm: None,
                rope: None,
            },
        }
    }

    /// The cache after its positions came in pieces with these ends.
    fn cached(&self, shape: EntryShape, ends: &[usize]) -> EntryCache {
        let (mut cache, pool) = (EntryCache::new(shape).unwrap(), Pool::new(2).unwrap());
        let mut first = 0;
        for &end in ends {
            let own = first * shape.width()..end * shape.width();
            let (rows, segment) =
                ([&self.keys[own.clone()], &self.weights[own]], segment(first, end - first));
            let segments = std::slice::from_ref(&segment);
            cache.compress(&pool, &self.compression, rows, (segments, segments));
            first = end;
        }
        cache
    }

    /// Entry `entry`, in f64.
    fn entry(&self, shape: &EntryShape, entry: usize) -> Vec<f64> {
        let (width, own) = (shape.width(), entry * shape.positions);
        let first = if shape.overlap { own.saturating_sub(shape.positions) } else { own };
        let number = |d: usize| {
            let (mut sum, mut total) = (0.0, 0.0);
            for position in first..own + shape.positions {
                let d = if shape.overlap && position >= own { DIM + d } else { d };
                let place = position % shape.positions * width + d;
                let weight = self.weights[position * width + d] + self.compression.by_place[place];
                let weight = f64::from(weight).exp();
                sum += weight * f64::from(self.keys[position * width + d]);
                total += weight;
            }
            sum / total
        };
        (0..DIM).map(number).collect()
    }
}

fn read(cache: &EntryCache, entry: usize) -> Vec<f32> {
    let mut found = vec![0.0; DIM];
    cache.read(&table(), entry, &mut found);
    found
}

#[test]
fn entries_are_weighted_sums_and_the_same_in_any_pieces() {
    let mut rng = Rng::with_seed(3);
    for (positions, overlap) in [(4, false), (4, true), (128, false), (64, true)] {
        for (kind, limit) in [(CacheKind::F32, 1e-5), (CacheKind::I16, 2e-4)] {
            let shape = shape(positions, overlap, kind);
            let rows = Rows::new(&mut rng, &shape);
            let whole = rows.cached(shape, &[POSITIONS]);
            let pieces = rows.cached(shape, &[1, 3, 7, 64, 65, 130, 131, 200, 257, 399, POSITIONS]);
            for entry in 0..POSITIONS / positions {
                let found = read(&whole, entry);
                assert_eq!(found, read(&pieces, entry), "{shape:?}, entry {entry}");
                for (found, expected) in found.iter().zip(rows.entry(&shape, entry)) {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error < limit, "{shape:?}, entry {entry}: {found} {expected}");
                }
            }
        }
    }
}

#[test]
fn wrong_guesses_leave_no_trace() {
    const GUESSES: usize = 7;
    let mut rng = Rng::with_seed(4);
    let shape = shape(4, true, CacheKind::F32);
    let mut rows = Rows::new(&mut rng, &shape);
    for first in [96, 100, 126] {
        let expected = rows.cached(shape, &[first, first + 40]);
        let (own, right) = (first * shape.width(), rows.keys.clone());
        rows.keys[own..own + GUESSES * shape.width()].fill(9.0);
        let mut cache = rows.cached(shape, &[first, first + GUESSES]);
        rows.keys = right;
        let own = own..(first + 40) * shape.width();
        let again = [&rows.keys[own.clone()], &rows.weights[own]];
        let segment = [segment(first, 40)];
        let pool = Pool::new(2).unwrap();
        cache.compress(&pool, &rows.compression, again, (&segment, &segment));
        for entry in 0..(first + 40) / 4 {
            assert_eq!(read(&cache, entry), read(&expected, entry), "{first}, entry {entry}");
        }
    }
}

#[test]
fn the_best_pools_are_chosen_and_what_is_after_the_last() {
    const HEADS: usize = 3;
    let mut rng = Rng::with_seed(5);
    let shape = shape(4, false, CacheKind::F32);
    let rows = Rows::new(&mut rng, &shape);
    let cache = rows.cached(shape, &[POSITIONS]);
    let choice = Choice::Pools { size: 4, count: 10 };
    let indexer = Indexer { heads: HEADS, dim: DIM, choice };
    let segments = [segment(30, 20), segment(397, 3)];
    let positions_of = || segments.iter().flat_map(|s| s.first_pos..s.first_pos + s.rows);
    let (q, weights) = (floats(&mut rng, 23 * HEADS * DIM), floats(&mut rng, 23 * HEADS));
    for isa in Isa::available() {
        let mut chosen = Chosen::with_room(23, 1, table().len());
        let (pool, keys) = (Pool::new(2).unwrap(), Keys::Entries(&cache));
        choose_on(isa, &pool, keys, &indexer, &segments, (&q, &weights), &mut chosen);
        for (row, position) in positions_of().enumerate() {
            let pools = (position + 1) / 4;
            let Some(words) = chosen.of(row, 0) else {
                assert!(pools <= 10, "row {row} sees {pools} pools");
                continue;
            };
            let score = |pool: usize| -> f64 {
                let of_head = |head: usize| {
                    let q = &q[(row * HEADS + head) * DIM..][..DIM];
                    let key = read(&cache, pool);
                    let products = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(b));
                    products.sum::<f64>().max(0.0) * f64::from(weights[row * HEADS + head])
                };
                (0..HEADS).map(of_head).sum()
            };
            let mut order: Vec<usize> = (0..pools).collect();
            order.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
            order.truncate(10);
            order.sort_unstable();
            let expected = order.iter().flat_map(|pool| pool * 4..pool * 4 + 4);
            let expected = expected.chain(pools * 4..position + 1);
            let found = positions(words).map(|at| at as usize);
            assert!(found.eq(expected), "row {row}, {}", isa.name());
        }
    }
}

#[test]
fn rows_attend_to_entries_and_their_window() {
    const HEADS: usize = 2;
    const WINDOW: usize = 16;
    let (mut rng, pool) = (Rng::with_seed(6), Pool::new(2).unwrap());
    let shape = shape(4, true, CacheKind::F32);
    let rows = Rows::new(&mut rng, &shape);
    let entries = rows.cached(shape, &[POSITIONS]);
    let mut cache = KvCache::new(1, DIM, DIM, table().len(), CacheKind::F32).unwrap();
    let keys = floats(&mut rng, POSITIONS * DIM);
    cache.store(&pool, &table(), 0, &keys, &keys);
    let sinks = vec![0.3, -0.2];
    let of_heads = AttendShape::new(&[0; HEADS], DIM, DIM, 0.2)
        .with_range(AttentionRange::Window(WINDOW))
        .with_values_in_keys(true)
        .with_sinks(Some(sinks.clone()));
    let segments = [segment(0, 9), segment(300, 2)];
    let q = floats(&mut rng, 11 * HEADS * DIM);
    let mut out = vec![0.0; q.len()];
    let (kv, of_entries) = ((&cache, &segments[..]), (&entries, &segments[..]));
    attend_compressed(&pool, kv, of_entries, &of_heads, None, &q, &mut out);
    let positions = segments.iter().flat_map(|s| s.first_pos..s.first_pos + s.rows);
    for (row, position) in positions.enumerate() {
        let window = (position + 1).saturating_sub(WINDOW)..position + 1;
        let seen: Vec<Vec<f32>> = (0..(position + 1) / 4)
            .map(|entry| read(&entries, entry))
            .chain(window.map(|at| keys[at * DIM..][..DIM].to_vec()))
            .collect();
        for head in 0..HEADS {
            let at = (row * HEADS + head) * DIM;
            let product = |key: &[f32]| -> f64 {
                key.iter().zip(&q[at..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            let weights: Vec<f64> = seen.iter().map(|key| (0.2 * product(key)).exp()).collect();
            let total = weights.iter().sum::<f64>() + f64::from(sinks[head]).exp();
            for d in 0..DIM {
                let sum = seen.iter().zip(&weights).map(|(key, w)| w * f64::from(key[d]));
                let (expected, found) = (sum.sum::<f64>() / total, f64::from(out[at + d]));
                assert!((found - expected).abs() < 1e-5, "row {row}: {found} {expected}");
            }
        }
    }
}
