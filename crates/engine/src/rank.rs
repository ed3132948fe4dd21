use std::ops::Range;
use std::sync::Arc;

use backend::{CacheKind, Cpu, PAGE_POSITIONS, Segment};
use gguf::Source;
use model::{
    Batch, Capacity, Config, Embedding, Layout, Leaves, Model, Outputs, Product, Progress,
};
use protocol::{CacheType, Split, SplitOptions, Token};

use crate::EngineError;
use crate::comm::Comm;
use crate::logits::{Candidate, Logits, Wanted, pick};
use crate::results::{Results, due};
use crate::step::{Limits, Step, StepSegment};

/// Rows of the largest step. Long enough that a prompt's products run at full speed, short enough
/// that a running answer waits only tenths of a second for it.
const ROWS_MAX: usize = 512;

/// The same for a model in stages, where a stage is idle until the first chunk of a prompt reaches
/// it: small enough that a prompt makes many.
const STAGED_ROWS_MAX: usize = 64;

/// One rank of a model: its slice of the weights, its cache and the buffers of a step.
pub struct Rank {
    route: Route,
    backend: Cpu,
    model: Model<Cpu>,
    /// Rank 0 looks embeddings up for all.
    embedding: Option<Embedding>,
    limits: Limits,
    /// Rank 0's view of what it has begun.
    results: Results,
    /// The vocabulary rows of every part of the output head.
    vocab_of_head: Vec<Range<usize>>,
    /// The cache pages of every slot.
    tables: Vec<Arc<[u32]>>,
    buffers: Buffers,
}

/// Reused by every step.
#[derive(Default)]
struct Buffers {
    message: Vec<u8>,
    step: Step,
    /// Of the first layer that this rank runs.
    input: Vec<f32>,
    segments: Vec<Segment>,
    positions: Vec<u32>,
    /// The rows whose logits are wanted, and the same as segments.
    outputs: Vec<usize>,
    output_segments: Vec<Segment>,
    lens: Vec<usize>,
    wanted: Vec<Wanted>,
    /// What this rank picked out of its logits, and its scratch.
    picked: Vec<f32>,
    candidates: Vec<Candidate>,
    /// The rows whose logits are wanted, from the last stage.
    rows: Vec<f32>,
    /// What every part of the output head gave; how many of them are here.
    parts: Vec<Vec<u8>>,
    parts_here: usize,
}

/// From whom this rank gets its steps, and where its results go. Ranks of the whole instance.
struct Route {
    rank: usize,
    stage: Range<usize>,
    /// The rank of the stage before that sends to this one; `None` in the first stage.
    upstream: Option<usize>,
    /// The ranks of the next stage that this one sends to.
    downstream: Vec<usize>,
    /// The ranks with a part of the output head.
    heads: Vec<usize>,
    /// The ranks of the last stage, of which the first tells rank 0 the rows behind its layers.
    last: Range<usize>,
    stages: usize,
}

#[derive(Debug, Clone)]
pub struct RankOptions {
    pub rank: usize,
    pub options: SplitOptions,
    pub split: Split,
    pub threads: usize,
    pub cpus: Vec<usize>,
}

impl RankOptions {
    /// # Errors
    /// The stages do not make up the ranks and layers.
    pub(crate) fn layout(&self, layers: usize) -> Result<Layout, EngineError> {
        let sizes = self.split.stages.iter().map(|stage| (stage.ranks, stage.layers));
        let sizes: Vec<_> = sizes.collect();
        let layout =
            Layout::new(&self.split.shares, &sizes, layers).map_err(model::ModelError::from)?;
        Ok(layout.with_whole_experts(self.split.whole_experts))
    }
}

impl Rank {
    /// Loads this rank's slice of a model.
    ///
    /// # Errors
    /// The model or the split cannot be used, or memory is short.
    pub fn load(
        source: Arc<dyn Source>,
        options: &RankOptions,
        progress: Progress<'_>,
    ) -> Result<Self, EngineError> {
        let mut backend = Cpu::new(options.threads, &options.cpus)?;
        let layers = Config::read(source.directory())?.layers;
        let layout = options.layout(layers)?;
        let route = Route::new(&layout, options.rank);
        let pages_per_slot = options.split.context_tokens.div_ceil(PAGE_POSITIONS);
        let rows_max = if route.stages > 1 { STAGED_ROWS_MAX } else { ROWS_MAX };
        let rows_max = rows_max.min(options.split.context_tokens).max(options.split.sequences_max);
        let capacity = Capacity {
            rows_max,
            outputs_max: options.split.sequences_max,
            kv_pages: pages_per_slot * options.split.sequences_max,
            context_tokens: options.split.context_tokens,
            cache_kind: cache_kind(options.options.cache_type),
        };
        let model = Model::load(&mut backend, &source, &layout, options.rank, capacity, progress)?;
        let config = model.config();
        let embedding = match options.rank {
            0 => Some(Embedding::open(source.clone(), config)?),
            _ => None,
        };
        let page = |slot: usize, page: usize| (slot * pages_per_slot + page) as u32;
        let tables = (0..options.split.sequences_max)
            .map(|slot| (0..pages_per_slot).map(|at| page(slot, at)).collect())
            .collect();
        let limits = Limits {
            slots: options.split.sequences_max,
            context_tokens: options.split.context_tokens,
            rows_max,
            width: config.width,
        };
        let vocab_of_head = layout.cut_vocab(config.vocab);
        let parts = vec![Vec::new(); vocab_of_head.len()];
        let buffers = Buffers { parts, ..Buffers::default() };
        let results = Results::new(vocab_of_head.clone());
        Ok(Self {
            route,
            backend,
            model,
            embedding,
            limits,
            results,
            vocab_of_head,
            tables,
            buffers,
        })
    }

    pub fn config(&self) -> &Config {
        self.model.config()
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes of the longest message between ranks: a step, or all logits of as many outputs as a
    /// step may have.
    pub fn message_bytes_max(&self) -> usize {
        let logits = self.limits.slots * self.config().vocab * size_of::<f32>();
        self.limits.message_bytes_max().max(logits)
    }

    /// The ranks of this rank's stage.
    pub fn stage(&self) -> Range<usize> {
        self.route.stage.clone()
    }

    /// The number of stages, which is how many steps can be worked on at once.
    pub fn stages(&self) -> usize {
        self.route.stages
    }

    pub fn leaves(&self, product: Product) -> Leaves {
        self.model.leaves(product).clone()
    }

    pub fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes()
    }

    pub fn kv_bytes(&self) -> u64 {
        self.model.kv_bytes()
    }

    /// How all ranks cache keys and values.
    pub fn cache_kind(&self) -> CacheKind {
        self.model.cache_kind()
    }

    /// Rank 0: begins a step on all ranks. `tokens` are those of the step's rows. At most
    /// [`Self::in_flight_max`] may be begun before the first one's logits are collected.
    ///
    /// # Errors
    /// Another rank is late or lost, or the embedding cannot be read.
    pub fn submit(
        &mut self,
        comm: &mut Comm,
        step: &Step,
        tokens: &[Token],
    ) -> Result<(), EngineError> {
        let Some(embedding) = &mut self.embedding else {
            return Err(EngineError::Protocol("only rank 0 leads".to_owned()));
        };
        embedding.look_up(&mut self.backend, tokens, &mut self.buffers.input)?;
        if comm.ranks() > 1 {
            step.encode(&self.buffers.input, &mut self.buffers.message);
            comm.send_step(&mut self.buffers.message)?;
        }
        self.buffers.step.segments.clone_from(&step.segments);
        self.results.push(step.segments.iter().map(|segment| segment.wanted));
        self.run(comm)
    }

    /// Steps begun whose logits were not collected.
    pub fn in_flight(&self) -> usize {
        self.results.in_flight()
    }

    /// As many steps may be begun before the first is collected: with one in each stage, and one on
    /// its way to each, no stage waits for this rank.
    pub fn in_flight_max(&self) -> usize {
        match self.route.stages {
            1 => 1,
            stages => 2 * stages,
        }
    }

    /// Rank 0: whether the logits of the oldest step in flight can be collected without a wait.
    ///
    /// # Errors
    /// Another rank is lost.
    pub fn is_ready(&mut self, comm: &mut Comm) -> Result<bool, EngineError> {
        if self.results.in_flight() == 0 {
            return Ok(false);
        }
        if self.route.stages == 1 {
            return Ok(true);
        }
        while self.buffers.parts_here < self.route.heads.len() {
            if !self.take_part(comm, Comm::try_take)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Rank 0: waits for the oldest step in flight.
    ///
    /// # Errors
    /// Another rank is late or lost.
    pub fn collect(&mut self, comm: &mut Comm) -> Result<(), EngineError> {
        if self.route.stages > 1 {
            let wait = |comm: &mut Comm, rank: usize, message: &mut Vec<u8>| {
                comm.take(rank, message).map(|()| true)
            };
            while self.buffers.parts_here < self.route.heads.len() {
                self.take_part(comm, wait)?;
            }
            self.buffers.parts_here = 0;
        }
        if !self.results.pop() {
            return Err(EngineError::Protocol("no step is in flight".to_owned()));
        }
        if self.route.stages > 1 {
            self.read_parts()?;
        }
        self.results.assemble();
        Ok(())
    }

    /// What was wanted of the step that was collected last, in its order.
    pub fn collected(&self) -> impl Iterator<Item = Logits<'_>> {
        self.results.outputs()
    }

    /// Any other rank: waits for a step and runs it.
    ///
    /// # Errors
    /// Another rank is late or lost, the epoch was ended, or the step makes no sense.
    pub fn follow(&mut self, comm: &mut Comm) -> Result<(), EngineError> {
        let b = &mut self.buffers;
        match self.route.upstream {
            Some(rank) => comm.take_idle(rank, &mut b.message)?,
            None => comm.recv_step(&mut b.message)?,
        }
        b.step.decode(&b.message, &self.limits, &mut b.input)?;
        self.run(comm)
    }

    /// A new epoch begins: what was in flight is lost.
    pub fn forget_steps(&mut self) {
        self.results.clear();
        self.buffers.parts_here = 0;
    }

    /// Runs `buffers.step` on `buffers.input`, and sends on what comes of it.
    fn run(&mut self, comm: &mut Comm) -> Result<(), EngineError> {
        let b = &mut self.buffers;
        b.segments.clear();
        b.positions.clear();
        b.outputs.clear();
        b.output_segments.clear();
        b.wanted.clear();
        for segment in &b.step.segments {
            let StepSegment { slot, first_position: first_pos, rows, .. } = *segment;
            let table = || self.tables[slot].clone();
            b.segments.push(Segment { table: table(), first_pos, rows });
            b.positions.extend(first_pos as u32..(first_pos + rows) as u32);
            if segment.wanted != Wanted::Nothing {
                let first_pos = first_pos + rows - 1;
                b.output_segments.push(Segment { table: table(), first_pos, rows: 1 });
                b.outputs.push(b.positions.len() - 1);
                b.wanted.push(segment.wanted);
            }
        }
        let outputs = Outputs { rows: &b.outputs, segments: &b.output_segments };
        let batch = Batch { segments: &b.segments, positions: &b.positions, outputs };
        self.model.forward(&mut self.backend, comm, &batch, &b.input)?;
        self.hand_on(comm)
    }

    /// Sends the residual stream to the next stage, or what is wanted of the logits to rank 0.
    fn hand_on(&mut self, comm: &mut Comm) -> Result<(), EngineError> {
        let Buffers { step, message, .. } = &mut self.buffers;
        if !self.route.downstream.is_empty() {
            step.encode(self.model.residual(&mut self.backend)?, message);
            for rank in &self.route.downstream {
                comm.post(*rank, message)?;
            }
        }
        if !self.route.last.contains(&self.route.rank) {
            return Ok(());
        }
        let Buffers { wanted, message, .. } = &mut self.buffers;
        let first = self.route.rank == self.route.last.start;
        if !wanted.is_empty() && self.route.stages > 1 && first {
            // First, so that rank 0 works on its part of the head meanwhile.
            encode(self.model.residual(&mut self.backend)?, message);
            comm.post(0, message)?;
        }
        let wanted = std::mem::take(&mut self.buffers.wanted);
        let done = self.pick(&wanted);
        self.buffers.wanted = wanted;
        done?;
        let Buffers { message, picked, lens, wanted, .. } = &mut self.buffers;
        if self.route.stages > 1 {
            encode(picked, message);
            return comm.post(0, message);
        }
        if wanted.is_empty() {
            return Ok(());
        }
        lens.clear();
        lens.extend(self.vocab_of_head.iter().map(|slice| due(wanted, slice.len())));
        let numbers = &mut self.results.numbers;
        numbers.resize(if self.route.rank == 0 { lens.iter().sum() } else { 0 }, 0.0);
        comm.gather(picked, lens, numbers)
    }

    /// Rank 0 of several stages: the next part of the oldest step's results, its own or another
    /// rank's, if `take` brings a message; `false` if it does not.
    fn take_part(
        &mut self,
        comm: &mut Comm,
        mut take: impl FnMut(&mut Comm, usize, &mut Vec<u8>) -> Result<bool, EngineError>,
    ) -> Result<bool, EngineError> {
        let b = &mut self.buffers;
        let at = b.parts_here;
        let from = self.route.heads[at];
        if from != self.route.rank {
            if !take(comm, from, &mut b.parts[at])? {
                return Ok(false);
            }
        } else if self.results.oldest().is_empty() {
            b.parts[at].clear();
        } else {
            if !take(comm, self.route.last.start, &mut b.message)? {
                return Ok(false);
            }
            self.own_part(at)?;
        }
        self.buffers.parts_here += 1;
        Ok(true)
    }

    /// Rank 0's part of the output head, of the rows in `message`, as the `at`th part.
    fn own_part(&mut self, at: usize) -> Result<(), EngineError> {
        let Buffers { message, rows, .. } = &mut self.buffers;
        let (found, outputs) = (message.len(), self.results.oldest().len());
        let due = outputs * self.limits.width * size_of::<f32>();
        if found != due {
            let rank = self.route.last.start;
            let what = format!("rank {rank} sent {found} bytes of rows, and {due} were due");
            return Err(EngineError::Protocol(what));
        }
        rows.clear();
        rows.extend(decode(message));
        self.model.set_residual(&mut self.backend, rows);
        let mut wanted = std::mem::take(&mut self.buffers.wanted);
        wanted.clear();
        wanted.extend_from_slice(self.results.oldest());
        let done = self.pick(&wanted);
        self.buffers.wanted = wanted;
        done?;
        let Buffers { picked, parts, .. } = &mut self.buffers;
        encode(picked, &mut parts[at]);
        Ok(())
    }

    /// Picks what is wanted of the picked rows out of this rank's logits.
    fn pick(&mut self, wanted: &[Wanted]) -> Result<(), EngineError> {
        let Buffers { picked, candidates, .. } = &mut self.buffers;
        picked.clear();
        let own = self.route.heads.iter().position(|rank| *rank == self.route.rank);
        let (Some(own), false) = (own, wanted.is_empty()) else { return Ok(()) };
        let slice = &self.vocab_of_head[own];
        let logits = self.model.logits(&mut self.backend)?;
        for (at, wanted) in wanted.iter().enumerate() {
            let own = &logits[at * slice.len()..(at + 1) * slice.len()];
            pick(*wanted, own, slice.start, candidates, picked);
        }
        Ok(())
    }

    /// What the parts of the output head gave, as numbers.
    fn read_parts(&mut self) -> Result<(), EngineError> {
        self.results.numbers.clear();
        for (head, part) in self.buffers.parts.iter().enumerate() {
            let (found, due) = (part.len(), self.results.due(head) * size_of::<f32>());
            if found != due {
                let rank = self.route.heads[head];
                let what = format!("rank {rank} sent {found} bytes of logits, and {due} were due");
                return Err(EngineError::Protocol(what));
            }
            self.results.numbers.extend(decode(part));
        }
        Ok(())
    }
}

/// Replaces what `message` held by numbers, little-endian.
fn encode(numbers: &[f32], message: &mut Vec<u8>) {
    message.clear();
    message.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn decode(message: &[u8]) -> impl Iterator<Item = f32> {
    message.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// `None` leaves it to the model's file, in which all ranks find the same.
fn cache_kind(cache_type: CacheType) -> Option<CacheKind> {
    match cache_type {
        CacheType::Auto => None,
        CacheType::I16 => Some(CacheKind::I16),
        CacheType::F16 => Some(CacheKind::F16),
        CacheType::Q8_0 => Some(CacheKind::Q8_0),
        CacheType::F32 => Some(CacheKind::F32),
    }
}

impl Route {
    fn new(layout: &Layout, rank: usize) -> Self {
        let stages = layout.stages();
        let own = layout.stage_of(rank);
        let place = rank - stages[own].ranks.start;
        let before = own.checked_sub(1).map(|before| stages[before].ranks.clone());
        let after = stages.get(own + 1).map_or(0..0, |after| after.ranks.clone());
        let senders = stages[own].ranks.len();
        Self {
            rank,
            stage: stages[own].ranks.clone(),
            upstream: before.map(|ranks| ranks.start + place % ranks.len()),
            downstream: after.skip(place).step_by(senders).collect(),
            heads: layout.heads().to_vec(),
            last: layout.last().ranks.clone(),
            stages: stages.len(),
        }
    }
}
