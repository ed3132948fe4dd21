//! Rank 0's loop over requests: schedule, run, commit, report.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use protocol::{FinishReason, Generate, Generation, RequestId, Token, WorkerEvent};

use crate::logits::Logits;
use crate::{
    Comm, Committed, EngineError, NotFinite, Output, Rank, Refused, Sampler, Scheduler, Step,
};

/// The requests of one epoch.
pub struct Leader {
    scheduler: Scheduler,
    sampler: Sampler,
    timings: HashMap<RequestId, Timing>,
    step: Step,
    tokens: Vec<Token>,
    /// The outputs of the steps in flight, the oldest first.
    in_flight: VecDeque<Vec<Output>>,
    /// Lists to use again.
    spare: Vec<Vec<Output>>,
}

/// When a request was first worked on and when its first token came.
#[derive(Debug, Clone, Copy)]
struct Timing {
    prompt_tokens: usize,
    generated_tokens: usize,
    added: Instant,
    first_token: Option<Instant>,
}

impl Leader {
    pub fn new(rank: &mut Rank) -> Self {
        rank.forget_steps();
        Self {
            scheduler: Scheduler::new(rank.limits(), rank.config().vocab, rank.stages()),
            sampler: Sampler::default(),
            timings: HashMap::new(),
            step: Step::default(),
            tokens: Vec::new(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.in_flight.is_empty()
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// It cannot ever be done.
    pub fn add(&mut self, request: Generate) -> Result<(), Refused> {
        let (id, prompt_tokens) = (request.request, request.prompt.len());
        self.scheduler.add(request)?;
        let timing =
            Timing { prompt_tokens, generated_tokens: 0, added: Instant::now(), first_token: None };
        self.timings.insert(id, timing);
        Ok(())
    }

    /// Ends a request early; its account, if it was known.
    pub fn cancel(&mut self, request: RequestId) -> Option<WorkerEvent> {
        self.scheduler.cancel(request)?;
        self.finish(request, FinishReason::Cancelled)
    }

    /// Takes in what has come back, and begins one more step or waits for one to come back: so that
    /// every stage has work, and new requests are looked at in between.
    ///
    /// # Errors
    /// The epoch or this rank cannot go on.
    pub fn step(
        &mut self,
        rank: &mut Rank,
        comm: &mut Comm,
        mut report: impl FnMut(WorkerEvent),
    ) -> Result<(), EngineError> {
        let mut moved = false;
        while rank.is_ready(comm)? {
            self.collect(rank, comm, &mut report)?;
            moved = true;
        }
        if rank.in_flight() < rank.in_flight_max() {
            moved |= self.submit(rank, comm)?;
        }
        if !moved && rank.in_flight() > 0 {
            self.collect(rank, comm, &mut report)?;
        }
        Ok(())
    }

    /// Begins the next step; `false` if there is nothing to compute at present.
    fn submit(&mut self, rank: &mut Rank, comm: &mut Comm) -> Result<bool, EngineError> {
        let mut outputs = self.spare.pop().unwrap_or_default();
        self.scheduler.schedule(&mut self.step, &mut self.tokens, &mut outputs);
        if self.step.segments.is_empty() {
            self.spare.push(outputs);
            return Ok(false);
        }
        self.in_flight.push_back(outputs);
        rank.submit(comm, &self.step, &self.tokens)?;
        Ok(true)
    }

    /// Waits for the oldest step and reports what came of it.
    fn collect(
        &mut self,
        rank: &mut Rank,
        comm: &mut Comm,
        report: &mut impl FnMut(WorkerEvent),
    ) -> Result<(), EngineError> {
        rank.collect(comm)?;
        let Some(mut outputs) = self.in_flight.pop_front() else { return Ok(()) };
        for (output, logits) in outputs.drain(..).zip(rank.collected()) {
            self.commit(output, logits, &mut *report);
        }
        self.spare.push(outputs);
        Ok(())
    }

    fn commit(&mut self, output: Output, logits: Logits<'_>, report: &mut impl FnMut(WorkerEvent)) {
        let id = output.request;
        let Some(request) = self.scheduler.request(id) else { return };
        let token = match self.sampler.sample(logits, &request.sampling, output.position) {
            Ok(token) => token,
            Err(NotFinite) => {
                self.scheduler.cancel(id);
                self.timings.remove(&id);
                return report(WorkerEvent::Rejected {
                    request: id,
                    reason: NotFinite.to_string(),
                });
            }
        };
        let committed = self.scheduler.commit(output, token);
        if matches!(committed, Some(Committed::Token | Committed::LastToken(_))) {
            self.count_token(id);
            report(WorkerEvent::Token { request: id, token });
        }
        let reason = match committed {
            Some(Committed::End) => FinishReason::Stop,
            Some(Committed::LastToken(reason)) => reason,
            Some(Committed::Token) | None => return,
        };
        self.finish(id, reason).into_iter().for_each(report);
    }

    fn count_token(&mut self, request: RequestId) {
        if let Some(timing) = self.timings.get_mut(&request) {
            timing.generated_tokens += 1;
            timing.first_token.get_or_insert_with(Instant::now);
        }
    }

    fn finish(&mut self, request: RequestId, reason: FinishReason) -> Option<WorkerEvent> {
        let timing = self.timings.remove(&request)?;
        let now = Instant::now();
        let first_token = timing.first_token.unwrap_or(now);
        Some(WorkerEvent::Done(Generation {
            request,
            reason,
            prompt_tokens: timing.prompt_tokens,
            generated_tokens: timing.generated_tokens,
            prefill_us: (first_token - timing.added).as_micros() as u64,
            decode_us: (now - first_token).as_micros() as u64,
        }))
    }
}
