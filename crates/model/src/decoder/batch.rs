//! The input of one step.

use std::convert::Infallible;

use backend::{Backend, BackendError, Segment, StateSegment};

/// The input of one step.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Runs of consecutive positions, each of one sequence.
    pub segments: &'a [Segment],
    /// The same with the tables of layers with a window, which may keep fewer pages.
    pub windows: &'a [Segment],
    /// The position of every row.
    pub positions: &'a [u32],
    /// Of a step with rows of pictures.
    pub pictures: BatchPictures<'a>,
    /// The state step of each segment, in models with states.
    pub states: &'a [StateSegment],
    pub outputs: Outputs<'a>,
}

/// What rows of pictures need beside others.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchPictures<'a> {
    /// The place of every row of the step, if pictures rotate by more than one coordinate.
    pub places: Option<&'a [[u32; 3]]>,
    /// The indices of their rows in the step, ascending.
    pub rows: &'a [usize],
    /// The number of the model's first layers after which something is added to the residual
    /// stream of these rows (Qwen3-VL's deepstack).
    pub layers: usize,
    /// It, `[rows, layers, width]`.
    pub additions: &'a [f32],
}

/// The rows of a step that need logits, the last ones of some sequences. Only they go on after the
/// last layer's keys and values.
#[derive(Debug, Clone, Copy)]
pub struct Outputs<'a> {
    /// Their indices in the step, ascending.
    pub rows: &'a [usize],
    /// The same rows as runs of consecutive positions.
    pub segments: &'a [Segment],
    pub windows: &'a [Segment],
}

impl BatchPictures<'_> {
    /// Adds to `x` what comes after layer `layer`. Few steps have some, so the host adds it.
    pub(super) fn add<B: Backend>(
        &self,
        backend: &mut B,
        layer: usize,
        x: &mut B::Rows,
    ) -> Result<(), BackendError> {
        if self.rows.is_empty() || layer >= self.layers {
            return Ok(());
        }
        let width = self.additions.len() / (self.rows.len() * self.layers);
        let mut sums = backend.host(x)?.to_vec();
        let lines = self.additions.chunks_exact(self.layers * width);
        for (row, line) in self.rows.iter().zip(lines) {
            let sums = &mut sums[row * width..][..width];
            sums.iter_mut().zip(&line[layer * width..]).for_each(|(sum, added)| *sum += added);
        }
        let rows = sums.len() / width;
        let Ok(()) = backend.write(x, rows, |out| {
            out.copy_from_slice(&sums);
            Ok::<_, Infallible>(())
        });
        Ok(())
    }
}
