//! Sends requests at their times, with a limit on concurrent ones.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::server::Outcome;

/// The due time of each request, and the limit of requests in flight.
pub struct Load {
    due: Vec<Duration>,
    threads: usize,
}

impl Load {
    /// `rate`: requests a second of a Poisson process, drawn with the seed; infinity makes all due
    /// at once.
    pub fn new(requests: usize, threads: usize, rate: f64, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut at_secs = 0.0;
        let mut due = Vec::with_capacity(requests);
        for _ in 0..requests {
            due.push(Duration::from_secs_f64(at_secs));
            // Gaps of a Poisson process are exponential; 1 - u is never 0.
            at_secs += -(1.0 - random.f64()).ln() / rate;
        }
        Self { due, threads }
    }

    /// Calls `ask` for each request from its own thread when it is due and a thread is free.
    /// Returns the time from the start to the last end, and the outcomes by request.
    pub fn drive(&self, ask: impl Fn(usize) -> Outcome + Sync) -> (Duration, Vec<Outcome>) {
        let next = AtomicUsize::new(0);
        let outcomes = Mutex::new(Vec::with_capacity(self.due.len()));
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(due) = self.due.get(number) else { return };
                        std::thread::sleep(due.saturating_sub(start.elapsed()));
                        let outcome = ask(number);
                        outcomes.lock().expect("no holder panics").push((number, outcome));
                    }
                });
            }
        });
        let duration = start.elapsed();
        let mut outcomes = outcomes.into_inner().expect("no holder panics");
        outcomes.sort_unstable_by_key(|(number, _)| *number);
        (duration, outcomes.into_iter().map(|(_, outcome)| outcome).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_on_average_and_a_seed_repeats_it() {
        let load = Load::new(10_001, 1, 100.0, 7);
        let last = load.due.last().unwrap().as_secs_f64();
        assert!((90.0..110.0).contains(&last), "10,000 gaps of 10 ms took {last} s");
        assert!(load.due.is_sorted());
        assert_eq!(load.due, Load::new(10_001, 1, 100.0, 7).due);
        assert!(Load::new(9, 1, f64::INFINITY, 7).due.iter().all(Duration::is_zero));
    }

    #[test]
    fn never_more_at_once_than_asked_and_every_request_once() {
        let (at_once, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (_, outcomes) = Load::new(40, 3, f64::INFINITY, 1).drive(|number| {
            most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
            at_once.fetch_sub(1, Ordering::SeqCst);
            Err(number.to_string())
        });
        assert!(most.into_inner() <= 3);
        let numbers: Vec<String> = outcomes.into_iter().map(Result::unwrap_err).collect();
        assert_eq!(numbers, (0..40).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}
