//! The content of caches as bytes.

use super::Cpu;
use crate::Place;

/// A rank without heads has no bytes.
pub(super) fn of(place: Place<'_, Cpu>, number: u32) -> &mut [u8] {
    match place {
        Place::Page(kv) => kv.as_mut().map_or(&mut [], |kv| kv.page_mut(number)),
        Place::Entries(entries) => entries.as_mut().map_or(&mut [], |own| own.page_mut(number)),
        Place::Rows(entries) => entries.as_mut().map_or(&mut [], |own| own.rows_mut(number)),
        Place::Checkpoint(states) => states.checkpoint_mut(number),
    }
}
