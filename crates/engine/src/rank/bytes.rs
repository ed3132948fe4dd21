//! The memory of a rank.

use backend::{ArenaCounts, Backend};
use model::Model;
use protocol::ExpertStats;

use super::Rank;
use crate::sight::Sight;
use crate::speculator::Speculator;

impl<B: Backend> Rank<B> {
    /// Its part of the model, and what speculates beside it.
    fn models(&self) -> impl Iterator<Item = &Model<B>> {
        std::iter::once(&self.model).chain(self.speculator.as_ref().map(Speculator::model))
    }

    /// Its experts that are read from disk, if any are.
    pub fn expert_stats(&self) -> Option<ExpertStats> {
        let arena = self.model.arena()?;
        let ArenaCounts { hits, misses, read_bytes, read_time, wait_time } = arena.counts();
        let (memory_bytes, budget_bytes) = arena.bytes();
        Some(ExpertStats {
            memory_bytes,
            budget_bytes,
            hits,
            misses,
            read_bytes,
            read_us: read_time.as_micros() as u64,
            wait_us: wait_time.as_micros() as u64,
        })
    }

    pub fn weight_bytes(&self) -> u64 {
        let tower = self.sight.as_ref().map_or(0, Sight::weight_bytes);
        self.models().map(Model::weight_bytes).sum::<u64>() + tower
    }

    pub fn kv_bytes(&self) -> u64 {
        self.models().map(Model::kv_bytes).sum()
    }

    pub fn buffer_bytes(&self) -> u64 {
        let tower = self.sight.as_ref().map_or(0, Sight::buffer_bytes);
        self.models().map(Model::buffer_bytes).sum::<u64>() + tower
    }
}
