//! The invitations of this node. Pure: time is an argument.
//!
//! They are kept in memory only: a restart invalidates all codes, which errs on the safe side.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::secrets::code::SECRET_BYTES;

/// Invitations at a time; users need no more than a few.
const INVITES_MAX: usize = 64;
/// How long a used or expired invitation is remembered, so that the refusal can name the reason.
const REMEMBER: Duration = Duration::from_secs(3600);
/// Wrong codes from one address in one window before all codes from it are refused for the rest of
/// the window. Codes from other addresses still work: with 80 secret bits, many addresses guess no
/// better.
const WRONG_TRIES_MAX: usize = 10;
const WRONG_TRIES_WINDOW: Duration = Duration::from_secs(60);
/// Remembered wrong tries, of all addresses.
const WRONG_TRIES_KEPT: usize = 1024;

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
    #[error("{WRONG_TRIES_MAX} wrong codes came from there within a minute. Try again in a minute")]
    TooManyTries,
}

#[derive(Debug, Default)]
pub(crate) struct Invites {
    entries: VecDeque<Entry>,
    wrong_tries: VecDeque<(Duration, IpAddr)>,
}

#[derive(Debug)]
struct Entry {
    /// BLAKE3 of the secret: a reader of this memory cannot join with it.
    hash: [u8; 32],
    expires_at: Duration,
    used: bool,
}

impl Invites {
    /// Adds an invitation; drops the oldest if there are too many.
    pub(crate) fn add(&mut self, secret: &[u8; SECRET_BYTES], ttl: Duration, now: Duration) {
        self.entries.retain(|entry| now < entry.expires_at + REMEMBER);
        if self.entries.len() == INVITES_MAX {
            self.entries.pop_front();
        }
        let hash = *blake3::hash(secret).as_bytes();
        self.entries.push_back(Entry { hash, expires_at: now.saturating_add(ttl), used: false });
    }

    /// Uses up an invitation. A used or expired code of this node is no guess, and does not count
    /// as a wrong one.
    ///
    /// # Errors
    /// The code is not valid, or too many wrong ones came from this address.
    pub(crate) fn redeem(
        &mut self,
        secret: &[u8],
        from: IpAddr,
        now: Duration,
    ) -> Result<(), Refusal> {
        while self.wrong_tries.front().is_some_and(|(at, _)| now >= *at + WRONG_TRIES_WINDOW) {
            self.wrong_tries.pop_front();
        }
        let wrong = self.wrong_tries.iter().filter(|(_, address)| *address == from).count();
        if wrong >= WRONG_TRIES_MAX {
            return Err(Refusal::TooManyTries);
        }
        match self.find(secret) {
            None => {
                if self.wrong_tries.len() == WRONG_TRIES_KEPT {
                    self.wrong_tries.pop_front();
                }
                self.wrong_tries.push_back((now, from));
                Err(Refusal::Unknown)
            }
            Some(entry) if entry.used => Err(Refusal::Used),
            Some(entry) if now >= entry.expires_at => Err(Refusal::Expired),
            Some(entry) => {
                entry.used = true;
                Ok(())
            }
        }
    }

    /// Makes a code valid again after a join that failed.
    pub(crate) fn give_back(&mut self, secret: &[u8]) {
        if let Some(entry) = self.find(secret) {
            entry.used = false;
        }
    }

    /// Compares with every entry, in time that does not depend on the matching one.
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
    use std::net::Ipv4Addr;

    use super::*;

    const TTL: Duration = Duration::from_secs(600);
    const SECOND: Duration = Duration::from_secs(1);
    const GOOD: [u8; SECRET_BYTES] = [1; SECRET_BYTES];
    const BAD: [u8; SECRET_BYTES] = [2; SECRET_BYTES];

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn invites() -> Invites {
        let mut invites = Invites::default();
        invites.add(&GOOD, TTL, Duration::ZERO);
        invites
    }

    #[test]
    fn a_code_works_once_and_in_time() {
        let mut invites = invites();
        assert_eq!(invites.redeem(&BAD, HERE, SECOND), Err(Refusal::Unknown));
        assert_eq!(invites.redeem(&GOOD, HERE, SECOND), Ok(()));
        assert_eq!(invites.redeem(&GOOD, HERE, SECOND), Err(Refusal::Used));
        invites.give_back(&GOOD);
        assert_eq!(invites.redeem(&GOOD, HERE, SECOND), Ok(()));
        assert_eq!(invites.redeem(&GOOD, HERE, SECOND), Err(Refusal::Used));
        invites.add(&BAD, TTL, SECOND);
        assert_eq!(invites.redeem(&BAD, HERE, SECOND + TTL), Err(Refusal::Expired));
    }

    #[test]
    fn guessing_is_slowed_down_for_a_minute() {
        let mut invites = invites();
        for _ in 0..WRONG_TRIES_MAX {
            assert_eq!(invites.redeem(&BAD, HERE, SECOND), Err(Refusal::Unknown));
        }
        assert_eq!(invites.redeem(&GOOD, HERE, 60 * SECOND), Err(Refusal::TooManyTries));
        assert_eq!(invites.redeem(&GOOD, HERE, 61 * SECOND), Ok(()));
    }

    #[test]
    fn who_guesses_keeps_nobody_else_out() {
        let mut invites = invites();
        for _ in 0..2 * WRONG_TRIES_MAX {
            let _ = invites.redeem(&BAD, HERE, SECOND);
        }
        assert_eq!(invites.redeem(&GOOD, HERE, SECOND), Err(Refusal::TooManyTries));
        assert_eq!(invites.redeem(&GOOD, THERE, SECOND), Ok(()));
        for at in 0..2 * WRONG_TRIES_KEPT as u32 {
            let _ = invites.redeem(&BAD, Ipv4Addr::from_bits(at).into(), SECOND);
        }
        assert_eq!(invites.wrong_tries.len(), WRONG_TRIES_KEPT);
    }

    #[test]
    fn a_used_or_expired_code_is_no_guess() {
        let mut invites = invites();
        invites.add(&BAD, Duration::ZERO, SECOND);
        assert_eq!(invites.redeem(&GOOD, HERE, SECOND), Ok(()));
        for _ in 0..2 * WRONG_TRIES_MAX {
            assert_eq!(invites.redeem(&GOOD, HERE, SECOND), Err(Refusal::Used));
            assert_eq!(invites.redeem(&BAD, HERE, SECOND), Err(Refusal::Expired));
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut invites = invites();
        for at in 0..3 * INVITES_MAX {
            let secret = std::array::from_fn(|byte| (at >> byte) as u8 | 0x80);
            invites.add(&secret, TTL, SECOND);
        }
        assert_eq!(invites.entries.len(), INVITES_MAX);
        assert_eq!(invites.redeem(&GOOD, HERE, SECOND), Err(Refusal::Unknown));
        invites.add(&GOOD, TTL, SECOND + TTL + REMEMBER);
        assert_eq!(invites.entries.len(), 1);
    }
}
