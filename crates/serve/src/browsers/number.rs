//! The number that a browser is paired by.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;

pub(super) const VALID: Duration = Duration::from_secs(300);
/// Of a million numbers: who guesses has one chance in 200,000 for each number that is shown.
pub(super) const TRIES_MAX: u32 = 5;

/// The number that is shown at the moment.
#[derive(Debug, Default)]
pub(crate) struct Browsers(Mutex<Option<Shown>>);

#[derive(Debug)]
struct Shown {
    number: String,
    until: Instant,
    tries_left: u32,
}

impl Browsers {
    /// A new number, instead of any before.
    pub(super) fn show(&self, number: String, now: Instant) {
        let shown = Shown { number, until: now + VALID, tries_left: TRIES_MAX };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
    }

    /// Whether this is the number; it ends if it is, or with the last try.
    pub(super) fn take(&self, number: &str, now: Instant) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shown) = held.as_mut().filter(|shown| now < shown.until) else {
            *held = None;
            return false;
        };
        let is_it = bool::from(shown.number.as_bytes().ct_eq(number.as_bytes()));
        shown.tries_left -= 1;
        if is_it || shown.tries_left == 0 {
            *held = None;
        }
        is_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_works_once_and_ends_by_time_and_by_tries() {
        let (browsers, now) = (Browsers::default(), Instant::now());
        assert!(!browsers.take("", now), "none is shown");
        browsers.show("012345".to_owned(), now);
        assert!(!browsers.take("12345", now));
        assert!(browsers.take("012345", now));
        assert!(!browsers.take("012345", now), "it worked once");
        browsers.show("1".to_owned(), now);
        assert!(!browsers.take("1", now + VALID), "it is late");
        browsers.show("1".to_owned(), now);
        for _ in 0..TRIES_MAX {
            assert!(!browsers.take("2", now));
        }
        assert!(!browsers.take("1", now), "it was guessed at too often");
    }
}
