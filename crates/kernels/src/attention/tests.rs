//! Attention compared with a plain f64 reference, and with itself in every other way to run it.

use super::attend::attend_on;
use super::rotation::Rotate;
use super::*;
use crate::format::reference::floats;
use crate::isa::{Isa, run};
use crate::pool::Pool;
use fastrand::Rng;
use half::f16;

/// One sequence's keys and values, in a cache whose pages are out of order.
struct Sequence {
    table: Vec<u32>,
    /// `[positions, kv_heads, dim]`.
    k: Vec<f32>,
    v: Vec<f32>,
}

struct Case {
    kv_of_head: Vec<u32>,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    range: AttentionRange,
    mutual: bool,
    soft_cap: Option<f32>,
    sinks: bool,
    lengths: Vec<usize>,
}

fn cases() -> Vec<Case> {
    let case = |kv_of_head: &[u32], k_dim, v_dim, lengths: &[usize]| Case {
        kv_of_head: kv_of_head.to_vec(),
        kv_heads: 1 + *kv_of_head.iter().max().unwrap() as usize,
        k_dim,
        v_dim,
        range: AttentionRange::Full,
        mutual: false,
        soft_cap: None,
        sinks: false,
        lengths: lengths.to_vec(),
    };
    vec![
        case(&[0, 0, 0, 0, 1, 1, 1, 1], 64, 64, &[1, 64, 65, 700]),
        // A shard that starts inside a group of three.
        case(&[0, 1, 1, 1, 2, 2], 20, 24, &[130]),
        case(&[0, 1, 2], 128, 128, &[600, 3]),
        case(&[0; 40], 72, 64, &[90]),
        Case {
            range: AttentionRange::Window(100),
            sinks: true,
            ..case(&[0, 0, 1, 1], 64, 64, &[1100, 40])
        },
        Case { soft_cap: Some(20.0), ..case(&[0, 0], 32, 40, &[530]) },
        Case { range: AttentionRange::Window(1), ..case(&[0], 8, 8, &[70]) },
        // Chunks that end within pages, at borders of spans, and that contain several spans.
        Case { range: AttentionRange::Chunk(100), ..case(&[0, 0, 1], 64, 64, &[350, 100, 101]) },
        Case { range: AttentionRange::Chunk(512), ..case(&[0], 16, 16, &[1100, 512]) },
        Case { range: AttentionRange::Chunk(1500), ..case(&[0], 16, 16, &[1600]) },
        Case { mutual: true, ..case(&[0, 1, 2], 72, 72, &[1, 65, 700]) },
        Case {
            mutual: true,
            range: AttentionRange::Window(100),
            ..case(&[0, 0], 16, 16, &[300, 64])
        },
        Case {
            mutual: true,
            range: AttentionRange::Around(70),
            ..case(&[0, 1, 1], 24, 24, &[700, 64])
        },
    ]
}

#[test]
fn a_copy_of_a_page_has_its_bytes() {
    let pool = Pool::new(1).unwrap();
    for kind in [CacheKind::F16, CacheKind::F32, CacheKind::I16, CacheKind::Q8_0] {
        let mut cache = KvCache::new(2, 24, 40, 4, kind).unwrap();
        let rows = |width: usize| (0..64 * 2 * width).map(|at| at as f32 / 9.0).collect::<Vec<_>>();
        cache.store(&pool, &[2], 0, &rows(24), &rows(40));
        cache.copy_page(2, 1);
        for head in 0..2 {
            assert_eq!(cache.bytes(1, head), cache.bytes(2, head), "{kind}");
            assert!(cache.bytes(1, head).iter().any(|byte| *byte != 0));
            assert!([0, 3].iter().all(|page| cache.bytes(*page, head).iter().all(|b| *b == 0)));
        }
    }
}

fn cases_of_all_kinds() -> impl Iterator<Item = (Case, CacheKind)> {
    let of_kind = |kind| cases().into_iter().map(move |case| (case, kind));
    [CacheKind::F16, CacheKind::F32, CacheKind::I16, CacheKind::Q8_0].into_iter().flat_map(of_kind)
}

/// The stored form of the key or value `x` in a cache of this kind.
fn stored(kind: CacheKind, x: &[f32]) -> Vec<f64> {
    let half = |x: f32| f16::from_f32(x).to_f32();
    let block = |x: &[f32]| {
        let top = x.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
        let scale = half(top / 127.0);
        let quant = |x: &f32| (x / scale).round_ties_even().clamp(-127.0, 127.0);
        x.iter().map(|x| f64::from(scale) * f64::from(quant(x))).collect::<Vec<_>>()
    };
    match kind {
        CacheKind::F16 => x.iter().map(|x| f64::from(half(*x))).collect(),
        // Integers are close enough to be compared with their source.
        CacheKind::F32 | CacheKind::I16 => x.iter().map(|x| f64::from(*x)).collect(),
        CacheKind::Q8_0 => {
            let mut rotated = x.to_vec();
            run(Isa::chosen(), Rotate(&mut rotated));
            let held: Vec<f64> = rotated.chunks(32).flat_map(block).collect();
            rotated_back(&held)
        }
    }
}

/// The same rotation, by its definition: element `i` of a block gets `(-1)^(number of bits that i
/// and j share)` of each element `j`.
fn rotated_back(x: &[f64]) -> Vec<f64> {
    let block = 1 << x.len().trailing_zeros();
    let signed = |i: usize, (j, x): (usize, &f64)| match (i & j).count_ones() % 2 {
        0 => *x,
        _ => -*x,
    };
    let one = |x: &[f64], i| x.iter().enumerate().map(|at| signed(i, at)).sum::<f64>();
    let of_block = |x: &[f64]| (0..block).map(|i| one(x, i)).collect::<Vec<_>>();
    let scale = 1.0 / (block as f64).sqrt();
    x.chunks(block).flat_map(of_block).map(|x| x * scale).collect()
}

impl Case {
    fn shape(&self, rng: &mut Rng) -> (AttendShape, Vec<f32>) {
        let sinks = floats(rng, self.kv_of_head.len());
        let scale = 1.0 / (self.k_dim as f32).sqrt();
        let shape = AttendShape::new(&self.kv_of_head, self.k_dim, self.v_dim, scale)
            .with_range(self.range)
            .with_soft_cap(self.soft_cap)
            .with_sinks(self.sinks.then(|| sinks.clone()));
        (shape, sinks)
    }

    fn fill(&self, pool: &Pool, rng: &mut Rng, kind: CacheKind) -> (KvCache, Vec<Sequence>) {
        let pages: usize = self.lengths.iter().map(|len| len.div_ceil(PAGE_POSITIONS)).sum();
        let mut cache = KvCache::new(self.kv_heads, self.k_dim, self.v_dim, pages, kind).unwrap();
        let mut next = 0;
        let mut sequences = Vec::new();
        for &len in &self.lengths {
            let count = len.div_ceil(PAGE_POSITIONS);
            // Pages from the end of the cache backwards.
            let table: Vec<u32> = (0..count).map(|i| (pages - 1 - next - i) as u32).collect();
            next += count;
            let k = floats(rng, len * self.kv_heads * self.k_dim);
            let k: Vec<f32> = k.iter().map(|k| k * 3.0).collect();
            let v = floats(rng, len * self.kv_heads * self.v_dim);
            let mut pos = 0;
            while pos < len {
                let n = (1 + rng.usize(..100)).min(len - pos);
                let part = |x: &[f32], dim: usize| {
                    let width = self.kv_heads * dim;
                    x[pos * width..(pos + n) * width].to_vec()
                };
                cache.store(pool, &table, pos, &part(&k, self.k_dim), &part(&v, self.v_dim));
                pos += n;
            }
            sequences.push(Sequence { table, k, v });
        }
        (cache, sequences)
    }

    /// The definition, in f64, of one head's output at one position.
    fn reference(
        &self,
        seq: &Sequence,
        q: &[f32],
        (head, pos): (usize, usize),
        sink: f32,
        kind: CacheKind,
    ) -> Vec<f64> {
        let kv_head = self.kv_of_head[head] as usize;
        let first = match self.range {
            AttentionRange::Full => 0,
            AttentionRange::Window(window) => (pos + 1).saturating_sub(window),
            AttentionRange::Chunk(chunk) => pos / chunk * chunk,
            AttentionRange::Around(reach) => pos.saturating_sub(reach),
        };
        let all = seq.k.len() / self.kv_heads / self.k_dim;
        let last = match self.range {
            AttentionRange::Around(reach) => (all - 1).min(pos + reach),
            _ if self.mutual => all - 1,
            _ => pos,
        };
        let scores: Vec<f64> = (first..=last)
            .map(|pos| {
                let k = &seq.k[(pos * self.kv_heads + kv_head) * self.k_dim..][..self.k_dim];
                let dot: f64 = q.iter().zip(stored(kind, k)).map(|(q, k)| f64::from(*q) * k).sum();
                let score = dot / (self.k_dim as f64).sqrt();
                self.soft_cap.map_or(score, |cap| {
                    let cap = f64::from(cap);
                    cap * (score / cap).tanh()
                })
            })
            .collect();
        let mut sum: f64 = scores.iter().map(|score| score.exp()).sum();
        if self.sinks {
            sum += f64::from(sink).exp();
        }
        let mut out = vec![0.0; self.v_dim];
        for (score, pos) in scores.iter().zip(first..) {
            let v = &seq.v[(pos * self.kv_heads + kv_head) * self.v_dim..][..self.v_dim];
            for (out, v) in out.iter_mut().zip(stored(kind, v)) {
                *out += score.exp() / sum * v;
            }
        }
        out
    }
}

#[test]
fn attention_is_close_to_its_definition() {
    let pool = Pool::new(2).unwrap();
    for (number, (case, kind)) in cases_of_all_kinds().enumerate() {
        let mut rng = Rng::with_seed(number as u64);
        let (shape, sinks) = case.shape(&mut rng);
        let (cache, sequences) = case.fill(&pool, &mut rng, kind);
        let heads = shape.heads();
        let rows: usize = case.lengths.iter().sum();
        let q = floats(&mut rng, rows * heads * case.k_dim);
        let segments: Vec<Segment> = sequences
            .iter()
            .zip(&case.lengths)
            .map(|(seq, &rows)| Segment {
                table: seq.table.as_slice().into(),
                first_pos: 0,
                rows,
                sees_to: case.mutual.then_some(rows),
            })
            .collect();
        let mut out = vec![f32::NAN; rows * heads * case.v_dim];
        attend(&pool, &cache, &shape, &segments, None, &q, &mut out);
        let mut first_row = 0;
        for (seq, &len) in sequences.iter().zip(&case.lengths) {
            for _ in 0..40 {
                let (pos, head) = (rng.usize(..len), rng.usize(..heads));
                let at = (first_row + pos) * heads + head;
                let q = &q[at * case.k_dim..][..case.k_dim];
                let expected = case.reference(seq, q, (head, pos), sinks[head], kind);
                for (got, expected) in out[at * case.v_dim..].iter().zip(expected) {
                    let error = (f64::from(*got) - expected).abs();
                    // 16-bit queries and keys have errors of some parts in 10,000 of a score.
                    let limit = if kind == CacheKind::I16 { 2e-4 } else { 2e-6 };
                    assert!(error < limit, "case {number}, position {pos}, head {head}: {error}");
                }
            }
            first_row += len;
        }
    }
}

/// Prefill in one piece, in chunks, position by position, beside others, with some heads only, on
/// any number of threads and any instruction set: the same bits.
#[test]
fn every_way_to_attend_gives_the_same_bits() {
    let pools = [Pool::new(1).unwrap(), Pool::new(5).unwrap()];
    for (number, (case, kind)) in cases_of_all_kinds().enumerate() {
        let mut rng = Rng::with_seed(100 + number as u64);
        let (shape, sinks) = case.shape(&mut rng);
        let (cache, sequences) = case.fill(&pools[1], &mut rng, kind);
        let heads = shape.heads();
        let (q_width, out_width) = (heads * case.k_dim, heads * case.v_dim);
        for (seq, &len) in sequences.iter().zip(&case.lengths) {
            let q = floats(&mut rng, len * q_width);
            let mut all = vec![f32::NAN; len * out_width];
            let whole = [Segment {
                table: seq.table.as_slice().into(),
                first_pos: 0,
                rows: len,
                sees_to: case.mutual.then_some(len),
            }];
            attend(&pools[1], &cache, &shape, &whole, None, &q, &mut all);
            for isa in Isa::available() {
                let pool = &pools[rng.usize(..2)];
                let start = rng.usize(..len);
                let rows = 1 + [0, 1, 30][rng.usize(..3)].min(len - start - 1);
                let q = &q[start * q_width..(start + rows) * q_width];
                let expected = &all[start * out_width..(start + rows) * out_width];
                // The same segment twice, as for two sequences.
                let segment = Segment {
                    table: seq.table.as_slice().into(),
                    first_pos: start,
                    rows,
                    sees_to: case.mutual.then_some(len),
                };
                let mut got = vec![f32::NAN; 2 * rows * out_width];
                let twice = [q, q].concat();
                attend_on(
                    isa,
                    pool,
                    &cache,
                    &shape,
                    (&[segment.clone(), segment.clone()], None),
                    &twice,
                    &mut got,
                );
                for got in got.chunks(rows * out_width) {
                    assert_eq!(got, expected, "case {number}, rows {start}+{rows}, {}", isa.name());
                }
                // One head only.
                let head = rng.usize(..heads);
                let scale = 1.0 / (case.k_dim as f32).sqrt();
                let one =
                    AttendShape::new(&case.kv_of_head[head..=head], case.k_dim, case.v_dim, scale)
                        .with_range(case.range)
                        .with_soft_cap(case.soft_cap)
                        .with_sinks(case.sinks.then(|| vec![sinks[head]]));
                let q = &q[head * case.k_dim..(head + 1) * case.k_dim];
                let mut got = vec![f32::NAN; case.v_dim];
                let segment = Segment { rows: 1, ..segment };
                attend_on(isa, pool, &cache, &one, (&[segment], None), q, &mut got);
                assert_eq!(got, expected[head * case.v_dim..][..case.v_dim], "head {head} alone");
            }
        }
    }
}

/// A sequence of 70 positions with one bad element: the outputs of the rows that see it are NaN. In
/// a page freed by such a sequence, another gets correct results.
#[test]
fn what_is_not_finite_is_seen_by_those_who_see_it_alone() {
    const ROWS: usize = 70;
    const DIM: usize = 24;
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng::with_seed(31);
    let [k, v, q] = [(); 3].map(|()| floats(&mut rng, ROWS * DIM));
    let kinds = [CacheKind::F32, CacheKind::F16, CacheKind::I16, CacheKind::Q8_0];
    let shapes = [(None, None), (Some(20.0), None), (None, Some(0.5))];
    let shapes = shapes.map(|(soft_cap, sink)| {
        let shape = AttendShape::new(&[0], DIM, DIM, 0.2).with_soft_cap(soft_cap);
        shape.with_sinks(sink.map(|sink| vec![sink]))
    });
    let new = |kind| KvCache::new(1, DIM, DIM, 2, kind).unwrap();
    let attend = |isa, cache: &KvCache, shape, first_pos, q: &[f32]| {
        let segment =
            Segment { table: [0, 1].into(), first_pos, rows: q.len() / DIM, sees_to: None };
        let mut out = vec![0.0; q.len()];
        attend_on(isa, &pool, cache, shape, (&[segment], None), q, &mut out);
        out
    };
    for (kind, shape) in kinds.iter().flat_map(|kind| shapes.iter().map(move |s| (*kind, s))) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (isa, part) in
                Isa::available().into_iter().flat_map(|isa| [0, 1, 2].map(|part| (isa, part)))
            {
                let at = [0, 3, 63, 64, 68][rng.usize(..5)];
                let what = format!("{bad} in {part} of {at}, {kind}, {}", isa.name());
                let mut parts = [k.clone(), v.clone(), q.clone()];
                parts[part][at * DIM + rng.usize(..DIM)] = bad;
                let [bad_k, bad_v, bad_q] = &parts;
                let mut cache = new(kind);
                cache.store(&pool, &[0, 1], 0, bad_k, bad_v);
                let is_row = |row: usize| if part == 2 { row == at } else { row >= at };
                for row in [at, at + 1].into_iter().filter(|row| is_row(*row)) {
                    let out = attend(isa, &cache, shape, row, &bad_q[row * DIM..][..DIM]);
                    assert!(!out.iter().all(|out| out.is_finite()), "row {row}: {what}");
                }
                let all = attend(isa, &cache, shape, 0, bad_q);
                for (row, out) in all.chunks(DIM).enumerate().filter(|(row, _)| is_row(*row)) {
                    assert!(!out.iter().all(|out| out.is_finite()), "row {row} of all: {what}");
                }
                let few = 65;
                let mut other = new(kind);
                for cache in [&mut cache, &mut other] {
                    cache.store(&pool, &[0, 1], 0, &k[..few * DIM], &v[..few * DIM]);
                }
                let [left, clean] =
                    [&cache, &other].map(|cache| attend(isa, cache, shape, 0, &q[..few * DIM]));
                assert_eq!(left, clean, "{what}");
            }
        }
    }
}

#[test]
fn a_query_of_zeros_sees_all_positions_alike() {
    let pool = Pool::new(1).unwrap();
    for (kind, isa) in [CacheKind::I16, CacheKind::F32, CacheKind::Q8_0]
        .into_iter()
        .flat_map(|kind| Isa::available().into_iter().map(move |isa| (kind, isa)))
    {
        let mut cache = KvCache::new(1, 16, 16, 1, kind).unwrap();
        let v = [[1.0; 16], [3.0; 16], [9.0; 16]].concat();
        cache.store(&pool, &[0], 0, &[0.5; 48], &v);
        let shape = AttendShape::new(&[0], 16, 16, 0.25);
        let segment = Segment { table: [0].into(), first_pos: 1, rows: 1, sees_to: None };
        let mut out = [0.0; 16];
        attend_on(isa, &pool, &cache, &shape, (&[segment], None), &[0.0; 16], &mut out);
        assert!(out.iter().all(|out| (out - 2.0).abs() < 0.05), "{kind}, {}: {out:?}", isa.name());
    }
}

#[test]
fn what_does_not_fit_becomes_the_largest_that_does() {
    let pool = Pool::new(1).unwrap();
    let mut cache = KvCache::new(1, 16, 16, 1, CacheKind::F16).unwrap();
    cache.store(&pool, &[0], 0, &[1e-3; 32], &[1e30; 32]);
    let shape = AttendShape::new(&[0], 16, 16, 0.25);
    let mut out = [0.0; 32];
    let segments = [Segment { table: [0].into(), first_pos: 0, rows: 2, sees_to: None }];
    attend(&pool, &cache, &shape, &segments, None, &[1.0; 32], &mut out);
    assert_eq!(out, [65504.0; 32]);
    let mut cache = KvCache::new(1, 16, 16, 1, CacheKind::I16).unwrap();
    cache.store(&pool, &[0], 0, &[1e30; 32], &[1e30; 32]);
    attend(&pool, &cache, &shape, &segments, None, &[1e30; 32], &mut out);
    assert!(out.iter().all(|out| out.is_finite() && *out > 9e14), "{out:?}");
    assert!(KvCache::new(0, 16, 16, 1, CacheKind::F16).is_err());
}
