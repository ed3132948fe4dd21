//! The reference backend: the `kernels` crate on host memory.

mod content;
mod groups;
mod heads;
mod inputs;
mod int16;
mod loading;
mod mixture;
mod operations;
mod rows;

use std::sync::Arc;

use kernels::{Dequantizer, Matrix, Pool, RecurrentScratch, RopeAngles, RopeTable};

use crate::BackendError;
use inputs::Inputs;
pub use rows::Rows;

/// This machine's cores.
pub struct Cpu {
    pool: Pool,
    /// One for each rotation table of the model.
    angles: Vec<RopeAngles>,
    /// The position of each row of the step.
    positions: Vec<u32>,
    inputs: Inputs,
    int16: int16::Int16,
    dequantizer: Dequantizer,
    heads: heads::Buffers,
    mixture: mixture::Buffers,
    recurrent: RecurrentScratch,
}

impl Cpu {
    /// A backend of `threads` threads, each pinned to one of `cpus` if any are given.
    ///
    /// # Errors
    /// The threads cannot be started or pinned.
    pub fn new(threads: usize, cpus: &[usize]) -> Result<Self, BackendError> {
        kernels::check_isa()?;
        let pool = if cpus.is_empty() { Pool::new(threads)? } else { Pool::pinned(cpus)? };
        Ok(Self {
            pool,
            angles: Vec::new(),
            positions: Vec::new(),
            inputs: Inputs::default(),
            int16: int16::Int16::default(),
            dequantizer: Dequantizer::default(),
            heads: heads::Buffers::default(),
            mixture: mixture::Buffers::default(),
            recurrent: RecurrentScratch::default(),
        })
    }

    fn load_positions(&mut self, tables: &[RopeTable], positions: &[u32]) {
        self.angles.resize_with(tables.len(), RopeAngles::new);
        for (angles, table) in self.angles.iter_mut().zip(tables) {
            angles.load(&self.pool, table, positions);
        }
        self.positions.clear();
        self.positions.extend_from_slice(positions);
    }

    fn load_places(&mut self, tables: &[RopeTable], places: &[[u32; 3]]) {
        self.angles.resize_with(tables.len(), RopeAngles::new);
        for (angles, table) in self.angles.iter_mut().zip(tables) {
            angles.load_places(&self.pool, table, places);
        }
        self.positions.clear();
        self.positions.extend(places.iter().map(|[time, ..]| time));
    }
}

/// A matrix that this rank has, because it has its input.
fn held(matrix: &Option<Arc<Matrix>>) -> &Matrix {
    matrix.as_ref().expect("a rank with part of a layer holds its matrices")
}
