//! Measures the times of a rank, for its worker's reports.

use std::time::{Duration, Instant};

use collective::Group;
use link::{LinkInfo, Transport};
use protocol::{LinkStats, RankStats};

use crate::processor_time::ProcessorTime;

/// The shortest interval of reports. A rank without work for this long is idle, which does not
/// count as waiting for others.
pub(crate) const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// The times of one rank in one epoch.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    steps: u64,
    compute: Duration,
    exchange_wait: Duration,
    step_wait: Duration,
    /// The time of the last report, and its number of steps.
    told: Option<(Instant, u64)>,
    /// The processor time of its process at the last report.
    before: Option<ProcessorTime>,
}

impl Meter {
    pub fn start() -> Self {
        Self { before: ProcessorTime::of_this_process(), ..Self::default() }
    }

    /// Counts a step with its duration, of which `waited` was spent in collectives.
    pub fn step(&mut self, took: Duration, waited: Duration) {
        self.steps += 1;
        self.compute += took.saturating_sub(waited);
        self.exchange_wait += waited;
    }

    /// Adds the wait between two steps.
    pub fn wait_for_step(&mut self, wait: Duration) {
        self.step_wait += wait;
    }

    /// The measurements, if there were steps and a report is due.
    pub fn due(&mut self, group: &Group, now: Instant) -> Option<RankStats> {
        let (told_at, told_steps) = self.told.unzip();
        let is_early = told_at.is_some_and(|at| now < at + TELL_INTERVAL);
        if is_early || told_steps.unwrap_or(0) == self.steps {
            return None;
        }
        self.told = Some((now, self.steps));
        let link = |(traffic, info): (collective::Traffic, LinkInfo)| LinkStats {
            peer: traffic.peer,
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
            is_rdma: info.transport == Transport::Rdma,
        };
        let now = self.before.and_then(|_| ProcessorTime::of_this_process());
        let had = now.zip(self.before).map(|(now, before)| now.since(before));
        let us = |time: Duration| time.as_micros() as u64;
        Some(RankStats {
            compute_us: us(self.compute),
            exchange_wait_us: us(self.exchange_wait),
            step_wait_us: us(self.step_wait),
            exchange_ns: group.speed().map(|speed| (speed.latency_us * 1e3) as u64),
            link_bytes_per_sec: group.speed().map(|speed| (speed.bytes_per_us * 1e6) as u64),
            ran_us: had.map_or(0, |had| us(had.ran)),
            starved_us: had.map_or(0, |had| us(had.starved)),
            links: group.traffic().zip(group.links()).map(link).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use collective::Options;

    use super::*;

    #[test]
    fn it_is_told_once_a_second_and_only_after_steps() {
        let group = Group::new(0, Vec::new(), Arc::new(AtomicBool::new(false)), Options::default());
        let (group, mut meter, start) = (group.unwrap(), Meter::default(), Instant::now());
        let ms = Duration::from_millis;
        assert_eq!(meter.due(&group, start), None);
        meter.step(ms(10), ms(3));
        meter.wait_for_step(ms(5));
        let told = meter.due(&group, start).unwrap();
        let times = [told.compute_us, told.exchange_wait_us, told.step_wait_us];
        assert_eq!(times, [7_000, 3_000, 5_000]);
        meter.step(ms(1), ms(2));
        assert_eq!(meter.due(&group, start + ms(999)), None);
        let told = meter.due(&group, start + ms(1000)).unwrap();
        assert_eq!([told.compute_us, told.exchange_wait_us], [7_000, 5_000]);
        assert_eq!(meter.due(&group, start + ms(9000)), None, "nothing has happened");
    }
}
