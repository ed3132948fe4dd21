//! A model's own block of multi-token prediction (MTP), an EAGLE-3 head for it, or Gemma 4's
//! assistant, whole on rank 0, that speculates next tokens.
//!
//! A row of the block has a token's embedding and the model's state before it: the state that the
//! token was drawn from. So a step's outputs give the block its rows, and no step computes anything
//! for it. It sees the rows of the answer so far, and none of the prompt but the last: the model's
//! state has read the prompt. After the first guess, its own output takes the place of the model's
//! state. An EAGLE-3 head fuses the model's states, and may have fewer tokens. An assistant keeps
//! nothing: its rows see the model's cache, and so the whole text.
//!
//! Its tokens are drawn as [`Draft`](crate::draft::Draft) draws them.

mod rows;

use std::sync::Arc;

use backend::Backend;
use gguf::Source;
use layout::{
    BlockFile, Capacity, Config, DRAFTS_MAX, Layout, MtpBlock, Outline, PAGE_POSITIONS,
    check_vocabulary,
};
use model::{Batch, BatchPictures, Embedding, Model, Outputs};
use protocol::{RequestId, Token};
use rows::{Place, Rows, Waiting};

use crate::EngineError;
use crate::block_source::{BlockSource, integers};
use crate::comm::Alone;
use crate::draft::{DraftJob, unusable};
use crate::sampler::Sampler;
use crate::step::Step;
use crate::tables::Tables;

/// Rows of a sequence that wait for the block, at most: more than one step gives. Older ones are
/// dropped.
const WAITING_MAX: usize = 32;

/// The logit of a token that a head does not know.
const UNKNOWN: f32 = -1e30;

pub(crate) struct Mtp<B: Backend> {
    model: Model<B>,
    embedding: Embedding,
    places: Vec<Place>,
    /// Counts uses of places.
    uses: u64,
    /// Rows of each place that may wait: those of all places fit in a pass. An assistant's has one.
    waiting_max: usize,
    sampler: Sampler,
    rows: Rows,
    input: Vec<f32>,
    fewer: Option<Fewer>,
}

/// The model that a block guesses for, and its tables.
pub(crate) struct Target<'a, B: Backend> {
    pub model: &'a mut Model<B>,
    pub tables: &'a Tables,
}

/// The tokens of a head that has fewer than its model.
struct Fewer {
    /// The model's token for each.
    tokens: Vec<Token>,
    /// The logits of all the model's tokens.
    logits: Vec<f32>,
}

impl Fewer {
    /// The logits of all the model's tokens.
    fn spread(&mut self, own: &[f32]) -> &[f32] {
        self.logits.fill(UNKNOWN);
        for (token, logit) in self.tokens.iter().zip(own) {
            self.logits[*token as usize] = *logit;
        }
        &self.logits
    }
}

impl<B: Backend> Mtp<B> {
    /// Loads the block of a model's file; `None` if it has none.
    ///
    /// # Errors
    /// The block cannot be used, or memory is short.
    pub fn load(
        backend: &mut B,
        file: &Arc<dyn Source>,
        context_tokens: usize,
    ) -> Result<Option<Self>, EngineError> {
        let Some(block) = MtpBlock::read(file.directory())? else { return Ok(None) };
        let source: Arc<dyn Source> = Arc::new(BlockSource::new(block.directory, file, file));
        let embedding = Embedding::open(source.clone(), &block.outline.config)?;
        Self::open(backend, &source, &block.outline, context_tokens, embedding).map(Some)
    }

    /// Loads the block of `file` for the model of `source` and `config`.
    ///
    /// # Errors
    /// It is for another model, cannot be used, or memory is short.
    pub fn load_file(
        backend: &mut B,
        file: &Arc<dyn Source>,
        (source, config): (&Arc<dyn Source>, &Config),
        context_tokens: usize,
    ) -> Result<Self, EngineError> {
        check_vocabulary(file.directory(), source.directory()).map_err(unusable)?;
        let due = (source.directory().as_ref(), config);
        let block = BlockFile::read(file.directory(), due).map_err(unusable)?;
        let fewer = block.tokens.map(|tokens| {
            let tokens = integers(file.as_ref(), &tokens, config.vocab)?;
            Ok::<_, EngineError>(Fewer { tokens, logits: vec![UNKNOWN; config.vocab] })
        });
        let fewer = fewer.transpose()?;
        let own: Arc<dyn Source> = Arc::new(BlockSource::new(block.directory, file, source));
        let embedding = match block.outline.config.assistant {
            Some(_) => {
                let mut shared = config.clone();
                shared.by_layer = None;
                Embedding::open(source.clone(), &shared)?
            }
            None => Embedding::open(own.clone(), &block.outline.config)?,
        };
        let block = Self::open(backend, &own, &block.outline, context_tokens, embedding)?;
        Ok(Self { fewer, ..block })
    }

    fn open(
        backend: &mut B,
        source: &Arc<dyn Source>,
        outline: &Outline,
        context_tokens: usize,
        embedding: Embedding,
    ) -> Result<Self, EngineError> {
        let capacity = Capacity::of_mtp(&outline.config, context_tokens);
        let whole = Layout::new(&[1], &[], outline.config.layers).map_err(layout::Error::from)?;
        let model = Model::load(backend, source, outline, &whole, 0, capacity, &mut |_| {})?;
        let pages = capacity.pages_per_sequence();
        Ok(Self {
            embedding,
            model,
            places: (0..DRAFTS_MAX).map(|at| Place::new(at, pages)).collect(),
            uses: 0,
            waiting_max: match outline.config.assistant {
                Some(_) => WAITING_MAX,
                None => WAITING_MAX.min(capacity.rows_max(1) / DRAFTS_MAX),
            },
            sampler: Sampler::default(),
            rows: Rows::default(),
            input: Vec::new(),
            fewer: None,
        })
    }

    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    fn config(&self) -> &Config {
        self.model.config()
    }

    /// Whether it reads the model's cache.
    fn sees_model(&self) -> bool {
        self.config().assistant.is_some()
    }

    /// Elements of a token's embedding, and of a state of its own.
    fn widths(&self) -> (usize, usize) {
        let config = self.config();
        let own = (config.width, config.stream_width());
        config.assistant.map_or(own, |assistant| (assistant.model_width, assistant.model_width))
    }

    /// The layers of the model before which an EAGLE-3 head reads the residual stream.
    pub fn tapped_layers(&self) -> &[usize] {
        self.config().eagle3.as_ref().map_or(&[], |eagle3| &eagle3.layers)
    }

    /// Keeps the model's states of a finished step's outputs, `[outputs, width]` f32; empty if rank
    /// 0 has no part of the output head.
    pub fn note(&mut self, step: &Step, states: &[f32]) {
        let eagle3 = self.config().eagle3.as_ref();
        let width = eagle3.map_or(self.widths().1, |eagle3| eagle3.state_width());
        let rows = states.chunks_exact(width);
        assert!(rows.len() == step.outputs.len() || states.is_empty(), "states of another step");
        for ((output, wanted), state) in step.outputs.iter().zip(step.wanted()).zip(rows) {
            if !wanted.is_hidden() {
                let at = self.place_of(output.request);
                self.places[at].wait(output.position, state, self.waiting_max);
            }
        }
    }

    /// The place of a sequence: its own, or the one unused for longest.
    fn place_of(&mut self, request: RequestId) -> usize {
        self.uses += 1;
        let own = self.places.iter().position(|place| place.request == Some(request));
        let oldest = || (0..self.places.len()).min_by_key(|at| self.places[*at].used);
        let at = own.or_else(oldest).unwrap_or(0);
        if own.is_none() {
            self.places[at].begin(request);
        }
        self.places[at].used = self.uses;
        at
    }

    /// Speculates for up to [`DRAFTS_MAX`] sequences: `guesses` gets a list for each. Returns the
    /// number of passes.
    ///
    /// # Errors
    /// The device failed.
    pub fn guess(
        &mut self,
        backend: &mut B,
        target: &mut Target<'_, B>,
        jobs: &[DraftJob<'_>],
        guesses: &mut [Vec<Token>],
    ) -> Result<usize, EngineError> {
        let places: Vec<usize> = jobs.iter().map(|job| self.place_of(job.id)).collect();
        self.rows.clear();
        for (at, job) in jobs.iter().enumerate() {
            self.read(at, job, places[at], target.tables);
        }
        self.fuse(backend)?;
        let count = jobs.iter().map(|job| job.count).max().unwrap_or(0);
        for round in 0..count {
            if self.rows.drawing.is_empty() {
                return Ok(round);
            }
            let states = self.forward(backend, target, jobs, guesses)?;
            // All rows over the model's cache stand where the last token does.
            let ahead = if self.sees_model() { 0 } else { round + 1 };
            let drawn = std::mem::take(&mut self.rows.drawing);
            self.rows.clear();
            for (at, state) in drawn.into_iter().zip(states.chunks_exact(self.widths().1)) {
                let (job, made) = (&jobs[at], guesses[at].len());
                let Some(token) = guesses[at].last().filter(|_| made == round + 1) else {
                    continue;
                };
                if made < job.count {
                    let place = &self.places[places[at]];
                    self.rows.push(*token, job.text.len() - 1 + ahead, state);
                    self.rows.end(at, &place.tables, place.filled - 1 + ahead);
                }
            }
        }
        Ok(count)
    }

    /// Prepares the rows of a sequence that wait, if the last token's is among them.
    fn read(&mut self, at: usize, job: &DraftJob<'_>, place: usize, of_model: &Tables) {
        let sees_model = self.sees_model();
        let Place { tables, filled, waiting, .. } = &mut self.places[place];
        waiting.retain(|one| one.position < job.text.len());
        if waiting.back().is_none_or(|last| last.position + 1 != job.text.len()) {
            return;
        }
        if sees_model {
            // The model has cached all tokens but the last.
            *tables = [of_model.get(job.slot), of_model.window(job.slot)];
            *filled = job.text.len() - 2;
            waiting.drain(..waiting.len() - 1);
        } else if *filled + waiting.len() + job.count > tables[0].len() * PAGE_POSITIONS {
            // What was said long ago is forgotten.
            *filled = 0;
        }
        for Waiting { position, state } in waiting.iter() {
            self.rows.push(job.text[*position], *position, state);
        }
        self.rows.end(at, tables, *filled);
        *filled += waiting.len();
        waiting.clear();
    }

    /// In an EAGLE-3 head, makes its states of the model's in the prepared rows.
    fn fuse(&mut self, backend: &mut B) -> Result<(), EngineError> {
        if self.config().eagle3.is_some() && !self.rows.states.is_empty() {
            let fused = self.model.fuse(backend, &self.rows.states)?;
            self.rows.states.clear();
            self.rows.states.extend_from_slice(fused);
        }
        Ok(())
    }

    /// Runs the prepared rows and draws a token for each job in them; returns the states after
    /// these, `[jobs, state_width]` f32.
    fn forward(
        &mut self,
        backend: &mut B,
        target: &mut Target<'_, B>,
        jobs: &[DraftJob<'_>],
        guesses: &mut [Vec<Token>],
    ) -> Result<Vec<f32>, EngineError> {
        self.pass(backend, target.model)?;
        let states = self.model.state(backend)?.to_vec();
        let vocab = self.config().vocab;
        let logits = self.model.logits(backend)?;
        for (at, own) in self.rows.drawing.iter().zip(logits.chunks_exact(vocab)) {
            let logits = self.fewer.as_mut().map_or(own, |fewer| fewer.spread(own));
            jobs[*at].draw(&mut self.sampler, logits, &mut guesses[*at]);
        }
        Ok(states)
    }

    /// Runs the prepared rows.
    fn pass(&mut self, backend: &mut B, target: &mut Model<B>) -> Result<(), EngineError> {
        let (width, state_width) = self.widths();
        let target = self.sees_model().then_some(target);
        let Rows { tokens, embeddings, states, .. } = &mut self.rows;
        self.embedding.look_up(backend, tokens, &[], embeddings)?;
        self.input.clear();
        let states = states.chunks_exact(state_width);
        for (embedding, state) in embeddings.chunks_exact(width).zip(states) {
            self.input.extend(embedding.iter().chain(state));
        }
        let Rows { segments, windows, positions, outputs, output_segments: ends, .. } = &self.rows;
        let outputs = Outputs { rows: outputs, segments: ends, windows: ends };
        let pictures = BatchPictures::default();
        let batch = Batch { segments, windows, positions, pictures, states: &[], outputs };
        self.model.forward_over(backend, &mut Alone, &batch, &self.input, target)
    }
}

#[cfg(test)]
mod tests;
