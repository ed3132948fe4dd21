//! The clocks of this machine that all its processes share, which `Instant` does not promise.

#[cfg(unix)]
pub(crate) use platform::{monotonic_ns, with_sleep_ms};
#[cfg(windows)]
pub(crate) use win32::clock::{monotonic_ns, with_sleep_ms};

#[cfg(unix)]
mod platform {
    use rustix::time::{ClockId, clock_gettime};

    /// Nanoseconds since some moment before this process.
    pub(crate) fn monotonic_ns() -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    }

    /// Milliseconds since some moment before this process; goes on while the machine sleeps.
    pub(crate) fn with_sleep_ms() -> u64 {
        #[cfg(target_os = "linux")]
        let id = ClockId::Boottime;
        // On macOS this clock goes on while the machine sleeps.
        #[cfg(not(target_os = "linux"))]
        let id = ClockId::Monotonic;
        let now = clock_gettime(id);
        (now.tv_sec as u64).wrapping_mul(1000).wrapping_add(now.tv_nsec as u64 / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The inner clock cannot have advanced further than the one that is read around it.
    #[test]
    fn both_advance_as_time_does() {
        let (ms, ns, start) = (with_sleep_ms(), monotonic_ns(), Instant::now());
        std::thread::sleep(Duration::from_millis(60));
        let passed = start.elapsed().as_nanos() as u64;
        let ns = monotonic_ns() - ns;
        let ms = with_sleep_ms() - ms;
        assert!(ns >= passed, "{ns} {passed}");
        // A tick of the slowest clock takes 16 ms.
        assert!(ns <= (ms + 17) * 1_000_000, "{ns} {ms}");
    }
}
