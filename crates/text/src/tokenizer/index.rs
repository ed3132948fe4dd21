//! Maps a token's bytes to its id, without a second copy of the bytes.

use std::hash::{BuildHasher, RandomState};

use super::vocab::Pieces;

const EMPTY: u32 = u32::MAX;

/// An open-addressing table of ids. The keyed hash of the standard library keeps a hostile
/// vocabulary from aiming at collisions.
pub(super) struct Index {
    slots: Vec<u32>,
    hasher: RandomState,
}

impl Index {
    /// Indexes the tokens `ids` of `pieces`; of several with the same bytes the first wins. Also
    /// returns the number of duplicates.
    pub(super) fn new(pieces: &Pieces, ids: impl Iterator<Item = u32>) -> (Self, usize) {
        // At most half full, so that runs stay short.
        let slots = vec![EMPTY; (pieces.len() * 2).next_power_of_two().max(2)];
        let mut index = Self { slots, hasher: RandomState::new() };
        let mut duplicates = 0;
        for id in ids {
            let slot = index.slot(pieces, pieces.get(id));
            match index.slots[slot] {
                EMPTY => index.slots[slot] = id,
                _ => duplicates += 1,
            }
        }
        (index, duplicates)
    }

    pub(super) fn find(&self, pieces: &Pieces, bytes: &[u8]) -> Option<u32> {
        let id = self.slots[self.slot(pieces, bytes)];
        (id != EMPTY).then_some(id)
    }

    /// The slot of `bytes`, used or free.
    fn slot(&self, pieces: &Pieces, bytes: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(bytes) as usize & mask;
        while self.slots[slot] != EMPTY && pieces.get(self.slots[slot]) != bytes {
            slot = (slot + 1) & mask;
        }
        slot
    }
}
