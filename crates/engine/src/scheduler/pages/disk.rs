//! Pages whose content comes from disk, or goes there.

use super::super::checkpoints::{CheckpointId, Checkpoints};
use super::super::keeping::Keeping;
use super::super::page_id::PageId;
use super::Pages;
use crate::page_orders::PageOrder;
use crate::prompt_store::Shelf;

impl Pages {
    /// The rank's disk, if prompts are kept there.
    pub fn shelf(&self) -> Option<&dyn Shelf> {
        self.keeping.as_ref().map(Keeping::shelf)
    }

    /// Whether all ranks keep prompts; `None` while they have not said so.
    pub fn is_kept(&self) -> Option<bool> {
        match &self.keeping {
            Some(keeping) => keeping.is_agreed().then_some(true),
            None => Some(false),
        }
    }

    /// Takes note of whether all ranks keep prompts. If one does not, none is of use.
    pub fn agree(&mut self, do_all: bool) {
        match &mut self.keeping {
            Some(keeping) if do_all => keeping.agree(),
            keeping => *keeping = None,
        }
    }

    /// A number for a text to read from disk.
    pub fn next_fetch(&mut self) -> u64 {
        self.keeping.as_mut().map_or(0, Keeping::next_fetch)
    }

    /// The state at the end of a page, which a step of before saves, is worth keeping.
    pub fn want_state(&mut self, page: PageId) {
        self.keeping.iter_mut().for_each(|keeping| keeping.want_state(page));
    }

    /// Whether pages can be written down now.
    pub fn has_due(&self) -> bool {
        self.keeping.as_ref().is_some_and(|keeping| keeping.is_due(0))
    }

    /// Orders to write down what is due, at most `most`.
    pub fn plan_keeps(&mut self, keeps: &mut Vec<PageOrder>, most: usize) {
        while let Some(keeping) = self.keeping.as_mut()
            && keeps.len() < most
            && keeping.is_due(keeps.len())
            && let Some(due) = keeping.next()
        {
            let Some(tokens) = self.known.full(due.page) else { continue };
            let mut order = PageOrder::new(due.key, *tokens);
            if due.content {
                order.page = Some(due.page);
                order.window = self.window_page(due.page);
            }
            if due.state {
                let checkpoint = self.checkpoints.as_ref().and_then(|all| all.at(due.page));
                order.checkpoint = checkpoint.map(|checkpoint| checkpoint as u32);
            }
            keeps.push(order);
        }
    }

    /// Whether layers carry a state.
    pub fn has_states(&self) -> bool {
        self.checkpoints.is_some()
    }

    /// Whether the state at the end of a page can be had.
    pub fn has_checkpoint(&self, page: PageId) -> bool {
        self.checkpoints.as_ref().is_some_and(|all| all.at(page).is_some())
    }

    /// A checkpoint for ranks to fill from disk.
    pub fn reserve_checkpoint(&mut self) -> Option<CheckpointId> {
        self.checkpoints.as_mut().and_then(Checkpoints::reserve)
    }

    /// Ranks have filled the checkpoint with the state at the end of a page; `None`: they have not.
    pub fn fill_checkpoint(&mut self, id: CheckpointId, page: Option<PageId>) {
        self.checkpoints.iter_mut().for_each(|all| all.fill(id, page));
    }
}
