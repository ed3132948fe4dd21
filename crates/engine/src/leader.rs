//! Rank 0's loop over requests: `schedule -> run -> commit`, and telling what comes of it.

use std::time::Instant;

use backend::Backend;
use protocol::{FailureKind, GenerateRequest, RequestId, WorkerEvent};

use crate::comm::Comm;
use crate::logits::Logits;
use crate::pipeline::Pipeline;
use crate::sampler::{Draw, NotFinite, Sampler};
use crate::scheduler::{Refused, Scheduler};
use crate::step::Output;
use crate::{EngineError, Rank};

/// The requests of one epoch.
pub(crate) struct Leader<'a, B: Backend> {
    rank: &'a mut Rank<B>,
    comm: &'a mut Comm,
    scheduler: Scheduler,
    pipeline: Pipeline,
    sampler: Sampler,
}

impl<'a, B: Backend> Leader<'a, B> {
    pub fn new(rank: &'a mut Rank<B>, comm: &'a mut Comm) -> Self {
        let scheduler = Scheduler::new(rank.limits(), rank.stages());
        let pipeline = Pipeline::new(rank);
        Self { rank, comm, scheduler, pipeline, sampler: Sampler::default() }
    }

    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.pipeline.is_empty()
    }

    /// Looks whether the other ranks are still there, without waiting.
    ///
    /// # Errors
    /// A rank is silent or lost.
    pub fn check_ranks(&mut self) -> Result<(), EngineError> {
        Ok(self.comm.group.check_ranks()?)
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// It can never be done, too many are waiting, or one with this id is running.
    pub fn add(&mut self, id: RequestId, request: GenerateRequest) -> Result<(), Refused> {
        request.check(self.rank.limits().context_tokens, self.rank.config().vocab)?;
        self.scheduler.add(id, request, Instant::now())
    }

    /// Ends a request early; its account, if it was known.
    pub fn cancel(&mut self, request: RequestId) -> Option<WorkerEvent> {
        self.scheduler.cancel(request, Instant::now()).map(WorkerEvent::Done)
    }

    /// Begins a step if there is one to begin, and commits those that have come back. If none was
    /// begun, it waits for the oldest.
    ///
    /// # Errors
    /// The epoch or this rank cannot go on.
    pub fn step(&mut self, mut report: impl FnMut(WorkerEvent)) -> Result<(), EngineError> {
        let Self { rank, comm, scheduler, pipeline, sampler } = self;
        let is_begun = pipeline.room().is_some_and(|step| scheduler.schedule(step));
        if is_begun {
            pipeline.run(rank, comm)?;
        }
        let mut wait = !is_begun;
        while pipeline.collect(rank, comm, wait)? {
            for (output, logits) in pipeline.outputs() {
                commit(scheduler, sampler, output, logits, &mut report);
            }
            wait = false;
        }
        Ok(())
    }
}

/// Draws an output's token, and tells what it means for its request.
fn commit(
    scheduler: &mut Scheduler,
    sampler: &mut Sampler,
    output: Output,
    logits: Logits<'_>,
    report: &mut impl FnMut(WorkerEvent),
) {
    let (id, now) = (output.request, Instant::now());
    // A request that was cancelled meanwhile is not known any more.
    let Some((request, answer)) = scheduler.progress(id) else { return };
    let draw = Draw { request, answer, position: output.position, allowed: None };
    let answer = match sampler.sample(logits, &draw) {
        Ok(answer) => answer,
        Err(NotFinite) => {
            scheduler.cancel(id, now);
            let (kind, reason) = (FailureKind::Lost, NotFinite.to_string());
            return report(WorkerEvent::Rejected { request: id, kind, reason });
        }
    };
    let Some(committed) = scheduler.commit(output, answer.token, now) else { return };
    if committed.is_answer {
        report(WorkerEvent::Token { request: id, answer });
    }
    committed.done.map(WorkerEvent::Done).into_iter().for_each(report);
}
