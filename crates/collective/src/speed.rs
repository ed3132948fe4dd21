//! Chooses the algorithm of an all-reduce from the measured speed of the links.
//!
//! All ranks must make the same choice, so they measure together and use the slowest figures. The
//! model is the textbook's (latency plus bytes over bandwidth, Thakur, Rabenseifner and Gropp 2005)
//! with the additions, which decide between two ranks, where both algorithms carry the same bytes.

use std::time::Instant;

use crate::{Algorithm, CollectiveError, Group, ReducePlan};

/// Samples of each size; the fastest counts, because noise only ever adds.
const SAMPLES: usize = 3;

/// Exchanges of a sample, which is their mean. A rank that is ahead by the wire's latency waits
/// twice as long in one exchange and not at all in the next, so the fastest single one takes no
/// time.
const LATENCY_ROUNDS: usize = 10;
const BANDWIDTH_ROUNDS: usize = 4;

/// Floats of each rank in the exchange that measures bandwidth: 256 KiB, several slots of a link,
/// 2 ms over a gigabit.
const BANDWIDTH_FLOATS: usize = 64 * 1024;

/// Above this the exact bandwidth is not worth measuring: at 20 Mbit/s it would delay the start of
/// an epoch by over a second.
const SLOW_US: f64 = 20_000.0;

/// The additions of one core, in bytes of sums: measured with `sinew bench net`, where 64 KiB of
/// additions between two ranks are worth 1.5 us.
const ADD_BYTES_PER_US: f64 = 20_000.0;

/// Floats of one run; a long vector takes two phases in runs, one after the other. A rank's data
/// for 256 KiB (its parts, the received ones, the total) stays in the second-level cache.
const RUN_FLOATS: usize = 64 * 1024;

/// The time that a run saves: 4 MiB between two ranks took 1.36 ms whole and 0.71 ms in 16 runs.
const RUN_SAVES_US: f64 = 40.0;

/// The speed of the slowest link of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// One hop of an empty message between all ranks at once.
    pub latency_us: f64,
    /// The bytes that a rank sends to all others together.
    pub bytes_per_us: f64,
}

impl Group {
    /// Measures the links, all ranks together, in a few milliseconds, for [`Algorithm::Auto`]. A
    /// group of one returns `None`.
    ///
    /// # Errors
    /// As for any collective.
    pub fn measure(&mut self) -> Result<Option<Speed>, CollectiveError> {
        if self.ranks() == 1 {
            return Ok(None);
        }
        let latency_us = self.fastest_us(SAMPLES, LATENCY_ROUNDS, |group| group.barrier())?;
        let (ranks, own) = (self.ranks(), vec![0.0; BANDWIDTH_FLOATS]);
        let (lens, mut all) = (vec![own.len(); ranks], vec![0.0; ranks * own.len()]);
        let mut gather = |group: &mut Group| group.all_gather(&own, &lens, &mut all);
        // The first one also warms up new connections.
        let mut gather_us = self.fastest_us(2, 1, &mut gather)?;
        if self.slowest(gather_us)? < SLOW_US {
            gather_us = self.fastest_us(SAMPLES, BANDWIDTH_ROUNDS, &mut gather)?;
        }
        let latency_max_us = self.slowest(latency_us)?;
        let bytes_us = self.slowest((gather_us - latency_us).max(0.01))?;
        let bytes = (4 * BANDWIDTH_FLOATS * (ranks - 1)) as f64;
        let speed = Speed { latency_us: latency_max_us, bytes_per_us: bytes / bytes_us };
        self.speed = Some(speed);
        Ok(Some(speed))
    }

    /// The largest of all ranks' figures: the answer must be the same for all, and the collective
    /// is as fast as its slowest rank.
    fn slowest(&mut self, us: f64) -> Result<f64, CollectiveError> {
        let ranks = self.ranks();
        let mut all = vec![0.0; ranks];
        self.all_gather(&[us as f32], &vec![1; ranks], &mut all)?;
        Ok(f64::from(all.into_iter().fold(0.0, f32::max)))
    }

    fn fastest_us(
        &mut self,
        samples: usize,
        rounds: usize,
        mut act: impl FnMut(&mut Group) -> Result<(), CollectiveError>,
    ) -> Result<f64, CollectiveError> {
        let mut fastest_us = f64::INFINITY;
        for _ in 0..samples {
            let started = Instant::now();
            (0..rounds).try_for_each(|_| act(self))?;
            fastest_us = fastest_us.min(started.elapsed().as_secs_f64() * 1e6 / rounds as f64);
        }
        Ok(fastest_us)
    }

    /// The algorithm for a vector of `len`, the same on all ranks.
    pub(crate) fn choose(&self, plan: &ReducePlan, len: usize) -> Algorithm {
        if self.is_sparse() {
            return Algorithm::Ring;
        }
        match (self.options().algorithm, self.speed) {
            (Algorithm::Auto, _) if self.ranks() == 1 => Algorithm::OneShot,
            (Algorithm::Auto, Some(speed)) => speed.fastest(plan, 4 * len),
            (Algorithm::Auto, None) if 4 * len >= self.options().two_phase_bytes_min => {
                Algorithm::TwoPhase
            }
            (Algorithm::Auto, None) => Algorithm::OneShot,
            (forced, _) => forced,
        }
    }

    /// The length of a run of a vector of `len`, the same on all ranks.
    pub(crate) fn run_len(&self, len: usize) -> usize {
        match self.speed {
            Some(speed) if speed.is_worth_runs() => RUN_FLOATS.min(len),
            _ => len,
        }
    }
}

impl Speed {
    /// Whether a run saves more than its two hops take.
    fn is_worth_runs(&self) -> bool {
        2.0 * self.latency_us < RUN_SAVES_US
    }

    /// The faster of the two direct algorithms for a vector of `bytes`.
    fn fastest(&self, plan: &ReducePlan, bytes: usize) -> Algorithm {
        let (ranks, bytes) = (plan.ranks() as f64, bytes as f64);
        let parts = (0..plan.ranks()).map(|rank| plan.parts(rank)).max().unwrap_or(0) as f64;
        let (send_us, add_us) = (bytes / self.bytes_per_us, bytes / ADD_BYTES_PER_US);
        let adds_us = plan.parts_total() as f64 * add_us;
        let one_shot_us = self.latency_us + (ranks - 1.0) * parts * send_us + adds_us;
        let two_phase_us = 2.0 * self.latency_us
            + (ranks - 1.0) / ranks * (parts + 1.0) * send_us
            + adds_us / ranks;
        if one_shot_us <= two_phase_us { Algorithm::OneShot } else { Algorithm::TwoPhase }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_for_fast_links_alone() {
        for (latency_us, expected) in [(0.5, true), (8.0, true), (50.0, false)] {
            let speed = Speed { latency_us, bytes_per_us: 10_000.0 };
            assert_eq!(speed.is_worth_runs(), expected, "{latency_us} us");
        }
    }

    #[test]
    fn small_vectors_take_one_hop_and_long_ones_few_bytes() {
        let shared_memory = Speed { latency_us: 0.5, bytes_per_us: 10_000.0 };
        let crowded = Speed { latency_us: 3.0, bytes_per_us: 10_000.0 };
        let gigabit = Speed { latency_us: 100.0, bytes_per_us: 110.0 };
        for (speed, ranks, one_shot_max, two_phase_min) in [
            (shared_memory, 2, 8 << 10, 64 << 10),
            (crowded, 8, 1 << 10, 16 << 10),
            (gigabit, 2, 256 << 10, 8 << 20),
            (gigabit, 4, 4 << 10, 64 << 10),
        ] {
            let spans: Vec<_> =
                (0..ranks).map(|rank| 16 * rank / ranks..16 * (rank + 1) / ranks).collect();
            let plan = ReducePlan::new(16, &spans).unwrap();
            let chosen = [one_shot_max, two_phase_min].map(|bytes| speed.fastest(&plan, bytes));
            assert_eq!(chosen, [Algorithm::OneShot, Algorithm::TwoPhase], "{speed:?} {ranks}");
        }
    }
}
