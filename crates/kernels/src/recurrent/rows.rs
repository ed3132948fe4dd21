//! Where a segment's inputs lie: before its rows, those that the convolution remembers; then the
//! kept rows that it accepts; then the rows of the step.

use super::state::{Begin, Holder, Memory, StateSegment};

/// Some neighbouring columns of an input, for all rows that a segment runs through. Row 0 is the
/// first accepted one, or the first of the step if there is none.
///
/// The pointers stay valid for the task that made it, and nobody else writes these columns.
pub(super) struct Columns {
    /// Of rows before row 0, `[taps - 1, width]`; none if the input has no convolution.
    pub before: *const f32,
    pub before_rows: usize,
    pub width: usize,
    /// The slot's kept rows.
    pub kept: *mut f32,
    pub kept_stride: usize,
    pub accepted: usize,
    /// The segment's rows in the step.
    pub new: *const f32,
    pub new_stride: usize,
}

impl Columns {
    /// The columns of `row`, from `-before_rows` on.
    #[inline(always)]
    pub fn at(&self, row: isize) -> *const f32 {
        if row < 0 {
            self.before.wrapping_add((self.before_rows as isize + row) as usize * self.width)
        } else if (row as usize) < self.accepted {
            self.kept.wrapping_add(row as usize * self.kept_stride)
        } else {
            self.new.wrapping_add((row as usize - self.accepted) * self.new_stride)
        }
    }

    /// Keeps the inputs of the segment's guesses, which nobody reads kept rows after.
    pub fn keep_guesses(&self, segment: &StateSegment) {
        for guess in 0..segment.guesses {
            let from = self.at((segment.applied() + guess) as isize);
            // SAFETY: a guess is a row of the step, whose memory is not the slot's, and the slot
            // has room for it.
            unsafe {
                let to = self.kept.add(guess * self.kept_stride);
                to.copy_from_nonoverlapping(from, self.width);
            }
        }
    }

    /// Writes what a convolution remembers after `applied` rows.
    ///
    /// # Safety
    /// `to` is followed by `before_rows` rows of `width` numbers, `stride` apart, that nobody else
    /// uses meanwhile and that are not among these columns.
    pub unsafe fn keep_history(&self, applied: usize, to: *mut f32, stride: usize) {
        for index in 0..self.before_rows {
            let from = self.at((applied + index) as isize - self.before_rows as isize);
            // SAFETY: as the caller promises; `from` has `width` numbers.
            unsafe { to.add(index * stride).copy_from_nonoverlapping(from, self.width) };
        }
    }
}

/// Copies what the convolution remembers of the channels from `first` on before the segment's first
/// row to `before`, `[taps - 1, width]`, because the task overwrites it.
///
/// # Safety
/// `width` channels follow `first`, and nobody else writes them meanwhile.
pub(super) unsafe fn load_history(
    memory: &Memory,
    segment: &StateSegment,
    first: usize,
    width: usize,
    before: &mut [f32],
) {
    let holder = match segment.begin {
        Begin::Zero => return before.fill(0.0),
        Begin::Restore { checkpoint } => Holder::Checkpoint(checkpoint),
        Begin::GoOn { .. } => Holder::Slot(segment.slot),
    };
    let from = memory.history(holder, first);
    for (index, row) in before.chunks_exact_mut(width).enumerate() {
        // SAFETY: as the caller promises.
        let from =
            unsafe { std::slice::from_raw_parts(from.add(index * memory.layout.channels), width) };
        row.copy_from_slice(from);
    }
}
