//! How fast a split will be, from what one node does and what a message costs.
//!
//! A model of few numbers, to choose by and to check measurements against: the time of one node,
//! how much nodes that compute at once slow each other down, and the time of a message. It does not
//! know caches, uneven nodes, or messages that compete for a link.

use protocol::StageSize;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// The next token of one sequence, on one node, seconds.
    pub decode_secs: f64,
    /// A token of a long prompt, on one node, seconds.
    pub prefill_secs: f64,
    /// What each further node that computes at the same time adds: 1 for machines of their own,
    /// less where they share one memory.
    pub added: f64,
    /// A short message from one rank's hands to another's, seconds.
    pub message_secs: f64,
    /// Of a link, in each direction.
    pub bytes_per_sec: f64,
    /// Whether sums of four ranks and more go round a ring.
    pub ring: bool,
}

/// The sizes of a model that matter here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub layers: usize,
    /// Numbers of the residual stream.
    pub width: usize,
    /// The output head's part of the weights, 0 to 1, which is its part of a decoded token's time.
    pub head: f64,
}

/// Fewer have no ring that leaves out a link.
const RING_RANKS_MIN: usize = 4;

/// Above this, an all-reduce goes in two phases, each of its share of the bytes.
const ONE_SHOT_BYTES_MAX: f64 = 65536.0;

impl Costs {
    /// The next token of one sequence, seconds. `stages` must not be empty.
    pub fn decode(&self, shape: &Shape, stages: &[StageSize]) -> f64 {
        let last = stages.len() - 1;
        let stage = |stage: &StageSize| {
            let part = (1.0 - shape.head) * stage.layers as f64 / shape.layers as f64;
            // One sequence is in one stage at a time, so only that stage's nodes compute.
            let compute = self.decode_secs * part * self.slowed(stage.ranks) / stage.ranks as f64;
            // The step, and for each layer two sums, meet in the stage.
            let meetings = (2 * stage.layers + 1) as f64;
            compute + meetings * self.exchange(shape, stage.ranks, 1) + self.message(shape, 1)
        };
        let back = if stages.len() == 1 { 0.0 } else { self.message_secs };
        // The last stage's nodes have the output head, and with several stages rank 0 as well.
        let heads = stages[last].ranks + usize::from(last > 0);
        let head = self.decode_secs * shape.head * self.slowed(heads) / heads as f64;
        let all: f64 = head + stages.iter().map(stage).sum::<f64>();
        // A single stage hands nothing on, and gathers its logits instead.
        if last == 0 {
            all - self.message(shape, 1) + self.gather(stages[0].ranks)
        } else {
            all + back
        }
    }

    /// A prompt of `tokens` in steps of `rows`, seconds. `stages` must not be empty.
    pub fn prefill(&self, shape: &Shape, stages: &[StageSize], tokens: usize, rows: usize) -> f64 {
        let ranks = stages.iter().map(|stage| stage.ranks).sum();
        let rows = rows.min(tokens).max(1);
        let stage = |stage: &StageSize| {
            let part = stage.layers as f64 / shape.layers as f64;
            // All stages compute at once, each on another step.
            let compute = self.prefill_secs * rows as f64 * part * self.slowed(ranks);
            let meetings = (2 * stage.layers) as f64;
            let onward = if stages.len() == 1 { 0.0 } else { self.message(shape, rows) };
            compute / stage.ranks as f64
                + meetings * self.exchange(shape, stage.ranks, rows)
                + onward
        };
        let times: Vec<f64> = stages.iter().map(stage).collect();
        let slowest = times.iter().copied().fold(0.0, f64::max);
        // The first step goes through all stages; then one ends each time the slowest is done.
        let steps = tokens as f64 / rows as f64;
        times.iter().sum::<f64>() + (steps - 1.0).max(0.0) * slowest
    }

    /// How many times longer a node takes when so many compute at once.
    fn slowed(&self, nodes: usize) -> f64 {
        nodes as f64 / (1.0 + (nodes - 1) as f64 * self.added)
    }

    /// `rows` of the residual stream to one peer.
    fn message(&self, shape: &Shape, rows: usize) -> f64 {
        self.message_secs + (4 * shape.width * rows) as f64 / self.bytes_per_sec
    }

    /// One all-reduce of `rows` among `ranks`.
    fn exchange(&self, shape: &Shape, ranks: usize, rows: usize) -> f64 {
        if ranks == 1 {
            return 0.0;
        }
        let (bytes, peers) = ((4 * shape.width * rows) as f64, (ranks - 1) as f64);
        if self.ring && ranks >= RING_RANKS_MIN {
            // Each rank's part of the sums goes past all others, and its total once more.
            let hop = self.message_secs + bytes / ranks as f64 / self.bytes_per_sec;
            return 2.0 * peers * hop;
        }
        if bytes <= ONE_SHOT_BYTES_MAX {
            return self.message_secs + peers * bytes / self.bytes_per_sec;
        }
        2.0 * (self.message_secs + peers * bytes / ranks as f64 / self.bytes_per_sec)
    }

    /// The likeliest tokens to rank 0.
    fn gather(&self, ranks: usize) -> f64 {
        if ranks == 1 { 0.0 } else { self.message_secs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { layers: 16, width: 2048, head: 0.2 };

    fn costs(message_us: f64, added: f64) -> Costs {
        Costs {
            decode_secs: 0.032,
            prefill_secs: 0.004,
            added,
            message_secs: message_us * 1e-6,
            bytes_per_sec: 1e10,
            ring: false,
        }
    }

    fn stages(sizes: &[(usize, usize)]) -> Vec<StageSize> {
        sizes.iter().map(|&(ranks, layers)| StageSize { ranks, layers }).collect()
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} is not about {expected}");
    }

    #[test]
    fn one_node_takes_what_one_node_takes() {
        let one = stages(&[(1, 16)]);
        near(costs(300.0, 1.0).decode(&SHAPE, &one), 0.032);
        near(costs(300.0, 1.0).prefill(&SHAPE, &one, 512, 512), 2.048);
    }

    #[test]
    fn fast_links_halve_a_token_and_slow_ones_make_it_longer() {
        let two = stages(&[(2, 16)]);
        // 33 exchanges of 8 KiB, and the gathering of the result.
        let bytes = 33.0 * 8192.0 / 1e10;
        near(costs(2.0, 1.0).decode(&SHAPE, &two), 0.016 + 34.0 * 2e-6 + bytes);
        near(costs(2.0, 0.8).decode(&SHAPE, &two), 0.032 / 1.8 + 34.0 * 2e-6 + bytes);
        assert!(costs(1000.0, 1.0).decode(&SHAPE, &two) > 0.032);
    }

    #[test]
    fn a_sum_goes_round_a_ring_twice() {
        let (four, three) = (stages(&[(4, 16)]), stages(&[(3, 16)]));
        let ring = Costs { ring: true, ..costs(10.0, 1.0) };
        // 33 sums, of 2 KiB a hop.
        let hops = 33.0 * 6.0 * (1e-5 + 2048.0 / 1e10);
        near(ring.decode(&SHAPE, &four), 0.008 + hops + 1e-5);
        near(ring.decode(&SHAPE, &three), costs(10.0, 1.0).decode(&SHAPE, &three));
    }

    #[test]
    fn a_pipeline_costs_one_message_a_stage_and_fills_up_in_a_prompt() {
        let two = stages(&[(1, 8), (1, 8)]);
        let slow = costs(1000.0, 1.0);
        let hops = 3.0 * 1e-3 + 2.0 * 8192.0 / 1e10;
        // Both nodes work on the output head.
        near(slow.decode(&SHAPE, &two), 0.032 * 0.9 + hops);
        // Eight steps through two stages take as long as nine through one.
        let step = 0.5 * 64.0 * 0.004 + 1e-3 + 64.0 * 8192.0 / 1e10;
        near(slow.prefill(&SHAPE, &two, 512, 64), 9.0 * step);
        assert!(slow.prefill(&SHAPE, &two, 512, 64) < 0.6 * 2.048);
    }
}
