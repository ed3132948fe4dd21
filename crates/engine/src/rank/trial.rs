//! Trial steps before a rank serves. A device may allocate memory and compile kernels on first use;
//! without the trial an answer would wait for that, or fail for lack of memory.

use std::time::{Duration, Instant};

use backend::{Backend, Begin, PAGE_POSITIONS, Segment, StateSegment};
use model::{Batch, BatchPictures, Outputs};

use super::Rank;
use crate::EngineError;
use crate::comm::Alone;

/// The growth factor of the rows from one step to the next.
const GROWTH: usize = 8;
/// After a step this long, none is larger: the daemon ends a worker without loading progress for
/// two minutes.
const STEP_MAX: Duration = Duration::from_secs(5);

/// A number that makes no norm divide by zero.
const INPUT: f32 = 0.01;

impl<B: Backend> Rank<B> {
    /// Computes steps at the start of a sequence, from one row to the maximum, as if there were no
    /// other ranks. The first real step overwrites their cache entries.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn try_out(&mut self) -> Result<(), EngineError> {
        let largest = self.limits.rows_max.min(self.limits.context_tokens);
        let mut rows: usize = 1;
        loop {
            let started = Instant::now();
            let table = (0..rows.div_ceil(PAGE_POSITIONS) as u32).collect();
            let segment = Segment { table, first_pos: 0, rows, sees_to: None };
            let last = Segment { first_pos: rows - 1, rows: 1, ..segment.clone() };
            let positions: Vec<u32> = (0..rows as u32).collect();
            let (segments, last) = (&[segment], &[last]);
            let outputs = Outputs { rows: &[rows - 1], segments: last, windows: last };
            let state = StateSegment { slot: 0, rows, begin: Begin::Zero, guesses: 0, save: None };
            let states = if self.limits.has_states { &[state][..] } else { &[] };
            let positions = &positions;
            let pictures = BatchPictures::default();
            let batch = Batch { segments, windows: segments, positions, pictures, states, outputs };
            let input = vec![INPUT; rows * self.limits.width];
            self.model.forward(&mut self.backend, &mut Alone, &batch, &input)?;
            // A rank with a part of the head may not have the last layers.
            let residual = vec![INPUT; self.config().stream_width()];
            self.model.set_residual(&mut self.backend, &residual);
            self.model.logits(&mut self.backend)?;
            self.backend.synchronise()?;
            if rows == largest || started.elapsed() > STEP_MAX {
                return Ok(());
            }
            rows = largest.min(rows * GROWTH);
        }
    }
}
