//! A smaller model with the same vocabulary, whole on rank 0, that speculates next tokens.
//!
//! Its tokens are drawn like the model's own, with the same random numbers: similar distributions
//! give the same tokens at any temperature. Only a few sequences have a cache here, since
//! speculation does not pay with many running sequences.

use std::sync::Arc;

use backend::{Backend, Begin, Segment, StateSegment};
use gguf::{Directory, Source};
use layout::{Capacity, Config, DRAFTS_MAX, Layout, Outline, PAGE_POSITIONS, check_vocabulary};
use model::{Batch, BatchPictures, Embedding, Model, Outputs};
use protocol::{GenerateRequest, RequestId, Token};

use crate::EngineError;
use crate::comm::Alone;
use crate::history::tokens_before;
use crate::logits::Logits;
use crate::ring::Ring;
use crate::sampler::{Draw, Sampler};

/// With more rows of a sequence than this, the draft is reading new text.
const READ_MIN: usize = 8;

pub(crate) struct Draft<B: Backend> {
    model: Model<B>,
    embedding: Embedding,
    rows_max: usize,
    places: Vec<Place>,
    sampler: Sampler,
    /// Buffers of a forward pass.
    segments: Vec<Segment>,
    windows: Vec<Segment>,
    positions: Vec<u32>,
    states: Vec<StateSegment>,
    tokens: Vec<Token>,
    /// The tokens before each, if the model needs them.
    before: Vec<Token>,
    input: Vec<f32>,
}

/// A part of the cache, for one sequence.
struct Place {
    table: Arc<[u32]>,
    /// The same in layers with a window.
    window: Arc<[u32]>,
    ring: Option<Ring>,
    /// The tokens whose keys and values are in it.
    text: Vec<Token>,
    /// For models with states: the number of tokens in this place's checkpoint, the last state
    /// without speculated tokens, and whether the next rows continue from it.
    certain: usize,
    restores: bool,
}

impl Place {
    /// The length to continue from, of its first `keep` tokens, in a model with states, which
    /// cannot be truncated.
    fn resumable(&mut self, keep: usize) -> usize {
        if keep == self.text.len() {
            return keep;
        }
        if self.certain > keep {
            self.certain = 0;
        }
        self.restores = self.certain > 0;
        self.certain
    }

    /// The state step of `rows` rows from position `first` on. The first `known` tokens of the text
    /// are certain. Rows without a speculated token save the state after them.
    fn state(&mut self, slot: usize, first: usize, rows: usize, known: usize) -> StateSegment {
        let begin = match first {
            0 => Begin::Zero,
            _ if self.restores => Begin::Restore { checkpoint: slot },
            _ => Begin::GoOn { accepted: 0 },
        };
        self.restores = false;
        let is_certain = first + rows <= known;
        if is_certain {
            self.certain = first + rows;
        }
        let save = is_certain.then_some((rows, slot));
        StateSegment { slot, rows, begin, guesses: 0, save }
    }
}

/// A sequence to speculate for.
#[derive(Debug)]
pub(crate) struct DraftJob<'a> {
    pub id: RequestId,
    /// Its slot in the model's tables.
    pub slot: usize,
    pub request: &'a GenerateRequest,
    /// Prompt and answer so far.
    pub text: &'a [Token],
    pub count: usize,
}

impl DraftJob<'_> {
    /// Draws the next guess as the model draws its tokens; none from logits that are not finite.
    pub fn draw(&self, sampler: &mut Sampler, logits: &[f32], guesses: &mut Vec<Token>) {
        let Self { request, text, .. } = self;
        let answer = &text[request.prompt.len()..];
        let position = text.len() + guesses.len();
        let draw = Draw { request, answer, position, allowed: None };
        let drawn = sampler.sample(Logits::All(logits), &draw).ok();
        guesses.extend(drawn.map(|drawn| drawn.token));
    }
}

pub(crate) fn unusable(error: layout::Error) -> EngineError {
    EngineError::Draft(error.to_string())
}

impl<B: Backend> Draft<B> {
    /// Loads a draft for the model of `header` and `config`.
    ///
    /// # Errors
    /// It has another vocabulary, cannot be used, or memory is short.
    pub fn load(
        backend: &mut B,
        source: &Arc<dyn Source>,
        (header, config): (&Directory, &Config),
        context_tokens: usize,
    ) -> Result<Self, EngineError> {
        let outline = Outline::read(source.directory())?;
        check_vocabulary(source.directory(), header).map_err(unusable)?;
        if outline.config.vocab != config.vocab {
            return Err(unusable(layout::Error::OtherVocabulary));
        }
        let layout = Layout::new(&[1], &[], outline.config.layers).map_err(layout::Error::from)?;
        let capacity = Capacity::of_draft(outline.config.context_max, context_tokens);
        let model = Model::load(backend, source, &outline, &layout, 0, capacity, &mut |_| {})?;
        let pages = capacity.pages_per_sequence();
        let window = capacity.window(model.config().window(), 1);
        let ring = |at| window.map(|window| Ring::new(window, at, DRAFTS_MAX));
        let pages_of = |at| (0..pages).map(move |page| (at * pages + page) as u32);
        let in_window = |ring: Ring| (0..pages).map(|page| ring.page(page)).collect();
        let place = |at| Place {
            table: pages_of(at).collect(),
            window: ring(at).map_or_else(|| pages_of(at).collect(), in_window),
            ring: ring(at),
            text: Vec::with_capacity(capacity.context_tokens),
            certain: 0,
            restores: false,
        };
        Ok(Self {
            embedding: Embedding::open(source.clone(), model.config())?,
            model,
            rows_max: ring(0).map_or(usize::MAX, |ring| ring.rows_max()).min(capacity.rows_max(1)),
            places: (0..DRAFTS_MAX).map(place).collect(),
            sampler: Sampler::default(),
            segments: Vec::new(),
            windows: Vec::new(),
            positions: Vec::new(),
            states: Vec::new(),
            tokens: Vec::new(),
            before: Vec::new(),
            input: Vec::new(),
        })
    }

    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    /// Speculates for up to [`DRAFTS_MAX`] sequences: `guesses` gets a list for each. For a
    /// sequence that is new to the draft, its text is read first, a chunk at a time. Returns the
    /// number of passes that gave a token each; 0 if longer texts were read on the way.
    ///
    /// # Errors
    /// The device failed.
    pub fn guess(
        &mut self,
        backend: &mut B,
        jobs: &[DraftJob<'_>],
        guesses: &mut [Vec<Token>],
    ) -> Result<usize, EngineError> {
        let places = self.assign(jobs);
        let mut has_read = false;
        let context_tokens = self.places[0].table.len() * PAGE_POSITIONS;
        let count = jobs.iter().map(|job| job.count).max().unwrap_or(0);
        for round in 0..count {
            self.segments.clear();
            self.windows.clear();
            self.positions.clear();
            self.states.clear();
            self.tokens.clear();
            self.before.clear();
            let mut drawing = Vec::with_capacity(jobs.len());
            for (at, (job, slot)) in jobs.iter().zip(&places).enumerate() {
                let known = job.text.len() + guesses[at].len();
                let place = &mut self.places[*slot];
                // The draft has no tower.
                let is_text = job.request.pictures.is_empty();
                let waits = guesses[at].len() < round || round >= job.count || !is_text;
                if waits || known + 1 > context_tokens {
                    continue;
                }
                let first_pos = place.text.len();
                let room = self.rows_max - self.tokens.len();
                let rest = job.text.iter().chain(&guesses[at]).skip(first_pos).copied();
                self.tokens.extend(rest.take(room));
                let rows = self.tokens.len() - self.positions.len();
                if rows == 0 {
                    continue;
                }
                place.text.extend_from_slice(&self.tokens[self.positions.len()..]);
                self.positions.extend(first_pos as u32..(first_pos + rows) as u32);
                let (count, text) = (self.embedding.before(), &place.text);
                let before = |at| tokens_before(count, at, |at| text[at]);
                self.before.extend((first_pos..first_pos + rows).flat_map(before));
                self.segments.push(Segment {
                    table: place.table.clone(),
                    first_pos,
                    rows,
                    sees_to: None,
                });
                self.windows.push(Segment {
                    table: place.window.clone(),
                    first_pos,
                    rows,
                    sees_to: None,
                });
                if self.model.config().recurrence.is_some() {
                    self.states.push(place.state(*slot, first_pos, rows, job.text.len()));
                }
                drawing.push((at, place.text.len() == known));
            }
            if drawing.is_empty() {
                break;
            }
            has_read |= self.tokens.len() > READ_MIN * jobs.len();
            self.forward(backend, jobs, &drawing, guesses)?;
        }
        let rounds = guesses.iter().map(Vec::len).max().unwrap_or(0);
        Ok(if has_read { 0 } else { rounds })
    }

    /// Runs the prepared rows, and draws a token for each text that has been read completely.
    fn forward(
        &mut self,
        backend: &mut B,
        jobs: &[DraftJob<'_>],
        drawing: &[(usize, bool)],
        guesses: &mut [Vec<Token>],
    ) -> Result<(), EngineError> {
        self.embedding.look_up(backend, &self.tokens, &self.before, &mut self.input)?;
        let (mut rows, mut end) = (Vec::new(), 0);
        for (segment, (_, draws)) in self.segments.iter().zip(drawing) {
            end += segment.rows;
            rows.extend(draws.then_some(end - 1));
        }
        let ends = |segments: &[Segment]| -> Vec<Segment> {
            let drawn = segments.iter().zip(drawing).filter(|(_, (_, draws))| *draws);
            let last = |(segment, _): (&Segment, _)| {
                let first_pos = segment.first_pos + segment.rows - 1;
                Segment { table: segment.table.clone(), first_pos, rows: 1, sees_to: None }
            };
            drawn.map(last).collect()
        };
        let outputs =
            Outputs { rows: &rows, segments: &ends(&self.segments), windows: &ends(&self.windows) };
        let batch = Batch {
            segments: &self.segments,
            windows: &self.windows,
            positions: &self.positions,
            pictures: BatchPictures::default(),
            states: &self.states,
            outputs,
        };
        self.model.forward(backend, &mut Alone, &batch, &self.input)?;
        if rows.is_empty() {
            return Ok(());
        }
        let vocab = self.model.config().vocab;
        let logits = self.model.logits(backend)?;
        let drawn = drawing.iter().filter(|(_, draws)| *draws);
        for ((at, _), logits) in drawn.zip(logits.chunks_exact(vocab)) {
            jobs[*at].draw(&mut self.sampler, logits, &mut guesses[*at]);
        }
        Ok(())
    }

    /// Assigns a place to each job: of the remaining ones, the one with the longest prefix of its
    /// text. The place is truncated to that prefix, and never includes the text's last token,
    /// because its logits are needed.
    fn assign(&mut self, jobs: &[DraftJob<'_>]) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.places.len()).collect();
        let mut places = Vec::with_capacity(jobs.len());
        for job in jobs {
            let known = |place: usize| {
                let pairs = self.places[place].text.iter().zip(job.text);
                pairs.take_while(|(own, text)| own == text).count()
            };
            let best = (0..left.len()).max_by_key(|at| known(left[*at])).unwrap_or(0);
            let place = left.swap_remove(best);
            let keep = known(place).min(job.text.len() - 1);
            let has_states = self.model.config().recurrence.is_some();
            let own = &mut self.places[place];
            let is_in_window = own.ring.is_none_or(|ring| ring.reaches_back(own.text.len(), keep));
            let keep = if is_in_window { keep } else { 0 };
            let keep = if has_states { own.resumable(keep) } else { keep };
            own.text.truncate(keep);
            places.push(place);
        }
        places
    }
}
