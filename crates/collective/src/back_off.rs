//! The waiting of a rank: it polls hard while an answer is a wire's latency away, then sleeps
//! between polls. Ranks that share a core yield to each other before they sleep.
//!
//! A rank with its own core never yields. On a machine with other users, a thread that yields
//! goes behind all of them for a time slice, longer than a token, while a thread that sleeps is
//! woken ahead of them. Beside one busy loop, two ranks on two cores make 48 tokens/s with yields
//! and 272 without (`benches/busy_machine.py`, 2026-11-24).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::CollectiveError;

/// A spinning rank reads the clock and the abort flag once in this many polls: that costs 30 ns, a
/// poll of shared memory 5.
const POLLS_PER_LOOK: u32 = 16;

/// How long ranks that share a core yield between polls before they sleep. Longer is slower: four
/// ranks on two cores make 441 tokens/s with this, 412 with ten times this.
const YIELD_MAX: Duration = Duration::from_micros(100);

/// The sleep between two polls: a twentieth of the time already waited, within these bounds.
/// Systems add to it; Linux 50 us.
const NAP_MIN: Duration = Duration::from_micros(5);
const NAP_MAX: Duration = Duration::from_millis(1);

/// The interval at which a waiting rank checks the ranks that it does not wait for.
const CHECK: Duration = Duration::from_millis(100);

/// The interval at which an idle rank reads the abort flag. Data and a lost root wake it at once.
pub(crate) const IDLE_LOOK: Duration = Duration::from_millis(5);

/// One wait; [`reset`](BackOff::reset) whenever something has moved.
pub(crate) struct BackOff<'a> {
    abort: &'a AtomicBool,
    spin: Duration,
    polls: u32,
    started: Option<Instant>,
    /// The total time of earlier waits.
    ended: Duration,
    /// The time without progress, as of the last look at the clock.
    waited: Duration,
    /// The time waited at which all links are checked next.
    check_at: Duration,
}

/// The phase of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Polls again at once.
    Spinning,
    /// Lets another thread run between polls, where ranks share a core.
    Yielding,
    /// The caller should sleep, for [`BackOff::nap`] if it has no better limit.
    Sleeping,
}

impl<'a> BackOff<'a> {
    pub fn new(abort: &'a AtomicBool, spin: Duration) -> Self {
        BackOff {
            abort,
            spin,
            polls: 0,
            started: None,
            ended: Duration::ZERO,
            waited: Duration::ZERO,
            check_at: CHECK,
        }
    }

    /// Starts a new wait after progress.
    pub fn reset(&mut self) {
        let ended = self.total();
        *self = BackOff { ended, ..BackOff::new(self.abort, self.spin) };
    }

    /// The time without progress in all waits. A wait that spins counts from its first look at the
    /// clock to its last, a microsecond less than it took, so that counting needs no extra look.
    pub fn total(&self) -> Duration {
        match self.started {
            None => self.ended,
            Some(_) if self.phase() == Phase::Spinning => self.ended + self.waited,
            Some(started) => self.ended + started.elapsed(),
        }
    }

    /// The time without progress, as of the last look at the clock.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Pauses once between two empty polls. An error if the abort flag is up.
    pub fn pause(&mut self) -> Result<Phase, CollectiveError> {
        self.polls = self.polls.wrapping_add(1);
        let mut phase = self.phase();
        if phase != Phase::Spinning || self.polls.is_multiple_of(POLLS_PER_LOOK) {
            if self.abort.load(Ordering::Relaxed) {
                return Err(CollectiveError::Aborted);
            }
            self.waited = self.started.get_or_insert_with(Instant::now).elapsed();
            phase = self.phase();
        }
        match phase {
            Phase::Spinning => std::hint::spin_loop(),
            Phase::Yielding => std::thread::yield_now(),
            Phase::Sleeping => {}
        }
        Ok(phase)
    }

    /// Whether it is time to check all links, including those of ranks that it does not wait for.
    pub fn is_check_due(&mut self) -> bool {
        let is_due = self.waited >= self.check_at;
        if is_due {
            self.check_at = self.waited + CHECK;
        }
        is_due
    }

    /// A sleep that adds little to an already long wait.
    pub fn nap(&self) -> Duration {
        (self.waited / 20).clamp(NAP_MIN, NAP_MAX)
    }

    fn phase(&self) -> Phase {
        if self.waited < self.spin {
            Phase::Spinning
        } else if self.spin.is_zero() && self.waited < YIELD_MAX {
            Phase::Yielding
        } else {
            Phase::Sleeping
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_goes_from_spinning_to_sleeping_and_anew_after_a_reset() {
        let abort = AtomicBool::new(false);
        let spin = Duration::from_micros(200);
        let mut back_off = BackOff::new(&abort, spin);
        for _ in 0..2 {
            let mut phase = back_off.pause().unwrap();
            assert_eq!(phase, Phase::Spinning);
            while phase == Phase::Spinning {
                phase = back_off.pause().unwrap();
            }
            assert_eq!(phase, Phase::Sleeping, "a core of its own is not given away");
            assert!(back_off.waited() >= spin);
            assert!((NAP_MIN..=NAP_MAX).contains(&back_off.nap()));
            back_off.reset();
            assert_eq!(back_off.waited(), Duration::ZERO);
        }
    }

    #[test]
    fn all_waits_are_counted_together() {
        let abort = AtomicBool::new(false);
        let mut back_off = BackOff::new(&abort, Duration::ZERO);
        assert_eq!(back_off.total(), Duration::ZERO);
        let mut least = Duration::ZERO;
        for _ in 0..2 {
            while back_off.pause().unwrap() != Phase::Sleeping {}
            std::thread::sleep(NAP_MAX);
            least += YIELD_MAX + NAP_MAX;
            assert!(back_off.total() >= least, "the last nap counts");
            back_off.reset();
            assert!(back_off.total() >= least, "what has ended counts");
        }
        back_off.reset();
        let total = back_off.total();
        back_off.reset();
        assert_eq!(back_off.total(), total, "what did not wait does not");
    }

    #[test]
    fn all_links_are_looked_at_now_and_then() {
        let abort = AtomicBool::new(false);
        let mut back_off = BackOff::new(&abort, Duration::ZERO);
        let mut due_after = |waited| {
            back_off.waited = waited;
            [back_off.is_check_due(), back_off.is_check_due()]
        };
        assert_eq!(due_after(CHECK / 2), [false, false]);
        assert_eq!(due_after(CHECK), [true, false]);
        assert_eq!(due_after(5 * CHECK), [true, false]);
    }

    #[test]
    fn ranks_that_share_a_core_yield_before_they_sleep_and_abort_ends_every_phase() {
        let abort = AtomicBool::new(false);
        let mut back_off = BackOff::new(&abort, Duration::ZERO);
        assert_eq!(back_off.pause(), Ok(Phase::Yielding));
        while back_off.pause().unwrap() == Phase::Yielding {}
        assert!(back_off.waited() >= YIELD_MAX);
        abort.store(true, Ordering::Relaxed);
        assert_eq!(back_off.pause(), Err(CollectiveError::Aborted));
        let mut spinning = BackOff::new(&abort, Duration::from_secs(9));
        let ended = (0..=POLLS_PER_LOOK).find_map(|_| spinning.pause().err());
        assert_eq!(ended, Some(CollectiveError::Aborted));
    }
}
