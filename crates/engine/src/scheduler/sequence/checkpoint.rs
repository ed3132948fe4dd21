//! The state of a sequence's rows, in models with states, and the checkpoints that it saves.

use layout::PAGE_POSITIONS;

use super::Sequence;
use crate::scheduler::pages::Pages;
use crate::scheduler::state::Border;
use crate::step::{Save, StepSegment};

impl Sequence {
    /// Plans the state of its last segment, and its checkpoint.
    pub fn plan_state(&mut self, segment: &mut StepSegment, pages: &mut Pages) {
        if pages.checkpoints().is_none() {
            return;
        }
        let (before, end) = (self.state.applied, self.cached);
        segment.state = self.state.plan(segment.first_position, end, self.guesses.len());
        let prompt = (self.request.prompt.len(), self.prompt_border());
        let Some((border, kind)) = self.state.border((before, end), prompt) else { return };
        let passes = kind != Border::Prompt;
        if kind == Border::Mark && pages.shelf().is_none() {
            return;
        }
        let page = self.pages[border / PAGE_POSITIONS - 1];
        let last = self.state.passing.filter(|_| passes);
        let Some(checkpoint) = pages.write_checkpoint(page, last) else { return };
        if passes {
            self.state.passing = Some((checkpoint, page));
        }
        if kind != Border::Answer {
            pages.want_state(page);
        }
        segment.state.save = Some(Save { after: border - before, checkpoint });
    }
}
