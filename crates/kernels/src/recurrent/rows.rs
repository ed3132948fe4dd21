//! The inputs of a segment: the convolution's stored rows, then the accepted kept rows, then the
//! rows of the step.

use super::state::{Begin, Holder, Memory, StateSegment};

/// Adjacent columns of an input, for all rows of a segment. Row 0 is the first accepted one, or the
/// first of the step if there is none.
///
/// The pointers stay valid for the task that made it, and these columns have no other writer.
pub(super) struct Columns {
    /// The rows before row 0, `[taps - 1, width]`; none if the input has no convolution.
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

    /// Stores the inputs of the segment's guesses; the kept rows are not read afterwards.
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

    /// Writes the convolution's inputs to keep after `applied` rows.
    ///
    /// # Safety
    /// `to` is followed by `before_rows` rows of `width` elements, `stride` apart, without another
    /// user meanwhile and outside of these columns.
    pub unsafe fn keep_history(&self, applied: usize, to: *mut f32, stride: usize) {
        for index in 0..self.before_rows {
            let from = self.at((applied + index) as isize - self.before_rows as isize);
            // SAFETY: as the caller promises; `from` has `width` elements.
            unsafe { to.add(index * stride).copy_from_nonoverlapping(from, self.width) };
        }
    }
}

/// Copies the convolution's stored inputs for the channels from `first` on, before the segment's
/// first row, to `before`, `[taps - 1, width]`, because the task overwrites them.
///
/// # Safety
/// `width` channels follow `first`, without another writer meanwhile.
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
