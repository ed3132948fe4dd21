//! The position of a running sequence's state.

use backend::Begin;

use super::checkpoints::CheckpointId;
use super::page_id::PageId;
use crate::step::StateStep;

/// The state in a sequence's slot, after all steps in flight.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The positions in it.
    pub applied: usize,
    /// The checkpoint that the next step starts with instead.
    restore: Option<CheckpointId>,
    /// The position where its text diverges from a cached one of another sequence.
    pub branch: Option<usize>,
    /// The last checkpoint saved in its answer, and its page.
    pub of_answer: Option<(CheckpointId, PageId)>,
}

impl State {
    /// Skips the text up to `position`, where the state is `checkpoint`.
    pub fn jump(&mut self, position: usize, checkpoint: Option<CheckpointId>) {
        (self.applied, self.restore) = (position, checkpoint);
    }

    /// The most rows of a chunk at `position`, so that it contains at most one position where the
    /// state is saved.
    pub fn chunk_max(&self, position: usize, prompt_border: usize) -> usize {
        match self.branch {
            Some(branch) if position < branch && branch < prompt_border => branch - position,
            _ => usize::MAX,
        }
    }

    /// The state step of a segment from `first_position` on, with certain rows up to `end` and
    /// `guesses` more.
    pub fn plan(&mut self, first_position: usize, end: usize, guesses: usize) -> StateStep {
        let begin = match self.restore.take() {
            Some(checkpoint) => Begin::Restore { checkpoint },
            None if self.applied == 0 => Begin::Zero,
            None => Begin::GoOn { accepted: first_position - self.applied },
        };
        self.applied = end;
        StateStep { begin, guesses, save: None }
    }
}
