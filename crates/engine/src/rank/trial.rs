//! Steps that nobody asked for, before a rank serves: on a device that takes memory and compiles
//! kernels when it meets them, an answer would wait for that, or end there for want of memory.

use std::time::{Duration, Instant};

use backend::{Backend, Begin, PAGE_POSITIONS, Segment, StateSegment};
use model::{Batch, Outputs};

use super::Rank;
use crate::EngineError;
use crate::comm::Alone;

/// From one step to the next, so many times the rows.
const GROWTH: usize = 8;
/// After a step that takes so long none is larger: who watches the load ends a worker that makes no
/// progress for two minutes.
const STEP_MAX: Duration = Duration::from_secs(5);

/// Any number that no norm divides by zero for.
const INPUT: f32 = 0.01;

impl<B: Backend> Rank<B> {
    /// Computes steps at the start of a sequence, from one row to the most that a step may have, as
    /// if there were no other ranks. What they leave in the cache is written over by the first one
    /// that is asked for.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn try_out(&mut self) -> Result<(), EngineError> {
        let largest = self.limits.rows_max.min(self.limits.context_tokens);
        let mut rows: usize = 1;
        loop {
            let started = Instant::now();
            let table = (0..rows.div_ceil(PAGE_POSITIONS) as u32).collect();
            let segment = Segment { table, first_pos: 0, rows };
            let last = Segment { first_pos: rows - 1, rows: 1, ..segment.clone() };
            let positions: Vec<u32> = (0..rows as u32).collect();
            let (segments, last) = (&[segment], &[last]);
            let outputs = Outputs { rows: &[rows - 1], segments: last, windows: last };
            let state = StateSegment { slot: 0, rows, begin: Begin::Zero, guesses: 0, save: None };
            let states = if self.limits.has_states { &[state][..] } else { &[] };
            let positions = &positions;
            let batch = Batch { segments, windows: segments, positions, states, outputs };
            let input = vec![INPUT; rows * self.limits.width];
            self.model.forward(&mut self.backend, &mut Alone, &batch, &input)?;
            // Those that have a part of the head may have other layers than the last.
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
