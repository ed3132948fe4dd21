//! Predicts the speed of a split from the speeds of nodes and links.
//!
//! A step's time on a rank is the time to read its weights and its part of the cache, or the time
//! to multiply, whichever is longer, plus half of the shorter one, since the two partly overlap;
//! plus the time to issue its device operations. The ranks of a stage wait for the slowest rank,
//! and twice a layer for each other's sums, for which each device outputs values and takes the
//! totals. The model ignores processor caches, and messages of different stages that compete for a
//! link.

use protocol::WireType;
use serde::{Deserialize, Serialize};

use crate::mtp::Guessed;
use crate::node::{LinkSpeed, Node};
use crate::streaming::Misses;
use crate::work::Work;

/// The load to optimize for: a number of users, each with the given prompt and answer lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    pub users: usize,
    pub prompt_tokens: usize,
    pub answer_tokens: usize,
}

/// The predicted performance of a split.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Of one user's answer.
    pub decode_tokens_per_sec: f64,
    /// Of a long prompt.
    pub prefill_tokens_per_sec: f64,
    /// The time to the first token of a prompt of the assumed length, seconds.
    pub first_token_secs: f64,
    /// The assumed load, and the tokens a second of all its users' answers together.
    pub load: Load,
    pub total_tokens_per_sec: f64,
    /// The breakdown of the time of one user's token.
    pub token: TokenTime,
    /// With the guesses of the model's own MTP block, if it has one with room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guessed: Option<Guessed>,
}

/// The seconds of one token, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenTime {
    /// Weights and cache, on the slowest ranks.
    pub read_secs: f64,
    pub multiply_secs: f64,
    /// Issuing the devices' operations.
    pub operation_secs: f64,
    /// Experts that are not in memory.
    #[serde(default)]
    pub disk_secs: f64,
    /// Transfers of partial sums from the devices, and of totals to them.
    #[serde(default)]
    pub cut_secs: f64,
    /// Messages' latency, and their bytes.
    pub message_secs: f64,
    pub wire_secs: f64,
}

impl TokenTime {
    pub fn secs(&self) -> f64 {
        self.compute_secs() + self.cut_secs + self.link_secs()
    }

    pub(crate) fn compute_secs(&self) -> f64 {
        self.read_secs + self.multiply_secs + self.operation_secs + self.disk_secs
    }

    pub(crate) fn link_secs(&self) -> f64 {
        self.message_secs + self.wire_secs
    }

    /// The largest part of it, in words.
    pub fn limit(&self) -> &'static str {
        let parts = [
            (self.read_secs, "reading weights from memory"),
            (self.multiply_secs, "arithmetic"),
            (self.operation_secs, "the fixed cost of each operation"),
            (self.disk_secs, "reading experts from disk"),
            (self.cut_secs, "the cuts at which devices wait for each other's sums"),
            (self.message_secs, "the latency of links"),
            (self.wire_secs, "the bandwidth of links"),
        ];
        parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or("", |(_, what)| what)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            read_secs: self.read_secs + other.read_secs,
            multiply_secs: self.multiply_secs + other.multiply_secs,
            operation_secs: self.operation_secs + other.operation_secs,
            disk_secs: self.disk_secs + other.disk_secs,
            cut_secs: self.cut_secs + other.cut_secs,
            message_secs: self.message_secs + other.message_secs,
            wire_secs: self.wire_secs + other.wire_secs,
        }
    }
}

/// The properties of a model that are equal for all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Model {
    /// Pieces of layers between which a pipeline may be cut.
    pub pieces: usize,
    /// Elements of the residual stream, and of a message between stages.
    pub width: usize,
    pub hop_width: usize,
    pub quantised: bool,
    /// Experts of a layer, and the experts of each token; both 1 for a model without experts.
    pub experts: usize,
    pub experts_used: usize,
    pub whole_experts: bool,
    /// The window of layers that have one, in positions.
    pub window: usize,
    pub wire_type: WireType,
    /// Whether sums of four ranks and more go round a ring.
    pub ring: bool,
    /// Bytes that a guess of its MTP block or of a draft reads, if it has one.
    pub guess_bytes: Option<f64>,
    /// Whether it guesses in a pipeline.
    pub guesses_in_stages: bool,
}

/// A rank and its work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rank<'a> {
    pub node: &'a Node,
    pub speed: crate::Speed,
    pub work: Work,
    pub head: Work,
    /// Of its experts, if it reads some from disk.
    pub misses: Option<Misses>,
}

/// A stage: ranks that share layers, with the slowest link among them and onwards.
#[derive(Debug, Clone)]
pub(crate) struct Stage<'a> {
    pub layers: usize,
    pub ranks: Vec<Rank<'a>>,
    pub within: LinkSpeed,
    /// To the next stage; of the last one, back to rank 0.
    pub onward: LinkSpeed,
}

impl Stage<'_> {
    /// Values leave the devices at each sum of several ranks, and at the stage's end.
    fn cuts(&self) -> usize {
        if self.ranks.len() > 1 { 2 * self.layers + 1 } else { 1 }
    }

    /// The time of one cut: the ranks wait for the slowest device.
    fn cut_secs(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.speed.cut_secs).fold(0.0, f64::max)
    }
}

/// A step's pass through a stage: the times of its ranks in all its layers, the seconds and number
/// of its sums, the times of the ranks with a part of the output head in the last stage, and the
/// message to the next stage.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    pub ranks: Vec<TokenTime>,
    pub heads: Vec<TokenTime>,
    pub meetings: usize,
    /// The number of transfers between devices and host, and the time of each.
    pub cuts: usize,
    pub cut_secs: f64,
    pub message_secs: f64,
    pub wire_secs: f64,
    pub onward_message_secs: f64,
    pub onward_wire_secs: f64,
}

impl Pass {
    /// The time of all cuts.
    pub fn cuts_secs(&self) -> f64 {
        self.cuts as f64 * self.cut_secs
    }

    /// The time in which the stage is occupied: its message travels while the next step begins.
    pub fn busy_secs(&self) -> f64 {
        self.time().secs() - self.onward_message_secs
    }

    /// The average time; the slowest of concurrent ranks counts.
    fn time(&self) -> TokenTime {
        let slowest = |times: &[TokenTime]| {
            times.iter().copied().fold(TokenTime::default(), |slowest, time| {
                if time.compute_secs() > slowest.compute_secs() { time } else { slowest }
            })
        };
        let mut time = slowest(&self.ranks).plus(slowest(&self.heads));
        time.cut_secs = self.cuts_secs();
        time.message_secs += self.meetings as f64 * self.message_secs + self.onward_message_secs;
        time.wire_secs += self.meetings as f64 * self.wire_secs + self.onward_wire_secs;
        time
    }
}

/// Rows of one step, and the cached positions of their sequences.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    rows: f64,
    sequences: f64,
    depth: f64,
    /// The load of the busiest rank relative to the average, with whole experts.
    uneven: f64,
}

impl Rows {
    /// One row of each of `batch` answers, half-way through.
    pub fn of_answers(batch: usize, load: Load) -> Self {
        let depth = load.prompt_tokens as f64 + load.answer_tokens as f64 / 2.0;
        Self { rows: batch as f64, sequences: batch as f64, depth, uneven: 1.0 }
    }

    /// A row of one answer, and those of `guesses` after it.
    pub fn with_guesses(guesses: usize, load: Load) -> Self {
        Self { rows: (1 + guesses) as f64, ..Self::of_answers(1, load) }
    }
}

/// Smaller rings need every link.
const RING_RANKS_MIN: usize = 4;

/// Bytes of sums that a core adds a second, measured with `sinew bench net`. Messages up to the
/// second number stay in the first-level cache and are added on arrival.
const ADD_BYTES_PER_SEC: f64 = 2e10;
const CACHED_BYTES_MAX: f64 = 32768.0;

/// The size of an eight-bit sum relative to f32, with its scales.
const Q8_PART: f64 = 1.125 / 4.0;

/// A waiting rank polls for this long, as in `collective`, then sleeps between polls: a fraction of
/// the time already waited, plus the system's wake-up time. Linux adds 50 us to a sleep, and a
/// virtual machine 20 more.
const SPIN_SECS: f64 = 200e-6;
const NAP_PART: f64 = 1.0 / 20.0;
const NAP_SECS_MAX: f64 = 1e-3;
const WAKE_SECS: f64 = 70e-6;

/// The delay of the last of `ranks` to wake, if each waits `wait_secs`: each polls at a uniformly
/// random time of a nap.
fn late_secs(wait_secs: f64, ranks: usize) -> f64 {
    if wait_secs <= SPIN_SECS {
        return 0.0;
    }
    let nap = (wait_secs * NAP_PART).min(NAP_SECS_MAX) + WAKE_SECS;
    nap * ranks as f64 / (ranks + 1) as f64
}

impl Model {
    pub fn predict(&self, stages: &[Stage<'_>], load: Load) -> Prediction {
        let token = self.token(stages, Rows::of_answers(1, load));
        let decode_tokens_per_sec = 1.0 / token.secs();
        let prefill_secs = self.prefill(stages, load.prompt_tokens);
        let total = match load.users {
            1 => decode_tokens_per_sec,
            _ => self.together(stages, load),
        };
        Prediction {
            decode_tokens_per_sec,
            prefill_tokens_per_sec: load.prompt_tokens as f64 / prefill_secs,
            first_token_secs: prefill_secs,
            load,
            total_tokens_per_sec: total,
            token,
            guessed: self.guessed(stages, load),
        }
    }

    /// The time of one step through all stages.
    pub fn token(&self, stages: &[Stage<'_>], rows: Rows) -> TokenTime {
        let (passes, back_secs) = self.passes(stages, rows, 1.0);
        let all = passes.iter().map(Pass::time).fold(TokenTime::default(), TokenTime::plus);
        TokenTime { message_secs: all.message_secs + back_secs, ..all }
    }

    /// A step's pass through each stage, and the message with its result to rank 0, while `batches`
    /// steps circulate: a stage that waits long for the next one sleeps.
    pub fn passes(&self, stages: &[Stage<'_>], rows: Rows, batches: f64) -> (Vec<Pass>, f64) {
        let mut passes: Vec<Pass> =
            (0..stages.len()).map(|at| self.pass(stages, at, rows)).collect();
        let mut back_secs = self.back_secs(stages);
        let busy: Vec<f64> = passes.iter().map(Pass::busy_secs).collect();
        let ways: f64 = passes.iter().map(|pass| pass.onward_message_secs).sum();
        let round = busy.iter().sum::<f64>() + ways + back_secs;
        for at in 1..stages.len() {
            if round - batches * busy[at] > SPIN_SECS {
                passes[at - 1].onward_message_secs += WAKE_SECS;
            }
        }
        if stages.len() > 1 {
            back_secs += late_secs(round - batches * busy[0], 1);
        }
        (passes, back_secs)
    }

    /// The time of the message with the sampler's input to rank 0: a single stage gathers it,
    /// several send it back.
    fn back_secs(&self, stages: &[Stage<'_>]) -> f64 {
        let last = &stages[stages.len() - 1];
        match (stages.len(), last.ranks.len()) {
            (1, 1) => 0.0,
            (1, _) => last.within.message_secs,
            _ => last.onward.message_secs,
        }
    }

    /// A step's pass through stage `at`, including the output head in the last one, and on to the
    /// next stage.
    fn pass(&self, stages: &[Stage<'_>], at: usize, rows: Rows) -> Pass {
        let (stage, is_last) = (&stages[at], at + 1 == stages.len());
        let rows = self.uneven(rows, stage.ranks.len());
        // The ranks with a part of the head work on it concurrently.
        let heads = stages.iter().filter(|_| is_last).flat_map(|stage| &stage.ranks);
        let heads = heads.filter(|rank| rank.head.common_bytes > 0.0);
        let positions = Rows { depth: 0.0, ..rows };
        let (message_secs, wire_secs) = self.exchange(stage.within, stage.ranks.len(), rows.rows);
        let (onward_message_secs, onward_wire_secs) = match is_last {
            true => (0.0, 0.0),
            false => {
                let bytes = 4.0 * self.hop_width as f64 * rows.rows;
                (stage.onward.message_secs, bytes / stage.onward.bytes_per_sec)
            }
        };
        Pass {
            ranks: self.compute(stage.ranks.iter().map(|rank| (rank, rank.work)), rows),
            heads: self.compute(heads.map(|rank| (rank, rank.head)), positions),
            // The ranks meet at the start of a step, and at two sums in each layer.
            meetings: 2 * stage.layers + 1,
            cuts: stage.cuts(),
            cut_secs: stage.cut_secs(),
            message_secs,
            wire_secs,
            onward_message_secs,
            onward_wire_secs,
        }
    }

    /// The times of concurrent ranks.
    fn compute<'a>(
        &self,
        ranks: impl Iterator<Item = (&'a Rank<'a>, Work)> + Clone,
        rows: Rows,
    ) -> Vec<TokenTime> {
        let all = ranks.clone();
        let times = ranks.map(|(rank, work)| {
            let slowed = slowed(rank, all.clone().map(|(other, _)| other));
            self.rank_time(rank, work, rows, slowed)
        });
        times.collect()
    }

    fn rank_time(&self, rank: &Rank<'_>, work: Work, rows: Rows, slowed: [f64; 2]) -> TokenTime {
        let rates = rank.speed.rates;
        let one = self.experts_used as f64 / self.experts as f64;
        let touched = (1.0 - (1.0 - one).powf(rows.rows)) * rows.uneven;
        let of_experts = one * rows.uneven;
        let in_window = rows.depth.min(self.window as f64);
        let of_positions = work.position_bytes * rows.depth + work.window_bytes * in_window;
        let bytes = work.common_bytes
            + work.expert_bytes * touched.min(1.0)
            + of_positions * rows.sequences;
        let of_positions = work.position_ops * rows.depth + work.window_ops * in_window;
        let ops = work.common_ops + work.expert_ops * of_experts + of_positions;
        let rate =
            if self.quantised { rates.quantised_ops_per_sec } else { rates.float_ops_per_sec };
        let read = bytes / rates.read_bytes_per_sec * slowed[0];
        let multiply = ops * rows.rows / rate * slowed[1];
        let (read_secs, multiply_secs) =
            if read > multiply { (read, multiply / 2.0) } else { (read / 2.0, multiply) };
        let operation_secs = work.operations * rank.speed.operation_secs;
        let disk_secs = rank.misses.map_or(0.0, |misses| {
            work.expert_bytes * touched.min(1.0) * misses.part / misses.bytes_per_sec
        });
        TokenTime { read_secs, multiply_secs, operation_secs, disk_secs, ..TokenTime::default() }
    }

    /// Columns of every expert are equal work for all ranks. With whole experts, the others wait
    /// for the busiest rank: of `draws` draws among `ranks` it gets about the mean plus `sqrt(2
    /// ln(ranks) mean)`, and never more than all.
    fn uneven(&self, rows: Rows, ranks: usize) -> Rows {
        if !self.whole_experts || ranks == 1 {
            return rows;
        }
        let (draws, ranks) = (self.experts_used as f64 * rows.rows, ranks as f64);
        let mean = draws / ranks;
        Rows { uneven: (1.0 + (2.0 * ranks.ln() / mean).sqrt()).min(ranks), ..rows }
    }

    /// The time of a prompt in steps, seconds.
    fn prefill(&self, stages: &[Stage<'_>], tokens: usize) -> f64 {
        let rows = layout::rows_max(stages.len()).min(tokens).max(1);
        let steps = tokens.div_ceil(rows) as f64;
        let depth = tokens as f64 / 2.0;
        let rows = Rows { rows: tokens as f64 / steps, sequences: 1.0, depth, uneven: 1.0 };
        // All stages compute concurrently, each on another step.
        let busy = || stages.iter().flat_map(|stage| &stage.ranks);
        let times = stages.iter().enumerate().map(|(at, stage)| {
            let rows = self.uneven(rows, stage.ranks.len());
            let ranks = stage.ranks.iter().map(|rank| {
                let slowed = slowed(rank, busy());
                self.rank_time(rank, rank.work, rows, slowed).compute_secs()
            });
            let pass = Pass { ranks: Vec::new(), heads: Vec::new(), ..self.pass(stages, at, rows) };
            (ranks.fold(0.0, f64::max) + pass.busy_secs(), pass.onward_message_secs)
        });
        let (times, ways): (Vec<f64>, Vec<f64>) = times.unzip();
        let slowest = times.iter().copied().fold(0.0, f64::max);
        // The first step passes all stages; then one ends each time the slowest stage is done. Only
        // the last row needs logits.
        let first = times.iter().chain(&ways).sum::<f64>();
        let last = Rows { rows: 1.0, ..rows };
        let head = Pass {
            ranks: Vec::new(),
            meetings: 0,
            cuts: 0,
            ..self.pass(stages, stages.len() - 1, last)
        };
        first + (steps - 1.0) * slowest + head.time().secs() + self.back_secs(stages)
    }

    /// Tokens a second of the answers of all users: each stage works on some of them.
    fn together(&self, stages: &[Stage<'_>], load: Load) -> f64 {
        let users = load.users;
        let batch = users.div_ceil(stages.len());
        let batches = users.div_ceil(batch) as f64;
        let rows = Rows::of_answers(batch, load);
        let (passes, back_secs) = self.passes(stages, rows, batches);
        let slowest = passes.iter().map(Pass::busy_secs).fold(0.0, f64::max);
        let round = passes.iter().map(|pass| pass.time().secs()).sum::<f64>() + back_secs;
        let cycle = round.max(batches * slowest);
        users as f64 / cycle
    }

    /// Bytes of `rows` rows of the residual stream.
    fn bytes(&self, rows: f64) -> f64 {
        4.0 * self.width as f64 * rows
    }

    /// One all-reduce of `rows` rows among `ranks`: the latency of its messages, and the time of
    /// their bytes.
    fn exchange(&self, link: LinkSpeed, ranks: usize, rows: f64) -> (f64, f64) {
        if ranks == 1 {
            return (0.0, 0.0);
        }
        let part = if self.wire_type == WireType::Q8 { Q8_PART } else { 1.0 };
        let (bytes, peers) = (self.bytes(rows) * part, (ranks - 1) as f64);
        let wire = |bytes: f64| bytes / link.bytes_per_sec;
        if self.ring && ranks >= RING_RANKS_MIN {
            // Each rank's part of the sums passes all others, and so does its total.
            let wire = wire(bytes / ranks as f64);
            let message = link.message_secs + late_secs(link.message_secs + wire, ranks);
            return (2.0 * peers * message, 2.0 * peers * wire);
        }
        let message =
            |bytes: f64| link.message_secs + late_secs(link.message_secs + wire(bytes), ranks);
        // Either every rank sends all its bytes to all others and adds everything, or each
        // receives, adds and distributes one part: `collective` uses the faster way.
        let (whole, part) = (peers * bytes, peers * bytes / ranks as f64);
        let added = if bytes > CACHED_BYTES_MAX { ranks as f64 * bytes } else { 0.0 };
        let adds = added / ADD_BYTES_PER_SEC;
        let one_shot = (message(whole), wire(whole) + adds);
        let two_phase = (2.0 * message(part), 2.0 * wire(part) + adds / ranks as f64);
        let secs = |(message, wire): (f64, f64)| message + wire;
        if secs(one_shot) <= secs(two_phase) { one_shot } else { two_phase }
    }
}

/// The slow-down of a rank's reads and multiplications by concurrent ranks on its machine.
fn slowed<'a>(rank: &Rank<'a>, others: impl Iterator<Item = &'a Rank<'a>>) -> [f64; 2] {
    let Some(machine) = rank.node.machine else { return [1.0, 1.0] };
    let (mut read, mut multiply) = (0.0, 0.0);
    let own = rank.speed.machine;
    let (mut all_read, mut all_multiply) = (own.read_bytes_per_sec, own.quantised_ops_per_sec);
    for other in others.filter(|other| other.node.machine == Some(machine)) {
        let (rates, all) = (other.speed.rates, other.speed.machine);
        read += rates.read_bytes_per_sec;
        multiply += rates.quantised_ops_per_sec;
        // An integrated GPU may have more bandwidth to the same memory than the processors.
        all_read = all_read.max(all.read_bytes_per_sec);
        all_multiply = all_multiply.max(all.quantised_ops_per_sec);
    }
    [read / all_read, multiply / all_multiply].map(|busy| busy.max(1.0))
}
