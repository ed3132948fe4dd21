//! The route of a rank's steps: where its input comes from, and where its output goes.

use std::ops::Range;

use layout::{Config, Layout};

use crate::results::OutputPart;

/// Rank numbers are those of the whole instance.
pub(crate) struct Route {
    pub rank: usize,
    /// The ranks of this rank's stage.
    pub stage: Range<usize>,
    /// The sender in the previous stage; `None` in the first stage.
    pub upstream: Option<usize>,
    /// The receivers in the next stage.
    pub downstream: Vec<usize>,
    pub output_parts: Vec<OutputPart>,
    /// The ranks of the last stage; the first of them sends its layers' rows to rank 0.
    pub last_stage: Range<usize>,
    pub stages: usize,
    /// The first layer of this rank's stage, and that of the next one.
    pub first_layer: usize,
    pub next_layer: usize,
}

impl Route {
    pub fn new(layout: &Layout, rank: usize, config: &Config) -> Self {
        let stages = layout.stages();
        let own = layout.stage_of(rank);
        let place = rank - stages[own].ranks.start;
        let before = own.checked_sub(1).map(|before| stages[before].ranks.clone());
        let after = stages.get(own + 1).map_or(0..0, |after| after.ranks.clone());
        let senders = stages[own].ranks.len();
        let parts = layout.output_ranks().iter().zip(layout.cut_vocab(config.vocab));
        let part = |(rank, vocab): (&usize, Range<usize>)| {
            // Rank 0 has a part of the head in every split, so it returns hidden states.
            OutputPart { rank: *rank, vocab, hidden: if *rank == 0 { config.width } else { 0 } }
        };
        Self {
            rank,
            stage: stages[own].ranks.clone(),
            upstream: before.map(|ranks| ranks.start + place % ranks.len()),
            downstream: after.skip(place).step_by(senders).collect(),
            output_parts: parts.map(part).collect(),
            last_stage: layout.last().ranks.clone(),
            stages: stages.len(),
            first_layer: stages[own].layers.start,
            next_layer: stages[own].layers.end,
        }
    }

    /// This rank's part of the output head.
    pub fn output_part(&self) -> Option<&OutputPart> {
        self.output_parts.iter().find(|part| part.rank == self.rank)
    }
}
