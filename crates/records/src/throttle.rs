//! A ceiling of bytes per second.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lets bytes pass at a rate: as a disk does that is no faster.
pub(crate) struct Throttle {
    /// 0: no ceiling.
    bytes_per_sec: AtomicU64,
    state: Mutex<State>,
    opened: Condvar,
}

struct State {
    /// When everything that was let in has passed.
    until: Instant,
    is_open: bool,
}

impl Throttle {
    pub fn new(bytes_per_sec: Option<u64>) -> Self {
        let throttle = Self {
            bytes_per_sec: AtomicU64::new(0),
            state: Mutex::new(State { until: Instant::now(), is_open: false }),
            opened: Condvar::new(),
        };
        throttle.set(bytes_per_sec);
        throttle
    }

    pub fn set(&self, bytes_per_sec: Option<u64>) {
        self.bytes_per_sec.store(bytes_per_sec.map_or(0, |rate| rate.max(1)), Relaxed);
    }

    /// Sleeps until `bytes` more have passed.
    pub fn take(&self, bytes: usize) {
        let rate = self.bytes_per_sec.load(Relaxed);
        if rate == 0 {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let until = state.until.max(now) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        state.until = until;
        while !state.is_open {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.opened.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets everything pass from now on, also those that sleep.
    pub fn open(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_open = true;
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_rate_passes() {
        let throttle = Throttle::new(Some(1 << 20));
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| throttle.take(16 << 10));
            }
        });
        // 64 KiB at 1 MiB/s take a sixteenth of a second, on however busy a machine.
        assert!(start.elapsed() >= Duration::from_secs_f64(1.0 / 16.0));
    }

    #[test]
    fn an_opened_throttle_holds_nobody() {
        let throttle = Throttle::new(Some(1));
        std::thread::scope(|scope| {
            scope.spawn(|| throttle.take(1 << 30));
            throttle.open();
        });
        throttle.set(None);
        throttle.take(1 << 40);
    }
}
