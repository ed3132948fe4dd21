//! The memory access pattern for the weights of a product with one row; [`super::tune()`] finds the
//! best one.
//!
//! Such a product is bound by memory, and the best pattern differs between machines: an AMD Zen 5
//! wants four streams at once, each prefetched 2 KB ahead; a Zen 4 is a third slower with that, and
//! wants one stream, prefetched into the second-level cache or left to the machine (NOTES.md has
//! the figures). The choice changes no bit of a result.

use crate::simd::Simd;
use std::sync::OnceLock;

/// The access pattern of one thread over weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    /// Panels read side by side: 1 or 4.
    pub streams: usize,
    /// The distance of prefetching in bytes; 0 leaves it to the machine.
    pub ahead: usize,
    /// The target cache of prefetching.
    pub level: Level,
}

/// A cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    L1,
    L2,
}

impl Level {
    /// The best cache level of the trial.
    pub fn chosen() -> Self {
        Access::chosen().level
    }

    /// Prefetches the cache line at `line`; any address is allowed.
    #[inline(always)]
    pub fn fetch<S: Simd>(self, s: S, line: *const u8) {
        match self {
            Level::L1 => s.prefetch(line),
            Level::L2 => s.prefetch_l2(line),
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// The candidates of the trial; the first is used without a trial.
pub(super) const CANDIDATES: [Access; 5] = [
    Access { streams: 1, ahead: 1024, level: Level::L2 },
    Access { streams: 1, ahead: 0, level: Level::L2 },
    Access { streams: 1, ahead: 2048, level: Level::L1 },
    Access { streams: 4, ahead: 1024, level: Level::L2 },
    Access { streams: 4, ahead: 2048, level: Level::L1 },
];

/// The result of the trial.
pub(super) static CHOSEN: OnceLock<Access> = OnceLock::new();

impl Access {
    /// The best candidate of the trial, or the first before one.
    pub fn chosen() -> Self {
        CHOSEN.get().copied().unwrap_or(CANDIDATES[0])
    }

    /// Prefetches the bytes at the distance `ahead` of the `bytes` bytes at `from`.
    #[inline(always)]
    pub fn fetch<S: Simd>(self, s: S, from: *const u8, bytes: usize) {
        if self.ahead == 0 {
            return;
        }
        for line in 0..bytes.div_ceil(LINE) {
            self.level.fetch(s, from.wrapping_add(self.ahead + line * LINE));
        }
    }
}
