//! The layers compared with their twins, and with themselves in every other way to cut their rows.

use super::step::recur_on;
use super::twin::{self, Sequence};
use super::*;
use crate::isa::Isa;
use crate::pool::Pool;
use fastrand::Rng;

struct Case {
    shape: RecurrentShape,
    weights: RecurrentWeights,
}

fn floats(rng: &mut Rng, len: usize, scale: f32) -> Vec<f32> {
    (0..len).map(|_| (rng.f32() - 0.5) * 2.0 * scale).collect()
}

impl Case {
    /// `heads`: of keys and values; `dims`: of both.
    fn new(rule: Rule, heads: (usize, usize), dims: (usize, usize), taps: usize) -> Self {
        let ((k_heads, v_heads), (k_dim, v_dim)) = (heads, dims);
        let k_of_v = (0..v_heads).map(|head| (head * k_heads / v_heads) as u32).collect();
        let decay_bound = None;
        let shape =
            RecurrentShape { rule, k_heads, v_heads, k_dim, v_dim, k_of_v, taps, decay_bound };
        let mut rng = Rng::with_seed((k_dim * v_dim + taps) as u64);
        let (k_width, v_width) = (k_heads * k_dim, v_heads * v_dim);
        let convolution = rule == Rule::Convolution;
        let q_width = if convolution { 0 } else { k_width };
        let gates = if convolution { 0 } else { v_heads };
        let weights = RecurrentWeights {
            conv_q: floats(&mut rng, q_width * taps, 1.0),
            conv_k: floats(&mut rng, q_width * taps, 1.0),
            conv_v: floats(&mut rng, v_width * taps, 1.0),
            // Some cases have biases, some do not.
            bias_q: if taps == 4 { floats(&mut rng, q_width, 0.5) } else { vec![] },
            bias_k: vec![],
            bias_v: if taps >= 3 { floats(&mut rng, v_width, 0.5) } else { vec![] },
            a: (0..gates).map(|_| -rng.f32()).collect(),
            dt: floats(&mut rng, shape.decay_width(), 1.0),
            skip: floats(&mut rng, if rule == Rule::Mamba { v_heads } else { 0 }, 1.0),
        };
        Self { shape, weights }
    }

    fn bounded(self, bound: f32) -> Self {
        Self { shape: RecurrentShape { decay_bound: Some(bound), ..self.shape }, ..self }
    }

    fn layer(&self) -> RecurrentLayer {
        RecurrentLayer::new(self.shape.clone(), self.weights.clone())
    }

    fn sequence(&self, rows: usize, seed: u64) -> Sequence {
        let mut rng = Rng::with_seed(seed);
        let mut of = |width: usize| floats(&mut rng, rows * width, 2.0);
        let shape = &self.shape;
        Sequence {
            rows,
            q: of(shape.k_width()),
            k: of(shape.k_width()),
            v: of(shape.v_width()),
            decay: of(shape.decay_width()),
            beta: of(shape.beta_width()),
        }
    }

    /// The layer's output for the whole sequence.
    fn expected(&self, x: &Sequence) -> Vec<f32> {
        twin::run(&self.shape, &self.weights, x)
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for rule in [Rule::Delta, Rule::DeltaByChannel, Rule::Mamba] {
        cases.push(Case::new(rule, (2, 4), (16, 32), 4));
        cases.push(Case::new(rule, (1, 3), (12, 24), 3));
        cases.push(Case::new(rule, (2, 2), (33, 8), 2));
        cases.push(Case::new(rule, (1, 1), (1, 17), 1));
    }
    cases.push(Case::new(Rule::DeltaByChannel, (2, 2), (24, 16), 4).bounded(-5.0));
    cases.push(Case::new(Rule::Mamba, (1, 5), (128, 64), 4));
    cases.push(Case::new(Rule::Delta, (1, 2), (128, 128), 4));
    for (heads, dim, taps) in [((1, 1), 24, 3), ((2, 2), 40, 4), ((1, 1), 200, 3), ((1, 1), 5, 1)] {
        cases.push(Case::new(Rule::Convolution, heads, (dim, dim), taps));
    }
    cases
}

impl Sequence {
    /// Rows `range` of several sequences' steps, one after the other.
    fn push(&mut self, from: &Sequence, range: std::ops::Range<usize>) {
        let rows = from.rows;
        let pairs = [
            (&mut self.q, &from.q),
            (&mut self.k, &from.k),
            (&mut self.v, &from.v),
            (&mut self.decay, &from.decay),
            (&mut self.beta, &from.beta),
        ];
        for (to, from) in pairs {
            let width = from.len() / rows;
            to.extend(&from[range.start * width..range.end * width]);
        }
        self.rows += range.len();
    }

    fn rows(&self) -> RecurrentRows<'_> {
        let Sequence { q, k, v, decay, beta, .. } = self;
        RecurrentRows { q, k, v, decay, beta }
    }
}

/// A layer with states, to run steps on.
struct Runner {
    isa: Isa,
    pool: Pool,
    layer: RecurrentLayer,
    states: States,
    scratch: RecurrentScratch,
}

impl Runner {
    fn new(case: &Case, isa: Isa, threads: usize) -> Self {
        let pool = Pool::new(threads).unwrap();
        let states = States::new(&case.shape, 3, 3, 4).unwrap();
        Self { isa, pool, layer: case.layer(), states, scratch: RecurrentScratch::default() }
    }

    fn step(&mut self, segments: &[StateSegment], x: &Sequence) -> Vec<f32> {
        // Elements that are not written stay visible as NaN.
        let mut out = vec![f32::NAN; x.rows * self.layer.shape().v_width()];
        let (pool, layer, states) = (&self.pool, &self.layer, &mut self.states);
        let scratch = &mut self.scratch;
        recur_on(self.isa, pool, layer, states, segments, &x.rows(), scratch, &mut out);
        out
    }

    /// One segment whose rows are `range` of `x`.
    fn segment(
        &mut self,
        x: &Sequence,
        range: std::ops::Range<usize>,
        begin: Begin,
        guesses: usize,
        save: Option<(usize, usize)>,
    ) -> Vec<f32> {
        let mut step = Sequence::default();
        step.push(x, range.clone());
        let segment = StateSegment { slot: 1, rows: range.len(), begin, guesses, save };
        self.step(&[segment], &step)
    }
}

const GO_ON: Begin = Begin::GoOn { accepted: 0 };

#[track_caller]
fn same(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(got.to_bits() == expected.to_bits(), "{what}: {i}: {got} is not {expected}");
    }
}

#[test]
fn every_instruction_set_gives_the_bits_of_the_twin() {
    for case in cases() {
        let x = case.sequence(9, 1);
        let expected = case.expected(&x);
        for isa in Isa::available() {
            let mut runner = Runner::new(&case, isa, 1);
            let out = runner.segment(&x, 0..x.rows, Begin::Zero, 0, None);
            same(&out, &expected, &format!("{} {:?}", isa.name(), case.shape));
        }
    }
}

#[test]
fn the_formulas_of_the_papers_are_what_is_computed() {
    for case in cases() {
        let x = case.sequence(40, 2);
        let exact = twin::exact(&case.shape, &case.weights, &x);
        let mut runner = Runner::new(&case, Isa::chosen(), 1);
        let out = runner.segment(&x, 0..x.rows, Begin::Zero, 0, None);
        let top = exact.iter().fold(0.0_f64, |top, x| top.max(x.abs()));
        assert!(top > 0.1, "{top}");
        for (got, exact) in out.iter().zip(&exact) {
            assert!((f64::from(*got) - exact).abs() < 2e-5 * top, "{got}, {exact}, {top}");
        }
    }
}

#[test]
fn steps_of_any_size_on_any_threads_give_the_same_bits() {
    for case in cases() {
        let x = case.sequence(23, 3);
        let expected = case.expected(&x);
        for (threads, sizes) in [(1, [1, 1, 1]), (3, [1, 1, 1]), (3, [5, 1, 2]), (2, [11, 3, 7])] {
            let mut runner = Runner::new(&case, Isa::chosen(), threads);
            // The remains of an earlier sequence in the slot must not matter.
            runner.segment(&case.sequence(2, 99), 0..2, Begin::Zero, 0, None);
            let (mut out, mut row) = (Vec::new(), 0);
            for size in sizes.into_iter().cycle() {
                let range = row..x.rows.min(row + size);
                let begin = if row == 0 { Begin::Zero } else { GO_ON };
                out.extend(runner.segment(&x, range.clone(), begin, 0, None));
                row = range.end;
                if row == x.rows {
                    break;
                }
            }
            same(&out, &expected, &format!("{sizes:?} {:?}", case.shape));
        }
    }
}

#[test]
fn guesses_change_nothing_whether_accepted_or_not() {
    for case in cases() {
        let x = case.sequence(30, 4);
        let wrong = case.sequence(30, 5);
        let width = case.shape.v_width();
        let expected = case.expected(&x);
        let mut rng = Rng::with_seed(6);
        let mut runner = Runner::new(&case, Isa::chosen(), 2);
        let mut out = runner.segment(&x, 0..3, Begin::Zero, 0, None);
        // Computed rows, and those that the state has not applied yet.
        let (mut row, mut accepted) = (3, 0);
        while row < x.rows {
            let guesses = rng.usize(0..=4).min(x.rows - row - 1);
            let right = rng.usize(0..=guesses);
            let mut step = Sequence::default();
            step.push(&x, row..row + 1 + right);
            step.push(&wrong, row..row + guesses - right);
            let begin = Begin::GoOn { accepted };
            let rows = 1 + guesses;
            let segment = StateSegment { slot: 2, rows, begin, guesses, save: None };
            let segment = StateSegment { slot: 1, ..segment };
            let got = runner.step(&[segment], &step);
            out.extend(&got[..(1 + right) * width]);
            (row, accepted) = (row + 1 + right, right);
        }
        same(&out, &expected, &format!("{:?}", case.shape));
    }
}

#[test]
fn a_step_of_guesses_alone_leaves_a_restored_state() {
    for case in cases() {
        let x = case.sequence(12, 7);
        let width = case.shape.v_width();
        let expected = case.expected(&x);
        let mut runner = Runner::new(&case, Isa::chosen(), 1);
        runner.segment(&x, 0..6, Begin::Zero, 0, Some((4, 2)));
        let restore = Begin::Restore { checkpoint: 2 };
        let out = runner.segment(&x, 4..8, restore, 4, None);
        same(&out, &expected[4 * width..8 * width], "guesses");
        // Two of them are right, and no more rows follow.
        let out = runner.segment(&x, 0..0, Begin::GoOn { accepted: 2 }, 0, None);
        assert!(out.is_empty());
        let out = runner.segment(&x, 6..12, GO_ON, 0, None);
        same(&out, &expected[6 * width..], "what follows");
    }
}

#[test]
fn a_checkpoint_is_the_state_where_it_was_saved() {
    for case in cases() {
        let x = case.sequence(16, 8);
        let width = case.shape.v_width();
        let expected = case.expected(&x);
        let mut runner = Runner::new(&case, Isa::chosen(), 2);
        let out = runner.segment(&x, 0..9, Begin::Zero, 4, Some((2, 0)));
        same(&out, &expected[..9 * width], "the first step");
        // In the middle of accepted rows: the state after rows 0 to 4 and 5 to 6.
        let out = runner.segment(&x, 8..11, Begin::GoOn { accepted: 3 }, 0, Some((2, 1)));
        same(&out, &expected[8 * width..11 * width], "the second step");
        let out = runner.segment(&x, 11..16, GO_ON, 0, Some((5, 2)));
        same(&out, &expected[11 * width..], "the third step");
        for (checkpoint, row) in [(0, 2), (1, 7), (0, 2)] {
            let begin = Begin::Restore { checkpoint };
            let out = runner.segment(&x, row..16, begin, 0, Some((1, checkpoint)));
            same(&out, &expected[row * width..], "restored");
            // It was saved again a row later.
            let out = runner.segment(&x, row + 1..16, begin, 0, None);
            same(&out, &expected[(row + 1) * width..], "restored again");
            let out = runner.segment(&x, row..row, Begin::Zero, 0, None);
            assert!(out.is_empty());
            runner.segment(&x, 0..row, Begin::Zero, 0, Some((row, checkpoint)));
        }
    }
}

#[test]
fn sequences_of_a_step_do_not_see_each_other() {
    for case in cases() {
        let sequences: Vec<Sequence> = (0..3).map(|seed| case.sequence(12, 20 + seed)).collect();
        let mut runner = Runner::new(&case, Isa::chosen(), 3);
        let mut outs = vec![Vec::new(); 3];
        let steps = [[0..5, 0..1, 0..0], [5..6, 1..9, 0..12], [6..12, 9..12, 12..12]];
        let width = case.shape.v_width();
        for ranges in steps {
            let mut step = Sequence::default();
            let mut segments = Vec::new();
            for (slot, range) in ranges.iter().enumerate() {
                step.push(&sequences[slot], range.clone());
                let begin = if range.start == 0 { Begin::Zero } else { GO_ON };
                let rows = range.len();
                segments.push(StateSegment { slot, rows, begin, guesses: 0, save: None });
            }
            let mut got = &runner.step(&segments, &step)[..];
            for (slot, range) in ranges.iter().enumerate() {
                let (mine, rest) = got.split_at(range.len() * width);
                outs[slot].extend(mine);
                got = rest;
            }
        }
        for (x, out) in sequences.iter().zip(&outs) {
            same(out, &case.expected(x), &format!("{:?}", case.shape));
        }
    }
}

/// Columns `range` of rows of `width` columns, each of `unit` elements.
fn cut(x: &[f32], width: usize, range: std::ops::Range<usize>, unit: usize) -> Vec<f32> {
    let columns = range.start * unit..range.end * unit;
    x.chunks(width.max(1)).flat_map(|row| row[columns.clone()].to_vec()).collect()
}

#[test]
fn a_rank_with_some_heads_has_their_bits() {
    for rule in [Rule::Delta, Rule::DeltaByChannel, Rule::Mamba] {
        let whole = Case::new(rule, (2, 4), (20, 24), 4);
        let (shape, w) = (&whole.shape, &whole.weights);
        let x = whole.sequence(8, 9);
        let expected = cut(&whole.expected(&x), 4 * 24, 2..4, 24);
        let decays = if rule == Rule::DeltaByChannel { 20 } else { 1 };
        let some = |x: &[f32], unit: usize| x[x.len() - 2 * unit..].to_vec();
        let part = Case {
            shape: RecurrentShape { k_heads: 1, v_heads: 2, k_of_v: vec![0, 0], ..shape.clone() },
            weights: RecurrentWeights {
                conv_q: w.conv_q[20 * 4..].to_vec(),
                conv_k: w.conv_k[20 * 4..].to_vec(),
                conv_v: some(&w.conv_v, 24 * 4),
                bias_q: w.bias_q[20..].to_vec(),
                bias_k: vec![],
                bias_v: some(&w.bias_v, 24),
                a: some(&w.a, 1),
                dt: some(&w.dt, decays),
                skip: if rule == Rule::Mamba { some(&w.skip, 1) } else { vec![] },
            },
        };
        let betas = usize::from(rule != Rule::Mamba);
        let x = Sequence {
            rows: 8,
            q: cut(&x.q, 40, 1..2, 20),
            k: cut(&x.k, 40, 1..2, 20),
            v: cut(&x.v, 4 * 24, 2..4, 24),
            decay: cut(&x.decay, 4 * decays, 2..4, decays),
            beta: cut(&x.beta, 4 * betas, 2..4, betas),
        };
        let out = Runner::new(&part, Isa::chosen(), 2).segment(&x, 0..8, Begin::Zero, 0, None);
        same(&out, &expected, &format!("{rule:?}"));
    }
}

#[test]
fn a_rank_without_heads_does_nothing() {
    for rule in [Rule::Delta, Rule::DeltaByChannel, Rule::Mamba, Rule::Convolution] {
        let case = Case::new(rule, (0, 0), (16, 16), 4);
        let mut runner = Runner::new(&case, Isa::chosen(), 1);
        let x = Sequence { rows: 3, ..Sequence::default() };
        let segment =
            StateSegment { slot: 0, rows: 3, begin: Begin::Zero, guesses: 1, save: Some((1, 1)) };
        assert!(runner.step(&[segment], &x).is_empty());
    }
}

#[test]
fn bytes_are_those_of_the_parts() {
    // 2 heads of 3 blocks of [12, 16], 3 rows of 2 x 12 + 2 x 40 channels, and kept rows with a
    // decay and a beta a head as well.
    let shape = Case::new(Rule::Delta, (1, 2), (12, 40), 4).shape;
    let (state, history, kept) = (2 * 3 * 12 * 16, 3 * 104_usize, 5 * 108_usize);
    let held = state + history.next_multiple_of(16);
    let slot = held + kept.next_multiple_of(16);
    assert_eq!(States::bytes(&shape, 3, 7, 5), 4 * (3 * slot + 7 * held) + 3 * 4);
    let none = Case::new(Rule::Delta, (0, 0), (12, 40), 4).shape;
    assert_eq!(States::bytes(&none, 3, 7, 5), 12);
    assert!(matches!(States::new(&shape, 1, 1 << 60, 0), Err(crate::Error::Memory { .. })));
}

#[test]
fn callers_bugs_are_refused() {
    let case = Case::new(Rule::Delta, (1, 1), (8, 8), 2);
    let x = case.sequence(2, 1);
    let good = StateSegment { slot: 0, rows: 2, begin: Begin::Zero, guesses: 0, save: None };
    let other = StateSegment { slot: 1, rows: 0, ..good };
    let accepted = |accepted| Begin::GoOn { accepted };
    for segments in [
        vec![StateSegment { slot: 3, ..good }],
        vec![StateSegment { rows: 1, ..good }],
        vec![StateSegment { begin: accepted(1), ..good }],
        vec![StateSegment { begin: Begin::Restore { checkpoint: 3 }, ..good }],
        vec![StateSegment { guesses: 3, ..good }],
        vec![StateSegment { save: Some((0, 1)), ..good }],
        vec![StateSegment { save: Some((3, 1)), ..good }],
        vec![good, StateSegment { slot: 0, ..other }],
        vec![
            StateSegment { save: Some((1, 1)), ..good },
            StateSegment { begin: Begin::Restore { checkpoint: 1 }, ..other },
        ],
    ] {
        let step = || Runner::new(&case, Isa::chosen(), 1).step(&segments, &x);
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).is_err();
        assert!(refused, "{segments:?}");
    }
    assert_eq!(Runner::new(&case, Isa::chosen(), 1).step(&[good, other], &x).len(), 16);
}

/// An infinite or NaN element of a row's inputs, or of a layer's learned parameters.
#[test]
fn what_is_not_finite_leaves_a_row_that_is_not() {
    let mut rng = Rng::with_seed(13);
    for case in cases() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in 0..13 {
                let (mut weights, mut x) = (case.weights.clone(), case.sequence(2, 4));
                let RecurrentWeights {
                    conv_q, conv_k, conv_v, bias_q, bias_v, a, dt, skip, ..
                } = &mut weights;
                let Sequence { q, k, v, decay, beta, .. } = &mut x;
                let parts =
                    [conv_q, conv_k, conv_v, bias_q, bias_v, a, dt, skip, q, k, v, decay, beta];
                let Some(part) = parts.into_iter().nth(place).filter(|part| !part.is_empty())
                else {
                    continue;
                };
                // For inputs, one in the first row.
                let len = if place < 8 { part.len() } else { part.len() / 2 };
                part[rng.usize(..len)] = bad;
                let case = Case { shape: case.shape.clone(), weights };
                for isa in Isa::available() {
                    let mut runner = Runner::new(&case, isa, 1);
                    let out = runner.segment(&x, 0..2, Begin::Zero, 0, None);
                    let first = &out[..out.len() / 2];
                    let vanished = first.iter().all(|out| out.is_finite());
                    let what = format!("{bad} in part {place}, {} {:?}", isa.name(), case.shape);
                    assert!(!vanished, "{what}");
                }
            }
        }
    }
}
