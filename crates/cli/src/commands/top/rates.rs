//! Computes rates from successive statuses: tokens per second, and the parts of a step's time.
//! Nodes report running totals, which restart with every epoch.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use cluster::{ClusterStatus, InstanceStatus};

/// Time over which a rate is averaged: long enough to be steady, short enough to be current.
const WINDOW: Duration = Duration::from_secs(4);
const KEPT: Duration = Duration::from_secs(60);

/// Microseconds of a step: a rank's computation, its waits for others, and the time between two
/// steps.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepTime {
    pub compute_us: f64,
    pub wait_us: f64,
    pub between_us: f64,
}

#[derive(Debug, Clone)]
struct Sample {
    at: Instant,
    epoch: u64,
    generated: u64,
    steps: u64,
    ranks: Vec<Option<[u64; 3]>>,
}

/// Samples of each instance's totals, the oldest first, and the last minute of the whole.
#[derive(Debug, Default)]
pub struct Rates {
    samples: HashMap<String, VecDeque<Sample>>,
    /// Tokens per second of the whole cluster, once for each status.
    pub history: VecDeque<f64>,
}

impl Rates {
    pub fn observe(&mut self, status: &ClusterStatus, now: Instant) {
        self.samples.retain(|id, _| status.instances.iter().any(|one| one.id == *id));
        for instance in &status.instances {
            let samples = self.samples.entry(instance.id.clone()).or_default();
            let sample = sample(instance, now);
            let goes_on = match (samples.back(), &sample) {
                (Some(last), Some(next)) => {
                    last.epoch == next.epoch && last.generated <= next.generated
                }
                _ => false,
            };
            if !goes_on {
                samples.clear();
            }
            samples.extend(sample);
            while samples.front().is_some_and(|first| now - first.at > KEPT) {
                samples.pop_front();
            }
        }
        let total = status.instances.iter().filter_map(|one| self.tokens_per_sec(&one.id)).sum();
        self.history.push_back(total);
        if self.history.len() > KEPT.as_secs() as usize {
            self.history.pop_front();
        }
    }

    /// The present tokens per second of an instance; `None` before there are enough samples.
    pub fn tokens_per_sec(&self, id: &str) -> Option<f64> {
        let samples = self.samples.get(id)?;
        let last = samples.back()?;
        let old = samples.iter().rev().find(|sample| last.at - sample.at >= WINDOW);
        let first = old.or(samples.front())?;
        let secs = (last.at - first.at).as_secs_f64();
        (secs > 0.0).then(|| (last.generated - first.generated) as f64 / secs)
    }

    /// The parts of each rank's step time: over the last minute if there were steps, else since the
    /// epoch's beginning.
    pub fn step_times(&self, id: &str) -> Vec<Option<StepTime>> {
        let Some(samples) = self.samples.get(id) else { return Vec::new() };
        let (Some(first), Some(last)) = (samples.front(), samples.back()) else {
            return Vec::new();
        };
        let since = Some(first).filter(|first| last.steps > first.steps);
        let steps = (last.steps - since.map_or(0, |first| first.steps)) as f64;
        if steps == 0.0 {
            return vec![None; last.ranks.len()];
        }
        let time = |(rank, now): (usize, &Option<[u64; 3]>)| {
            let now = (*now)?;
            let before = match since {
                Some(first) => (*first.ranks.get(rank)?)?,
                None => [0; 3],
            };
            let per = |at: usize| now[at].saturating_sub(before[at]) as f64 / steps;
            Some(StepTime { compute_us: per(0), wait_us: per(1), between_us: per(2) })
        };
        last.ranks.iter().enumerate().map(time).collect()
    }
}

fn sample(instance: &InstanceStatus, at: Instant) -> Option<Sample> {
    let stats = instance.stats.as_ref()?;
    let ranks = instance.ranks.iter().map(|rank| {
        let stats = rank.stats.as_ref()?;
        Some([stats.compute_us, stats.exchange_wait_us, stats.step_wait_us])
    });
    Some(Sample {
        at,
        epoch: instance.epoch,
        generated: stats.generated_tokens,
        steps: stats.steps.count,
        ranks: ranks.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(epoch: u64, generated: u64, compute_us: u64) -> ClusterStatus {
        let id = "11".repeat(32);
        serde_json::from_value(json!({
            "node": id, "nodes": [], "instances": [{
                "id": "i-1", "model": "m", "owner": id, "state": {"state": "ready"},
                "epoch": epoch, "context_tokens": 512, "transport": "tcp",
                "requests_running": 1, "last_decode_tokens_per_sec": null,
                "stats": {"generated_tokens": generated, "steps": {"count": generated}},
                "ranks": [{
                    "rank": 0, "node": id, "node_name": "a", "pid": 1, "share": 1,
                    "loaded_bytes": 1, "total_bytes": 1, "kv_bytes": 1,
                    "stats": {"compute_us": compute_us, "exchange_wait_us": generated},
                }],
            }],
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_of_the_last_seconds_and_begin_anew_with_an_epoch() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        rates.observe(&status(1, 100, 5_000), at(0));
        assert_eq!(rates.tokens_per_sec("i-1"), None);
        // Earlier totals count until there are newer samples.
        let time = rates.step_times("i-1")[0].unwrap();
        assert_eq!((time.compute_us, time.wait_us), (50.0, 1.0));
        for second in 1..=10 {
            rates.observe(&status(1, 100 + 20 * second, 5_000 + 2_000 * second), at(second));
        }
        assert_eq!(rates.tokens_per_sec("i-1"), Some(20.0));
        assert_eq!(rates.step_times("i-1")[0].unwrap().compute_us, 100.0);
        rates.observe(&status(2, 3, 10), at(11));
        assert_eq!(rates.tokens_per_sec("i-1"), None);
        assert_eq!(rates.history.len(), 12);
        let mut gone = status(2, 3, 10);
        gone.instances.clear();
        rates.observe(&gone, at(12));
        assert!(rates.step_times("i-1").is_empty());
    }
}
