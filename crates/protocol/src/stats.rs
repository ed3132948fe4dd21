use serde::{Deserialize, Serialize};

/// What rank 0 has done since its epoch began, and what it is doing: a snapshot, told at most once
/// a second. What only grows starts at zero again with every epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineStats {
    /// Requests that have a place in the steps, and those that wait for one.
    pub running: usize,
    pub waiting: usize,
    pub pages: PageStats,
    /// Tokens of prompts that were looked up in the cache, and those of them that were there.
    pub prefix_queried_tokens: u64,
    pub prefix_hit_tokens: u64,
    /// Times that a running request gave its pages to another one, to be replayed later.
    pub preemptions: u64,
    /// Tokens of prompts that were computed, without what is replayed and what was in the cache.
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    /// Next tokens that were guessed ahead, and those of them that were right.
    pub guessed_tokens: u64,
    pub guessed_right_tokens: u64,
    pub steps: StepStats,
}

/// Pages of the cache of keys and values, each of so many positions of all layers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageStats {
    pub positions: usize,
    pub total: usize,
    /// In use by running requests.
    pub used: usize,
    /// Kept for later requests that begin alike; given up when pages run out.
    pub cached: usize,
}

/// How long steps took, from rank 0's scheduling them to their coming back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepStats {
    pub count: u64,
    pub sum_us: u64,
    /// Rows of all steps: of prompts, replayed ones too, and of answers.
    pub prompt_rows: u64,
    pub answer_rows: u64,
    /// Steps that took at most [`Self::BOUNDS_US`], bound by bound (not added up), then the rest.
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

/// What one rank has done since its epoch began: a snapshot, told at most once a second. The times
/// are of steps alone: a rank of an instance that has nothing to do neither computes nor waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankStats {
    /// In steps, without [`Self::exchange_wait_us`]. Rank 0 schedules and samples in it, too.
    pub compute_us: u64,
    /// In steps, for what other ranks owe: their sums, activations or results.
    pub exchange_wait_us: u64,
    /// Between one step and the next, where that came within a second.
    pub step_wait_us: u64,
    /// What it took to exchange an empty message within the stage, the slowest rank's count, when
    /// the ranks were linked; absent for a stage of one rank.
    pub exchange_ns: Option<u64>,
    /// What it sent to the stage's other ranks then, bytes a second; the slowest rank's count.
    pub link_bytes_per_sec: Option<u64>,
    /// What its process's threads had of the processors, and what they had to wait for; zero where
    /// the system does not tell.
    pub ran_us: u64,
    pub starved_us: u64,
    pub links: Vec<LinkStats>,
}

impl RankStats {
    /// What was added to the times since an earlier snapshot of the same epoch.
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

/// Messages to and from another rank: their bytes, without what a transport adds.
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
