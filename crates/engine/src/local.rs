//! All ranks of an instance as threads of this process, over real links: the base of developer
//! tools and benchmarks.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use backend::{Backend, BackendError, Begin, Cpu};
use gguf::Source;
use layout::PAGE_POSITIONS;
use link::Listener;
use protocol::{
    EngineStats, ExpertCache, GenerateRequest, InvalidRequest, PromptCache, RankStats, Split,
    SplitOptions, Token, WorkerEvent, ring_peers,
};

use crate::comm::{Comm, Meeting};
use crate::cpus::{Unpin, own_cpus};
use crate::leader::Leader;
use crate::logits::{Extent, Logits};
use crate::pipeline::Pipeline;
use crate::rank::RankOptions;
use crate::ring::Ring;
use crate::sampler::{NotFinite, check_finite};
use crate::scheduler::Refused;
use crate::step::{Output, Save, StateStep, StepSegment};
use crate::{EngineError, Rank};

/// Number of instances of this process so far.
static INSTANCES: AtomicU64 = AtomicU64::new(0);

/// A rank with a small share waits here for those that still load. A failed rank raises the flag
/// that ends the wait at once.
const LOAD_AND_CONNECT_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Clone)]
pub struct LocalOptions {
    pub options: SplitOptions,
    pub split: Split,
    /// Whether ranks link only along a ring.
    pub ring: bool,
    /// Added to every message between ranks.
    pub link_latency: Duration,
    /// Threads of each rank, each pinned to a CPU if there are enough.
    pub threads: usize,
    /// Where prompts are kept: each rank has a folder of its number in this one.
    pub prompts: Option<PromptCache>,
    /// Where experts lie that are not in memory: a folder for each rank in this one.
    pub experts: Option<ExpertCache>,
}

/// A model split over threads of this process: for one sequence fed by hand, or for concurrent
/// requests.
pub struct Local<B: Backend = Cpu> {
    rank: Rank<B>,
    comm: Comm,
    /// The steps of the fed sequence.
    pipeline: Pipeline,
    position: usize,
    /// For models with states: the position of the kept state, and whether the next tokens continue
    /// from it.
    kept: usize,
    restores: bool,
    /// Counters of the last concurrent requests.
    stats: EngineStats,
    abort: Arc<AtomicBool>,
    followers: Vec<JoinHandle<()>>,
    /// The CPU set of the calling thread, which runs rank 0.
    _unpin: Unpin,
}

/// Opens the device of a rank with this number of threads, pinned to these CPUs if there are any.
pub type OpenDevice<B> = Arc<dyn Fn(usize, &[usize]) -> Result<B, BackendError> + Send + Sync>;

impl Local {
    /// Loads all ranks and links them.
    ///
    /// # Errors
    /// A rank cannot be loaded or linked.
    pub fn start(source: Arc<dyn Source>, options: &LocalOptions) -> Result<Self, EngineError> {
        Self::start_on(Arc::new(Cpu::new), source, options)
    }
}

impl<B: Backend + 'static> Local<B> {
    /// Like [`Local::start`], on devices of another kind.
    ///
    /// # Errors
    /// A rank cannot be loaded or linked.
    pub fn start_on(
        open: OpenDevice<B>,
        source: Arc<dyn Source>,
        options: &LocalOptions,
    ) -> Result<Self, EngineError> {
        let unpin = Unpin::remember();
        let ranks = options.split.shares.len();
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listeners = (0..ranks).map(|_| Listener::bind(any_port));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let endpoints: Vec<Vec<SocketAddr>> = listeners.iter().map(Listener::addrs).collect();
        let abort = Arc::new(AtomicBool::new(false));
        let count = INSTANCES.fetch_add(1, Ordering::Relaxed);
        let instance = format!("local {} {count}", std::process::id());
        let mut starts = listeners.into_iter().enumerate().map(|(rank, listener)| Start {
            open: open.clone(),
            instance: instance.clone(),
            rank,
            listener,
            endpoints: endpoints.clone(),
            options: options.clone(),
            source: source.clone(),
            abort: abort.clone(),
        });
        let Some(first) = starts.next() else {
            return Err(EngineError::Layout(layout::SplitError::Ranks { found: 0 }.into()));
        };
        let followers: Vec<_> = starts.map(spawn_follower).collect();
        match first.start() {
            Ok((rank, comm)) => Ok(Self {
                pipeline: Pipeline::new(&rank),
                rank,
                comm,
                position: 0,
                kept: 0,
                restores: false,
                stats: EngineStats::default(),
                abort,
                followers,
                _unpin: unpin,
            }),
            Err(error) => {
                abort.store(true, Ordering::Release);
                followers.into_iter().for_each(join);
                Err(error)
            }
        }
    }

    pub fn rank(&self) -> &Rank<B> {
        &self.rank
    }

    /// What rank 0 speculates after the last fed tokens.
    #[cfg(test)]
    pub(crate) fn guess(&mut self, job: crate::draft::DraftJob<'_>) -> Vec<Token> {
        let mut guesses = [Vec::new()];
        self.rank.note_states(self.pipeline.finished()).unwrap();
        self.rank.guess(&[job], &mut guesses).unwrap();
        guesses.concat()
    }

    /// Truncates the sequence to its first `len` tokens; or to none, if layers carry a state that
    /// was not [kept](Self::feed_and_keep) there, or their window does not reach back that far.
    /// Returns the number of remaining tokens.
    pub fn truncate(&mut self, len: usize) -> usize {
        let limits = self.rank.limits();
        self.restores = limits.has_states && len > 0 && len < self.position;
        let has_state = !self.restores || self.kept == len;
        let has_window = self.ring().is_none_or(|ring| ring.reaches_back(self.position, len));
        let left = if has_state && has_window { len } else { 0 };
        self.restores &= left > 0;
        self.position = self.position.min(left);
        self.position
    }

    /// The window pages of the only sequence, if layers keep only their window.
    fn ring(&self) -> Option<Ring> {
        self.rank.limits().window.map(|window| Ring::new(window, 0, 1))
    }

    /// Like [`Self::feed`]; afterwards the sequence can be [truncated](Self::truncate) to this
    /// length.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn feed_and_keep(&mut self, tokens: &[Token]) -> Result<&[f32], EngineError> {
        self.kept = self.position + tokens.len();
        self.feed(tokens)
    }

    /// Adds tokens to the sequence and returns the logits after the last, `[vocab]`.
    ///
    /// # Errors
    /// The context is full, or a rank failed.
    pub fn feed(&mut self, tokens: &[Token]) -> Result<&[f32], EngineError> {
        match self.add(tokens, Extent::All, 1)?.next() {
            Some(Logits::All(logits)) => Ok(logits),
            _ => Err(EngineError::Protocol("no logits came back".to_owned())),
        }
    }

    /// Adds positions with made-up keys and values, as fast as they can be written: the model must
    /// have one rank.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn make_up(&mut self, positions: usize) -> Result<(), EngineError> {
        self.rank.set_noise(true);
        let made = self.feed_and_keep(&vec![0; positions]).map(drop);
        self.rank.set_noise(false);
        made
    }

    /// Adds tokens to the sequence and passes the logits after each, `[vocab]`, to `read`, in
    /// order.
    ///
    /// # Errors
    /// As [`Self::feed`], a logit is not a number, or `read` fails.
    pub fn feed_each<E: From<EngineError>>(
        &mut self,
        tokens: &[Token],
        mut read: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        // Every row of a step needs logits, so a step has at most `outputs_max` rows.
        for chunk in tokens.chunks(self.rank.limits().outputs_max) {
            for logits in self.add(chunk, Extent::All, chunk.len())? {
                match logits {
                    Logits::All(logits) => {
                        check_finite(logits).map_err(EngineError::from)?;
                        read(logits)?;
                    }
                    _ => return Err(EngineError::from(NotFinite).into()),
                }
            }
        }
        Ok(())
    }

    /// Adds tokens to the sequence and returns the likeliest next one.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn next(&mut self, tokens: &[Token]) -> Result<Token, EngineError> {
        match self.add(tokens, Extent::Top(1), 1)?.next() {
            Some(Logits::Top([best, ..])) if best.logit.is_finite() => Ok(best.token),
            Some(_) => Err(NotFinite.into()),
            None => Err(EngineError::Protocol("no logits came back".to_owned())),
        }
    }

    /// Adds `prompt` and returns the `count` likeliest tokens that follow, one by one.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn generate(&mut self, prompt: &[Token], count: usize) -> Result<Vec<Token>, EngineError> {
        let mut generated = Vec::with_capacity(count);
        while generated.len() < count {
            let token = self.next(generated.last().map_or(prompt, std::slice::from_ref))?;
            generated.push(token);
        }
        Ok(generated)
    }

    /// Runs requests concurrently, as a worker does, and returns the tokens of each. The fed
    /// sequence is dropped.
    ///
    /// # Errors
    /// A request is invalid, or a rank failed.
    pub fn serve(
        &mut self,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<Vec<Token>>, EngineError> {
        let tokens_max = self.rank.limits().context_tokens;
        let room =
            |request: &GenerateRequest| Vec::with_capacity(request.max_tokens.min(tokens_max));
        let mut answers: Vec<_> = requests.iter().map(room).collect();
        self.run(requests, |event| {
            if let WorkerEvent::Token { request, answer } = event {
                answers[request as usize].push(answer.token);
            }
        })?;
        Ok(answers)
    }

    /// Runs requests for embeddings concurrently, and returns the embedding of each, `[width]`.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub fn embed(
        &mut self,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<Option<Vec<f32>>>, EngineError> {
        let mut embeddings = vec![None; requests.len()];
        self.run(requests, |event| {
            if let WorkerEvent::Done(done) = event {
                embeddings[done.request as usize] = done.embedding;
            }
        })?;
        Ok(embeddings)
    }

    /// Runs requests, with their indices as ids, and reports their events. The fed sequence is
    /// dropped.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub fn run(
        &mut self,
        requests: Vec<GenerateRequest>,
        mut report: impl FnMut(WorkerEvent),
    ) -> Result<(), EngineError> {
        let mut leader = Leader::new(&mut self.rank, &mut self.comm);
        for (id, request) in (0..).zip(requests) {
            leader.add(id, request)?;
        }
        let mut rejected = None;
        while !leader.is_idle() {
            leader.step(|event| match event {
                WorkerEvent::Rejected { reason, .. } => rejected = Some(reason),
                event => report(event),
            })?;
        }
        self.stats = leader.counts();
        self.position = 0;
        rejected.map_or(Ok(()), |reason| Err(EngineError::Protocol(reason)))
    }

    /// The counters of the last [`Self::serve`].
    pub fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Adds tokens, in chunks of a step each, and returns the `wanted` results of the last
    /// `outputs` rows, which must fit in one step.
    fn add(
        &mut self,
        tokens: &[Token],
        wanted: Extent,
        outputs: usize,
    ) -> Result<impl Iterator<Item = Logits<'_>>, EngineError> {
        let limits = self.rank.limits();
        if tokens.is_empty() {
            return Err(Refused::from(InvalidRequest::Empty).into());
        }
        if self.position + tokens.len() > limits.context_tokens {
            let prompt_tokens = self.position + tokens.len();
            let context_tokens = limits.context_tokens;
            let too_long = InvalidRequest::TooLong { prompt_tokens, context_tokens };
            return Err(Refused::from(too_long).into());
        }
        let ring = self.ring();
        let Self { rank, comm, pipeline, .. } = self;
        let chunks = tokens.chunks(limits.rows_max);
        let last = chunks.len() - 1;
        for (at, chunk) in chunks.enumerate() {
            if pipeline.room().is_none() {
                pipeline.collect(rank, comm, true)?;
            }
            let Some(step) = pipeline.room() else { continue };
            let (first_position, rows) = (self.position, chunk.len());
            let (wanted, outputs) =
                if at == last { (wanted, outputs) } else { (Extent::Nothing, 0) };
            step.clear();
            // The only sequence has the first pages, in order.
            let first_page = first_position / PAGE_POSITIONS;
            let new = first_page..(first_position + rows).div_ceil(PAGE_POSITIONS);
            let (slot, pages) = (0, new.len());
            let in_window = new.clone().flat_map(|page| ring.map(|ring| ring.page(page)));
            step.window_pages.extend(in_window);
            step.pages.extend(new.map(|page| page as u32));
            let begin = match first_position {
                0 => Begin::Zero,
                _ if self.restores => Begin::Restore { checkpoint: 0 },
                _ => Begin::GoOn { accepted: 0 },
            };
            self.restores = false;
            let keeps = limits.has_states && first_position + rows == self.kept;
            let save = keeps.then_some(Save { after: rows, checkpoint: 0 });
            let segment = StepSegment {
                outputs,
                wanted,
                first_page,
                pages,
                state: StateStep { begin, guesses: 0, save },
                ..StepSegment::new(slot, first_position, rows)
            };
            step.segments.push(segment);
            step.tokens.extend_from_slice(chunk);
            let end = first_position + rows;
            let positions = end + 1 - outputs..=end;
            step.outputs.extend(positions.map(|position| Output { request: 0, position }));
            pipeline.run(rank, comm)?;
            self.position += rows;
        }
        while pipeline.collect(rank, comm, true)? {}
        Ok(self.pipeline.outputs().map(|(_, logits)| logits))
    }
}

impl<B: Backend> Drop for Local<B> {
    fn drop(&mut self) {
        self.abort.store(true, Ordering::Release);
        self.followers.drain(..).for_each(join);
    }
}

/// A follower's own errors reach rank 0 as a lost rank; its thread has nothing to add.
fn join(follower: JoinHandle<()>) {
    let _ = follower.join();
}

/// The parameters of one rank's start.
struct Start<B> {
    open: OpenDevice<B>,
    /// Unique among processes: names of shared memory contain it.
    instance: String,
    rank: usize,
    listener: Listener,
    endpoints: Vec<Vec<SocketAddr>>,
    options: LocalOptions,
    source: Arc<dyn Source>,
    abort: Arc<AtomicBool>,
}

impl<B: Backend> Start<B> {
    fn start(self) -> Result<(Rank<B>, Comm), EngineError> {
        let options = self.options;
        let budget_bytes = options.split.expert_bytes.get(self.rank).copied();
        let rank_options = RankOptions {
            rank: self.rank,
            cpus: own_cpus(self.rank, options.split.shares.len(), options.threads),
            options: options.options,
            split: options.split,
            threads: options.threads,
            prompts: options.prompts.map(|spec| PromptCache {
                folder: spec.folder.join(self.rank.to_string()),
                ..spec
            }),
            experts: options.experts.map(|spec| ExpertCache {
                folder: spec.folder.join(self.rank.to_string()),
                budget_bytes: budget_bytes.unwrap_or(spec.budget_bytes),
                ..spec
            }),
        };
        let (ranks, stages) = (rank_options.split.shares.len(), &rank_options.split.stages);
        let peers = options.ring.then(|| ring_peers(ranks, stages, self.rank));
        let is_pinned = !rank_options.cpus.is_empty();
        let device = (self.open)(rank_options.threads, &rank_options.cpus)?;
        let rank = Rank::load(device, self.source, &rank_options, &mut |_| {})?;
        let meeting = Meeting {
            instance: self.instance,
            epoch: 1,
            rank: self.rank,
            stage: rank.stage(),
            endpoints: self.endpoints,
            segments: Vec::new(),
            peers,
            // The ports are known only to these threads, and the links still seal their frames.
            secret: [0x5e; 32],
            options: rank_options.options,
            latency: options.link_latency,
            is_pinned,
            message_bytes_max: rank.message_bytes_max(),
            deadline: LOAD_AND_CONNECT_MAX,
        };
        let leaves = |product| rank.leaves(product);
        let comm = Comm::connect(&meeting, &self.listener, leaves, self.abort)?;
        Ok((rank, comm))
    }
}

fn spawn_follower<B: Backend + 'static>(start: Start<B>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let abort = start.abort.clone();
        let _gone = Gone(abort.clone());
        // Reports allocate, each second: tests count allocations.
        let tell = None::<fn(RankStats)>;
        let ended = start.start().and_then(|(mut rank, mut comm)| rank.follow(&mut comm, tell));
        let Err(error) = ended;
        if !abort.load(Ordering::Acquire) {
            eprintln!("a local rank failed: {error}");
        }
    })
}

/// Ends every wait for a rank that has ended, for any reason.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
