//! All-reduce gives one machine's bits on every rank: over both transports, with both algorithms,
//! for any split.

use std::ops::Range;
use std::time::Duration;

use crate::common::{float, random_spans, run, run_delayed, run_ring};
use collective::{Algorithm, Group, Options, ReducePlan, Wire};
use fastrand::Rng;
use link::Preference;
use sumtree::cover;

const TRANSPORTS: [Preference; 2] = [Preference::Shm, Preference::Tcp];
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Ring, Algorithm::Auto];

/// A product: the spans of its ranks and the values of its leaves.
struct Case {
    spans: Vec<Range<usize>>,
    /// `[leaves][len]`.
    leaves: Vec<Vec<f32>>,
}

impl Case {
    fn random(random: &mut Rng, ranks: usize, len: usize) -> Self {
        let leaves = 1 + random.usize(..sumtree::LEAVES_MAX);
        let spans = random_spans(random, leaves, ranks);
        let vector = |random: &mut Rng| (0..len).map(|_| float(random)).collect();
        Case { spans, leaves: (0..leaves).map(|_| vector(random)).collect() }
    }

    fn len(&self) -> usize {
        self.leaves[0].len()
    }

    /// The definition of the tree, on vectors.
    fn sum(&self, subtree: Range<usize>) -> Vec<f32> {
        if subtree.len() == 1 {
            return self.leaves[subtree.start].clone();
        }
        let middle = subtree.start + (subtree.len().next_power_of_two() >> 1);
        let (left, right) = (self.sum(subtree.start..middle), self.sum(middle..subtree.end));
        left.iter().zip(&right).map(|(left, right)| left + right).collect()
    }

    fn parts(&self, rank: usize) -> Vec<f32> {
        let subtrees = cover(self.leaves.len(), self.spans[rank].clone());
        subtrees.into_iter().flat_map(|subtree| self.sum(subtree)).collect()
    }

    fn check(&self, group: &mut Group) {
        let plan = ReducePlan::new(self.leaves.len(), &self.spans).unwrap();
        let mut total = vec![f32::NAN; self.len()];
        let parts = self.parts(group.rank());
        group.all_reduce(&plan, 1, &parts, &mut total).unwrap();
        let expected = self.sum(0..self.leaves.len());
        let bits = |vector: &[f32]| vector.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(
            bits(&total) == bits(&expected),
            "rank {} of {}: {} elements of {} leaves as {:?}",
            group.rank(),
            group.ranks(),
            self.len(),
            self.leaves.len(),
            self.spans,
        );
    }
}

fn check_cases(ranks: usize, cases: &[Case]) {
    for transport in TRANSPORTS {
        for algorithm in ALGORITHMS {
            let options = Options { algorithm, ..Options::default() };
            run(ranks, transport, &options, |mut group| {
                for case in cases {
                    case.check(&mut group);
                }
            });
        }
    }
}

#[test]
fn every_rank_gets_one_machines_bits_for_any_split() {
    for ranks in 1..=16 {
        let seed = 1000 + ranks as u64;
        println!("{ranks} ranks, seed {seed}");
        let mut random = Rng::with_seed(seed);
        // From one element to messages of several slots.
        let lens = [1, 2, 15, 17, 512, 2048, 16_369, 40_000];
        let cases: Vec<Case> =
            lens.iter().map(|&len| Case::random(&mut random, ranks, len)).collect();
        check_cases(ranks, &cases);
    }
}

#[test]
fn a_ring_of_neighbours_gives_the_same_bits() {
    for (ranks, transport) in [(3, Preference::Tcp), (4, Preference::Shm), (7, Preference::Shm)] {
        let seed = 2000 + ranks as u64;
        println!("{ranks} ranks, seed {seed}");
        let mut random = Rng::with_seed(seed);
        let lens = [1, 17, 2048, 40_001];
        let cases: Vec<Case> =
            lens.iter().map(|&len| Case::random(&mut random, ranks, len)).collect();
        run_ring(ranks, transport, &Options::default(), |mut group| {
            for case in &cases {
                case.check(&mut group);
            }
        });
    }
}

#[test]
fn what_was_measured_is_the_same_on_all_ranks_and_changes_no_bit() {
    let mut random = Rng::with_seed(77);
    let cases: Vec<Case> =
        [100, 30_000].iter().map(|&len| Case::random(&mut random, 3, len)).collect();
    for transport in TRANSPORTS {
        let speeds = run(3, transport, &Options::default(), |mut group| {
            let speed = group.measure().unwrap();
            for case in &cases {
                case.check(&mut group);
            }
            speed.unwrap()
        });
        assert!(speeds[0].latency_us > 0.0 && speeds[0].bytes_per_us > 0.0);
        assert!(speeds.iter().all(|speed| *speed == speeds[0]), "{speeds:?}");
    }
}

/// Over fast links, a long vector takes both phases in runs.
#[test]
fn a_long_vector_between_fast_links_has_one_machines_bits() {
    let mut random = Rng::with_seed(78);
    let cases: Vec<Case> =
        [65_536, 150_001].iter().map(|&len| Case::random(&mut random, 2, len)).collect();
    run(2, Preference::Shm, &Options::default(), |mut group| {
        let is_fast = |group: &mut Group| group.measure().unwrap().unwrap().latency_us < 20.0;
        // All ranks know the same speed, so they stop together. Other load may make every attempt
        // slow.
        let fast = (0..100).any(|_| is_fast(&mut group));
        println!("in runs: {fast}");
        for case in &cases {
            case.check(&mut group);
        }
    });
}

/// Ranks start out of step by about the latency, which must not hide it.
#[test]
fn a_latency_is_measured_though_ranks_are_out_of_step() {
    let latency = Duration::from_millis(3);
    let speeds = run_delayed(2, Preference::Shm, latency, |mut group| {
        if group.rank() == 0 {
            std::thread::sleep(latency);
        }
        group.measure().unwrap().unwrap()
    });
    assert!(speeds[0].latency_us >= 2700.0, "{speeds:?}");
}

#[test]
fn a_thousand_random_reductions() {
    let seed = 20_260_901;
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    for (ranks, transport) in [(2, Preference::Shm), (3, Preference::Tcp), (5, Preference::Shm)] {
        let cases: Vec<Case> = (0..334)
            .map(|_| {
                let len = 1 + random.usize(..3000);
                Case::random(&mut random, ranks, len)
            })
            .collect();
        run(ranks, transport, &Options::default(), |mut group| {
            for case in &cases {
                case.check(&mut group);
            }
        });
    }
}

#[test]
fn a_long_prefill_reduces_without_deadlock() {
    let mut random = Rng::with_seed(5);
    // 4 MiB a vector: far more than all slots and socket buffers hold.
    let cases = [Case::random(&mut random, 3, 1 << 20)];
    check_cases(3, &cases);
}

#[test]
fn wrong_lengths_are_refused_and_the_group_lives_on() {
    run(2, Preference::Auto, &Options::default(), |mut group| {
        let plan = ReducePlan::new(4, &[0..3, 3..4]).unwrap();
        let mut total = [0.0; 8];
        let error = group.all_reduce(&plan, 1, &[0.0; 5], &mut total).unwrap_err();
        assert!(error.to_string().contains("5 given"), "{error}");
        let three = ReducePlan::new(3, &[0..1, 1..2, 2..3]).unwrap();
        group.all_reduce(&three, 1, &[0.0; 8], &mut total).unwrap_err();
        let parts = vec![1.0; plan.parts(group.rank()) * 8];
        group.all_reduce(&plan, 1, &parts, &mut total).unwrap();
        assert_eq!(total, [plan.parts_total() as f32; 8]);
    });
}

#[test]
fn eight_bits_are_the_same_on_all_ranks_and_near_the_sum() {
    for (ranks, transport, algorithm) in [
        (2, Preference::Shm, Algorithm::OneShot),
        (2, Preference::Shm, Algorithm::TwoPhase),
        (3, Preference::Tcp, Algorithm::OneShot),
        (3, Preference::Tcp, Algorithm::TwoPhase),
        (8, Preference::Shm, Algorithm::TwoPhase),
        (3, Preference::Shm, Algorithm::Auto),
    ] {
        let seed = 3000 + ranks as u64;
        println!("{ranks} ranks, seed {seed}");
        let mut random = Rng::with_seed(seed);
        for len in [33, 20_001] {
            // An even split, with values of similar size, as activations are.
            let leaves: Vec<Vec<f32>> = (0..16)
                .map(|_| (0..len).map(|_| random.usize(..2001) as f32 / 1000.0 - 1.0).collect())
                .collect();
            let spans: Vec<_> =
                (0..ranks).map(|rank| 16 * rank / ranks..16 * (rank + 1) / ranks).collect();
            let case = Case { spans, leaves };
            let options = Options { algorithm, wire: Wire::Q8, ..Options::default() };
            let totals = run(ranks, transport, &options, |mut group| {
                let plan = ReducePlan::new(16, &case.spans).unwrap();
                let mut total = vec![f32::NAN; len];
                group.all_reduce(&plan, 1, &case.parts(group.rank()), &mut total).unwrap();
                total
            });
            assert!(totals.iter().all(|total| *total == totals[0]), "ranks differ");
            let exact = case.sum(0..16);
            let square = |values: &mut dyn Iterator<Item = f32>| -> f32 {
                values.map(|value| value * value).sum()
            };
            let error = square(&mut totals[0].iter().zip(&exact).map(|(a, b)| a - b));
            let relative = (error / square(&mut exact.iter().copied())).sqrt();
            println!(
                "{ranks} ranks, {len} values, {algorithm:?}: off by {:.3} % (rms)",
                100.0 * relative
            );
            assert!(relative > 0.0 && relative < 0.015, "{relative}");
        }
    }
}

/// Whatever rows are beside it, however the sums travel, and whatever the links' speed says.
#[test]
fn a_row_in_eight_bits_depends_on_no_other_row_and_on_no_algorithm() {
    const WIDTH: usize = 100;
    let mut random = Rng::with_seed(41);
    for ranks in [2, 3, 5] {
        let case = Case::random(&mut random, ranks, 400 * WIDTH);
        let mut expected: Option<Vec<f32>> = None;
        for algorithm in [Algorithm::OneShot, Algorithm::TwoPhase, Algorithm::Auto] {
            let options = Options { algorithm, wire: Wire::Q8, ..Options::default() };
            let totals = run(ranks, Preference::Shm, &options, |mut group| {
                if ranks == 3 {
                    group.measure().unwrap();
                }
                let plan = ReducePlan::new(case.leaves.len(), &case.spans).unwrap();
                let parts = case.parts(group.rank());
                let mut sum = |rows: Range<usize>| {
                    let span = rows.start * WIDTH..rows.end * WIDTH;
                    let of_rows = |part: &[f32]| part[span.clone()].to_vec();
                    let parts: Vec<f32> = parts.chunks(case.len()).flat_map(of_rows).collect();
                    let mut total = vec![f32::NAN; span.len()];
                    group.all_reduce(&plan, rows.len(), &parts, &mut total).unwrap();
                    total
                };
                let whole = sum(0..400);
                let pieces = [0..1, 1..3, 3..10, 10..399, 399..400].map(&mut sum).concat();
                assert_eq!(pieces, whole, "{algorithm:?}, {ranks} ranks");
                whole
            });
            assert!(totals.iter().all(|total| *total == totals[0]), "ranks differ");
            assert_eq!(*expected.get_or_insert(totals[0].clone()), totals[0], "{algorithm:?}");
        }
    }
}
