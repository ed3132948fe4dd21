//! Activations in a device's memory.

use ggml::{HostNumbers, Stream};

use super::ops::{Operand, Ref};

/// Activations `[rows, width]`.
pub struct Rows {
    /// `None` without columns, and where there was no memory, which the device then tells.
    pub(super) array: Option<Ref>,
    pub(super) width: usize,
    pub(super) rows_max: usize,
    /// Rows in use.
    pub(super) rows: usize,
    /// Of those, the first ones that the device computes; the others are zero.
    pub(super) computed: usize,
    /// What the host last saw, or wrote; none before that.
    mirror: Option<HostNumbers>,
}

impl Rows {
    pub(super) fn new(array: Option<Ref>, width: usize, rows_max: usize) -> Self {
        Self { array, width, rows_max, rows: 0, computed: 0, mirror: None }
    }

    /// All of them in the host's memory.
    pub(super) fn mirror(&mut self, stream: &Stream) -> &mut HostNumbers {
        let len = self.rows_max * self.width;
        self.mirror.get_or_insert_with(|| HostNumbers::new(stream, len))
    }

    /// Makes `rows` rows the ones in use.
    pub(super) fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.rows_max, "{rows} rows where {} fit", self.rows_max);
        (self.rows, self.computed) = (rows, rows);
    }

    /// What the device computes with; nothing where there are no numbers.
    pub(super) fn operand(&self) -> Option<Operand> {
        let array = self.array.clone()?;
        let (width, rows) = (self.width, self.computed);
        (rows > 0).then_some(Operand { array, width, rows })
    }
}
