//! The states of one layer: their layout, and a sequence's use of its own in a step.
//!
//! A slot belongs to a sequence: `S` as `[v_heads, blocks, k_dim, 16]` (a block is 16 columns, the
//! last one padded with zeros), then the convolution's last `taps - 1` inputs as `[taps - 1,
//! channels]`, the channels of q, k and v side by side (for [`Rule::Convolution`] only k * v), then
//! the inputs of `kept_max` speculated rows, q, k, v, decay and beta side by side. A checkpoint is
//! the same without those rows. Memory that was never written costs nothing.

use super::layer::{RecurrentShape, Rule};
use crate::error::Error;
use crate::memory::Region;
use crate::shared::SharedMut;
use crate::simd::LANES;

/// One sequence's part of a step. Its rows are consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSegment {
    /// The sequence's own slot; no other segment of the step has it.
    pub slot: usize,
    /// Rows of the step in this sequence.
    pub rows: usize,
    pub begin: Begin,
    /// The number of speculated last rows: they are computed on a copy of the state, which they do
    /// not change. The slot keeps their inputs, of at most `kept_max` rows.
    pub guesses: usize,
    /// `(applied, checkpoint)`: saves a checkpoint when that many rows have been applied in this
    /// step, accepted ones first; `1 <= applied <= accepted + rows - guesses`. No other segment of
    /// the step may use the checkpoint.
    pub save: Option<(usize, usize)>,
}

/// The state that a segment starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// That of an empty sequence.
    Zero,
    /// A saved one.
    Restore { checkpoint: usize },
    /// The slot's own, after applying the first `accepted` of its kept rows.
    GoOn { accepted: usize },
}

impl StateSegment {
    /// Kept rows that are applied first.
    pub(super) fn accepted(&self) -> usize {
        match self.begin {
            Begin::GoOn { accepted } => accepted,
            Begin::Zero | Begin::Restore { .. } => 0,
        }
    }

    /// Rows that change the state, accepted ones included.
    pub(super) fn applied(&self) -> usize {
        self.accepted() + self.rows - self.guesses
    }
}

/// The states of one layer's heads of this rank: `slots` sequences and `checkpoints` copies.
pub struct States {
    pub(super) layout: Layout,
    /// For each slot, the number of its kept speculated rows.
    pub(super) kept: Vec<u32>,
    data: Region,
}

impl States {
    /// Zeroed states. Slots and checkpoints are numbered from 0.
    ///
    /// # Errors
    /// The allocation fails.
    pub fn new(
        shape: &RecurrentShape,
        slots: usize,
        checkpoints: usize,
        kept_max: usize,
    ) -> Result<Self, Error> {
        let layout = Layout::of(shape, slots, checkpoints, kept_max);
        let data = Region::zeroed(layout.bytes())?;
        Ok(Self { layout, kept: vec![0; slots], data })
    }

    /// Bytes of [`States::new`]; `usize::MAX` on overflow.
    pub fn bytes(
        shape: &RecurrentShape,
        slots: usize,
        checkpoints: usize,
        kept_max: usize,
    ) -> usize {
        let layout = Layout::of(shape, slots, checkpoints, kept_max);
        layout.bytes().saturating_add(slots.saturating_mul(size_of::<u32>()))
    }

    /// A checkpoint: any bytes are a state.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn checkpoint_mut(&mut self, checkpoint: u32) -> &mut [u8] {
        self.data.slice_mut(self.layout.checkpoint_range(checkpoint))
    }

    /// The addresses of slots and checkpoints; valid while the states are borrowed.
    pub(super) fn memory(&mut self) -> Memory {
        Memory { layout: self.layout, base: SharedMut::new(self.data.as_mut_ptr().cast()) }
    }
}

/// Lengths of the parts of slots and checkpoints, in units of 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Layout {
    pub slots: usize,
    pub checkpoints: usize,
    pub kept_max: usize,
    /// 16 columns of one head's state.
    pub block: usize,
    /// Blocks of one head.
    pub blocks: usize,
    /// All heads' states.
    state: usize,
    /// One row of a convolution's inputs.
    pub channels: usize,
    /// All rows of them, rounded up to whole vectors.
    history: usize,
    /// One kept row.
    pub kept_row: usize,
    /// All kept rows, rounded up to whole vectors.
    kept: usize,
}

impl Layout {
    pub fn of(shape: &RecurrentShape, slots: usize, checkpoints: usize, kept_max: usize) -> Self {
        let whole = |numbers: usize| numbers.checked_next_multiple_of(LANES).unwrap_or(usize::MAX);
        if shape.v_heads == 0 {
            return Self { slots, checkpoints, kept_max, ..Self::default() };
        }
        let inputs = 2 * shape.k_width() + shape.v_width();
        let (block, blocks, channels) = match shape.rule {
            Rule::Convolution => (0, 0, shape.v_width()),
            _ => (shape.k_dim * LANES, shape.v_dim.div_ceil(LANES), inputs),
        };
        let kept_row = inputs + shape.decay_width() + shape.beta_width();
        Self {
            slots,
            checkpoints,
            kept_max,
            block,
            blocks,
            state: shape.v_heads * blocks * block,
            channels,
            history: whole((shape.taps - 1) * channels),
            kept_row,
            kept: whole(kept_max.saturating_mul(kept_row)),
        }
    }

    fn checkpoint(&self) -> usize {
        self.state + self.history
    }

    /// The bytes of a checkpoint, behind all slots.
    fn checkpoint_range(&self, checkpoint: u32) -> std::ops::Range<usize> {
        let checkpoint = checkpoint as usize;
        assert!(checkpoint < self.checkpoints, "checkpoint {checkpoint} of {}", self.checkpoints);
        let start = self.slots * self.slot() + checkpoint * self.checkpoint();
        start * size_of::<f32>()..(start + self.checkpoint()) * size_of::<f32>()
    }

    fn slot(&self) -> usize {
        self.checkpoint().saturating_add(self.kept)
    }

    fn bytes(&self) -> usize {
        let slots = self.slots.saturating_mul(self.slot());
        let checkpoints = self.checkpoints.saturating_mul(self.checkpoint());
        slots.saturating_add(checkpoints).saturating_mul(size_of::<f32>())
    }
}

/// The memory of all slots and checkpoints; each task uses its own part.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub layout: Layout,
    base: SharedMut<f32>,
}

/// A slot or a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Slot(usize),
    Checkpoint(usize),
}

impl Memory {
    fn start(&self, holder: Holder) -> *mut f32 {
        let Layout { slots, checkpoints, .. } = self.layout;
        let at = match holder {
            Holder::Slot(slot) => {
                debug_assert!(slot < slots);
                slot * self.layout.slot()
            }
            Holder::Checkpoint(checkpoint) => {
                debug_assert!(checkpoint < checkpoints);
                slots * self.layout.slot() + checkpoint * self.layout.checkpoint()
            }
        };
        self.base.ptr().wrapping_add(at)
    }

    /// A block of a head's state, `[k_dim, 16]`.
    pub fn block(&self, holder: Holder, head: usize, block: usize) -> *mut f32 {
        let at = (head * self.layout.blocks + block) * self.layout.block;
        self.start(holder).wrapping_add(at)
    }

    /// The convolution's last inputs from channel `first` on, rows `channels` apart.
    pub fn history(&self, holder: Holder, first: usize) -> *mut f32 {
        self.start(holder).wrapping_add(self.layout.state + first)
    }

    /// The kept rows from column `first` on, `kept_row` apart.
    pub fn kept(&self, slot: usize, first: usize) -> *mut f32 {
        self.start(Holder::Slot(slot)).wrapping_add(self.layout.checkpoint() + first)
    }
}
