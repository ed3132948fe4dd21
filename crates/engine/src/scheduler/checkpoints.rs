//! Which copies of states are kept: each is the state of a text up to the end of a page, from which
//! others that begin with the same text can go on.
//!
//! There is a fixed number of them on every rank. One is given up when its page is, or when another
//! is wanted and it was used longest ago. A step that is being planned may read and write
//! checkpoints at once, in no order: what it reads is kept until the next one is planned.

use super::pages::PageId;

pub(super) type CheckpointId = usize;

#[derive(Debug, Clone, Copy, Default)]
struct Checkpoint {
    /// It holds the state at the end of this page; `None` for a free one.
    page: Option<PageId>,
    used: u64,
    /// The step being planned reads or writes it.
    is_busy: bool,
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

    /// The one at the end of `page`.
    pub fn at(&self, page: PageId) -> Option<CheckpointId> {
        self.all.iter().position(|one| one.page == Some(page))
    }

    /// A new step is planned.
    pub fn start_step(&mut self) {
        self.all.iter_mut().for_each(|one| one.is_busy = false);
    }

    /// The step reads it.
    pub fn read(&mut self, id: CheckpointId) {
        self.touch(id);
    }

    /// One that the step writes at the end of `page`: `last`, if the caller wants that one replaced
    /// and it is still where it was, a free one, or the one that was used longest ago. `None` if
    /// the step uses all.
    pub fn write(
        &mut self,
        page: PageId,
        last: Option<(CheckpointId, PageId)>,
    ) -> Option<CheckpointId> {
        let is_last = |id: usize, page| self.all[id].page == Some(page) && !self.all[id].is_busy;
        let last = last.filter(|(id, page)| is_last(*id, *page)).map(|(id, _)| id);
        let idle = self.all.iter().enumerate().filter(|(_, one)| !one.is_busy);
        let oldest = idle.min_by_key(|(_, one)| (one.page.is_some(), one.used));
        let id = last.or(oldest.map(|(id, _)| id))?;
        self.all[id].page = Some(page);
        self.touch(id);
        Some(id)
    }

    /// What was at the end of `page` is of no use any more.
    pub fn forget(&mut self, page: PageId) {
        if let Some(id) = self.at(page) {
            self.all[id].page = None;
        }
    }

    fn touch(&mut self, id: CheckpointId) {
        self.clock += 1;
        (self.all[id].used, self.all[id].is_busy) = (self.clock, true);
    }

    /// The pages that have one.
    #[cfg(test)]
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
    }
}
