//! Detects a hanging step: it takes much longer than all earlier ones, so the device or its driver
//! is at fault. Until then the writer thread reports to the daemon that the process lives, so that
//! a long step does not look like a frozen process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The interval between signs of life of an otherwise silent worker.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// Far longer than a step of any useful model, on any machine.
const STEP_MIN: Duration = Duration::from_secs(120);
/// A hanging step also exceeds the worker's longest step by this factor.
const STEP_FACTOR: u32 = 20;

#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    started: Instant,
    steps: Arc<Steps>,
}

/// Times in microseconds, written by the computing thread.
#[derive(Debug, Default)]
struct Steps {
    /// The start of the current step plus one, since the worker started; 0 if none runs.
    since: AtomicU64,
    longest: AtomicU64,
}

impl Pulse {
    pub fn new() -> Self {
        Self { started: Instant::now(), steps: Arc::default() }
    }

    /// Runs a step.
    pub fn step<T>(&self, run: impl FnOnce() -> T) -> T {
        let began = self.elapsed(Instant::now());
        self.steps.since.store(began + 1, Ordering::Relaxed);
        let done = run();
        self.steps.since.store(0, Ordering::Relaxed);
        let took = self.elapsed(Instant::now()) - began;
        self.steps.longest.fetch_max(took, Ordering::Relaxed);
        done
    }

    /// Why the current step counts as hanging, if it does.
    pub fn hangs(&self, now: Instant) -> Option<String> {
        let since = self.steps.since.load(Ordering::Relaxed).checked_sub(1)?;
        let took = Duration::from_micros(self.elapsed(now).saturating_sub(since));
        let longest = Duration::from_micros(self.steps.longest.load(Ordering::Relaxed));
        (took >= STEP_MIN.max(longest * STEP_FACTOR)).then(|| {
            format!(
                "a step has taken {} s, and the longest before it took {:.1} s: what computes it, \
                 or the driver, hangs",
                took.as_secs(),
                longest.as_secs_f64()
            )
        })
    }

    fn elapsed(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_hangs_when_it_takes_much_longer_than_all_before() {
        let (pulse, now) = (Pulse::new(), Instant::now());
        assert_eq!(pulse.hangs(now + STEP_MIN * 9), None, "no step runs");
        let after = |secs| pulse.step(|| pulse.hangs(Instant::now() + Duration::from_secs(secs)));
        assert_eq!(after(119), None);
        assert!(after(121).unwrap().contains("a step has taken 121 s"));
        pulse.steps.longest.store(30_000_000, Ordering::Relaxed);
        assert_eq!(after(599), None, "slow machines");
        assert!(after(601).unwrap().contains("the longest before it took 30.0 s"));
    }
}
