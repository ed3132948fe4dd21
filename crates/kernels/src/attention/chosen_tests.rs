//! Choices, and attention over them, compared with plain f64 references.

use std::sync::Arc;

use fastrand::Rng;

use super::attend::attend_on;
use super::choose::choose_on;
use super::chosen::positions;
use super::*;
use crate::format::reference::floats;
use crate::isa::Isa;
use crate::pool::Pool;

const POSITIONS: usize = 1300;
const DIM: usize = 24;

fn table() -> Arc<[u32]> {
    let pages = POSITIONS.div_ceil(PAGE_POSITIONS) as u32;
    (0..pages).rev().collect()
}

/// Segments that start before a row sees more than it may choose, and after.
fn segments() -> Vec<Segment> {
    let of = |first_pos, rows| Segment { table: table(), first_pos, rows, sees_to: None };
    vec![of(90, 20), of(0, 3), of(POSITIONS - 2, 2), of(640, 1)]
}

/// The positions of the rows.
fn row_positions() -> Vec<usize> {
    segments().iter().flat_map(|s| s.first_pos..s.first_pos + s.rows).collect()
}

fn keys(rng: &mut Rng, kind: CacheKind) -> (KvCache, Vec<f32>) {
    let pages = POSITIONS.div_ceil(PAGE_POSITIONS);
    let mut cache = KvCache::new(1, DIM, 0, pages, kind).unwrap();
    let keys = floats(rng, POSITIONS * DIM);
    cache.store(&Pool::new(2).unwrap(), &table(), 0, &keys, &[]);
    (cache, keys)
}

fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The indices of the `count` best scores.
fn best(scores: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order.truncate(count);
    order.sort_unstable();
    order
}

/// The expected choice of each row's groups; `None` for rows with full attention.
fn expected(indexer: &Indexer, keys: &[f32], q: &[f32], weights: &[f32]) -> Vec<Vec<Vec<usize>>> {
    let Indexer { heads, choice, .. } = *indexer;
    let of_row = |(row, position): (usize, usize)| {
        let q = |head: usize| &q[(row * heads + head) * DIM..][..DIM];
        let key = |position: usize| &keys[position * DIM..][..DIM];
        let seen = 0..position + 1;
        match choice {
            Choice::Positions { count } => {
                let of_head = |head: usize, at| {
                    product(q(head), key(at)).max(0.0) * f64::from(weights[row * heads + head])
                };
                let score = |at| (0..heads).map(|head| of_head(head, at)).sum::<f64>();
                vec![best(&seen.map(score).collect::<Vec<_>>(), count)]
            }
            Choice::Pools { .. } => unreachable!("pools are tried with entries"),
            Choice::Blocks { size, count, local } => (0..heads)
                .map(|head| {
                    let scores: Vec<f64> =
                        seen.clone().map(|at| product(q(head), key(at))).collect();
                    let top =
                        |block: &[f64]| block.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let mut blocks: Vec<f64> = scores.chunks(size).map(top).collect();
                    let own = blocks.len().saturating_sub(local);
                    blocks[own..].fill(f64::INFINITY);
                    let blocks = best(&blocks, count);
                    let of_block = |block: usize| block * size..(block + 1) * size;
                    let all = blocks.into_iter().flat_map(of_block);
                    all.filter(|at| *at <= position).collect()
                })
                .collect(),
        }
    };
    row_positions().into_iter().enumerate().map(of_row).collect()
}

#[test]
fn the_best_are_chosen_and_alike_everywhere() {
    let mut rng = Rng::with_seed(7);
    let rows = row_positions().len();
    for choice in [
        Choice::Positions { count: 100 },
        Choice::Blocks { size: 16, count: 5, local: 1 },
        Choice::Blocks { size: 128, count: 3, local: 2 },
    ] {
        let indexer = Indexer { heads: 5, dim: DIM, choice };
        let (q, weights) = (floats(&mut rng, rows * 5 * DIM), floats(&mut rng, rows * 5));
        for kind in [CacheKind::F32, CacheKind::I16] {
            let (cache, keys) = keys(&mut rng, kind);
            let expected = expected(&indexer, &keys, &q, &weights);
            for (isa, threads) in Isa::available().into_iter().zip([1, 2, 3].into_iter().cycle()) {
                let pool = Pool::new(threads).unwrap();
                let mut chosen = Chosen::with_room(rows, indexer.groups(), 21);
                choose_on(
                    isa,
                    &pool,
                    Keys::Positions(&cache),
                    &indexer,
                    &segments(),
                    (&q, &weights),
                    &mut chosen,
                );
                for (row, (groups, position)) in expected.iter().zip(row_positions()).enumerate() {
                    for (group, expected) in groups.iter().enumerate() {
                        let found = chosen.of(row, group).map(|words| positions(words).collect());
                        let all = expected.len() == position + 1;
                        let found: Vec<u32> =
                            found.unwrap_or_else(|| (0..=position as u32).collect());
                        let same = found.iter().map(|at| *at as usize).eq(expected.iter().copied());
                        assert!(same, "{choice:?}, row {row}, {kind}, {}", isa.name());
                        assert_eq!(chosen.of(row, group).is_none(), all, "row {row}");
                    }
                }
            }
        }
    }
}

#[test]
fn of_equal_scores_the_lower_position_is_chosen() {
    let pages = POSITIONS.div_ceil(PAGE_POSITIONS);
    let cache = KvCache::new(1, DIM, 0, pages, CacheKind::F32).unwrap();
    let pool = Pool::new(2).unwrap();
    let indexer = Indexer { heads: 1, dim: DIM, choice: Choice::Positions { count: 70 } };
    let segment = [Segment { table: table(), first_pos: POSITIONS - 1, rows: 1, sees_to: None }];
    let mut chosen = Chosen::with_room(1, 1, pages);
    choose(
        &pool,
        Keys::Positions(&cache),
        &indexer,
        &segment,
        &[f32::NAN; DIM],
        &[1.0],
        &mut chosen,
    );
    assert!(positions(chosen.of(0, 0).unwrap()).eq(0..70));
}

/// A row's attention over some positions, in f64.
fn attention(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    dims: [usize; 2],
    scale: f32,
    seen: &[usize],
) -> Vec<f64> {
    let [k_dim, v_dim] = dims;
    let score = |at: &usize| f64::from(scale) * product(q, &k[at * k_dim..][..k_dim]);
    let scores: Vec<f64> = seen.iter().map(score).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let number = |d: usize| {
        let all = seen.iter().zip(&weights);
        all.map(|(at, weight)| weight * f64::from(v[at * v_dim + d])).sum::<f64>() / sum
    };
    (0..v_dim).map(number).collect()
}

#[test]
fn rows_attend_to_what_they_chose() {
    const HEADS: usize = 3;
    const K_DIM: usize = 40;
    const V_DIM: usize = 32;
    let mut rng = Rng::with_seed(11);
    let (rows, pages) = (row_positions().len(), POSITIONS.div_ceil(PAGE_POSITIONS));
    let q = floats(&mut rng, rows * HEADS * K_DIM);
    let k = floats(&mut rng, POSITIONS * K_DIM);
    let v: Vec<f32> = k.chunks_exact(K_DIM).flat_map(|key| key[..V_DIM].to_vec()).collect();
    let scale = 1.0 / (K_DIM as f32).sqrt();
    let shape = AttendShape::new(&[0; HEADS], K_DIM, V_DIM, scale).with_values_in_keys(true);
    let (index, _) = keys(&mut rng, CacheKind::F32);
    for choice in
        [Choice::Positions { count: 100 }, Choice::Blocks { size: 16, count: 5, local: 1 }]
    {
        let indexer = Indexer { heads: 1, dim: DIM, choice };
        let index_q = floats(&mut rng, rows * DIM);
        let mut chosen = Chosen::with_room(rows, 1, pages);
        let pool = Pool::new(2).unwrap();
        let weights = vec![1.0; rows];
        choose(
            &pool,
            Keys::Positions(&index),
            &indexer,
            &segments(),
            &index_q,
            &weights,
            &mut chosen,
        );
        for (kind, limit) in [
            (CacheKind::F32, 1e-5),
            (CacheKind::I16, 1e-3),
            (CacheKind::F16, 2e-3),
            (CacheKind::Q8_0, 3e-2),
        ] {
            let mut cache = KvCache::new(1, K_DIM, V_DIM, pages, kind).unwrap();
            cache.store(&pool, &table(), 0, &k, &v);
            let of = |isa, threads| {
                let mut out = vec![0.0; rows * HEADS * V_DIM];
                let pool = Pool::new(threads).unwrap();
                let batch = (&segments()[..], Some(&chosen));
                attend_on(isa, &pool, &cache, &shape, batch, &q, &mut out);
                out
            };
            let found = of(Isa::chosen(), 1);
            for (isa, threads) in Isa::available().into_iter().zip([9, 2, 3].into_iter().cycle()) {
                let same =
                    of(isa, threads).iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{choice:?}, {kind} on {}", isa.name());
            }
            for (row, position) in row_positions().into_iter().enumerate() {
                let seen: Vec<usize> = match chosen.of(row, 0) {
                    Some(words) => positions(words).map(|at| at as usize).collect(),
                    None => (0..=position).collect(),
                };
                for head in 0..HEADS {
                    let at = row * HEADS + head;
                    let q = &q[at * K_DIM..][..K_DIM];
                    let exact = attention(q, &k, &v, [K_DIM, V_DIM], scale, &seen);
                    for (found, exact) in found[at * V_DIM..][..V_DIM].iter().zip(exact) {
                        let error = (f64::from(*found) - exact).abs();
                        assert!(error < limit, "{choice:?}, {kind}, row {row}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_choice_by_scores_that_are_not_finite_is_lost() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng::with_seed(5);
    let choices =
        [Choice::Positions { count: 20 }, Choice::Blocks { size: 16, count: 3, local: 1 }];
    let segment = Segment { table: table(), first_pos: 699, rows: 1, sees_to: None };
    for (kind, choice) in
        [CacheKind::F32, CacheKind::I16].into_iter().flat_map(|k| choices.map(|c| (k, c)))
    {
        let indexer = Indexer { heads: 2, dim: DIM, choice };
        let keys = floats(&mut rng, 700 * DIM);
        let (q, weights) = (floats(&mut rng, 2 * DIM), [0.5, 0.25]);
        let choose = |isa, keys: &[f32], q: &[f32], weights: &[f32]| {
            let mut cache = KvCache::new(1, DIM, 0, table().len(), kind).unwrap();
            cache.store(&pool, &table(), 0, keys, &[]);
            let mut chosen = Chosen::with_room(1, indexer.groups(), table().len());
            let (keys, segments) = (Keys::Positions(&cache), std::slice::from_ref(&segment));
            choose_on(isa, &pool, keys, &indexer, segments, (q, weights), &mut chosen);
            let mut out = [0.0; 3];
            chosen.taint(&mut out);
            out.iter().all(|out| out.is_nan())
        };
        for isa in Isa::available() {
            assert!(!choose(isa, &keys, &q, &weights));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let what = format!("{bad}, {choice:?}, {kind}, {}", isa.name());
                let (mut bad_keys, mut bad_q) = (keys.clone(), q.clone());
                bad_keys[rng.usize(..keys.len())] = bad;
                bad_q[rng.usize(..q.len())] = bad;
                assert!(choose(isa, &bad_keys, &q, &weights), "key of {what}");
                assert!(choose(isa, &keys, &bad_q, &weights), "query of {what}");
                if indexer.groups() == 1 {
                    assert!(choose(isa, &keys, &q, &[0.5, bad]), "weight of {what}");
                }
            }
        }
    }
}
