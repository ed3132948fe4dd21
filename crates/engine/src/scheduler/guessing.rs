//! Plans guesses: from the text itself, and from a draft model or the model's own MTP block.

use std::time::Duration;

use protocol::{RequestId, Speculation, Token};

use super::Scheduler;
use super::sequence::Sequence;
use crate::draft::DraftJob;

impl Scheduler {
    /// Selects at most `most` answers for a draft model before the next step, and the number of
    /// guesses for each: those without an earlier occurrence of their last tokens, while that pays.
    pub fn want_drafts(&mut self, most: usize) {
        let answers = self.running.len();
        let may = self.speculation != Speculation::Off
            && self.running.iter().all(|one| one.is_answering());
        let costs = self.pace.guess_costs(answers).filter(|_| may);
        let Some(price) = costs.map(|costs| costs.of_drafts(answers, most)) else {
            return self.running.iter_mut().for_each(|one| one.drafts_wanted = 0);
        };
        let mut left = most;
        for sequence in &mut self.running {
            sequence.want_draft(price, left);
            left -= usize::from(sequence.drafts_wanted > 0);
        }
    }

    /// The answers selected by [`Self::want_drafts`].
    pub fn draft_jobs(&self) -> impl Iterator<Item = DraftJob<'_>> {
        self.running.iter().filter_map(Sequence::draft_job)
    }

    /// Records the time of a draft model's `passes`.
    pub fn drafted(&mut self, took: Duration, passes: usize) {
        self.pace.learn_draft_cost(self.running.len(), took, passes);
    }

    /// Stores a draft model's guesses for an answer, for the next step.
    pub fn offer(&mut self, id: RequestId, guesses: &[Token]) {
        if let Some(at) = self.find(id) {
            self.running[at].offer(guesses);
        }
    }

    /// Adds rows for speculated tokens to the planned answers, if that pays.
    pub(super) fn plan_guesses(&mut self) {
        let answers = self.planned.len();
        let mut room = self.limits.rows_max.min(self.limits.outputs_max).saturating_sub(answers);
        let Some(price) = self.pace.guess_costs(answers).map(|costs| costs.of_rows(answers)) else {
            return;
        };
        for at in 0..answers {
            let (id, rows) = self.planned[at];
            let Some(place) = self.find(id).filter(|_| rows == 1 && room > 0) else { continue };
            let sequence = &mut self.running[place];
            sequence.guess(price, room);
            // Without free pages there are no guesses: no page is given up for them.
            let rows = sequence.take_pages(1 + sequence.guesses.len(), &mut self.pages);
            sequence.guesses.truncate(rows - 1);
            room -= rows - 1;
            self.planned[at].1 = rows;
        }
    }
}
