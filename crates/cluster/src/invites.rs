//! The invitations that this node has given out. Pure: time is an argument.
//!
//! In memory only: a restart makes all codes void, which errs on the safe side.

use std::collections::VecDeque;
use std::time::Duration;

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::invite::SECRET_BYTES;

/// Invitations at a time; nobody types in more than a few.
const INVITES_MAX: usize = 64;
/// How long a used or expired one is remembered, to say so instead of "unknown".
const REMEMBER: Duration = Duration::from_secs(3600);
/// Wrong codes in one window before all are refused until it has passed.
const WRONG_TRIES_MAX: usize = 10;
const WRONG_TRIES_WINDOW: Duration = Duration::from_secs(60);

/// Why a code was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "this code is unknown here. The node may have restarted since it was made; ask for a new \
         one"
    )]
    Unknown,
    #[error("this code has been used already; each lets one machine join. Ask for a new one")]
    Used,
    #[error("this code has expired. Ask for a new one")]
    Expired,
    #[error("{WRONG_TRIES_MAX} wrong codes came within a minute. Try again in a minute")]
    TooManyTries,
}

#[derive(Debug, Default)]
pub(crate) struct Invites {
    entries: VecDeque<Entry>,
    wrong_tries: VecDeque<Duration>,
}

#[derive(Debug)]
struct Entry {
    /// BLAKE3 of the secret: who reads this memory cannot join with it.
    hash: [u8; 32],
    expires_at: Duration,
    used: bool,
}

impl Invites {
    /// Notes a new invitation; the oldest is forgotten if there are too many.
    pub(crate) fn add(&mut self, secret: &[u8; SECRET_BYTES], ttl: Duration, now: Duration) {
        self.entries.retain(|entry| now < entry.expires_at + REMEMBER);
        if self.entries.len() == INVITES_MAX {
            self.entries.pop_front();
        }
        let hash = *blake3::hash(secret).as_bytes();
        self.entries.push_back(Entry { hash, expires_at: now.saturating_add(ttl), used: false });
    }

    /// Uses an invitation up.
    ///
    /// # Errors
    /// It cannot be used, or too many wrong ones came.
    pub(crate) fn redeem(&mut self, secret: &[u8], now: Duration) -> Result<(), Refusal> {
        while self.wrong_tries.front().is_some_and(|at| now >= *at + WRONG_TRIES_WINDOW) {
            self.wrong_tries.pop_front();
        }
        if self.wrong_tries.len() >= WRONG_TRIES_MAX {
            return Err(Refusal::TooManyTries);
        }
        let outcome = match self.find(secret) {
            None => Err(Refusal::Unknown),
            Some(entry) if entry.used => Err(Refusal::Used),
            Some(entry) if now >= entry.expires_at => Err(Refusal::Expired),
            Some(entry) => {
                entry.used = true;
                Ok(())
            }
        };
        if outcome.is_err() {
            self.wrong_tries.push_back(now);
        }
        outcome
    }

    /// Compares with every entry, in time that does not depend on which one matches.
    fn find(&mut self, secret: &[u8]) -> Option<&mut Entry> {
        let hash = *blake3::hash(secret).as_bytes();
        let mut found = u32::MAX;
        for (at, entry) in (0u32..).zip(&self.entries) {
            let equal: Choice = entry.hash.ct_eq(&hash);
            found.conditional_assign(&at, equal);
        }
        self.entries.get_mut(found as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(600);
    const SECOND: Duration = Duration::from_secs(1);
    const GOOD: [u8; SECRET_BYTES] = [1; SECRET_BYTES];
    const BAD: [u8; SECRET_BYTES] = [2; SECRET_BYTES];

    fn invites() -> Invites {
        let mut invites = Invites::default();
        invites.add(&GOOD, TTL, Duration::ZERO);
        invites
    }

    #[test]
    fn a_code_works_once_and_in_time() {
        let mut invites = invites();
        assert_eq!(invites.redeem(&BAD, SECOND), Err(Refusal::Unknown));
        assert_eq!(invites.redeem(&GOOD, SECOND), Ok(()));
        assert_eq!(invites.redeem(&GOOD, SECOND), Err(Refusal::Used));
        invites.add(&BAD, TTL, SECOND);
        assert_eq!(invites.redeem(&BAD, SECOND + TTL), Err(Refusal::Expired));
    }

    #[test]
    fn guessing_is_slowed_down_for_a_minute() {
        let mut invites = invites();
        for _ in 0..WRONG_TRIES_MAX {
            assert_eq!(invites.redeem(&BAD, SECOND), Err(Refusal::Unknown));
        }
        assert_eq!(invites.redeem(&GOOD, 60 * SECOND), Err(Refusal::TooManyTries));
        assert_eq!(invites.redeem(&GOOD, 61 * SECOND), Ok(()));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut invites = invites();
        for at in 0..3 * INVITES_MAX {
            let secret = std::array::from_fn(|byte| (at >> byte) as u8 | 0x80);
            invites.add(&secret, TTL, SECOND);
        }
        assert_eq!(invites.entries.len(), INVITES_MAX);
        assert_eq!(invites.redeem(&GOOD, SECOND), Err(Refusal::Unknown));
        invites.add(&GOOD, TTL, SECOND + TTL + REMEMBER);
        assert_eq!(invites.entries.len(), 1);
    }
}
