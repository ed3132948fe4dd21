//! The number that a browser is paired by.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;

pub(super) const VALID: Duration = Duration::from_secs(300);
/// Of a million numbers: who guesses has one chance in 200,000 for each number that is shown.
pub(super) const TRIES_MAX: u32 = 5;

/// The number that is shown at the moment.
#[derive(Debug, Default)]
pub(crate) struct Browsers {
    shown: Mutex<Option<Shown>>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Shown {
    number: String,
    /// It is for a browser of somebody else than the owner.
    is_guests: bool,
    until: Instant,
    tries_left: u32,
}

impl Browsers {
    /// Waits until no other browser's number is looked for on members.
    pub(super) async fn turn(&self) -> impl Drop + '_ {
        self.turn.lock().await
    }

    /// A new number, instead of any before.
    pub(super) fn show(&self, number: String, is_guests: bool, now: Instant) {
        let shown = Shown { number, is_guests, until: now + VALID, tries_left: TRIES_MAX };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
    }

    /// `Some` if this is the number; true if it is for a guest's browser. The number ends then, or
    /// with the last try.
    pub(super) fn take(&self, number: &str, now: Instant) -> Option<bool> {
        let mut held = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shown) = held.as_mut().filter(|shown| now < shown.until) else {
            *held = None;
            return None;
        };
        let is_guests = shown.is_guests;
        let is_it = bool::from(shown.number.as_bytes().ct_eq(number.as_bytes()));
        shown.tries_left -= 1;
        if is_it || shown.tries_left == 0 {
            *held = None;
        }
        is_it.then_some(is_guests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_works_once_and_ends_by_time_and_by_tries() {
        let (browsers, now) = (Browsers::default(), Instant::now());
        assert_eq!(browsers.take("", now), None, "none is shown");
        browsers.show("012345".to_owned(), false, now);
        assert_eq!(browsers.take("12345", now), None);
        assert_eq!(browsers.take("012345", now), Some(false));
        assert_eq!(browsers.take("012345", now), None, "it worked once");
        browsers.show("012345".to_owned(), true, now);
        assert_eq!(browsers.take("012345", now), Some(true), "it is a guest's");
        browsers.show("1".to_owned(), false, now);
        assert_eq!(browsers.take("1", now + VALID), None, "it is late");
        browsers.show("1".to_owned(), false, now);
        for _ in 0..TRIES_MAX {
            assert_eq!(browsers.take("2", now), None);
        }
        assert_eq!(browsers.take("1", now), None, "it was guessed at too often");
    }
}
