//! vLLM's metrics of the times of all requests (its `benchmarks/serve.py`).
//!
//! TTFT: from sending a request to its first text. TPOT: (end to end - TTFT) / (tokens - 1), of
//! each request with two or more tokens. ITL: each gap between two pieces of text, of all requests.
//! E2EL: to the last event. Throughputs are totals over the whole wall time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::args::{Goal, GoalTime};
use super::server::{Outcome, Sample};

/// The reported percentiles.
pub const PERCENTILES: [u32; 2] = [90, 99];

#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    pub duration_secs: f64,
    pub completed: usize,
    pub failed: usize,
    pub total_input: usize,
    pub total_output: usize,
    /// Requests that met all goals; absent without goals.
    pub good: Option<usize>,
    pub ttft: Spread,
    pub tpot: Spread,
    pub itl: Spread,
    pub e2el: Spread,
    pub errors: Vec<ErrorCount>,
}

/// The number of requests that failed with the same text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ErrorCount {
    pub count: usize,
    pub text: String,
}

/// A distribution, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spread {
    pub mean: f64,
    pub median: f64,
    pub std: f64,
    /// As in [`PERCENTILES`].
    pub percentiles: [f64; PERCENTILES.len()],
}

impl Metrics {
    pub fn new(duration: Duration, outcomes: &[Outcome], goals: &[Goal]) -> Self {
        let samples: Vec<&Sample> = outcomes.iter().filter_map(|one| one.as_ref().ok()).collect();
        let spread = |times: Vec<Duration>| Spread::new(times.into_iter().map(ms).collect());
        let good = samples.iter().filter(|sample| is_good(sample, goals)).count();
        Self {
            duration_secs: duration.as_secs_f64(),
            completed: samples.len(),
            failed: outcomes.len() - samples.len(),
            total_input: samples.iter().filter_map(|sample| sample.prompt_tokens).sum(),
            total_output: samples.iter().map(|sample| sample.output_tokens).sum(),
            good: (!goals.is_empty()).then_some(good),
            ttft: spread(samples.iter().map(|sample| sample.first_token).collect()),
            tpot: spread(samples.iter().filter_map(|sample| per_output_token(sample)).collect()),
            itl: spread(samples.iter().flat_map(|sample| sample.gaps.clone()).collect()),
            e2el: spread(samples.iter().map(|sample| sample.end_to_end).collect()),
            errors: count_errors(outcomes),
        }
    }

    /// Rate of a count over the whole run.
    pub fn per_sec(&self, count: usize) -> f64 {
        count as f64 / self.duration_secs
    }
}

impl Spread {
    fn new(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self {
            mean,
            median: percentile(&values, 50),
            std: variance.sqrt(),
            percentiles: PERCENTILES.map(|percent| percentile(&values, percent)),
        }
    }
}

/// Interpolates between the two nearest ranks, as numpy does. `sorted` is not empty.
fn percentile(sorted: &[f64], percent: u32) -> f64 {
    let at = (sorted.len() - 1) as f64 * f64::from(percent) / 100.0;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

fn per_output_token(sample: &Sample) -> Option<Duration> {
    let after_first = u32::try_from(sample.output_tokens).ok()?.checked_sub(1)?;
    (sample.end_to_end.saturating_sub(sample.first_token)).checked_div(after_first)
}

fn is_good(sample: &Sample, goals: &[Goal]) -> bool {
    goals.iter().all(|goal| {
        let time = match goal.time {
            GoalTime::FirstToken => sample.first_token,
            GoalTime::PerOutputToken => per_output_token(sample).unwrap_or_default(),
            GoalTime::EndToEnd => sample.end_to_end,
        };
        ms(time) <= goal.ms_max
    })
}

fn count_errors(outcomes: &[Outcome]) -> Vec<ErrorCount> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for error in outcomes.iter().filter_map(|one| one.as_ref().err()) {
        *counts.entry(error).or_default() += 1;
    }
    let count = |(text, count): (&str, usize)| ErrorCount { count, text: text.to_owned() };
    counts.into_iter().map(count).collect()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(first_ms: u64, end_ms: u64, tokens: usize, gaps_ms: &[u64]) -> Outcome {
        let ms = Duration::from_millis;
        Ok(Sample {
            first_token: ms(first_ms),
            end_to_end: ms(end_ms),
            gaps: gaps_ms.iter().map(|gap| ms(*gap)).collect(),
            prompt_tokens: Some(100),
            output_tokens: tokens,
        })
    }

    #[test]
    fn figures_are_those_of_vllm() {
        let outcomes = [
            sample(100, 500, 5, &[100, 100, 100, 100]),
            sample(300, 500, 3, &[50, 150]),
            sample(200, 200, 1, &[]),
            Err("busy".to_owned()),
            Err("busy".to_owned()),
        ];
        let goals = ["ttft:250".parse().unwrap(), "tpot:100".parse().unwrap()];
        let metrics = Metrics::new(Duration::from_secs(2), &outcomes, &goals);
        assert_eq!((metrics.completed, metrics.failed, metrics.good), (3, 2, Some(2)));
        assert_eq!((metrics.total_input, metrics.total_output), (300, 9));
        assert_eq!(metrics.per_sec(metrics.total_output), 4.5);
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} {want}");
        close(metrics.ttft.mean, 200.0);
        close(metrics.ttft.median, 200.0);
        close(metrics.ttft.std, (20_000.0_f64 / 3.0).sqrt());
        close(metrics.ttft.percentiles[0], 280.0);
        close(metrics.ttft.percentiles[1], 298.0);
        // (500 - 100) / 4 and (500 - 300) / 2; one token has no time per output token.
        close(metrics.tpot.mean, 100.0);
        close(metrics.itl.mean, 100.0);
        close(metrics.e2el.mean, 400.0);
        assert_eq!(metrics.errors, [ErrorCount { count: 2, text: "busy".to_owned() }]);
    }

    #[test]
    fn nothing_measured_is_no_figure_of_nothing() {
        let metrics = Metrics::new(Duration::from_secs(1), &[], &[]);
        assert_eq!((metrics.completed, metrics.good), (0, None));
        assert_eq!(metrics.ttft, Spread::default());
    }
}
