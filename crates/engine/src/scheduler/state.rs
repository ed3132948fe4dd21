//! The position of a running sequence's state.

use backend::Begin;
use layout::PAGE_POSITIONS;

use super::checkpoints::CheckpointId;
use super::page_id::PageId;
use crate::step::StateStep;

/// A prompt's states are written to disk at multiples of this, besides its end: another text that
/// goes on differently computes less than this of what both begin with.
const MARK_POSITIONS: usize = 4096;

/// Why a state is saved where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Border {
    /// Its prompt ends, or diverges from another text.
    Prompt,
    /// A multiple of [`MARK_POSITIONS`] in its prompt.
    Mark,
    /// The end of a page of its answer.
    Answer,
}

/// The state in a sequence's slot, after all steps in flight.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The positions in it.
    pub applied: usize,
    /// The checkpoint that the next step starts with instead.
    restore: Option<CheckpointId>,
    /// The position where its text diverges from a cached one of another sequence.
    pub branch: Option<usize>,
    /// The last checkpoint saved at a mark or in its answer, which the next one replaces, and its
    /// page.
    pub passing: Option<(CheckpointId, PageId)>,
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

    /// Where the state is saved within `before + 1..=end`. The prompt has `prompt_len` tokens; the
    /// last page end before its last token is `prompt_border`.
    pub fn border(
        &self,
        (before, end): (usize, usize),
        (prompt_len, prompt_border): (usize, usize),
    ) -> Option<(usize, Border)> {
        let last = |step: usize| end / step * step;
        let answer = if end > prompt_len { last(PAGE_POSITIONS) } else { 0 };
        let mark = if end <= prompt_len { last(MARK_POSITIONS) } else { 0 };
        let all = [
            (self.branch.unwrap_or(0), Border::Prompt),
            (prompt_border, Border::Prompt),
            (mark, Border::Mark),
            (answer, Border::Answer),
        ];
        all.into_iter().find(|(at, _)| before < *at && *at <= end)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_saved_at_marks_and_ends_of_a_prompt_and_at_pages_of_an_answer() {
        let state = State { branch: Some(1024), ..State::default() };
        let (prompt, mut at, mut found) = ((9000, 8960), 0, Vec::new());
        while at < 9300 {
            let end = if at < 9000 { 9000.min(at + 700) } else { at + 1 };
            found.extend(state.border((at, end), prompt));
            at = end;
        }
        let due = [
            (1024, Border::Prompt),
            (4096, Border::Mark),
            (8192, Border::Mark),
            (8960, Border::Prompt),
            (9024, Border::Answer),
            (9088, Border::Answer),
            (9152, Border::Answer),
            (9216, Border::Answer),
            (9280, Border::Answer),
        ];
        assert_eq!(found, due);
    }
}
