//! The memory of a rank.

use backend::Backend;
use model::Model;

use super::Rank;
use crate::sight::Sight;
use crate::speculator::Speculator;

impl<B: Backend> Rank<B> {
    /// Its part of the model, and what speculates beside it.
    fn models(&self) -> impl Iterator<Item = &Model<B>> {
        std::iter::once(&self.model).chain(self.speculator.as_ref().map(Speculator::model))
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
