//! The reference backend: the `kernels` crate on host memory.

mod content;
mod groups;
mod heads;
mod held;
mod inputs;
mod int16;
mod loading;
mod mixture;
mod operations;
mod rows;
mod wave;

use kernels::{Dequantizer, Pool, RecurrentScratch, RopeAngles, RopeTable};

use crate::BackendError;
use held::held;
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
    /// Why an operation has no result, for the next time that somebody reads one.
    failure: Option<BackendError>,
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
            failure: None,
        })
    }

    /// Keeps the first failure of an operation. Its result is not a number, so that nothing takes
    /// it for one.
    fn note(&mut self, done: Result<(), BackendError>, out: &mut Rows) {
        if let Err(error) = done {
            out.values_mut().fill(f32::NAN);
            self.failure.get_or_insert(error);
        }
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
