//! One rank of a model: loading its slice, and running steps on it.

mod buffers;
mod bytes;
mod options;
mod pooled;
mod prompts;
mod trial;

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use backend::{Backend, CacheKind};
use gguf::Source;
use layout::{BlockFile, Config, Holding, Leaves, Outline};
use model::{Embedding, Model, Pooled, Product, Progress};
use protocol::{GenerateRequest, RankStats, Speculation, Token};

use crate::EngineError;
use crate::comm::Comm;
use crate::draft::DraftJob;
use crate::history::History;
use crate::logits::pick;
use crate::meter::{Meter, TELL_INTERVAL};
use crate::mtp::Target;
use crate::prompt_store::PromptStore;
use crate::results::OutputPart;
use crate::route::Route;
use crate::sight::{Placed, Sight, Unseen};
use crate::speculator::Speculator;
use crate::step::{Limits, Step};
use crate::tables::Tables;
use buffers::Buffers;
pub(crate) use options::{DraftFile, RankOptions};

/// One rank of a model: its slice of the weights, its cache and the buffers of a step.
pub struct Rank<B: Backend> {
    route: Route,
    backend: B,
    source: Arc<dyn Source>,
    model: Model<B>,
    /// On rank 0, which looks up embeddings for all ranks, and finishes pooled states.
    embedding: Option<Embedding>,
    pooled: Option<Pooled>,
    /// The earlier tokens that it needs besides a step's own.
    history: History,
    /// The first layers after which something is added to rows of pictures.
    deepstack: usize,
    /// On rank 0 of a model that sees.
    sight: Option<Sight>,
    speculator: Option<Speculator<B>>,
    notes: Vec<String>,
    limits: Limits,
    speculation: Speculation,
    tables: Tables,
    buffers: Buffers,
    /// What is kept of prompts on disk, if anything.
    prompts: Option<PromptStore>,
    /// Whether steps write noise to the cache and compute nothing.
    keeps_noise: bool,
}

/// The outline of a model's file, with what a draft needs of it.
///
/// # Errors
/// The file is no model that can run.
pub(crate) fn outline(source: &dyn Source, draft: &DraftFile) -> Result<Outline, EngineError> {
    let draft = draft.as_ref().and_then(|draft| draft.as_ref().ok());
    let has_assistant = draft.is_some_and(|draft| BlockFile::reads_cache(draft.directory()));
    Ok(Outline::read_for(source.directory(), has_assistant)?)
}

impl<B: Backend> Rank<B> {
    /// Loads this rank's slice of a model on `backend`.
    ///
    /// # Errors
    /// The model or the split cannot be used, or memory is short.
    pub(crate) fn load(
        mut backend: B,
        source: Arc<dyn Source>,
        options: &RankOptions,
        progress: Progress<'_>,
    ) -> Result<Self, EngineError> {
        let draft = options.draft();
        let outline = outline(source.as_ref(), &draft)?;
        let layout = options.layout(&outline.config)?;
        let route = Route::new(&layout, options.rank, &outline.config);
        let capacity = options.capacity(&outline.config)?;
        let holding = Holding::new(&outline, &layout, options.rank);
        let experts = options.experts.as_ref();
        let mut model =
            Model::load_holding(&mut backend, &source, &holding, capacity, experts, progress)?;
        let config = model.config();
        let embedding = match options.rank {
            0 => Some(Embedding::open(source.clone(), config)?),
            _ => None,
        };
        let pooled = match options.rank {
            0 => Some(Pooled::open(&mut backend, source.clone(), config)?),
            _ => None,
        };
        let mut notes: Vec<String> = model.note().cloned().into_iter().collect();
        let sight = match options.rank {
            0 => Sight::load_if_usable::<B>(source.as_ref(), config, options.threads, &mut notes)?,
            _ => None,
        };
        let before = embedding.as_ref().map_or(0, Embedding::before);
        let speculator =
            Speculator::load(&mut backend, (&source, config), options, draft, &mut notes)?;
        // The same on every rank, also if rank 0 cannot use the tower.
        let tower = vision::Config::find(source.directory()).ok().flatten();
        let deepstack = tower.map_or(0, |tower| tower.deepstack.len().min(config.layers));
        let limits = Limits::new(config, &capacity, (route.stages, route.first_layer), deepstack);
        let tables = Tables::new(&limits);
        if let Some(speculator) = &speculator {
            model.tap(speculator.tapped_layers());
        }
        let spec = options.prompts(&route).filter(|_| !limits.has_states || limits.checkpoints > 0);
        let rank = (&mut backend, &mut model, limits.window.is_some());
        let prompts = spec.and_then(|spec| PromptStore::find(spec, rank, &layout, &mut notes));
        Ok(Self {
            route,
            backend,
            source,
            model,
            embedding,
            pooled,
            history: History::new(before, capacity.pages()),
            deepstack,
            sight,
            speculator,
            notes,
            limits,
            speculation: options.options.speculation,
            tables,
            buffers: Buffers::default(),
            prompts,
            keeps_noise: false,
        })
    }

    /// Whether the next steps write noise to the cache and compute nothing, for measurements.
    pub(crate) fn set_noise(&mut self, keeps: bool) {
        self.keeps_noise = keeps;
    }

    /// The model's file.
    pub(crate) fn source(&self) -> Arc<dyn Source> {
        self.source.clone()
    }

    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// Rank 0: the vision tower.
    pub(crate) fn sight(&mut self) -> Option<&mut Sight> {
        self.sight.as_mut()
    }

    /// Rank 0: the pictures in a request's prompt.
    ///
    /// # Errors
    /// One cannot be used, or there is no tower.
    pub(crate) fn place_pictures(&self, request: &GenerateRequest) -> Result<Vec<Placed>, Unseen> {
        match &self.sight {
            Some(sight) => sight.place(request),
            None if request.pictures.is_empty() => Ok(Vec::new()),
            None => Err(Unseen::NoTower),
        }
    }

    /// The cache type of keys and values, equal on all ranks.
    pub fn cache_kind(&self) -> CacheKind {
        self.model.cache_kind()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Missing features, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Rank 0: whether a draft model or an MTP block speculates.
    pub(crate) fn has_speculator(&self) -> bool {
        self.speculator.is_some()
    }

    /// Rank 0: gives the states of a step that has just finished to the speculator.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn note_states(&mut self, step: &Step) -> Result<(), EngineError> {
        let Self { speculator, model, backend, buffers, route, .. } = self;
        let Some(speculator) = speculator else { return Ok(()) };
        Ok(speculator.note(step, || {
            if route.stages > 1 {
                // Rank 0 may have begun another step since these rows arrived.
                model.set_residual(backend, &buffers.rows);
            }
            model.state(backend)
        })?)
    }

    /// Rank 0: [speculates](Speculator::guess).
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn guess(
        &mut self,
        jobs: &[DraftJob<'_>],
        guesses: &mut [Vec<Token>],
    ) -> Result<usize, EngineError> {
        let Self { speculator, backend, model, tables, .. } = self;
        let mut target = Target { model, tables };
        speculator.as_mut().map_or(Ok(0), |own| own.guess(backend, &mut target, jobs, guesses))
    }

    /// The kind of speculation.
    pub(crate) fn speculation(&self) -> Speculation {
        self.speculation
    }

    /// Bytes of the longest message between ranks: a step, or all logits of the most outputs of a
    /// step.
    pub(crate) fn message_bytes_max(&self) -> usize {
        let (limits, config) = (self.limits, self.config());
        let numbers = if limits.is_encoder { config.width } else { config.vocab };
        let logits = limits.outputs_max * numbers * size_of::<f32>();
        let width = config.borders().into_iter().map(|border| config.input_width(border)).max();
        let step = Limits { width: width.unwrap_or(limits.width), ..limits };
        step.message_bytes_max().max(logits)
    }

    /// The ranks of this rank's stage.
    pub(crate) fn stage(&self) -> Range<usize> {
        self.route.stage.clone()
    }

    /// The number of stages, which is the number of steps computed at once.
    pub(crate) fn stages(&self) -> usize {
        self.route.stages
    }

    pub(crate) fn last_stage(&self) -> Range<usize> {
        self.route.last_stage.clone()
    }

    pub(crate) fn output_parts(&self) -> &[OutputPart] {
        &self.route.output_parts
    }

    pub(crate) fn leaves(&self, product: Product) -> Leaves {
        self.model.leaves(product).clone()
    }

    /// Rank 0: sends a step to the other ranks, and runs it.
    ///
    /// # Errors
    /// Another rank is late or lost, or an embedding cannot be read.
    pub(crate) fn run(&mut self, comm: &mut Comm, step: &mut Step) -> Result<(), EngineError> {
        self.buffers.release();
        self.tables.update(step)?;
        let Some(embedding) = &mut self.embedding else {
            return Err(EngineError::Protocol("only rank 0 leads".to_owned()));
        };
        let Buffers { message, input, .. } = &mut self.buffers;
        step.hide_pictures();
        let before = self.history.take_in(step, &self.tables);
        embedding.look_up(&mut self.backend, &step.tokens, before, input)?;
        embedding.enter(&mut self.backend, step.positions(), &step.types, input)?;
        step.show_pictures(input, self.limits.width);
        if comm.group.ranks() > 1 {
            step.encode(input, true, message);
            comm.group.broadcast(0, message)?;
        }
        self.forward(comm, step)
    }

    /// Any other rank: runs incoming steps until the epoch ends, and reports its times if that is
    /// wanted.
    ///
    /// # Errors
    /// Another rank is late or lost, the epoch was ended, or a step is invalid.
    pub(crate) fn follow(
        &mut self,
        comm: &mut Comm,
        mut tell: Option<impl FnMut(RankStats)>,
    ) -> Result<Infallible, EngineError> {
        let mut step = Step::default();
        let (mut meter, mut free_at) = (Meter::start(), Instant::now());
        loop {
            let message = &mut self.buffers.message;
            let is_here = match self.route.upstream {
                Some(rank) => comm.group.take_idle(rank, message, TELL_INTERVAL)?,
                None => comm.group.broadcast_idle(0, message, TELL_INTERVAL)?,
            };
            let begun = Instant::now();
            if is_here {
                meter.wait_for_step(begun - free_at);
                let waited = comm.group.waited();
                self.follow_step(comm, &mut step)?;
                free_at = Instant::now();
                meter.step(free_at - begun, comm.group.waited() - waited);
            } else {
                free_at = begun;
            }
            if let Some(tell) = &mut tell {
                meter.due(&comm.group, free_at).into_iter().for_each(tell);
            }
        }
    }

    /// Runs the received step.
    fn follow_step(&mut self, comm: &mut Comm, step: &mut Step) -> Result<(), EngineError> {
        let Buffers { message, input, .. } = &mut self.buffers;
        step.decode(message, &self.limits, input)?;
        self.buffers.release();
        self.tables.update(step)?;
        self.forward(comm, step)?;
        match self.route.stages {
            _ if !self.route.last_stage.contains(&self.route.rank) => Ok(()),
            1 => self.gather(comm, step, &mut Vec::new()),
            _ => self.post_results(comm, step),
        }
    }

    /// Runs a step from `buffers.input`, and sends the residual stream to the next stage. The
    /// tables must already include the step.
    fn forward(&mut self, comm: &mut Comm, step: &mut Step) -> Result<(), EngineError> {
        self.obey(comm, step)?;
        let b = &mut self.buffers;
        b.fill(step, &self.tables, &self.limits, self.model.config());
        let batch = b.batch(step, self.deepstack);
        self.model.copy_pages(&mut self.backend, &step.copies);
        if self.keeps_noise {
            self.model.keep_noise(&mut self.backend, &batch);
            return Ok(());
        }
        let has_rows = !step.segments.is_empty();
        if has_rows {
            self.model.forward(&mut self.backend, comm, &batch, &b.input)?;
        }
        if !self.route.downstream.is_empty() {
            let adds = self.route.next_layer < self.deepstack;
            let rows = if has_rows { self.model.hand_on(&mut self.backend)? } else { &[] };
            step.encode(rows, adds, &mut b.message);
            for rank in &self.route.downstream {
                comm.group.post(*rank, &b.message)?;
            }
        }
        Ok(())
    }

    /// With one stage: gathers every rank's part of the step's results in rank 0's `numbers`.
    ///
    /// # Errors
    /// Another rank is late or lost.
    pub(crate) fn gather(
        &mut self,
        comm: &mut Comm,
        step: &Step,
        numbers: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        self.pick(step)?;
        let Buffers { picked, lens, .. } = &mut self.buffers;
        lens.clear();
        lens.extend(self.route.output_parts.iter().map(|part| step.numbers(part)));
        let total = lens.iter().sum();
        if total == 0 {
            return Ok(());
        }
        if self.route.rank == 0 {
            numbers.resize(total, 0.0);
        }
        Ok(comm.group.gather(0, picked, lens, numbers)?)
    }

    /// The last of several stages: sends this rank's part of the step's results to rank 0.
    fn post_results(&mut self, comm: &mut Comm, step: &Step) -> Result<(), EngineError> {
        let is_first = self.route.rank == self.route.last_stage.start;
        if is_first && !step.loads.is_empty() {
            let numbers: Vec<f32> = step.loads.iter().map(|load| load.loaded.number()).collect();
            encode(&numbers, &mut self.buffers.message);
            comm.group.post(0, &self.buffers.message)?;
        }
        if is_first && step.wanted().next().is_some() {
            // Sent before its own part, so that rank 0 can work on its part meanwhile.
            encode(self.model.residual(&mut self.backend)?, &mut self.buffers.message);
            comm.group.post(0, &self.buffers.message)?;
        }
        self.pick(step)?;
        let Buffers { picked, message, .. } = &mut self.buffers;
        encode(picked, message);
        Ok(comm.group.post(0, message)?)
    }

    /// Rank 0 with several stages: its own part of a step's results. `message` holds the last
    /// stage's rows, `[outputs, width]` f32.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn pick_from(&mut self, message: &[u8], step: &Step) -> Result<&[f32], EngineError> {
        self.buffers.rows.clear();
        self.buffers.rows.extend(decode(message));
        self.model.set_residual(&mut self.backend, &self.buffers.rows);
        self.pick(step)?;
        Ok(&self.buffers.picked)
    }

    /// Selects the needed values from this rank's logits and hidden states.
    fn pick(&mut self, step: &Step) -> Result<(), EngineError> {
        let Buffers { picked, candidates, hidden, .. } = &mut self.buffers;
        picked.clear();
        hidden.clear();
        let Some(part) = self.route.output_part() else { return Ok(()) };
        let OutputPart { vocab, hidden: width, .. } = part;
        if *width > 0 && step.wanted().any(|wanted| wanted.is_hidden()) {
            hidden.extend_from_slice(self.model.hidden(&mut self.backend)?);
        }
        let logits = match step.wanted().any(|wanted| !wanted.is_hidden()) {
            true => self.model.logits(&mut self.backend)?,
            false => &[],
        };
        for (at, wanted) in step.wanted().enumerate() {
            match wanted {
                _ if wanted.is_hidden() => {
                    picked.extend(hidden.iter().skip(at * width).take(*width))
                }
                _ => {
                    let own = &logits[at * vocab.len()..(at + 1) * vocab.len()];
                    pick(wanted, own, vocab.start, candidates, picked);
                }
            }
        }
        Ok(())
    }
}

/// Replaces `message` by these numbers.
fn encode(numbers: &[f32], message: &mut Vec<u8>) {
    message.clear();
    message.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

pub(crate) fn decode(message: &[u8]) -> impl Iterator<Item = f32> {
    message.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}
