//! Rank 0's loop over requests: `schedule -> run -> commit`, and the events that result.

use std::time::{Duration, Instant};

use backend::Backend;
use constrain::ConstrainError;
use layout::DRAFTS_MAX;
use protocol::{
    EmbeddingOptions, EngineStats, FailureKind, FinishReason, GenerateRequest, Generation,
    PromptStats, RankStats, RequestId, WorkerEvent,
};

use crate::comm::Comm;
use crate::draft::DraftJob;
use crate::embeddings::Embeddings;
use crate::grammars::{Allowed, Grammars};
use crate::logits::Logits;
use crate::meter::{Meter, TELL_INTERVAL};
use crate::pipeline::Pipeline;
use crate::sampler::{Draw, NotFinite, Sampler, check_finite};
use crate::scheduler::{Refused, Scheduler};
use crate::sight::{Sight, Unseen};
use crate::step::Output;
use crate::{EngineError, Rank};

/// How long an empty step waits for a picture, and for a grammar.
const LOOK_WAIT: Duration = Duration::from_millis(5);
const GRAMMAR_WAIT: Duration = Duration::from_millis(5);
/// How long a step waits for the disk that does nothing but ask what has been read.
const DISK_WAIT: Duration = Duration::from_micros(200);

/// The requests of one epoch.
pub(crate) struct Leader<'a, B: Backend> {
    rank: &'a mut Rank<B>,
    comm: &'a mut Comm,
    pipeline: Pipeline,
    requests: Requests,
    meter: Meter,
    /// The last reported counters, and their time.
    told: Option<(Instant, EngineStats)>,
}

/// An output whose answer's next tokens are not known yet.
struct Held {
    output: Output,
    /// `[vocab]`.
    logits: Vec<f32>,
}

/// The effect of an output on its request.
enum Drawn {
    GoesOn,
    Done(Generation),
    /// The output must wait for the grammar.
    Later,
}

impl From<Option<Generation>> for Drawn {
    fn from(done: Option<Generation>) -> Self {
        done.map_or(Self::GoesOn, Self::Done)
    }
}

/// Why an answer cannot continue.
#[derive(Debug, thiserror::Error)]
enum DrawError {
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    #[error(transparent)]
    Constrain(#[from] ConstrainError),
}

impl DrawError {
    fn kind(&self) -> FailureKind {
        match self {
            Self::NotFinite(_) => FailureKind::Lost,
            Self::Constrain(_) => FailureKind::Invalid,
        }
    }
}

/// The unfinished requests.
struct Requests {
    scheduler: Scheduler,
    grammars: Grammars,
    /// In order.
    held: Vec<Held>,
    sampler: Sampler,
    embeddings: Embeddings,
}

impl<'a, B: Backend> Leader<'a, B> {
    pub fn new(rank: &'a mut Rank<B>, comm: &'a mut Comm) -> Self {
        let requests = Requests {
            scheduler: Scheduler::new(
                rank.limits(),
                rank.stages(),
                rank.speculation(),
                rank.shelf(),
            ),
            grammars: Grammars::new(rank.source()),
            held: Vec::new(),
            sampler: Sampler::default(),
            embeddings: Embeddings::default(),
        };
        let pipeline = Pipeline::new(rank);
        Self { rank, comm, pipeline, requests, meter: Meter::start(), told: None }
    }

    pub fn is_idle(&self) -> bool {
        self.requests.is_idle() && self.pipeline.is_empty()
    }

    /// Checks without waiting that the other ranks are still there.
    ///
    /// # Errors
    /// A rank is silent or lost.
    pub fn check_ranks(&mut self) -> Result<(), EngineError> {
        Ok(self.comm.group.check_ranks()?)
    }

    /// Adds a request.
    ///
    /// # Errors
    /// It is invalid, too many are waiting, or one with this id is running.
    pub fn add(&mut self, id: RequestId, request: GenerateRequest) -> Result<(), Refused> {
        request.check(self.rank.limits().context_tokens, self.rank.config().vocab)?;
        self.rank.check_purpose(&request)?;
        let pictures = self.rank.place_pictures(&request)?;
        let Requests { scheduler, grammars, .. } = &mut self.requests;
        let now = Instant::now();
        match grammars.compile(id, (request, pictures), now)? {
            Some(added) => scheduler.add(id, added, now),
            None => Ok(()),
        }
    }

    /// Ends a request early; returns its account, if it was known.
    pub fn cancel(&mut self, request: RequestId) -> Option<WorkerEvent> {
        self.requests.cancel(request).map(WorkerEvent::Done)
    }

    /// The counters, if they have changed and a report is due.
    pub fn stats(&mut self, now: Instant) -> Option<EngineStats> {
        let is_early = |(at, _): &(Instant, _)| now < *at + TELL_INTERVAL;
        if self.told.as_ref().is_some_and(is_early) {
            return None;
        }
        let stats = self.counts();
        let is_new = self.told.as_ref().is_none_or(|(_, told)| *told != stats);
        self.told = Some((now, stats.clone()));
        is_new.then_some(stats)
    }

    /// Which texts the cache has gained and lost, if any.
    pub fn cache_news(&mut self) -> Option<WorkerEvent> {
        let news = self.requests.scheduler.cache_news();
        let is_empty = news.is_empty();
        let (came, gone) = (news.came.into_iter().collect(), news.gone.into_iter().collect());
        let event = WorkerEvent::Cached { came, gone };
        (!is_empty).then_some(event)
    }

    /// The times of this rank, if a report is due.
    pub fn rank_stats(&mut self, now: Instant) -> Option<RankStats> {
        self.meter.due(&self.comm.group, now)
    }

    /// The counters.
    pub fn counts(&self) -> EngineStats {
        let loaded_tokens = self.requests.scheduler.loaded_tokens();
        let prompts = self.rank.prompt_stats();
        let prompts = prompts.map(|stats| PromptStats { loaded_tokens, ..stats });
        let experts = self.rank.expert_stats();
        EngineStats { prompts, experts, ..self.requests.scheduler.stats() }
    }

    /// Starts a step if possible, and commits finished ones. If none was started, waits for the
    /// oldest.
    ///
    /// # Errors
    /// The epoch or this rank cannot continue.
    pub fn step(&mut self, report: impl FnMut(WorkerEvent)) -> Result<(), EngineError> {
        let (begun, waited) = (Instant::now(), self.comm.group.waited());
        self.run(report)?;
        self.meter.step(begun.elapsed(), self.comm.group.waited() - waited);
        Ok(())
    }

    fn run(&mut self, mut report: impl FnMut(WorkerEvent)) -> Result<(), EngineError> {
        let Self { rank, comm, pipeline, requests, .. } = self;
        let wait = if pipeline.is_empty() { GRAMMAR_WAIT } else { Duration::ZERO };
        requests.take_ready(wait, &mut report);
        requests.draw_held(Duration::ZERO, &mut report);
        if rank.has_speculator() && pipeline.room().is_some() {
            requests.draft(rank)?;
        }
        requests.scheduler.note_waits(comm.group.waits());
        let schedule = |step| requests.scheduler.schedule(step, Instant::now());
        let is_begun = pipeline.room().is_some_and(schedule);
        if is_begun {
            if pipeline.waits_for_disk() {
                std::thread::sleep(DISK_WAIT);
            }
            pipeline.run(rank, comm)?;
        }
        let is_busy = is_begun || !pipeline.is_empty();
        requests.look(rank.sight(), if is_busy { Duration::ZERO } else { LOOK_WAIT }, &mut report);
        let mut wait = !is_begun;
        while pipeline.collect(rank, comm, wait)? {
            rank.note_states(pipeline.finished())?;
            requests.scheduler.note_waits(comm.group.waits());
            requests.scheduler.finish_step(pipeline.finished(), Instant::now());
            for (output, logits) in pipeline.outputs() {
                let Logits::Hidden(hidden) = logits else {
                    requests.commit(output, logits, &mut report);
                    continue;
                };
                if let Some((state, options)) = requests.pool(output, hidden, &mut report) {
                    let values = rank.finish_pooled(state, &options)?;
                    requests.end_embedding(output.request, values, &mut report);
                }
            }
            wait = false;
        }
        if !is_busy {
            requests.draw_held(GRAMMAR_WAIT, &mut report);
        }
        Ok(())
    }
}

impl Requests {
    /// Lets the draft model speculate before the answers are planned, if that pays.
    fn draft<B: Backend>(&mut self, rank: &mut Rank<B>) -> Result<(), EngineError> {
        self.scheduler.want_drafts(DRAFTS_MAX);
        let jobs: Vec<DraftJob<'_>> = self.scheduler.draft_jobs().collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let mut guesses = vec![Vec::new(); jobs.len()];
        let rounds = rank.guess(&jobs, &mut guesses)?;
        let ids: Vec<RequestId> = jobs.iter().map(|job| job.id).collect();
        self.scheduler.drafted(begun.elapsed(), rounds);
        for (id, guesses) in ids.into_iter().zip(&guesses) {
            self.scheduler.offer(id, guesses);
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.grammars.is_idle()
    }

    /// Moves requests with compiled grammars to the scheduler; waits for one up to `wait` if there
    /// is nothing else to do.
    fn take_ready(&mut self, wait: Duration, report: &mut impl FnMut(WorkerEvent)) {
        let Self { scheduler, grammars, .. } = self;
        let mut wait = if scheduler.is_idle() { wait } else { Duration::ZERO };
        while let Some((id, (added, ready))) = grammars.next_ready(wait) {
            let ready = ready.map_err(Refused::from);
            match ready.and_then(|at| scheduler.add(id, added, at)) {
                Ok(()) if grammars.is_done(id) => {
                    grammars.forget(id);
                    if let Some(done) = scheduler.stop(id, Instant::now()) {
                        report(WorkerEvent::Done(done));
                    }
                }
                Ok(()) => {}
                Err(refused) => {
                    grammars.forget(id);
                    let (kind, reason) = (refused.kind(), refused.to_string());
                    report(WorkerEvent::Rejected { request: id, kind, reason });
                }
            }
            wait = Duration::ZERO;
        }
    }

    /// Gives sequences the pictures that they wait for, once the tower has seen them; waits up to
    /// `wait` for one.
    fn look(
        &mut self,
        sight: Option<&mut Sight>,
        wait: Duration,
        report: &mut impl FnMut(WorkerEvent),
    ) {
        let Some(sight) = sight else { return };
        sight.collect(Duration::ZERO);
        let looks = self
            .scheduler
            .wanted_pictures()
            .filter_map(|(id, placed)| Some((id, placed.number, sight.look(placed)?)));
        let looks: Vec<_> = looks.collect();
        if looks.is_empty() {
            return sight.collect(wait);
        }
        for (id, number, seen) in looks {
            match seen {
                Ok(seen) => self.scheduler.show(id, seen),
                Err(reason) => {
                    self.cancel(id);
                    let reason = Unseen::Picture { number, reason }.to_string();
                    let kind = FailureKind::Invalid;
                    report(WorkerEvent::Rejected { request: id, kind, reason });
                }
            }
        }
    }

    /// Draws the outputs that waited for their grammars; waits up to `wait` for one if there are
    /// any.
    fn draw_held(&mut self, wait: Duration, report: &mut impl FnMut(WorkerEvent)) {
        if self.held.is_empty() {
            return;
        }
        self.grammars.wait(wait);
        for Held { output, logits } in std::mem::take(&mut self.held) {
            self.commit(output, Logits::All(&logits), report);
        }
    }

    fn cancel(&mut self, id: RequestId) -> Option<Generation> {
        self.embeddings.forget(id);
        self.held.retain(|held| held.output.request != id);
        match self.grammars.forget(id) {
            Some(request) => Some(Generation {
                prompt_tokens: request.prompt.len(),
                generated_tokens: request.answered.len(),
                answered_tokens: request.answered.len(),
                ..Generation::nothing(id, FinishReason::Cancelled)
            }),
            None => self.scheduler.cancel(id, Instant::now()),
        }
    }

    /// Draws an output's token, and reports its effect on the request.
    fn commit(&mut self, output: Output, logits: Logits<'_>, report: &mut impl FnMut(WorkerEvent)) {
        let id = output.request;
        let drawn = match logits {
            // After a held output come the guesses behind it.
            _ if self.held.iter().any(|held| held.output.request == id) => Ok(Drawn::Later),
            _ => self.draw(output, logits, report),
        };
        match (drawn, logits) {
            (Ok(Drawn::Later), Logits::All(logits)) => {
                self.held.push(Held { output, logits: logits.to_vec() });
            }
            (Ok(Drawn::GoesOn | Drawn::Later), _) => {}
            (Ok(Drawn::Done(done)), _) => {
                self.grammars.forget(id);
                report(WorkerEvent::Done(done));
            }
            (Err(failure), _) => self.fail(id, &failure, report),
        }
    }

    fn fail(&mut self, id: RequestId, failure: &DrawError, report: &mut impl FnMut(WorkerEvent)) {
        self.cancel(id);
        let (kind, reason) = (failure.kind(), failure.to_string());
        report(WorkerEvent::Rejected { request: id, kind, reason });
    }

    /// The pooled state of a request, if this is its last hidden state, and what becomes of it.
    fn pool(
        &mut self,
        output: Output,
        hidden: &[f32],
        report: &mut impl FnMut(WorkerEvent),
    ) -> Option<(Vec<f32>, EmbeddingOptions)> {
        // A request that was cancelled meanwhile is unknown.
        if !self.scheduler.knows(output.request) {
            return None;
        }
        if let Err(failure) = check_finite(hidden) {
            self.fail(output.request, &failure.into(), report);
            return None;
        }
        self.embeddings.add(output, hidden);
        let (request, _) = self.scheduler.progress(output)?;
        let options = request.embedding_options.clone();
        Some((self.embeddings.take(output.request), options))
    }

    /// Ends a request whose embedding is complete.
    fn end_embedding(
        &mut self,
        id: RequestId,
        values: Vec<f32>,
        report: &mut impl FnMut(WorkerEvent),
    ) {
        self.grammars.forget(id);
        if let Some(done) = self.scheduler.stop(id, Instant::now()) {
            report(WorkerEvent::Done(Generation { embedding: Some(values), ..done }));
        }
    }

    /// Draws an output's token, if its grammar says what may come next.
    fn draw(
        &mut self,
        output: Output,
        logits: Logits<'_>,
        report: &mut impl FnMut(WorkerEvent),
    ) -> Result<Drawn, DrawError> {
        let (id, now) = (output.request, Instant::now());
        let Self { scheduler, grammars, sampler, .. } = self;
        // A request that was cancelled meanwhile is unknown, and a token after a wrong guess is
        // dropped.
        let Some((request, answer)) = scheduler.progress(output) else { return Ok(Drawn::GoesOn) };
        let allowed = match grammars.allowed(id)? {
            Allowed::All => None,
            Allowed::Some(mask) => Some(mask),
            Allowed::Nothing => return Ok(scheduler.stop(id, now).into()),
            Allowed::Unknown => return Ok(Drawn::Later),
        };
        let draw = Draw { request, answer, position: output.position, allowed };
        let answer = sampler.sample(logits, &draw)?;
        let token = answer.token;
        let Some(committed) = scheduler.commit(output, &answer, now) else {
            return Ok(Drawn::GoesOn);
        };
        if let Some(began) = committed.began {
            report(WorkerEvent::Began(began));
        }
        if committed.is_answer {
            report(WorkerEvent::Token { request: id, answer });
        }
        if committed.done.is_none() && grammars.take(id, token)? {
            return Ok(scheduler.stop(id, now).into());
        }
        Ok(committed.done.into())
    }
}
