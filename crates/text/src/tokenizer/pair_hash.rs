//! A fast hash for pairs of token ids, which are looked up millions of times a second.

use std::hash::{BuildHasher, Hasher, RandomState};

/// An odd number without a pattern: the fraction of the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Multiplies and folds. The random key keeps a hostile list of merges from aiming at collisions.
#[derive(Debug, Clone)]
pub(super) struct PairHasher {
    key: u64,
}

pub(super) struct PairState {
    state: u64,
}

impl Default for PairHasher {
    fn default() -> Self {
        Self { key: RandomState::new().hash_one(MULTIPLIER) }
    }
}

impl BuildHasher for PairHasher {
    type Hasher = PairState;

    fn build_hasher(&self) -> PairState {
        PairState { state: self.key }
    }
}

impl PairState {
    fn add(&mut self, number: u64) {
        let product = u128::from(self.state ^ number) * u128::from(MULTIPLIER);
        self.state = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for PairState {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.add(u64::from(number));
    }

    fn finish(&self) -> u64 {
        self.state
    }
}
