//! The tasks of a step, and their part of each sequence.
//!
//! A task of the first job handles some columns of a segment's inputs, from the convolution's
//! stored rows to the slot's kept rows. A task of the second one handles some columns of a head's
//! state.

use super::convolve::{Convolve, GATE_CHANNELS, Gate, Window, keep_window, open_window};
use super::gates::{Betas, Decays};
use super::layer::{Filter, RecurrentLayer, Rule, TAPS_MAX};
use super::rows::{Columns, load_history};
use super::state::{Begin, Holder, Memory, StateSegment};
use super::step::{Place, grow, whole};
use super::sweep::{BLOCKS, Delta, Mamba, Sweep};
use crate::isa::{Isa, run};
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::LANES;
use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// A task's copy of a convolution's last inputs, or of some columns of a state.
    static COPY: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// One of the inputs of a step.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    /// `[rows, width]`.
    pub x: &'a [f32],
    pub width: usize,
    /// Its first column in a kept row, and among the convolution's channels.
    pub first: usize,
}

/// The shared data of one call's tasks; the outputs are described in
/// [`super::step::RecurrentScratch`].
pub(super) struct Tasks<'a> {
    pub isa: Isa,
    pub layer: &'a RecurrentLayer,
    pub memory: Memory,
    pub segments: &'a [StateSegment],
    pub places: &'a [Place],
    /// In the scratch, of all segments.
    pub rows: usize,
    pub q_in: Input<'a>,
    pub k_in: Input<'a>,
    pub v_in: Input<'a>,
    pub decay_in: Input<'a>,
    pub beta_in: Input<'a>,
    pub q: SharedMut<f32>,
    pub k: SharedMut<f32>,
    pub v: SharedMut<f32>,
    pub decay: SharedMut<f32>,
    pub beta: SharedMut<f32>,
    pub out: SharedMut<f32>,
}

/// The processing of one input by heads.
struct Heads<'a> {
    input: Input<'a>,
    filter: &'a Filter,
    /// Elements of a head.
    dim: usize,
    /// The length to normalise each row of a head to, if any.
    length: Option<f32>,
    out: &'a SharedMut<f32>,
}

/// The times and places of saving a segment's state: after the step in its slot, and possibly
/// earlier in a checkpoint.
fn saves(segment: &StateSegment) -> impl Iterator<Item = (usize, Holder)> {
    let save = segment.save.map(|(applied, checkpoint)| (applied, Holder::Checkpoint(checkpoint)));
    save.into_iter().chain([(segment.applied(), Holder::Slot(segment.slot))])
}

impl Tasks<'_> {
    pub fn run(&self, pool: &Pool) {
        let shape = &self.layer.shape;
        let segments = self.segments.len();
        if shape.rule == Rule::Convolution {
            let tasks = shape.v_width().div_ceil(GATE_CHANNELS);
            pool.run(segments * tasks, |task| {
                let first = task % tasks * GATE_CHANNELS;
                self.convolve_and_gate(task / tasks, first);
            });
            return;
        }
        let decays = if shape.rule == Rule::DeltaByChannel { shape.v_heads } else { 1 };
        let tasks = shape.v_heads + 2 * shape.k_heads + decays + 1;
        pool.run(segments * tasks, |task| self.prepare(task / tasks, task % tasks, decays));
        let runs = self.memory.layout.blocks.div_ceil(BLOCKS);
        let tasks = shape.v_heads * runs;
        pool.run(segments * tasks, |task| {
            let (segment, task) = (task / tasks, task % tasks);
            self.carry(segment, task / runs, task % runs * BLOCKS);
        });
    }

    /// Task `task` of a segment in the first job: heads of v, k and q, decays, betas.
    fn prepare(&self, segment: usize, mut task: usize, decays: usize) {
        let RecurrentLayer { shape, q, k, v, .. } = self.layer;
        let k_length = if shape.rule == Rule::Mamba { None } else { Some(1.0) };
        let q_length = k_length.map(|length: f32| length / (shape.k_dim as f32).sqrt());
        let (k_dim, v_dim) = (shape.k_dim, shape.v_dim);
        let heads = [
            Heads { input: self.v_in, filter: v, dim: v_dim, length: None, out: &self.v },
            Heads { input: self.k_in, filter: k, dim: k_dim, length: k_length, out: &self.k },
            Heads { input: self.q_in, filter: q, dim: k_dim, length: q_length, out: &self.q },
        ];
        for heads in &heads {
            let count = heads.input.width / heads.dim;
            if task < count {
                return self.convolve(segment, heads, task);
            }
            task -= count;
        }
        if task < decays { self.decays(segment, task) } else { self.betas(segment) }
    }

    /// Columns `range` of an input. `before` holds the convolution's stored inputs of them, if any.
    fn columns(&self, index: usize, input: Input, range: Range<usize>, before: &[f32]) -> Columns {
        let segment = &self.segments[index];
        let start = self.places[index].row * input.width + range.start;
        Columns {
            before: before.as_ptr(),
            before_rows: before.len() / range.len(),
            width: range.len(),
            kept: self.memory.kept(segment.slot, input.first + range.start),
            kept_stride: self.memory.layout.kept_row,
            accepted: segment.accepted(),
            new: input.x.as_ptr().wrapping_add(start),
            new_stride: input.width,
        }
    }

    /// One head of q, k or v through the convolution.
    fn convolve(&self, index: usize, heads: &Heads, head: usize) {
        let segment = &self.segments[index];
        let Heads { input, dim, length, .. } = *heads;
        let channel = input.first + head * dim;
        COPY.with_borrow_mut(|copy| {
            let len = (self.layer.shape.taps - 1) * dim;
            grow(copy, len);
            let before = &mut copy[..len];
            // SAFETY: only this task uses these channels of the segment.
            unsafe { load_history(&self.memory, segment, channel, dim, before) };
            let columns = self.columns(index, input, head * dim..(head + 1) * dim, before);
            let (weights, bias) = heads.filter.head(head, 0);
            let at = (head * self.rows + self.places[index].first) * whole(dim);
            let out = heads.out.ptr().wrapping_add(at);
            let rows = segment.accepted() + segment.rows;
            run(self.isa, Convolve { x: &columns, weights, bias, length, out, rows });
            for (applied, holder) in saves(segment) {
                let (to, stride) =
                    (self.memory.history(holder, channel), self.memory.layout.channels);
                // SAFETY: as above; the stored inputs are a copy, and kept rows lie elsewhere.
                unsafe { columns.keep_history(applied, to, stride) };
            }
            columns.keep_guesses(segment);
        });
    }

    /// The decays of all heads, or, with a decay for each element of a key, those of one.
    fn decays(&self, index: usize, head: usize) {
        let RecurrentLayer { shape, a, dt, .. } = self.layer;
        let segment = &self.segments[index];
        let first = self.places[index].first;
        let (range, a, stride, at) = if shape.rule == Rule::DeltaByChannel {
            let stride = whole(shape.k_dim);
            let range = head * shape.k_dim..(head + 1) * shape.k_dim;
            (range, &a[head..=head], stride, (head * self.rows + first) * stride)
        } else {
            (0..shape.v_heads, &a[..], shape.v_heads, first * shape.v_heads)
        };
        let decay = self.columns(index, self.decay_in, range.clone(), &[]);
        let decays = Decays {
            rule: shape.rule,
            bound: shape.decay_bound,
            decay: &decay,
            a,
            dt: &dt[range],
            out: self.decay.ptr().wrapping_add(at),
            steps: self.beta.ptr().wrapping_add(at),
            stride,
            rows: segment.accepted() + segment.rows,
        };
        run(self.isa, decays);
        decay.keep_guesses(segment);
    }

    fn betas(&self, index: usize) {
        let v_heads = self.layer.shape.v_heads;
        if self.beta_in.width == 0 {
            return;
        }
        let segment = &self.segments[index];
        let beta = self.columns(index, self.beta_in, 0..v_heads, &[]);
        let out = self.beta.ptr().wrapping_add(self.places[index].first * v_heads);
        run(self.isa, Betas { beta: &beta, out, rows: segment.accepted() + segment.rows });
        beta.keep_guesses(segment);
    }

    /// Updates the columns of a head's state in up to [`BLOCKS`] blocks with the rows of a segment.
    fn carry(&self, index: usize, head: usize, block: usize) {
        let segment = &self.segments[index];
        let blocks = BLOCKS.min(self.memory.layout.blocks - block);
        let len = blocks * self.memory.layout.block;
        let slot = self.memory.block(Holder::Slot(segment.slot), head, block);
        let mut from: *const f32 = match segment.begin {
            Begin::Restore { checkpoint } => {
                self.memory.block(Holder::Checkpoint(checkpoint), head, block)
            }
            Begin::Zero => {
                // SAFETY: only this task uses the blocks of the slot.
                unsafe { slot.write_bytes(0, len) };
                slot
            }
            Begin::GoOn { .. } => slot,
        };
        let mut row = 0;
        for (applied, holder) in saves(segment) {
            let to = self.memory.block(holder, head, block);
            if applied > row {
                self.sweep(index, head, block, row..applied, from, slot);
            } else if from != slot {
                // SAFETY: as above; a checkpoint that is read is not a slot.
                unsafe { slot.copy_from_nonoverlapping(from, len) };
            }
            (from, row) = (slot, applied);
            if to != slot {
                // SAFETY: a checkpoint that is written has no other user, and it is not a slot.
                unsafe { to.copy_from_nonoverlapping(slot, len) };
            }
        }
        if segment.guesses > 0 {
            COPY.with_borrow_mut(|copy| {
                grow(copy, len);
                let rows = row..row + segment.guesses;
                self.sweep(index, head, block, rows, slot, copy.as_mut_ptr());
            });
        }
    }

    /// Rows `rows` of a segment, from the blocks `from` to the blocks `to`.
    fn sweep(
        &self,
        index: usize,
        head: usize,
        block: usize,
        rows: Range<usize>,
        from: *const f32,
        to: *mut f32,
    ) {
        let RecurrentLayer { shape, skip, .. } = self.layer;
        let Place { row, first } = self.places[index];
        let (k_stride, v_stride, v_width) =
            (whole(shape.k_dim), whole(shape.v_dim), shape.v_width());
        let at = first + rows.start;
        let key = (shape.k_of_v[head] as usize * self.rows + at) * k_stride;
        let value = (head * self.rows + at) * v_stride + block * LANES;
        let gate = at * shape.v_heads + head;
        let decay = match shape.rule {
            Rule::DeltaByChannel => (head * self.rows + at) * k_stride,
            _ => gate,
        };
        let silent = self.segments[index].accepted().saturating_sub(rows.start).min(rows.len());
        let out_row = row + (rows.start + silent).saturating_sub(self.segments[index].accepted());
        let out = out_row * v_width + head * shape.v_dim + block * LANES;
        let sweep = Sweep {
            rows: rows.len(),
            k_dim: shape.k_dim,
            from,
            to,
            blocks: BLOCKS.min(self.memory.layout.blocks - block),
            q: self.q.ptr().wrapping_add(key),
            k: self.k.ptr().wrapping_add(key),
            k_stride,
            v: self.v.ptr().wrapping_add(value),
            v_stride,
            decay: self.decay.ptr().wrapping_add(decay),
            beta: self.beta.ptr().wrapping_add(gate),
            gate_stride: shape.v_heads,
            out: self.out.ptr().wrapping_add(out),
            out_stride: v_width,
            columns: (BLOCKS * LANES).min(shape.v_dim - block * LANES),
            silent,
        };
        match shape.rule {
            Rule::Delta => run(self.isa, Delta::<false>(sweep)),
            Rule::DeltaByChannel => run(self.isa, Delta::<true>(sweep)),
            Rule::Mamba => run(self.isa, Mamba { sweep, skip: skip[head] }),
            Rule::Convolution => unreachable!("a short convolution has no state to carry"),
        }
    }

    /// Computes up to [`GATE_CHANNELS`] channels of LFM2's layer from `first` on, for a segment's
    /// rows.
    fn convolve_and_gate(&self, index: usize, first: usize) {
        let segment = &self.segments[index];
        let RecurrentLayer { shape, v: filter, .. } = self.layer;
        let (taps, v_width) = (shape.taps, shape.v_width());
        let width = GATE_CHANNELS.min(v_width - first);
        let [q, k, v] = [self.q_in, self.k_in, self.v_in]
            .map(|input| self.columns(index, input, first..first + width, &[]));
        let mut window: Window = [[0.0; GATE_CHANNELS]; TAPS_MAX];
        COPY.with_borrow_mut(|copy| {
            let len = (taps - 1) * width;
            grow(copy, len);
            let before = &mut copy[..len];
            // SAFETY: only this task uses these channels of the segment.
            unsafe { load_history(&self.memory, segment, first, width, before) };
            open_window(&mut window, before, width);
        });
        let (weights, bias) = filter.head(0, first / LANES);
        let out = self.out.ptr().wrapping_add(self.places[index].row * v_width + first);
        let silent = segment.accepted();
        let gate = |rows, window: &mut Window| {
            let (q, k, v, stride) = (&q, &k, &v, v_width);
            run(self.isa, Gate { q, k, v, weights, bias, taps, window, rows, out, stride, silent });
        };
        let mut row = 0;
        for (applied, holder) in saves(segment) {
            gate(row..applied, &mut window);
            row = applied;
            let (to, stride) = (self.memory.history(holder, first), self.memory.layout.channels);
            // SAFETY: as above; the window is no part of the states.
            unsafe { keep_window(&window, applied, taps - 1, width, to, stride) };
        }
        gate(row..row + segment.guesses, &mut window);
        for columns in [&q, &k, &v] {
            columns.keep_guesses(segment);
        }
    }
}
