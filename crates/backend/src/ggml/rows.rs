//! Activations in a device's memory.

use ggml::{HostNumbers, Stream};

use super::ops::{Operand, Ref};

/// Activations `[rows, width]`.
pub struct Rows {
    /// `None` without columns, and after a failed allocation, which the device reports later.
    pub(super) array: Option<Ref>,
    pub(super) width: usize,
    pub(super) rows_max: usize,
    /// Rows in use.
    pub(super) rows: usize,
    /// Those that the device computes, at the front; the others are zero.
    pub(super) computed: usize,
    /// The values that the host last read or wrote; `None` before that.
    mirror: Option<HostNumbers>,
}

impl Rows {
    pub(super) fn new(array: Option<Ref>, width: usize, rows_max: usize) -> Self {
        Self { array, width, rows_max, rows: 0, computed: 0, mirror: None }
    }

    /// All values in the host's memory.
    pub(super) fn mirror(&mut self, stream: &Stream) -> &mut HostNumbers {
        let len = self.rows_max * self.width;
        self.mirror.get_or_insert_with(|| HostNumbers::new(stream, len))
    }

    /// Sets the number of rows in use.
    pub(super) fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.rows_max, "{rows} rows where {} fit", self.rows_max);
        (self.rows, self.computed) = (rows, rows);
    }

    /// The device's operand; `None` if there are no elements.
    pub(super) fn operand(&self) -> Option<Operand> {
        let array = self.array.clone()?;
        let (width, rows) = (self.width, self.computed);
        (rows > 0).then_some(Operand { array, width, rows })
    }
}
