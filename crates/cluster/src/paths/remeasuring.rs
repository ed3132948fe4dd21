//! Schedules measurements of a node's memory and arithmetic, and filters their results. A pure
//! state machine.
//!
//! The first measurement is at the start, which may have been a busy moment. Later ones run while
//! the node is idle: every minute, or less often if they would take more than a hundredth of a
//! core. A difference of a fifth is news once a second measurement confirms it. The nodes of one
//! machine, which may be a fleet started at once, measure one after the other, after they have met.

use std::time::Duration;

use placement::{Rates, Speed};

use crate::NodeId;

const EVERY: Duration = Duration::from_secs(60);
/// A fleet has met by then; earlier measurements would delay it.
const FLEET_MEETS: Duration = Duration::from_secs(3);
/// The range of the nodes' offsets.
const SPREAD: Duration = Duration::from_millis(2500);
/// Pause before a surprising result is measured again.
const CONFIRM_AFTER: Duration = Duration::from_secs(10);
/// Smaller differences are noise.
const DIFFERENCE_MIN: f64 = 0.2;
/// Of one core.
const LOAD_MAX: f64 = 0.01;

#[derive(Debug, Default)]
pub(crate) struct Remeasuring {
    /// Start of the running measurement.
    since: Option<Duration>,
    /// Whether the node has been idle during the whole measurement.
    is_undisturbed: bool,
    next_at: Duration,
    /// Delay of this node's measurements, different for each node.
    offset: Duration,
    believed: Option<Speed>,
    /// The last result, if it differs from `believed`.
    doubt: Option<Speed>,
}

impl Remeasuring {
    pub(crate) fn new(me: NodeId, is_of_fleet: bool) -> Self {
        let offset = SPREAD * u32::from(me.0[0]) / 256;
        let next_at = if is_of_fleet { FLEET_MEETS + offset } else { Duration::ZERO };
        Self { next_at, offset, ..Self::default() }
    }

    /// Advances the time; returns whether a measurement should begin.
    pub(crate) fn tick(&mut self, is_idle: bool, now: Duration) -> bool {
        self.is_undisturbed &= is_idle;
        let is_first = self.believed.is_none();
        if self.since.is_some() || now < self.next_at || !(is_idle || is_first) {
            return false;
        }
        (self.since, self.is_undisturbed) = (Some(now), is_idle);
        true
    }

    /// Records the result of a measurement with `threads` threads; returns it if other nodes need
    /// it.
    pub(crate) fn found(&mut self, found: Speed, threads: usize, now: Duration) -> Option<Speed> {
        let took = now.saturating_sub(self.since.take().unwrap_or(now));
        let pause = took.mul_f64(threads as f64 / LOAD_MAX).max(EVERY);
        self.next_at = now + pause + self.offset;
        let Some(believed) = self.believed else {
            self.believed = Some(found);
            return Some(found);
        };
        let doubt = self.doubt.take();
        if !self.is_undisturbed || !differs(&believed, &found) {
            return None;
        }
        if doubt.is_some_and(|doubt| !differs(&doubt, &found)) {
            self.believed = Some(found);
            return Some(found);
        }
        self.doubt = Some(found);
        self.next_at = now + CONFIRM_AFTER;
        None
    }
}

fn differs(a: &Speed, b: &Speed) -> bool {
    let rates = |rates: &Rates| {
        [rates.read_bytes_per_sec, rates.quantised_ops_per_sec, rates.float_ops_per_sec]
    };
    let all = |speed: &Speed| [rates(&speed.rates), rates(&speed.machine)].concat();
    let is_far = |(a, b): (f64, f64)| (b / a - 1.0).abs() > DIFFERENCE_MIN;
    all(a).into_iter().zip(all(b)).any(is_far)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(times: f64) -> Speed {
        let rates = Rates {
            read_bytes_per_sec: 1e10 * times,
            quantised_ops_per_sec: 2e11,
            float_ops_per_sec: 1e11,
        };
        Speed::alone(rates, 1e-6)
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Runs for `until` seconds with measurements of a fifth of a second, whose results `found`
    /// gives by time. Returns the start times and the reported results.
    fn run(
        until: u64,
        threads: usize,
        is_idle: impl Fn(u64) -> bool,
        found: impl Fn(u64) -> f64,
    ) -> (Vec<u64>, Vec<(u64, Speed)>) {
        let (mut machine, mut begun, mut told) = (Remeasuring::default(), Vec::new(), Vec::new());
        for at in 0..until {
            if machine.tick(is_idle(at), secs(at)) {
                begun.push(at);
                let now = secs(at) + Duration::from_millis(200);
                let news = machine.found(speed(found(at)), threads, now);
                told.extend(news.map(|news| (at, news)));
            }
        }
        (begun, told)
    }

    #[test]
    fn a_node_that_was_busy_at_its_start_is_known_better_soon() {
        let (begun, told) = run(200, 1, |_| true, |at| if at < 30 { 0.5 } else { 1.0 });
        assert_eq!(begun, [0, 61, 72, 133, 194]);
        assert_eq!(told, [(0, speed(0.5)), (72, speed(1.0))]);
    }

    #[test]
    fn what_passes_and_what_is_small_is_no_news() {
        let at_once = |at| if at == 61 { 0.5 } else { 1.0 };
        assert_eq!(run(200, 1, |_| true, at_once).1, [(0, speed(1.0))]);
        let slightly = |at| if at > 30 { 0.85 } else { 1.0 };
        assert_eq!(run(200, 1, |_| true, slightly).1, [(0, speed(1.0))]);
        // Two surprising results that contradict each other.
        let restless = |at: u64| 1.1_f64.powi(at as i32);
        assert_eq!(run(200, 1, |_| true, restless).1.len(), 1);
    }

    #[test]
    fn a_node_with_work_is_left_alone_but_at_its_start() {
        let (begun, told) = run(200, 1, |at| at > 150, |at| if at < 30 { 1.0 } else { 0.5 });
        assert_eq!((begun.as_slice(), told.len()), (&[0, 151, 162][..], 2));
        let mut machine = Remeasuring::default();
        machine.tick(true, secs(0));
        machine.found(speed(1.0), 1, secs(0));
        for begin in [100, 200] {
            assert!(machine.tick(true, secs(begin)));
            // Work arrives meanwhile, which explains the figures.
            machine.tick(false, secs(begin));
            assert_eq!(machine.found(speed(0.5), 1, secs(begin)), None);
        }
    }

    #[test]
    fn a_fleet_meets_first_and_measures_one_after_the_other() {
        let begins = |first: u8, is_of_fleet| {
            let mut machine = Remeasuring::new(NodeId([first; 32]), is_of_fleet);
            let at = (0..10_000).map(Duration::from_millis).find(|now| machine.tick(true, *now));
            let begun = at.unwrap();
            machine.found(speed(1.0), 1, begun);
            (begun.as_millis(), (machine.next_at - begun).as_millis())
        };
        assert_eq!(begins(0, false), (0, 60_000));
        assert_eq!(begins(128, false), (0, 61_250));
        assert_eq!(begins(128, true), (4250, 61_250));
    }

    #[test]
    fn many_threads_are_measured_more_seldom() {
        let (begun, _) = run(3600, 64, |_| true, |_| 1.0);
        // A fifth of a second with 64 threads is a hundredth of 1280 s.
        assert_eq!(begun, [0, 1281, 2562]);
    }
}
