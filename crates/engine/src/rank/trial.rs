//! Steps that nobody asked for, before a rank serves: on a device that takes memory and compiles
//! kernels when it meets them, an answer would wait for that, or end there for want of memory.

use backend::{Backend, PAGE_POSITIONS, Segment};
use model::{Batch, Outputs};

use super::Rank;
use crate::EngineError;
use crate::comm::Alone;

/// Any number that no norm divides by zero for.
const INPUT: f32 = 0.01;

impl<B: Backend> Rank<B> {
    /// Computes the largest step and the smallest at the start of a sequence, as if there were no
    /// other ranks. What they leave in the cache is written over by the first one that is asked
    /// for.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn try_out(&mut self) -> Result<(), EngineError> {
        let largest = self.limits.rows_max.min(self.limits.context_tokens);
        for rows in [largest, 1] {
            let table = (0..rows.div_ceil(PAGE_POSITIONS) as u32).collect();
            let segment = Segment { table, first_pos: 0, rows };
            let last = Segment { first_pos: rows - 1, rows: 1, ..segment.clone() };
            let positions: Vec<u32> = (0..rows as u32).collect();
            let outputs = Outputs { rows: &[rows - 1], segments: &[last] };
            let batch = Batch { segments: &[segment], positions: &positions, outputs };
            let input = vec![INPUT; rows * self.limits.width];
            self.model.forward(&mut self.backend, &mut Alone, &batch, &input)?;
            // Those that have a part of the head may have other layers than the last.
            self.model.set_residual(&mut self.backend, &input[..self.limits.width]);
            self.model.logits(&mut self.backend)?;
            self.backend.synchronise()?;
        }
        Ok(())
    }
}
