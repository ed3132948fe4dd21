//! An instance in simulated time, with the effects that the cost model averages out. Between two
//! sums each rank takes a little more or less than its average, and all wait for the last;
//! micro-batches of several users queue at the stages.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use layout::{Capacity, Outline};
use serde::Serialize;

use crate::cost::{Model, Pass, Rows, Stage};
use crate::group::Subject;
use crate::plan::{Options, Plan, context_of};
use crate::streaming::Streaming;
use crate::{Load, Node};

/// Simulated tokens of each user, and the warm-up tokens before them, which are not counted.
const TOKENS: usize = 100;
const WARM_UP: usize = 10;

/// The random part of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chance {
    /// The variation of each piece of work and of each message: exponentially distributed about its
    /// average, with this deviation. 0.1 is a tenth.
    pub jitter: f64,
    /// The same seed gives the same times.
    pub seed: u64,
}

/// The result of a simulation. Rates are of answers, without their prompts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Simulated {
    /// For a single user.
    pub decode_tokens_per_sec: f64,
    /// For all users of the load together.
    pub total_tokens_per_sec: f64,
    /// The time between a user's tokens under full load: the median, and the 99th percentile.
    pub interval_median_secs: f64,
    pub interval_p99_secs: f64,
    /// The fraction of time in which the busiest stage works, under full load.
    pub busiest: f64,
}

/// Runs `plan` in simulated time. `None` if its nodes or their links were not measured.
pub fn simulate(
    model: &Outline,
    nodes: &[Node],
    options: &Options<'_>,
    plan: &Plan,
    chance: Chance,
) -> Option<Simulated> {
    let load = plan.prediction?.load;
    let split = &plan.split;
    let capacity = Capacity {
        context_tokens: split.context_tokens,
        sequences_max: split.sequences_max,
        cache_tokens: split.cache_tokens,
        cache_type: options.spec.options.cache_type,
        whole_rows: model.config.whole_rows(),
        is_encoder: model.config.encoder.is_some(),
        checkpoints: options.spec.options.checkpoints(),
    };
    let whole_experts = split.whole_experts;
    let streaming = (!split.expert_bytes.is_empty())
        .then(|| Streaming { asked_bytes: split.expert_bytes.iter().copied().max() });
    let subject = Subject { outline: model, whole_experts, capacity: &capacity, streaming };
    let context = context_of(subject, nodes, options);
    let place = |id: usize| nodes.iter().position(|node| node.id == id);
    let places = plan.ranks.iter().map(|rank| place(rank.node)).collect::<Option<Vec<_>>>()?;
    let (sizes, layers): (Vec<usize>, Vec<usize>) = match split.stages.is_empty() {
        true => (vec![places.len()], vec![model.config.layers]),
        false => split.stages.iter().map(|stage| (stage.ranks, stage.layers)).unzip(),
    };
    let mut rest = places.into_iter();
    let groups: Vec<Vec<usize>> =
        sizes.iter().map(|ranks| rest.by_ref().take(*ranks).collect()).collect();
    let trial = context.trial(&groups, split.shares.clone());
    let stages = trial.cost_stages(&context.pieces(&layers)?);
    Some(run(&context.model, &stages, load, chance))
}

pub(crate) fn run(model: &Model, stages: &[Stage<'_>], load: Load, chance: Chance) -> Simulated {
    let alone = Run::new(model, stages, Load { users: 1, ..load }, chance).finish();
    let all = match load.users {
        1 => alone,
        _ => Run::new(model, stages, load, chance).finish(),
    };
    Simulated { decode_tokens_per_sec: alone.total_tokens_per_sec, ..all }
}

/// Micro-batches that circulate through the stages.
struct Run {
    /// Each stage's work for one micro-batch.
    passes: Vec<Pass>,
    /// From the last stage back to rank 0, seconds.
    back_secs: f64,
    users: usize,
    batches: usize,
    jitter: f64,
    random: Random,
}

impl Run {
    fn new(model: &Model, stages: &[Stage<'_>], load: Load, chance: Chance) -> Self {
        let batch = load.users.div_ceil(stages.len());
        let batches = load.users.div_ceil(batch);
        let rows = Rows::of_answers(batch, load);
        let (passes, back_secs) = model.passes(stages, rows, batches as f64);
        Self {
            passes,
            back_secs,
            users: load.users,
            batches,
            jitter: chance.jitter,
            random: Random(chance.seed | 1),
        }
    }

    fn finish(mut self) -> Simulated {
        let stages = self.passes.len();
        let (mut free, mut busy) = (vec![0.0_f64; stages], vec![0.0_f64; stages]);
        // The arrival times of each micro-batch's tokens.
        let mut came: Vec<Vec<f64>> = vec![Vec::new(); self.batches];
        let mut waiting: BinaryHeap<Reverse<Arrival>> = BinaryHeap::new();
        waiting
            .extend((0..self.batches).map(|batch| Reverse(Arrival { secs: 0.0, batch, stage: 0 })));
        while let Some(Reverse(Arrival { secs, batch, stage })) = waiting.pop() {
            let start = secs.max(free[stage]);
            let took = self.pass(stage);
            free[stage] = start + took;
            busy[stage] += took;
            let pass = &self.passes[stage];
            let (message, wire) = (pass.onward_message_secs, pass.onward_wire_secs);
            let is_last = stage + 1 == stages;
            let way = if is_last { self.back_secs } else { message };
            let way = way * self.varied() + if is_last { 0.0 } else { wire };
            let secs = start + took + way;
            if !is_last {
                waiting.push(Reverse(Arrival { secs, batch, stage: stage + 1 }));
                continue;
            }
            came[batch].push(secs);
            if came[batch].len() <= WARM_UP + TOKENS {
                waiting.push(Reverse(Arrival { secs, batch, stage: 0 }));
            }
        }
        let end = free.iter().copied().fold(0.0, f64::max);
        let busiest = busy.iter().copied().fold(0.0, f64::max) / end;
        self.summary(&came, busiest)
    }

    fn summary(&self, came: &[Vec<f64>], busiest: f64) -> Simulated {
        let counted = came.iter().map(|times| &times[WARM_UP..]);
        let mut intervals: Vec<f64> =
            counted.flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0])).collect();
        let mean = intervals.iter().sum::<f64>() / intervals.len() as f64;
        intervals.sort_by(f64::total_cmp);
        let at = |part: f64| intervals[((intervals.len() - 1) as f64 * part) as usize];
        let total_tokens_per_sec = self.users as f64 / mean;
        Simulated {
            decode_tokens_per_sec: total_tokens_per_sec,
            total_tokens_per_sec,
            interval_median_secs: at(0.5),
            interval_p99_secs: at(0.99),
            busiest,
        }
    }

    /// The time of one micro-batch in a stage: pieces of work, each ended by a sum of all its
    /// ranks.
    fn pass(&mut self, stage: usize) -> f64 {
        let pass = &self.passes[stage];
        let (pieces, ranks) = (pass.meetings, pass.ranks.len());
        let mut secs = 0.0;
        for _ in 0..pieces {
            let mut slowest = 0.0_f64;
            for rank in 0..ranks {
                let mean = self.passes[stage].ranks[rank].compute_secs() / pieces as f64;
                slowest = slowest.max(mean * self.varied());
            }
            let (message, wire) = (self.passes[stage].message_secs, self.passes[stage].wire_secs);
            // All ranks wait for the last message of all pairs.
            secs += slowest + message * self.largest(ranks * (ranks - 1)) + wire;
        }
        let heads = self.passes[stage].heads.len();
        let head = (0..heads).fold(0.0, |slowest: f64, rank| {
            let mean = self.passes[stage].heads[rank].compute_secs();
            slowest.max(mean * self.varied())
        });
        secs + head + self.passes[stage].cuts_secs()
    }

    /// A random factor with mean 1.
    fn varied(&mut self) -> f64 {
        self.largest(1)
    }

    /// The largest of `count` such factors.
    fn largest(&mut self, count: usize) -> f64 {
        if self.jitter == 0.0 || count == 0 {
            return 1.0;
        }
        let below = self.random.unit().powf(1.0 / count as f64);
        1.0 + self.jitter * (-(1.0 - below).ln() - 1.0)
    }
}

/// A micro-batch that arrives at a stage; the earliest goes first.
#[derive(Debug, PartialEq)]
struct Arrival {
    secs: f64,
    batch: usize,
    stage: usize,
}

impl Eq for Arrival {}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |one: &Self| (one.batch, one.stage);
        self.secs.total_cmp(&other.secs).then_with(|| key(self).cmp(&key(other)))
    }
}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Marsaglia's xorshift with 64 bits; the state is not 0.
struct Random(u64);

impl Random {
    /// A uniform number above 0 and below 1.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }
}
