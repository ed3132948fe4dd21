use std::ops::Range;
use std::sync::Arc;

use backend::{Cpu, PAGE_POSITIONS, Segment};
use gguf::Source;
use model::{Batch, Capacity, Config, Embedding, Leaves, Model, Product, Progress, Split};
use protocol::Token;

use crate::EngineError;
use crate::comm::Comm;
use crate::step::{Limits, Step};

/// Rows of the largest step. Long enough that a prompt's products run at full speed, short enough
/// that a running answer waits only tenths of a second for it.
const ROWS_MAX: usize = 512;

/// One rank of a model: its slice of the weights, its cache and the buffers of a step.
pub struct Rank {
    backend: Cpu,
    model: Model<Cpu>,
    /// Rank 0 looks embeddings up for all.
    embedding: Option<Embedding>,
    limits: Limits,
    /// The vocabulary rows of every rank's output head.
    vocab_of_rank: Vec<Range<usize>>,
    /// The cache pages of every slot.
    tables: Vec<Vec<u32>>,
    buffers: Buffers,
}

/// Reused by every step.
#[derive(Default)]
struct Buffers {
    message: Vec<u8>,
    step: Step,
    embeddings: Vec<f32>,
    positions: Vec<u32>,
    outputs: Vec<usize>,
    lens: Vec<usize>,
    /// Logits as they were gathered, `[rank][output][slice]`, and in order, `[output][vocab]`.
    gathered: Vec<f32>,
    logits: Vec<f32>,
}

#[derive(Debug, Clone)]
pub struct RankOptions {
    pub rank: usize,
    pub shares: Vec<u32>,
    pub context_tokens: usize,
    pub sequences_max: usize,
    pub threads: usize,
    pub cpus: Vec<usize>,
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
        let split = Split::new(&options.shares).map_err(model::ModelError::from)?;
        let pages_per_slot = options.context_tokens.div_ceil(PAGE_POSITIONS);
        let rows_max = ROWS_MAX.min(options.context_tokens).max(options.sequences_max);
        let capacity = Capacity {
            rows_max,
            outputs_max: options.sequences_max,
            kv_pages: pages_per_slot * options.sequences_max,
            context_tokens: options.context_tokens,
        };
        let model = Model::load(&mut backend, &source, &split, options.rank, capacity, progress)?;
        let config = model.config();
        let embedding = match options.rank {
            0 => Some(Embedding::open(source.clone(), config)?),
            _ => None,
        };
        let page = |slot: usize, page: usize| (slot * pages_per_slot + page) as u32;
        let tables = (0..options.sequences_max)
            .map(|slot| (0..pages_per_slot).map(|at| page(slot, at)).collect())
            .collect();
        let limits = Limits {
            slots: options.sequences_max,
            context_tokens: options.context_tokens,
            rows_max,
            width: config.width,
        };
        let vocab_of_rank = split.cut(config.vocab);
        let buffers = Buffers::default();
        Ok(Self { backend, model, embedding, limits, vocab_of_rank, tables, buffers })
    }

    pub fn config(&self) -> &Config {
        self.model.config()
    }

    pub fn limits(&self) -> Limits {
        self.limits
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

    /// Rank 0: runs a step on all ranks. Returns the logits of its outputs, `[outputs, vocab]`
    /// f32, row-major. `tokens` are those of the step's rows.
    ///
    /// # Errors
    /// Another rank is late or lost, or the embedding cannot be read.
    pub fn lead(
        &mut self,
        comm: &mut Comm,
        step: &Step,
        tokens: &[Token],
    ) -> Result<&[f32], EngineError> {
        let Some(embedding) = &mut self.embedding else {
            return Err(EngineError::Protocol("only rank 0 leads".to_owned()));
        };
        embedding.look_up(&mut self.backend, tokens, &mut self.buffers.embeddings)?;
        if comm.ranks() > 1 {
            step.encode(&self.buffers.embeddings, &mut self.buffers.message);
            comm.send_step(&mut self.buffers.message)?;
        }
        self.buffers.step.clone_from(step);
        self.run(comm)?;
        self.assemble_logits();
        Ok(&self.buffers.logits)
    }

    /// The logits of the last step that this rank led.
    pub fn logits(&self) -> &[f32] {
        &self.buffers.logits
    }

    /// Any other rank: waits for a step and runs it.
    ///
    /// # Errors
    /// Another rank is late or lost, the epoch was ended, or the step makes no sense.
    pub fn follow(&mut self, comm: &mut Comm) -> Result<(), EngineError> {
        let b = &mut self.buffers;
        comm.recv_step(&mut b.message)?;
        b.step.decode(&b.message, &self.limits, &mut b.embeddings)?;
        self.run(comm)
    }

    /// Runs `buffers.step` on `buffers.embeddings` and gathers the logits at rank 0.
    fn run(&mut self, comm: &mut Comm) -> Result<(), EngineError> {
        let Buffers { step, embeddings, positions, outputs, lens, gathered, .. } =
            &mut self.buffers;
        positions.clear();
        outputs.clear();
        for segment in &step.segments {
            let first = segment.first_position as u32;
            positions.extend(first..first + segment.rows as u32);
            if segment.output {
                outputs.push(positions.len() - 1);
            }
        }
        let tables = &self.tables;
        let segments = step.segments.iter().map(|segment| Segment {
            table: &tables[segment.slot],
            first_pos: segment.first_position,
            rows: segment.rows,
        });
        let segments: Vec<Segment<'_>> = segments.collect();
        let batch = Batch { segments: &segments, positions, outputs };
        let own = self.model.forward(&mut self.backend, comm, &batch, embeddings)?;
        if outputs.is_empty() {
            return Ok(());
        }
        lens.clear();
        lens.extend(self.vocab_of_rank.iter().map(|slice| slice.len() * outputs.len()));
        gathered.resize(lens.iter().sum(), 0.0);
        comm.gather(own, lens, gathered)
    }

    /// `[rank][output][slice]` to `[output][vocab]`.
    fn assemble_logits(&mut self) {
        let vocab = self.model.config().vocab;
        let Buffers { outputs, gathered, logits, .. } = &mut self.buffers;
        logits.resize(outputs.len() * vocab, 0.0);
        let mut rest = gathered.as_slice();
        for slice in self.vocab_of_rank.iter().filter(|slice| !slice.is_empty()) {
            let (own, others) = rest.split_at(slice.len() * outputs.len());
            rest = others;
            for (row, values) in own.chunks_exact(slice.len()).enumerate() {
                let start = row * vocab + slice.start;
                logits[start..start + slice.len()].copy_from_slice(values);
            }
        }
    }
}
