//! Rank 0's steps in flight: started on all ranks, and not finished.
//!
//! A model in one stage has one step in flight. A model in several stages has more, so that no
//! stage waits for rank 0: one in each stage, and one on its way to each.

use std::collections::VecDeque;

use backend::Backend;

use crate::EngineError;
use crate::comm::Comm;
use crate::logits::Logits;
use crate::page_orders::Loaded;
use crate::rank::{Rank, decode};
use crate::results::Results;
use crate::step::{Output, Step};

/// The steps in flight of one epoch.
pub(crate) struct Pipeline {
    /// Steps in flight, oldest first, then free ones.
    steps: VecDeque<Step>,
    in_flight: usize,
    /// The last finished step.
    finished: Step,
    results: Results,
    /// The number of received parts of the oldest step's results, which come after the progress of
    /// its loads.
    parts: usize,
    has_loads: bool,
    message: Vec<u8>,
    vocab: usize,
    width: usize,
}

impl Pipeline {
    pub fn new<B: Backend>(rank: &Rank<B>) -> Self {
        let in_flight_max = match rank.stages() {
            1 => 1,
            stages => 2 * stages,
        };
        Self {
            steps: (0..in_flight_max).map(|_| Step::default()).collect(),
            in_flight: 0,
            finished: Step::default(),
            results: Results::default(),
            parts: 0,
            has_loads: false,
            message: Vec::new(),
            vocab: rank.config().vocab,
            width: rank.config().width,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.in_flight == 0
    }

    /// The step to fill next; `None` while the maximum is in flight.
    pub fn room(&mut self) -> Option<&mut Step> {
        self.steps.get_mut(self.in_flight)
    }

    /// Whether the filled step only asks what has been read from disk.
    pub fn waits_for_disk(&self) -> bool {
        let step = &self.steps[self.in_flight];
        step.segments.is_empty() && step.keeps.is_empty()
    }

    /// Starts the filled step on all ranks.
    ///
    /// # Errors
    /// Another rank is late or lost, or an embedding cannot be read.
    pub fn run<B: Backend>(
        &mut self,
        rank: &mut Rank<B>,
        comm: &mut Comm,
    ) -> Result<(), EngineError> {
        rank.run(comm, &mut self.steps[self.in_flight])?;
        self.in_flight += 1;
        Ok(())
    }

    /// Whether the oldest step has finished; waits for it if `wait`. `false` if there is none.
    ///
    /// # Errors
    /// Another rank is late or lost.
    pub fn collect<B: Backend>(
        &mut self,
        rank: &mut Rank<B>,
        comm: &mut Comm,
        wait: bool,
    ) -> Result<bool, EngineError> {
        if self.is_empty() {
            return Ok(false);
        }
        if rank.stages() == 1 {
            rank.gather(comm, &self.steps[0], &mut self.results.numbers)?;
        }
        if rank.stages() > 1 && !self.has_loads && !self.take_loads(rank, comm, wait)? {
            return Ok(false);
        }
        while rank.stages() > 1 && self.parts < rank.output_parts().len() {
            if !self.take_part(rank, comm, wait)? {
                return Ok(false);
            }
        }
        self.results.assemble(&self.steps[0], rank.output_parts());
        self.results.numbers.clear();
        (self.parts, self.has_loads) = (0, false);
        std::mem::swap(&mut self.finished, &mut self.steps[0]);
        self.steps.rotate_left(1);
        self.in_flight -= 1;
        Ok(true)
    }

    /// The last finished step.
    pub fn finished(&self) -> &Step {
        &self.finished
    }

    /// The results of the last finished step.
    pub fn outputs(&self) -> impl Iterator<Item = (Output, Logits<'_>)> {
        self.results.outputs(&self.finished, self.vocab, self.width)
    }

    /// With several stages: receives how far all ranks have come with the oldest step's loads.
    fn take_loads<B: Backend>(
        &mut self,
        rank: &Rank<B>,
        comm: &mut Comm,
        wait: bool,
    ) -> Result<bool, EngineError> {
        let loads = &mut self.steps[0].loads;
        if !loads.is_empty() {
            let from = rank.last_stage().start;
            if !receive(comm, from, loads.len(), &mut self.message, wait)? {
                return Ok(false);
            }
            for (load, number) in loads.iter_mut().zip(decode(&self.message)) {
                load.loaded = Loaded::of_number(number).unwrap_or(Loaded::Missing);
            }
        }
        self.has_loads = true;
        Ok(true)
    }

    /// With several stages: receives the next part of the oldest step's results, or computes rank
    /// 0's own part; `false` if it has not arrived and `wait` is not set.
    fn take_part<B: Backend>(
        &mut self,
        rank: &mut Rank<B>,
        comm: &mut Comm,
        wait: bool,
    ) -> Result<bool, EngineError> {
        let (step, part) = (&self.steps[0], &rank.output_parts()[self.parts]);
        if part.rank != 0 {
            let count = step.numbers(part);
            if !receive(comm, part.rank, count, &mut self.message, wait)? {
                return Ok(false);
            }
            self.results.numbers.extend(decode(&self.message));
        } else if !step.outputs.is_empty() {
            // The last stage's rows, for rank 0's own part of the output head.
            let count = step.outputs.len() * rank.config().stream_width();
            if !receive(comm, rank.last_stage().start, count, &mut self.message, wait)? {
                return Ok(false);
            }
            self.results.numbers.extend(rank.pick_from(&self.message, step)?);
        }
        self.parts += 1;
        Ok(true)
    }
}

/// Receives a rank's next message, which must have `count` numbers; `false` if it has not arrived
/// and `wait` is not set.
fn receive(
    comm: &mut Comm,
    rank: usize,
    count: usize,
    message: &mut Vec<u8>,
    wait: bool,
) -> Result<bool, EngineError> {
    if wait {
        comm.group.take(rank, message)?;
    } else if !comm.group.try_take(rank, message)? {
        return Ok(false);
    }
    let (found, due) = (message.len(), count * size_of::<f32>());
    if found != due {
        let what = format!("rank {rank} sent {found} bytes of results, and {due} were due");
        return Err(EngineError::Protocol(what));
    }
    Ok(true)
}
