//! A model's own block of multi-token prediction (MTP), or an EAGLE-3 head for it, whole on rank 0,
//! that speculates next tokens.
//!
//! A row of the block has a token's embedding and the model's state before it: the state that the
//! token was drawn from. So a step's outputs give the block its rows, and no step computes anything
//! for it. It sees the rows of the answer so far, and none of the prompt but the last: the model's
//! state has read the prompt. After the first guess, its own output takes the place of the model's
//! state. An EAGLE-3 head fuses the model's states, and may have fewer tokens.
//!
//! Its tokens are drawn as [`Draft`](crate::draft::Draft) draws them.

mod rows;

use std::sync::Arc;

use backend::Backend;
use gguf::Source;
use layout::{
    BlockFile, Capacity, Config, DRAFTS_MAX, Layout, MtpBlock, Outline, check_vocabulary,
};
use model::{Batch, BatchPictures, Embedding, Model, Outputs};
use protocol::{RequestId, Token};
use rows::{Place, Rows, Waiting};

use crate::EngineError;
use crate::block_source::{BlockSource, integers};
use crate::comm::Alone;
use crate::draft::{DraftJob, unusable};
use crate::logits::Extent;
use crate::sampler::Sampler;
use crate::step::Step;

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
    /// Rows of each place that may wait: those of all places fit in a pass.
    waiting_max: usize,
    sampler: Sampler,
    rows: Rows,
    input: Vec<f32>,
    fewer: Option<Fewer>,
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
        let source = BlockSource::new(block.directory, file, file);
        Self::open(backend, source, &block.outline, context_tokens, None).map(Some)
    }

    /// Loads the EAGLE-3 head or the MTP block of `file` for the model of `source` and `config`.
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
        let source = BlockSource::new(block.directory, file, source);
        Self::open(backend, source, &block.outline, context_tokens, fewer.transpose()?)
    }

    fn open(
        backend: &mut B,
        source: BlockSource,
        outline: &Outline,
        context_tokens: usize,
        fewer: Option<Fewer>,
    ) -> Result<Self, EngineError> {
        let source: Arc<dyn Source> = Arc::new(source);
        let capacity = Capacity::of_mtp(&outline.config, context_tokens);
        let whole = Layout::new(&[1], &[], 1).map_err(layout::Error::from)?;
        let model = Model::load(backend, &source, outline, &whole, 0, capacity, &mut |_| {})?;
        let pages = capacity.pages_per_sequence();
        Ok(Self {
            embedding: Embedding::open(source, model.config())?,
            model,
            places: (0..DRAFTS_MAX).map(|at| Place::new(at, pages)).collect(),
            uses: 0,
            waiting_max: WAITING_MAX.min(capacity.rows_max(1) / DRAFTS_MAX),
            sampler: Sampler::default(),
            rows: Rows::default(),
            input: Vec::new(),
            fewer,
        })
    }

    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    fn config(&self) -> &Config {
        self.model.config()
    }

    /// Elements of a state of its own.
    fn state_width(&self) -> usize {
        self.config().stream_width()
    }

    /// The layers of the model before which an EAGLE-3 head reads the residual stream.
    pub fn tapped_layers(&self) -> &[usize] {
        self.config().eagle3.as_ref().map_or(&[], |eagle3| &eagle3.layers)
    }

    /// Keeps the model's states of a finished step's outputs, `[outputs, width]` f32; empty if rank
    /// 0 has no part of the output head.
    pub fn note(&mut self, step: &Step, states: &[f32]) {
        let eagle3 = self.config().eagle3.as_ref();
        let width = eagle3.map_or(self.state_width(), |eagle3| eagle3.state_width());
        let rows = states.chunks_exact(width);
        assert!(rows.len() == step.outputs.len() || states.is_empty(), "states of another step");
        for ((output, wanted), state) in step.outputs.iter().zip(step.wanted()).zip(rows) {
            if wanted != Extent::Hidden {
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
        jobs: &[DraftJob<'_>],
        guesses: &mut [Vec<Token>],
    ) -> Result<usize, EngineError> {
        let places: Vec<usize> = jobs.iter().map(|job| self.place_of(job.id)).collect();
        self.rows.clear();
        for (at, job) in jobs.iter().enumerate() {
            self.read(at, job, places[at]);
        }
        self.fuse(backend)?;
        let count = jobs.iter().map(|job| job.count).max().unwrap_or(0);
        for round in 0..count {
            if self.rows.drawing.is_empty() {
                return Ok(round);
            }
            let states = self.forward(backend, jobs, guesses)?;
            let drawn = std::mem::take(&mut self.rows.drawing);
            self.rows.clear();
            for (at, state) in drawn.into_iter().zip(states.chunks_exact(self.state_width())) {
                let (job, made) = (&jobs[at], guesses[at].len());
                let Some(token) = guesses[at].last().filter(|_| made == round + 1) else {
                    continue;
                };
                if made < job.count {
                    let place = &self.places[places[at]];
                    self.rows.push(*token, job.text.len() + round, state);
                    self.rows.end(at, &place.table, place.filled + round);
                }
            }
        }
        Ok(count)
    }

    /// Prepares the rows of a sequence that wait, if the last token's is among them.
    fn read(&mut self, at: usize, job: &DraftJob<'_>, place: usize) {
        let context = self.places[place].table.len() * layout::PAGE_POSITIONS;
        let Place { table, filled, waiting, .. } = &mut self.places[place];
        waiting.retain(|one| one.position < job.text.len());
        if waiting.back().is_none_or(|last| last.position + 1 != job.text.len()) {
            return;
        }
        if *filled + waiting.len() + job.count > context {
            // What was said long ago is forgotten.
            *filled = 0;
        }
        for Waiting { position, state } in waiting.iter() {
            self.rows.push(job.text[*position], *position, state);
        }
        self.rows.end(at, table, *filled);
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
        jobs: &[DraftJob<'_>],
        guesses: &mut [Vec<Token>],
    ) -> Result<Vec<f32>, EngineError> {
        self.pass(backend)?;
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
    fn pass(&mut self, backend: &mut B) -> Result<(), EngineError> {
        let (width, state_width) = (self.config().width, self.state_width());
        let Rows { tokens, embeddings, states, .. } = &mut self.rows;
        self.embedding.look_up(backend, tokens, &[], embeddings)?;
        self.input.clear();
        let states = states.chunks_exact(state_width);
        for (embedding, state) in embeddings.chunks_exact(width).zip(states) {
            self.input.extend(embedding.iter().chain(state));
        }
        let Rows { segments, positions, outputs, output_segments: ends, .. } = &self.rows;
        let outputs = Outputs { rows: outputs, segments: ends, windows: ends };
        let pictures = BatchPictures::default();
        let batch =
            Batch { segments, windows: segments, positions, pictures, states: &[], outputs };
        self.model.forward(backend, &mut Alone, &batch, &self.input)
    }
}

#[cfg(test)]
mod tests {
    use backend::{Cpu, Segment};
    use gguf::File;
    use serde_json::Value;

    use super::*;

    fn open(name: &str) -> (Arc<dyn Source>, Value) {
        let path = format!("{}/../../fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
        let json = std::fs::read_to_string(format!("{path}.json")).unwrap();
        let file = File::open(format!("{path}.gguf")).unwrap();
        (Arc::new(file), serde_json::from_str(&json).unwrap())
    }

    /// What a block reads of a model after a text, `[tokens, width]`, and the model's next token.
    fn trunk(file: &Arc<dyn Source>, text: &[Token], tapped: &[usize]) -> (Vec<f32>, Token) {
        let mut backend = Cpu::new(1, &[]).unwrap();
        let outline = Outline::read(file.directory()).unwrap();
        let whole = Layout::new(&[1], &[], outline.config.layers).unwrap();
        let capacity = Capacity {
            context_tokens: 512,
            sequences_max: 512,
            cache_tokens: 512,
            cache_type: protocol::CacheType::Auto,
            picture_rows: 0,
            checkpoints: 0,
        };
        let mut model =
            Model::load(&mut backend, file, &outline, &whole, 0, capacity, &mut |_| {}).unwrap();
        model.tap(tapped);
        let mut input = Vec::new();
        let mut embedding = Embedding::open(file.clone(), model.config()).unwrap();
        embedding.look_up(&mut backend, text, &[], &mut input).unwrap();
        let table: Arc<[u32]> = (0..8).collect();
        let segments = [Segment { table, first_pos: 0, rows: text.len(), mutual: false }];
        let rows: Vec<usize> = (0..text.len()).collect();
        let positions: Vec<u32> = (0..text.len() as u32).collect();
        let state = backend::StateSegment {
            slot: 0,
            rows: text.len(),
            begin: backend::Begin::Zero,
            guesses: 0,
            save: None,
        };
        let states: &[_] = &[state];
        let states = if model.config().recurrence.is_some() { states } else { &[] };
        let outputs = Outputs { rows: &rows, segments: &segments, windows: &segments };
        let batch = Batch {
            segments: &segments,
            windows: &segments,
            positions: &positions,
            pictures: BatchPictures::default(),
            states,
            outputs,
        };
        model.forward(&mut backend, &mut Alone, &batch, &input).unwrap();
        let found = model.state(&mut backend).unwrap().to_vec();
        let vocab = model.config().vocab;
        let logits = model.logits(&mut backend).unwrap();
        let last = &logits[logits.len() - vocab..];
        (found, largest(last))
    }

    fn largest(logits: &[f32]) -> Token {
        let larger = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]);
        (0..logits.len()).max_by(larger).unwrap() as Token
    }

    /// The largest difference of logits, without those that the reference has as -infinity.
    fn far(own: &[f32], due: &Value) -> f32 {
        let due = due.as_array().unwrap();
        assert_eq!(own.len(), due.len());
        let known = own.iter().zip(due).filter_map(|(own, due)| Some((own, due.as_f64()?)));
        known.map(|(own, due)| (own - due as f32).abs()).fold(0.0, f32::max)
    }

    fn tokens(prompt: &Value) -> Vec<Token> {
        let ids = prompt["ids"].as_array().unwrap();
        ids.iter().map(|id| id.as_u64().unwrap() as Token).collect()
    }

    /// The block of a file as if it were alone in it, and the same model without a block, if there
    /// is one.
    fn alone(file: &Arc<dyn Source>, name: &str) -> Option<[Arc<dyn Source>; 2]> {
        let base = name.strip_suffix("-mtp")?;
        if !["step35", "mimo2", "deepseek4"].contains(&base) {
            return None;
        }
        let (model, _) = open(&format!("models/{base}"));
        let layers = Outline::read(model.directory()).unwrap().config.layers;
        let of_block = format!("blk.{layers}.");
        let directory = file.directory();
        let metadata = directory.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
        let own = directory.tensors().iter().filter(|tensor| tensor.name.starts_with(&of_block));
        let directory = directory.with(metadata.collect(), own.cloned().collect());
        Some([Arc::new(BlockSource::new(directory, file, file)), model])
    }

    #[test]
    fn a_block_gives_the_logits_of_its_reference() {
        for (name, by) in [
            ("qwen35-mtp", "hf_draft"),
            ("glm4moe-mtp", "hf_draft"),
            ("deepseek32-mtp", "hf_draft"),
            ("step35-mtp", "llama_cpp_f32_draft"),
            ("mimo2-mtp", "llama_cpp_f32_draft"),
            ("deepseek4-mtp", "llama_cpp_f32_draft"),
        ] {
            let (file, reference) = open(&format!("models/{name}"));
            for prompt in reference["prompts"].as_array().unwrap() {
                let mut text = tokens(prompt);
                let (states, next) = trunk(&file, &text, &[]);
                text.push(next);
                let mut backend = Cpu::new(1, &[]).unwrap();
                let own = Mtp::load(&mut backend, &file, 512).unwrap().unwrap();
                let apart = alone(&file, name).map(|[block, model]| {
                    let config = Outline::read(model.directory()).unwrap().config;
                    Mtp::load_file(&mut backend, &block, (&model, &config), 512).unwrap()
                });
                for mut mtp in std::iter::once(own).chain(apart) {
                    // The last row sees no more of a single layer with a window.
                    let seen = mtp.config().window().unwrap_or(usize::MAX);
                    let rows = states.chunks_exact(mtp.state_width()).enumerate();
                    for (at, state) in rows.skip((text.len() - 1).saturating_sub(seen)) {
                        mtp.rows.push(text[at + 1], at + 1, state);
                    }
                    mtp.rows.end(0, &mtp.places[0].table.clone(), 0);
                    mtp.pass(&mut backend).unwrap();
                    let logits = mtp.model.logits(&mut backend).unwrap();
                    let far = far(logits, &prompt[by]["logits"]);
                    assert!(far < 1e-4, "{name}, {} tokens: {far}", text.len());
                }
            }
        }
    }

    #[test]
    fn a_head_gives_the_logits_of_its_reference() {
        for name in ["qwen3", "nemotron_h"] {
            let (file, _) = open(&format!("models/{name}"));
            let (head, reference) = open(&format!("heads/{name}-eagle3"));
            let config = Outline::read(file.directory()).unwrap().config;
            for prompt in reference["prompts"].as_array().unwrap() {
                let mut backend = Cpu::new(1, &[]).unwrap();
                let mut mtp = Mtp::load_file(&mut backend, &head, (&file, &config), 512).unwrap();
                let mut text = tokens(prompt);
                let (states, next) = trunk(&file, &text, mtp.tapped_layers());
                text.push(next);
                for (at, state) in states.chunks_exact(states.len() / (text.len() - 1)).enumerate()
                {
                    mtp.rows.push(text[at + 1], at + 1, state);
                }
                let table = mtp.places[0].table.clone();
                mtp.rows.end(0, &table, 0);
                mtp.fuse(&mut backend).unwrap();
                for due in prompt["llama_cpp_f32_heads"].as_array().unwrap() {
                    mtp.pass(&mut backend).unwrap();
                    let state = mtp.model.state(&mut backend).unwrap().to_vec();
                    let own = mtp.model.logits(&mut backend).unwrap();
                    let logits = match &mut mtp.fewer {
                        Some(fewer) => fewer.spread(own),
                        None => own,
                    };
                    let far = far(logits, due);
                    assert!(far < 1e-4, "{name}, {} tokens: {far}", text.len());
                    let guess = largest(logits);
                    mtp.rows.clear();
                    mtp.rows.push(guess, text.len(), &state);
                    mtp.rows.end(0, &table, text.len() - 1);
                    text.push(guess);
                }
            }
        }
    }
}
