//! A model's own block of multi-token prediction (MTP), whole on rank 0, that speculates next
//! tokens.
//!
//! A row of the block has a token's embedding and the model's state before it: the state that the
//! token was drawn from. So a step's outputs give the block its rows, and no step computes anything
//! for it. It sees the rows of the answer so far, and none of the prompt but the last: the model's
//! state has read the prompt. After the first guess, its own normalised output takes the place of
//! the model's state.
//!
//! Its tokens are drawn as [`Draft`](crate::draft::Draft) draws them.

use std::collections::VecDeque;
use std::sync::Arc;

use backend::{Backend, Segment};
use gguf::{Directory, ReadError, Source, Strided};
use layout::{Capacity, Config, DRAFTS_MAX, Layout, Outline};
use model::{Batch, BatchPictures, Embedding, Model, Outputs};
use protocol::{RequestId, Token};

use crate::EngineError;
use crate::comm::Alone;
use crate::draft::DraftJob;
use crate::logits::Extent;
use crate::sampler::Sampler;
use crate::step::Step;

/// Rows of a sequence that wait for the block, at most: more than one step gives. Older ones are
/// dropped.
const WAITING_MAX: usize = 32;

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
}

/// A part of the cache, for one sequence.
struct Place {
    request: Option<RequestId>,
    /// When it was last used.
    used: u64,
    table: Arc<[u32]>,
    /// Rows in the cache whose tokens are certain.
    filled: usize,
    waiting: VecDeque<Waiting>,
}

/// The state from which the token at `position` is drawn.
struct Waiting {
    position: usize,
    state: Vec<f32>,
}

/// The rows of a pass.
#[derive(Default)]
struct Rows {
    segments: Vec<Segment>,
    positions: Vec<u32>,
    tokens: Vec<Token>,
    embeddings: Vec<f32>,
    /// `[rows, state_width]`.
    states: Vec<f32>,
    /// The jobs that get a token, and their last rows.
    drawing: Vec<usize>,
    outputs: Vec<usize>,
    output_segments: Vec<Segment>,
}

/// A file under the header of the block inside of it.
struct BlockSource {
    directory: Arc<Directory>,
    file: Arc<dyn Source>,
}

impl Source for BlockSource {
    fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        self.file.read(pieces, out)
    }

    fn read_again(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        self.file.read_again(pieces, out)
    }
}

impl Place {
    fn new(at: usize, pages: usize) -> Self {
        let table = (at * pages..(at + 1) * pages).map(|page| page as u32).collect();
        Self { request: None, used: 0, table, filled: 0, waiting: VecDeque::new() }
    }

    /// Serves another sequence.
    fn begin(&mut self, request: RequestId) {
        self.request = Some(request);
        self.filled = 0;
        self.waiting.clear();
    }

    /// Keeps a state. Those of this position and later ones followed a wrong guess.
    fn wait(&mut self, position: usize, state: &[f32], waiting_max: usize) {
        while self.waiting.back().is_some_and(|last| last.position >= position) {
            self.waiting.pop_back();
        }
        if self.waiting.len() == waiting_max {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting { position, state: state.to_vec() });
    }
}

impl Rows {
    fn clear(&mut self) {
        let Self { segments, positions, tokens, states, drawing, outputs, output_segments, .. } =
            self;
        segments.clear();
        positions.clear();
        tokens.clear();
        states.clear();
        drawing.clear();
        outputs.clear();
        output_segments.clear();
    }

    fn push(&mut self, token: Token, position: usize, state: &[f32]) {
        self.tokens.push(token);
        self.positions.push(position as u32);
        self.states.extend_from_slice(state);
    }

    /// Ends the rows of a job, which begin at `first` in its table.
    fn end(&mut self, job: usize, table: &Arc<[u32]>, first: usize) {
        let before: usize = self.segments.iter().map(|segment| segment.rows).sum();
        let rows = self.tokens.len() - before;
        let segment =
            |first_pos, rows| Segment { table: table.clone(), first_pos, rows, mutual: false };
        self.segments.push(segment(first, rows));
        self.output_segments.push(segment(first + rows - 1, 1));
        self.outputs.push(self.tokens.len() - 1);
        self.drawing.push(job);
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
        let Some(block) = layout::MtpBlock::read(file.directory())? else { return Ok(None) };
        let capacity = Capacity::of_mtp(&block.outline.config, context_tokens);
        let source = BlockSource { directory: block.directory.into(), file: file.clone() };
        let source: Arc<dyn Source> = Arc::new(source);
        let whole = Layout::new(&[1], &[], 1).map_err(layout::Error::from)?;
        let outline: &Outline = &block.outline;
        let model = Model::load(backend, &source, outline, &whole, 0, capacity, &mut |_| {})?;
        let pages = capacity.pages_per_sequence();
        Ok(Some(Self {
            embedding: Embedding::open(source, model.config())?,
            model,
            places: (0..DRAFTS_MAX).map(|at| Place::new(at, pages)).collect(),
            uses: 0,
            waiting_max: WAITING_MAX.min(capacity.rows_max(1) / DRAFTS_MAX),
            sampler: Sampler::default(),
            rows: Rows::default(),
            input: Vec::new(),
        }))
    }

    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    fn config(&self) -> &Config {
        self.model.config()
    }

    /// Elements of a state.
    fn state_width(&self) -> usize {
        self.config().stream_width()
    }

    /// Keeps the states of a finished step's outputs, `[outputs, state_width]` f32; empty if rank
    /// 0 has no part of the output head.
    pub fn note(&mut self, step: &Step, states: &[f32]) {
        let rows = states.chunks_exact(self.state_width());
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
        for (at, logits) in self.rows.drawing.iter().zip(logits.chunks_exact(vocab)) {
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
    use backend::Cpu;
    use gguf::File;
    use serde_json::Value;

    use super::*;

    fn open(name: &str) -> (Arc<dyn Source>, Value) {
        let path = format!("{}/../../fixtures/models/{name}", env!("CARGO_MANIFEST_DIR"));
        let json = std::fs::read_to_string(format!("{path}.json")).unwrap();
        let file = File::open(format!("{path}.gguf")).unwrap();
        (Arc::new(file), serde_json::from_str(&json).unwrap())
    }

    /// A model's own states after a text, `[tokens, width]`, and its next token.
    fn trunk(file: &Arc<dyn Source>, text: &[Token]) -> (Vec<f32>, Token) {
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
        let likeliest = |a: &usize, b: &usize| last[*a].total_cmp(&last[*b]);
        (found, (0..last.len()).max_by(likeliest).unwrap() as Token)
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
            let (file, reference) = open(name);
            for prompt in reference["prompts"].as_array().unwrap() {
                let expected = prompt[by]["logits"].as_array().unwrap();
                let ids = prompt["ids"].as_array().unwrap();
                let mut text: Vec<Token> = ids.iter().map(|id| id.as_u64().unwrap() as _).collect();
                let (states, next) = trunk(&file, &text);
                text.push(next);
                let mut backend = Cpu::new(1, &[]).unwrap();
                let mut mtp = Mtp::load(&mut backend, &file, 512).unwrap().unwrap();
                // The last row sees no more of a single layer with a window.
                let seen = mtp.config().window().unwrap_or(usize::MAX);
                let rows = states.chunks_exact(mtp.state_width()).enumerate();
                for (at, state) in rows.skip((text.len() - 1).saturating_sub(seen)) {
                    mtp.rows.push(text[at + 1], at + 1, state);
                }
                mtp.rows.end(0, &mtp.places[0].table.clone(), 0);
                mtp.pass(&mut backend).unwrap();
                let logits = mtp.model.logits(&mut backend).unwrap();
                let pairs = logits.iter().zip(expected);
                let far = pairs.map(|(own, due)| (own - due.as_f64().unwrap() as f32).abs());
                let far = far.fold(0.0, f32::max);
                assert!(far < 1e-4, "{name}, {} tokens: {far}", text.len());
            }
        }
    }
}
