//! Copies of states: each is the state at the end of a page, from which other texts with the same
//! beginning can continue.
//!
//! Every rank has the same fixed number of them. A checkpoint is freed with its page, or replaced
//! as the least recently used one. The step being planned may read and write several, in any order:
//! a checkpoint it reads is kept until the next step is planned.

use super::page_id::PageId;

pub(super) type CheckpointId = usize;

#[derive(Debug, Clone, Copy, Default)]
struct Checkpoint {
    /// The page whose end it holds; `None` for a free one.
    page: Option<PageId>,
    used: u64,
    /// Whether the step being planned reads or writes it.
    is_busy: bool,
    /// Whether ranks fill it from disk: until it is [filled](Checkpoints::fill), it is nobody's.
    is_reserved: bool,
}

#[derive(Debug)]
pub(super) struct Checkpoints {
    all: Vec<Checkpoint>,
    /// Counts uses.
    clock: u64,
}

impl Checkpoints {
    pub fn new(count: usize) -> Self {
        Self { all: vec![Checkpoint::default(); count], clock: 0 }
    }

    /// The checkpoint at the end of `page`.
    pub fn at(&self, page: PageId) -> Option<CheckpointId> {
        self.all.iter().position(|one| one.page == Some(page))
    }

    /// Starts the plan of a new step.
    pub fn start_step(&mut self) {
        self.all.iter_mut().for_each(|one| one.is_busy = false);
    }

    /// Marks it as read by the step.
    pub fn read(&mut self, id: CheckpointId) {
        self.touch(id);
    }

    /// A checkpoint for the step to write at the end of `page`: `last`, if the caller wants to
    /// replace it and its page is unchanged, else a free one, or the least recently used. `None` if
    /// the step uses all.
    pub fn write(
        &mut self,
        page: PageId,
        last: Option<(CheckpointId, PageId)>,
    ) -> Option<CheckpointId> {
        let is_last = |id: usize, page| self.all[id].page == Some(page) && !self.all[id].is_busy;
        let last = last.filter(|(id, page)| is_last(*id, *page)).map(|(id, _)| id);
        let id = last.or_else(|| self.oldest())?;
        self.all[id].page = Some(page);
        self.touch(id);
        Some(id)
    }

    /// A checkpoint for ranks to fill from disk; `None` if the step uses all.
    pub fn reserve(&mut self) -> Option<CheckpointId> {
        let id = self.oldest()?;
        self.all[id] = Checkpoint { is_reserved: true, ..Checkpoint::default() };
        Some(id)
    }

    /// The reserved checkpoint holds the state at the end of `page`; `None`: it holds nothing.
    pub fn fill(&mut self, id: CheckpointId, page: Option<PageId>) {
        let page = page.filter(|page| self.at(*page).is_none());
        self.clock += 1;
        self.all[id] = Checkpoint { page, used: self.clock, ..Checkpoint::default() };
    }

    /// A free checkpoint, or the least recently used.
    fn oldest(&self) -> Option<CheckpointId> {
        let idle = self.all.iter().enumerate().filter(|(_, one)| !one.is_busy && !one.is_reserved);
        idle.min_by_key(|(_, one)| (one.page.is_some(), one.used)).map(|(id, _)| id)
    }

    /// Frees the checkpoint at the end of `page`.
    pub fn forget(&mut self, page: PageId) {
        if let Some(id) = self.at(page) {
            self.all[id].page = None;
        }
    }

    fn touch(&mut self, id: CheckpointId) {
        self.clock += 1;
        (self.all[id].used, self.all[id].is_busy) = (self.clock, true);
    }

    /// The pages with a checkpoint.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        self.all.iter().filter_map(|one| one.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_used_longest_ago_goes_and_none_that_the_step_uses() {
        let mut all = Checkpoints::new(3);
        let ids: Vec<_> = (0..3).map(|page| all.write(page, None).unwrap()).collect();
        assert_eq!(ids, [0, 1, 2]);
        assert_eq!(all.write(3, None), None, "the step writes all of them");
        all.start_step();
        all.read(0);
        assert_eq!(all.write(3, None), Some(1));
        assert_eq!((all.at(0), all.at(1), all.at(3)), (Some(0), None, Some(1)));
        all.start_step();
        assert_eq!(all.write(4, Some((1, 3))), Some(1), "the caller's last one is replaced");
        assert_eq!(all.write(5, Some((1, 3))), Some(2), "it is another's by now");
        all.forget(0);
        all.start_step();
        assert_eq!(all.write(6, None), Some(0), "a free one comes first");
        all.start_step();
        let reserved = all.reserve().unwrap();
        assert!((0..3).all(|page| all.at(page) != Some(reserved)), "nobody's");
        all.start_step();
        let others: Vec<_> = (7..10).map(|page| all.write(page, None)).collect();
        assert!(others[..2].iter().all(|id| *id != Some(reserved)) && others[2].is_none());
        all.fill(reserved, Some(7));
        assert_ne!(all.at(7), Some(reserved), "it has one");
        all.start_step();
        assert_eq!(all.write(11, None), Some(reserved), "so it is free");
    }
}
