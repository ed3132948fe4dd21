//! The position of a running sequence's state.

use backend::Begin;

use super::checkpoints::CheckpointId;
use super::pages::PageId;
use crate::step::StateStep;

/// The state in a sequence's slot, as it is once all steps in flight are done.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Positions that are in it.
    pub applied: usize,
    /// The next step begins with this checkpoint instead.
    restore: Option<CheckpointId>,
    /// Where its text leaves one that another sequence has in the cache.
    pub branch: Option<usize>,
    /// The checkpoint in its answer that was saved last, and its page.
    pub of_answer: Option<(CheckpointId, PageId)>,
}

impl State {
    /// The text up to `position` is skipped: the state there is `checkpoint`.
    pub fn jump(&mut self, position: usize, checkpoint: Option<CheckpointId>) {
        (self.applied, self.restore) = (position, checkpoint);
    }

    /// Most rows of a chunk that begins at `position`, so that no two borders at which the state is
    /// saved lie in one.
    pub fn chunk_max(&self, position: usize, prompt_border: usize) -> usize {
        match self.branch {
            Some(branch) if position < branch && branch < prompt_border => branch - position,
            _ => usize::MAX,
        }
    }

    /// What a segment that begins at `first_position` does with it, and whose certain rows reach
    /// `end`; `guesses` more follow.
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
