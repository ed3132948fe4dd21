//! The processor time that this process wanted and did not get: other programs used it, or a limit
//! (a container's, for example) was reached. The rank itself cannot distinguish such time from work
//! or from waiting for others; the system counts it.

use std::fs;
use std::time::Duration;

/// Sums over all live threads, since each started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessorTime {
    pub ran: Duration,
    /// Ready to run, but not running.
    pub starved: Duration,
}

impl ProcessorTime {
    /// `None` if the system does not report it.
    pub fn of_this_process() -> Option<Self> {
        let threads = fs::read_dir("/proc/self/task").ok()?;
        let counts = threads.filter_map(|thread| {
            counted(&fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?)
        });
        counts.reduce(|a, b| Self { ran: a.ran + b.ran, starved: a.starved + b.starved })
    }

    /// The difference to an earlier measurement.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(earlier.ran),
            starved: self.starved.saturating_sub(earlier.starved),
        }
    }
}

/// Nanoseconds on a processor, and in its queue; then the number of runs.
fn counted(line: &str) -> Option<ProcessorTime> {
    let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
    let mut next = || numbers.next()?.map(Duration::from_nanos);
    Some(ProcessorTime { ran: next()?, starved: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_counts_is_read() {
        let time = counted("5000000 7000000 12\n").unwrap();
        assert_eq!((time.ran.as_millis(), time.starved.as_millis()), (5, 7));
        assert!(counted("").is_none() && counted("5 x 1").is_none());
        let earlier = counted("6000000 1000000 1").unwrap();
        assert_eq!(time.since(earlier), counted("0 6000000 1").unwrap());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_that_computes_has_run() {
        let Some(before) = ProcessorTime::of_this_process() else { return };
        // The system may count in ticks.
        let begun = std::time::Instant::now();
        let mut ran = Duration::ZERO;
        while ran.is_zero() && begun.elapsed() < Duration::from_secs(60) {
            let sum: u64 = (0..20_000_000).fold(0, |sum: u64, n| std::hint::black_box(sum ^ n));
            std::hint::black_box(sum);
            ran = ProcessorTime::of_this_process().unwrap().since(before).ran;
        }
        assert!(ran > Duration::ZERO);
    }
}
