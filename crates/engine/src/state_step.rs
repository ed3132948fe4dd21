//! The states of a segment: where they begin, and what is saved of them.

use backend::Begin;
use layout::GUESSES_MAX;

use crate::step::{BadStep, Limits};

/// Words of a message.
pub(crate) const STATE_WORDS: usize = 5;

/// The state step of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateStep {
    pub begin: Begin,
    /// The number of speculated last rows: kept, and applied by the next step that accepts them.
    pub guesses: usize,
    /// The checkpoint to save the state to, after this many applied rows (accepted ones first).
    pub save: Option<Save>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Save {
    pub after: usize,
    pub checkpoint: usize,
}

impl Default for StateStep {
    fn default() -> Self {
        Self { begin: Begin::Zero, guesses: 0, save: None }
    }
}

impl StateStep {
    /// Accepted guesses of the step before, which are applied first.
    pub fn accepted(&self) -> usize {
        match self.begin {
            Begin::GoOn { accepted } => accepted,
            Begin::Zero | Begin::Restore { .. } => 0,
        }
    }

    pub(crate) fn encode(&self) -> [usize; STATE_WORDS] {
        let (begin, at) = match self.begin {
            Begin::Zero => (0, 0),
            Begin::Restore { checkpoint } => (1, checkpoint),
            Begin::GoOn { accepted } => (2, accepted),
        };
        let save = self.save.unwrap_or(Save { after: 0, checkpoint: 0 });
        [begin, at, self.guesses, save.after, save.checkpoint]
    }

    /// Decodes the state step of a segment with `rows` rows.
    pub(crate) fn decode(
        [begin, at, guesses, after, checkpoint]: [usize; STATE_WORDS],
        rows: usize,
        limits: &Limits,
    ) -> Result<Self, BadStep> {
        let bad = |what| Err(BadStep { what });
        let begin = match begin {
            0 => Begin::Zero,
            1 if at < limits.checkpoints => Begin::Restore { checkpoint: at },
            2 if at <= GUESSES_MAX => Begin::GoOn { accepted: at },
            _ => return bad("a state begins nowhere"),
        };
        let save = (after > 0).then_some(Save { after, checkpoint });
        let found = Self { begin, guesses, save };
        if guesses > GUESSES_MAX.min(rows) {
            return bad("more rows are guesses than there may be");
        }
        let applied = found.accepted() + rows - guesses;
        if save.is_some_and(|save| save.after > applied || save.checkpoint >= limits.checkpoints) {
            return bad("a state is saved after the segment, or nowhere");
        }
        Ok(found)
    }
}
