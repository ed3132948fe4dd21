//! How the weights of a product with one row are asked for; [`super::tune()`] finds out what is
//! best.
//!
//! Such a product is bound by memory, and what fills a core's memory pipeline differs between
//! machines: an AMD Zen 5 wants four streams at once, each asked for 2 KB ahead; a Zen 4 reads a
//! third slower so, and wants one stream, asked for in the second-level cache or left to the
//! machine (NOTES.md has the figures). The choice changes no bit of a result.

use crate::simd::Simd;
use std::sync::OnceLock;

/// How one thread walks over weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    /// Panels that are read side by side: 1 or 4.
    pub streams: usize,
    /// Bytes between what is used and what is asked for; 0 leaves it to the machine.
    pub ahead: usize,
    /// Where it is asked for.
    pub level: Level,
}

/// A cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    L1,
    L2,
}

impl Level {
    /// Where the trial found that memory is best asked for.
    pub fn chosen() -> Self {
        Access::chosen().level
    }

    /// Asks for the cache line at `line`; any address will do.
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

/// What is tried, the one that is used without a trial first.
pub(super) const CANDIDATES: [Access; 5] = [
    Access { streams: 1, ahead: 1024, level: Level::L2 },
    Access { streams: 1, ahead: 0, level: Level::L2 },
    Access { streams: 1, ahead: 2048, level: Level::L1 },
    Access { streams: 4, ahead: 1024, level: Level::L2 },
    Access { streams: 4, ahead: 2048, level: Level::L1 },
];

/// What the trial found.
pub(super) static CHOSEN: OnceLock<Access> = OnceLock::new();

impl Access {
    /// The best of the trial, or the first candidate before one.
    pub fn chosen() -> Self {
        CHOSEN.get().copied().unwrap_or(CANDIDATES[0])
    }

    /// Asks for what lies `ahead` of the `bytes` bytes at `from`.
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
