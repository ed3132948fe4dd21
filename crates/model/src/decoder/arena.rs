//! The buffers of a rank, by name.

use backend::Backend;
use layout::Buffers;

/// All buffers of the list by which the rank's memory was planned. Each part takes its own.
pub(super) struct Arena<B: Backend> {
    buffers: Vec<(&'static str, usize, B::Rows)>,
    chosen: Option<B::Chosen>,
    /// Bytes on the device.
    pub bytes: u64,
}

impl<B: Backend> Arena<B> {
    pub fn new(backend: &mut B, plan: &Buffers) -> Self {
        let made = plan.list.iter().map(|buffer| {
            let rows = backend.rows(plan.rows_of(buffer), buffer.width);
            (buffer.name, buffer.at, rows)
        });
        let buffers: Vec<_> = made.collect();
        let bytes = buffers.iter().map(|(_, _, rows)| backend.rows_bytes(rows) as u64).sum::<u64>();
        let sizes = plan.choices.map(|choices| (plan.rows, choices.groups, choices.pages));
        let of_choices =
            sizes.map_or(0, |(rows, groups, pages)| backend.chosen_bytes(rows, groups, pages));
        let chosen = sizes.map(|(rows, groups, pages)| backend.chosen(rows, groups, pages));
        Self { buffers, chosen, bytes: bytes + of_choices as u64 }
    }

    /// The buffer with this name and index, if the model has it.
    pub fn find(&mut self, name: &str, at: usize) -> Option<B::Rows> {
        let place = self.buffers.iter().position(|(own, index, _)| (*own, *index) == (name, at))?;
        Some(self.buffers.swap_remove(place).2)
    }

    /// The buffer with this name that every model has.
    pub fn take(&mut self, name: &str) -> B::Rows {
        self.find(name, 0).unwrap_or_else(|| panic!("no buffer {name} was planned"))
    }

    /// The choices of an indexer.
    pub fn chosen(&mut self) -> Option<B::Chosen> {
        self.chosen.take()
    }

    /// Checks that each buffer was taken: a planned one that nothing uses would waste its memory.
    pub fn end(self) {
        let left: Vec<&str> = self.buffers.iter().map(|(name, ..)| *name).collect();
        assert!(left.is_empty() && self.chosen.is_none(), "planned and not used: {left:?}");
    }
}
