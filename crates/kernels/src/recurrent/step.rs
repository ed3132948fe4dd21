//! A step of a layer: its arguments, their preconditions, and its buffers.

use super::layer::{RecurrentLayer, RecurrentShape, Rule};
use super::state::{Begin, Layout, StateSegment, States};
use super::tasks::{Input, Tasks};
use crate::isa::Isa;
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{LANES, VECTOR_BYTES};

/// The rows of a step, row-major f32, before any convolution.
#[derive(Debug, Clone, Copy)]
pub struct RecurrentRows<'a> {
    /// `[rows, k_heads * k_dim]`.
    pub q: &'a [f32],
    /// `[rows, k_heads * k_dim]`.
    pub k: &'a [f32],
    /// `[rows, v_heads * v_dim]`.
    pub v: &'a [f32],
    /// `[rows, v_heads]`; [`Rule::DeltaByChannel`]: `[rows, v_heads * k_dim]`;
    /// [`Rule::Convolution`]: empty.
    pub decay: &'a [f32],
    /// `[rows, v_heads]`; empty for [`Rule::Mamba`] and [`Rule::Convolution`].
    pub beta: &'a [f32],
}

/// Buffers between the jobs of a step, reused so that a token allocates nothing.
#[derive(Default)]
pub struct RecurrentScratch {
    /// `[k_heads, rows, k_stride]`, including accepted rows here and below.
    q: Vec<f32>,
    k: Vec<f32>,
    /// `[v_heads, rows, v_stride]`.
    v: Vec<f32>,
    /// `[rows, v_heads]` or `[v_heads, rows, k_stride]`.
    decay: Vec<f32>,
    /// `[rows, v_heads]`: beta, or Mamba's steps.
    beta: Vec<f32>,
    places: Vec<Place>,
}

/// The first row of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// In the step.
    pub row: usize,
    /// In the scratch, including accepted rows.
    pub first: usize,
}

/// Runs the rows of a step through the states of a layer's heads.
///
/// `segments` follow one another in the rows; `out`: `[rows, v_heads * v_dim]` f32. A rank without
/// value heads does nothing.
///
/// # Panics
/// If lengths do not match, a slot, checkpoint or kept row does not exist, or two segments use the
/// same slot or write a checkpoint that the other uses.
pub fn recur(
    pool: &Pool,
    layer: &RecurrentLayer,
    states: &mut States,
    segments: &[StateSegment],
    rows: &RecurrentRows<'_>,
    scratch: &mut RecurrentScratch,
    out: &mut [f32],
) {
    recur_on(Isa::chosen(), pool, layer, states, segments, rows, scratch, out);
}

#[allow(clippy::too_many_arguments)] // The arguments of `recur`.
pub(super) fn recur_on(
    isa: Isa,
    pool: &Pool,
    layer: &RecurrentLayer,
    states: &mut States,
    segments: &[StateSegment],
    rows: &RecurrentRows<'_>,
    scratch: &mut RecurrentScratch,
    out: &mut [f32],
) {
    check_rows(&layer.shape, segments, rows, out);
    check_states(&layer.shape, states, segments);
    if layer.shape.v_heads > 0 {
        let total = scratch.reserve(&layer.shape, segments);
        let (k_width, v_width) = (layer.shape.k_width(), layer.shape.v_width());
        let (decays, betas) = (layer.shape.decay_width(), layer.shape.beta_width());
        let gates = 2 * k_width + v_width;
        let tasks = Tasks {
            isa,
            layer,
            memory: states.memory(),
            segments,
            places: &scratch.places,
            rows: total,
            q_in: Input { x: rows.q, width: k_width, first: 0 },
            k_in: Input { x: rows.k, width: k_width, first: k_width },
            v_in: Input { x: rows.v, width: v_width, first: 2 * k_width },
            decay_in: Input { x: rows.decay, width: decays, first: gates },
            beta_in: Input { x: rows.beta, width: betas, first: gates + decays },
            q: lines(&mut scratch.q),
            k: lines(&mut scratch.k),
            v: lines(&mut scratch.v),
            decay: lines(&mut scratch.decay),
            beta: lines(&mut scratch.beta),
            out: SharedMut::new(out.as_mut_ptr()),
        };
        tasks.run(pool);
    }
    for segment in segments {
        states.kept[segment.slot] = segment.guesses as u32;
    }
}

fn check_rows(
    shape: &RecurrentShape,
    segments: &[StateSegment],
    rows: &RecurrentRows<'_>,
    out: &[f32],
) {
    let count: usize = segments.iter().map(|segment| segment.rows).sum();
    let v_width = shape.v_width();
    assert_eq!(out.len(), count * v_width, "output must be [{count}, {v_width}]");
    if shape.v_heads == 0 {
        return;
    }
    for (name, x, width) in [
        ("q", rows.q, shape.k_width()),
        ("k", rows.k, shape.k_width()),
        ("v", rows.v, v_width),
        ("decay", rows.decay, shape.decay_width()),
        ("beta", rows.beta, shape.beta_width()),
    ] {
        assert_eq!(x.len(), count * width, "{name} must be [{count}, {width}]");
    }
}

fn check_states(shape: &RecurrentShape, states: &States, segments: &[StateSegment]) {
    let Layout { slots, checkpoints, kept_max, .. } = states.layout;
    let layout = Layout::of(shape, slots, checkpoints, kept_max);
    assert_eq!(states.layout, layout, "states of another layer");
    for (index, segment) in segments.iter().enumerate() {
        let StateSegment { slot, rows, begin, guesses, save } = *segment;
        assert!(slot < slots, "slot {slot} of {slots}");
        assert!(guesses <= rows.min(kept_max), "{guesses} guesses of {rows} rows");
        let kept = states.kept[slot] as usize;
        assert!(segment.accepted() <= kept, "{} rows of {kept} accepted", segment.accepted());
        if let Begin::Restore { checkpoint } = begin {
            assert!(checkpoint < checkpoints, "checkpoint {checkpoint} of {checkpoints}");
        }
        if let Some((applied, checkpoint)) = save {
            assert!(checkpoint < checkpoints, "checkpoint {checkpoint} of {checkpoints}");
            let most = segment.applied();
            assert!((1..=most).contains(&applied), "a save after {applied} rows of {most}");
        }
        for other in &segments[..index] {
            assert!(other.slot != slot, "two segments with slot {slot}");
            let apart = !saves_used(segment, other) && !saves_used(other, segment);
            assert!(apart, "two segments with a checkpoint that one of them writes");
        }
    }
}

/// Whether `a` saves a checkpoint that `b` uses.
fn saves_used(a: &StateSegment, b: &StateSegment) -> bool {
    let Some((_, checkpoint)) = a.save else { return false };
    b.begin == Begin::Restore { checkpoint } || b.save.is_some_and(|(_, other)| other == checkpoint)
}

impl RecurrentScratch {
    /// Finds a place for each segment, and returns the number of rows, including accepted ones.
    fn reserve(&mut self, shape: &RecurrentShape, segments: &[StateSegment]) -> usize {
        self.places.clear();
        let (mut row, mut first) = (0, 0);
        for segment in segments {
            self.places.push(Place { row, first });
            row += segment.rows;
            first += segment.accepted() + segment.rows;
        }
        if shape.rule != Rule::Convolution {
            let (k_stride, v_stride) = (whole(shape.k_dim), whole(shape.v_dim));
            let decay_stride = if shape.rule == Rule::DeltaByChannel { k_stride } else { 1 };
            grow(&mut self.q, LANES + first * shape.k_heads * k_stride);
            grow(&mut self.k, LANES + first * shape.k_heads * k_stride);
            grow(&mut self.v, LANES + first * shape.v_heads * v_stride);
            grow(&mut self.decay, LANES + first * shape.v_heads * decay_stride);
            grow(&mut self.beta, LANES + first * shape.v_heads);
        }
        first
    }
}

/// The first cache line in a buffer, which has [`LANES`] elements more than it needs. Access to a
/// vector across two lines waits for both.
fn lines(x: &mut Vec<f32>) -> SharedMut<f32> {
    let start = x.as_mut_ptr();
    SharedMut::new(start.wrapping_add(start.align_offset(VECTOR_BYTES)))
}

/// Grows to `len` elements.
pub(super) fn grow(x: &mut Vec<f32>, len: usize) {
    if x.len() < len {
        x.resize(len, 0.0);
    }
}

/// Elements from one row of a head to the next in the scratch.
pub(super) fn whole(dim: usize) -> usize {
    dim.next_multiple_of(LANES)
}
