use serde::{Deserialize, Serialize};

/// The work of rank 0 since its epoch began, and its present load: a snapshot, sent at most once a
/// second. Counters start at zero again with every epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineStats {
    /// Requests in the steps, and requests that wait.
    pub running: usize,
    pub waiting: usize,
    pub pages: PageStats,
    /// Tokens of prompts that were looked up in the cache, and those that were found.
    pub prefix_queried_tokens: u64,
    pub prefix_hit_tokens: u64,
    /// Preemptions: a running request gave its pages to another one, to be replayed later.
    pub preemptions: u64,
    /// Computed tokens of prompts, without replayed and cached ones.
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// Steps of an answer with speculated tokens, and the tokens in them.
    pub guess_steps: u64,
    pub guess_rows: u64,
    /// Speculated tokens that were compared (those after a wrong one are not), and the accepted
    /// ones: in all, and the first, second and later ones of a step.
    pub guessed_tokens: u64,
    pub guessed_right_tokens: u64,
    pub guessed_right_at: Vec<u64>,
    pub steps: StepStats,
    /// What rank 0 keeps on disk; absent: nothing.
    pub prompts: Option<PromptStats>,
    /// Rank 0's experts, if it reads some from disk.
    pub experts: Option<ExpertStats>,
}

/// The experts of one rank that are read from disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExpertStats {
    /// What they take of memory, and may take.
    pub memory_bytes: u64,
    pub budget_bytes: u64,
    /// Uses that found their expert in memory, and those that did not.
    pub hits: u64,
    pub misses: u64,
    pub read_bytes: u64,
    /// Time in which the disk had work.
    pub read_us: u64,
    /// Time of steps that waited for the disk with nothing to compute.
    pub wait_us: u64,
}

/// Prompts on the disk of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptStats {
    pub budget_bytes: u64,
    pub disk_bytes: u64,
    /// Bytes written since the start, and on the last day (UTC) with any.
    pub written_bytes: u64,
    pub written_last_day_bytes: u64,
    /// Tokens that were read instead of computed.
    pub loaded_tokens: u64,
    /// Records that did not open: they are computed again.
    pub damaged: u64,
}

/// Speculated tokens of one answer that were compared, and the accepted ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guesses {
    pub tried: u64,
    pub right: u64,
}

impl ExpertStats {
    /// The part of uses that found their expert in memory, from 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// The difference of counts to an earlier snapshot.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            read_us: self.read_us.saturating_sub(earlier.read_us),
            wait_us: self.wait_us.saturating_sub(earlier.wait_us),
            ..*self
        }
    }
}

impl EngineStats {
    /// Counts a guess that was tried, `at` in its step.
    pub fn note_guess(&mut self, at: usize, is_right: bool) {
        self.guessed_tokens += 1;
        if is_right {
            self.guessed_right_tokens += 1;
            let places = &mut self.guessed_right_at;
            places.resize(places.len().max(at + 1), 0);
            places[at] += 1;
        }
    }
}

impl Guesses {
    /// Those of two answers, or of two parts of one.
    pub fn plus(self, other: Self) -> Self {
        Self { tried: self.tried + other.tried, right: self.right + other.right }
    }
}

/// Pages of the cache of keys and values, each of `positions` positions of all layers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageStats {
    pub positions: usize,
    pub total: usize,
    /// In use by running requests.
    pub used: usize,
    /// Kept for later requests with the same beginning; given up when pages run out.
    pub cached: usize,
}

/// The duration of steps, from their scheduling on rank 0 to their result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepStats {
    pub count: u64,
    pub sum_us: u64,
    /// Rows of all steps: of prompts, including replayed ones, and of answers.
    pub prompt_rows: u64,
    pub answer_rows: u64,
    /// Steps by duration: at most [`Self::BOUNDS_US`] (not cumulative), then longer ones.
    pub buckets: [u64; StepStats::BOUNDS_US.len() + 1],
}

impl StepStats {
    /// From a small model's step to a large prompt's chunk.
    pub const BOUNDS_US: [u64; 11] = [
        1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
        2_500_000,
    ];

    /// Counts a step.
    pub fn add(&mut self, took_us: u64, prompt_rows: usize, answer_rows: usize) {
        self.count += 1;
        self.sum_us += took_us;
        self.prompt_rows += prompt_rows as u64;
        self.answer_rows += answer_rows as u64;
        self.buckets[Self::BOUNDS_US.partition_point(|bound| *bound < took_us)] += 1;
    }
}

/// The work of one rank since its epoch began: a snapshot, sent at most once a second. The times
/// cover only steps: an idle instance neither computes nor waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankStats {
    /// In steps, without [`Self::exchange_wait_us`]. On rank 0 it includes scheduling and sampling.
    pub compute_us: u64,
    /// In steps, waiting for other ranks' sums, activations or results.
    pub exchange_wait_us: u64,
    /// Between one step and the next, if that came within a second.
    pub step_wait_us: u64,
    /// The time to exchange an empty message within the stage, by the slowest rank's measurement
    /// when the ranks were linked; absent for a stage of one rank.
    pub exchange_ns: Option<u64>,
    /// The bandwidth to the stage's other ranks then, bytes a second, by the slowest rank's
    /// measurement.
    pub link_bytes_per_sec: Option<u64>,
    /// The processor time of its process's threads, and their time waiting for a processor; zero
    /// where the system does not report it.
    pub ran_us: u64,
    pub starved_us: u64,
    pub links: Vec<LinkStats>,
}

impl RankStats {
    /// The difference of the times to an earlier snapshot of the same epoch.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            compute_us: self.compute_us.saturating_sub(earlier.compute_us),
            exchange_wait_us: self.exchange_wait_us.saturating_sub(earlier.exchange_wait_us),
            step_wait_us: self.step_wait_us.saturating_sub(earlier.step_wait_us),
            ran_us: self.ran_us.saturating_sub(earlier.ran_us),
            starved_us: self.starved_us.saturating_sub(earlier.starved_us),
            ..self.clone()
        }
    }
}

/// Messages to and from another rank, in bytes without the transport's overhead.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    pub peer: usize,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    #[serde(default)]
    pub is_rdma: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_counted_once_in_the_bucket_whose_bound_it_does_not_pass() {
        let mut stats = StepStats::default();
        for took_us in [0, 1_000, 1_001, 2_500_000, 2_500_001, u64::MAX / 2] {
            stats.add(took_us, 1, 2);
        }
        assert_eq!(stats.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((stats.count, stats.prompt_rows, stats.answer_rows), (6, 6, 12));
    }
}
