//! Whether a worker's step hangs: it takes so much longer than all before that the device, or its
//! driver, is to blame. Until then the thread that writes events tells the daemon that the process
//! lives, so that a long step does not look like a frozen one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two signs of life of a worker that has nothing else to tell.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// No step of a model that answers people takes so long, on whatever machine.
const STEP_MIN: Duration = Duration::from_secs(120);
/// Nor so many times the longest that this worker has run.
const STEP_FACTOR: u32 = 20;

#[derive(Debug, Clone, Default)]
pub(crate) struct Pulse(Arc<Mutex<Steps>>);

#[derive(Debug, Default)]
struct Steps {
    /// Since when the present one runs.
    since: Option<Instant>,
    longest: Duration,
}

impl Pulse {
    /// Runs a step.
    pub fn step<T>(&self, run: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        self.steps().since = Some(started);
        let done = run();
        let mut steps = self.steps();
        steps.since = None;
        steps.longest = steps.longest.max(started.elapsed());
        done
    }

    /// Why the present step is not waited for any more.
    pub fn hangs(&self, now: Instant) -> Option<String> {
        let steps = self.steps();
        let took = now.saturating_duration_since(steps.since?);
        let limit = STEP_MIN.max(steps.longest * STEP_FACTOR);
        (took >= limit).then(|| {
            format!(
                "a step has taken {} s, and the longest before it took {:.1} s: what computes it, \
                 or the driver, hangs",
                took.as_secs(),
                steps.longest.as_secs_f64()
            )
        })
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_hangs_when_it_takes_much_longer_than_all_before() {
        let (pulse, now) = (Pulse::default(), Instant::now());
        assert_eq!(pulse.hangs(now + STEP_MIN * 9), None, "no step runs");
        let after = |secs| pulse.step(|| pulse.hangs(Instant::now() + Duration::from_secs(secs)));
        assert_eq!(after(119), None);
        assert!(after(121).unwrap().contains("a step has taken 121 s"));
        pulse.steps().longest = Duration::from_secs(30);
        assert_eq!(after(599), None, "slow machines");
        assert!(after(601).unwrap().contains("the longest before it took 30.0 s"));
    }
}
