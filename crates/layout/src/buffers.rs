//! The activations of a rank's steps, and their bytes.

use crate::Device;

/// One buffer of a step, `[rows, width]` f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Its part of the model, and its name there.
    pub name: &'static str,
    /// Its index among those of the same name: a kind of heads, a width of dense blocks.
    pub at: usize,
    pub rows: BufferRows,
    pub width: usize,
}

/// The number of a buffer's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferRows {
    /// Those of the largest step.
    Step,
    /// The partial sums of each of them.
    Parts,
    /// Those that may produce logits.
    Outputs,
}

/// All buffers of a rank. A model allocates them by this list, so that the planned bytes are the
/// allocated ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffers {
    /// Rows of the largest step, and how many of them may produce logits.
    pub rows: usize,
    pub outputs: usize,
    /// Partial sums of the same row.
    pub parts: usize,
    /// Positions of the cache.
    pub positions: u64,
    pub list: Vec<Buffer>,
    /// The choices of an indexer.
    pub choices: Option<Choices>,
}

/// The choices of an indexer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choices {
    /// Choices of each row, and the pages of each choice.
    pub groups: usize,
    pub pages: usize,
}

impl Buffers {
    /// Lists buffers of the step's rows: their names and widths.
    pub(crate) fn add<const N: usize>(&mut self, buffers: [(&'static str, usize); N]) {
        for (name, width) in buffers {
            self.add_at(0, name, width);
        }
    }

    pub(crate) fn add_at(&mut self, at: usize, name: &'static str, width: usize) {
        self.list.push(Buffer { name, at, rows: BufferRows::Step, width });
    }

    pub(crate) fn add_rows(&mut self, rows: BufferRows, name: &'static str, width: usize) {
        self.list.push(Buffer { name, at: 0, rows, width });
    }

    pub fn rows_of(&self, buffer: &Buffer) -> usize {
        match buffer.rows {
            BufferRows::Step => self.rows,
            BufferRows::Parts => self.rows.saturating_mul(self.parts),
            BufferRows::Outputs => self.outputs,
        }
    }

    pub fn bytes(&self, device: Device) -> u64 {
        let buffers = self.list.iter().map(|own| device.rows_bytes(self.rows_of(own), own.width));
        let choices = self.choices.iter().map(|choices| {
            // A bit for each position, and two flags for each row.
            (self.rows * (choices.groups * choices.pages * size_of::<u64>() + 2)) as u64
        });
        let step = device.step_bytes(self.rows, self.positions);
        buffers.chain(choices).fold(step, u64::saturating_add)
    }
}
