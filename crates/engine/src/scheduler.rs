//! Which rows the next step computes: `step = schedule -> run -> commit`, on rank 0.
//!
//! Every running sequence gets its next token in every step; what room is left goes to prompts, in
//! the order of arrival and in chunks, so that a long prompt never stalls the others. Where the
//! model runs in stages, several steps are in flight: a sequence is in the next one only once its
//! token is known, and the running ones are dealt out over as many steps as there are stages. A
//! pure state machine: it knows no model and no links, and time is an argument.

use std::collections::VecDeque;
use std::time::Instant;

use constrain::ConstrainError;
use protocol::{
    FailureKind, FinishReason, GenerateRequest, Generation, InvalidRequest, RequestId, Token,
};

use crate::logits::Wanted;
use crate::step::{Limits, Output, Step, StepSegment};

/// Requests that may wait for a slot; the daemon bounds its own queue lower.
const WAITING_MAX: usize = 1024;

/// A request, waiting or in a slot of the cache.
#[derive(Debug)]
struct Sequence {
    id: RequestId,
    request: GenerateRequest,
    slot: usize,
    /// Positions already in the cache.
    cached: usize,
    /// Its last token goes into the next step once the prompt is done.
    answer: Vec<Token>,
    /// Whether a step in flight will give its next token.
    awaits_token: bool,
    added: Instant,
    first_token: Option<Instant>,
}

/// What a sampled token means for its request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Committed {
    /// Whether the token belongs to the answer.
    pub is_answer: bool,
    /// The request's account, if it has ended.
    pub done: Option<Generation>,
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error(transparent)]
    Grammar(#[from] ConstrainError),
    #[error("{WAITING_MAX} requests are waiting already")]
    Full,
    #[error("request {request} is running already")]
    Duplicate { request: RequestId },
}

impl Refused {
    /// What it means for whoever asked.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Grammar(ConstrainError::Busy) => FailureKind::Busy,
            Self::Invalid(_) | Self::Grammar(_) => FailureKind::Invalid,
            Self::Full => FailureKind::Busy,
            Self::Duplicate { .. } => FailureKind::Lost,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    stages: usize,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    free_slots: Vec<usize>,
}

impl Scheduler {
    pub fn new(limits: Limits, stages: usize) -> Self {
        let free_slots = (0..limits.slots).rev().collect();
        let (running, waiting) = Default::default();
        Self { limits, stages, running, waiting, free_slots }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Takes a request in that [`GenerateRequest::check`] has passed.
    ///
    /// # Errors
    /// Too many are waiting, or one with this id is running.
    pub fn add(
        &mut self,
        id: RequestId,
        request: GenerateRequest,
        now: Instant,
    ) -> Result<(), Refused> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(Refused::Full);
        }
        let mut known = self.running.iter().chain(&self.waiting);
        if known.any(|sequence| sequence.id == id) {
            return Err(Refused::Duplicate { request: id });
        }
        let context_tokens = self.limits.context_tokens;
        self.waiting.push_back(Sequence::new(id, request, context_tokens, now));
        Ok(())
    }

    /// Ends a request early; its account, if it was known.
    pub fn cancel(&mut self, request: RequestId, now: Instant) -> Option<Generation> {
        let is_it = |waiting: &Sequence| waiting.id == request;
        if let Some(at) = self.waiting.iter().position(is_it) {
            return Some(self.waiting.remove(at)?.account(FinishReason::Cancelled, now));
        }
        Some(self.finish(self.find(request)?, FinishReason::Cancelled, now))
    }

    /// Ends a running request whose answer is whole.
    pub fn stop(&mut self, request: RequestId, now: Instant) -> Option<Generation> {
        Some(self.finish(self.find(request)?, FinishReason::Stop, now))
    }

    /// Plans the next step; `false` if there is nothing to compute.
    pub fn schedule(&mut self, step: &mut Step) -> bool {
        step.clear();
        self.admit();
        let mut room = self.limits.rows_max;
        let decoding = |sequence: &Sequence| sequence.cached >= sequence.request.prompt.len();
        let answers = self.running.iter().filter(|s| decoding(s)).count();
        let turns = answers.div_ceil(self.stages);
        let ready = |sequence: &&mut Sequence| decoding(sequence) && !sequence.awaits_token;
        for sequence in self.running.iter_mut().filter(ready).take(turns.min(room)) {
            room -= sequence.plan(room, step);
        }
        for sequence in self.running.iter_mut().filter(|s| !decoding(s)) {
            if room == 0 {
                break;
            }
            room -= sequence.plan(room, step);
        }
        !step.segments.is_empty()
    }

    /// Takes the token that was sampled for `output` into its sequence; `None` if that has ended.
    pub fn commit(&mut self, output: Output, token: Token, now: Instant) -> Option<Committed> {
        let at = self.find(output.request)?;
        let sequence = &mut self.running[at];
        sequence.awaits_token = false;
        if sequence.request.end_tokens.contains(&token) {
            let done = Some(self.finish(at, FinishReason::Stop, now));
            return Some(Committed { is_answer: false, done });
        }
        sequence.answer.push(token);
        sequence.first_token.get_or_insert(now);
        let is_full = output.position + 1 >= self.limits.context_tokens;
        let is_last = is_full || sequence.answer.len() >= sequence.request.max_tokens;
        let done = is_last.then(|| self.finish(at, FinishReason::Length, now));
        Some(Committed { is_answer: true, done })
    }

    /// What a sequence is working on, and its answer so far.
    pub fn progress(&self, request: RequestId) -> Option<(&GenerateRequest, &[Token])> {
        let sequence = &self.running[self.find(request)?];
        Some((&sequence.request, &sequence.answer))
    }

    fn find(&self, request: RequestId) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.id == request)
    }

    fn finish(&mut self, at: usize, reason: FinishReason, now: Instant) -> Generation {
        let sequence = self.running.remove(at);
        self.free_slots.push(sequence.slot);
        sequence.account(reason, now)
    }

    /// Gives free slots to those that wait.
    fn admit(&mut self) {
        let free = self.free_slots.len().min(self.waiting.len());
        for waiting in self.waiting.drain(..free) {
            self.running.extend(self.free_slots.pop().map(|slot| Sequence { slot, ..waiting }));
        }
    }
}

impl Sequence {
    fn new(id: RequestId, request: GenerateRequest, context_tokens: usize, added: Instant) -> Self {
        let room = context_tokens.saturating_sub(request.prompt.len());
        // So that no token costs an allocation.
        let answer = Vec::with_capacity(request.max_tokens.min(room));
        let (slot, cached, awaits_token, first_token) = Default::default();
        Self { id, request, slot, cached, answer, awaits_token, added, first_token }
    }

    fn account(&self, reason: FinishReason, now: Instant) -> Generation {
        let first_token = self.first_token.unwrap_or(now);
        Generation {
            request: self.id,
            reason,
            prompt_tokens: self.request.prompt.len(),
            generated_tokens: self.answer.len(),
            cached_tokens: 0,
            queue_us: 0,
            prefill_us: (first_token - self.added).as_micros() as u64,
            decode_us: (now - first_token).as_micros() as u64,
        }
    }

    /// Adds this sequence's next rows to the step, at most `room`; returns how many.
    fn plan(&mut self, room: usize, step: &mut Step) -> usize {
        let prompt = &self.request.prompt;
        let first_position = self.cached;
        let rows = match prompt.len().saturating_sub(first_position) {
            0 => {
                step.tokens.extend(self.answer.last());
                1
            }
            left => {
                let rows = left.min(room);
                step.tokens.extend(&prompt[first_position..first_position + rows]);
                rows
            }
        };
        self.cached += rows;
        self.awaits_token = self.cached >= prompt.len();
        let wanted = match self.awaits_token {
            true => Wanted::by(&self.request, self.answer.len()),
            false => Wanted::Nothing,
        };
        if self.awaits_token {
            step.outputs.push(Output { request: self.id, position: self.cached });
        }
        step.segments.push(StepSegment { slot: self.slot, first_position, rows, wanted });
        rows
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits { slots: 2, context_tokens: 32, rows_max: 8, width: 1 };
    const END: Token = 99;

    fn request(prompt: usize, max_tokens: usize) -> GenerateRequest {
        GenerateRequest {
            prompt: (0..prompt as Token).collect(),
            max_tokens,
            end_tokens: vec![END],
            ..GenerateRequest::default()
        }
    }

    /// Slot, first position and rows of a segment.
    type Rows = (usize, usize, usize);

    struct Harness {
        scheduler: Scheduler,
        step: Step,
        now: Instant,
    }

    /// What became of a token: whether it belongs to the answer, and why the answer ended.
    type Outcome = Option<(bool, Option<FinishReason>)>;

    const TOKEN: Outcome = Some((true, None));

    impl Harness {
        fn new() -> Self {
            let scheduler = Scheduler::new(LIMITS, 1);
            Self { scheduler, step: Step::default(), now: Instant::now() }
        }

        fn add(&mut self, id: RequestId, request: GenerateRequest) {
            self.scheduler.add(id, request, self.now).unwrap();
        }

        fn commit(&mut self, output: Output, token: Token) -> Outcome {
            let committed = self.scheduler.commit(output, token, self.now)?;
            Some((committed.is_answer, committed.done.map(|done| done.reason)))
        }

        /// One step in which every output samples `token`: its segments, what became of the tokens.
        fn step(&mut self, token: Token) -> (Vec<Rows>, Vec<Outcome>) {
            let is_some = self.scheduler.schedule(&mut self.step);
            assert_eq!(is_some, !self.step.segments.is_empty());
            assert_eq!(self.step.tokens.len(), self.step.rows());
            assert_eq!(self.step.outputs.len(), self.step.wanted().count());
            let segments = self.step.segments.iter();
            let segments = segments.map(|s| (s.slot, s.first_position, s.rows)).collect();
            let outputs = self.step.outputs.clone();
            (segments, outputs.into_iter().map(|output| self.commit(output, token)).collect())
        }
    }

    #[test]
    fn a_long_prompt_is_cut_and_never_stalls_a_running_answer() {
        let mut h = Harness::new();
        h.add(1, request(3, 10));
        assert_eq!(h.step(7), (vec![(0, 0, 3)], vec![TOKEN]));
        h.add(2, request(12, 10));
        assert_eq!(h.step(7).0, [(0, 3, 1), (1, 0, 7)]);
        assert_eq!(h.step.tokens, [7, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(h.step(7).0, [(0, 4, 1), (1, 7, 5)]);
        assert_eq!(h.step(7).0, [(0, 5, 1), (1, 12, 1)]);
    }

    #[test]
    fn answers_end_at_the_end_token_the_limit_and_the_context() {
        let mut h = Harness::new();
        h.add(1, request(1, 5));
        assert_eq!(h.step(END).1, [Some((false, Some(FinishReason::Stop)))]);
        assert!(h.scheduler.is_idle());

        h.add(2, request(1, 2));
        assert_eq!(h.step(5).1, [TOKEN]);
        assert_eq!(h.step(5).1, [Some((true, Some(FinishReason::Length)))]);
        assert!(h.scheduler.is_idle());

        h.add(3, request(31, 50));
        let mut last = Vec::new();
        while !h.scheduler.is_idle() {
            last = h.step(5).1;
            let positions = h.step.segments.iter().map(|s| s.first_position + s.rows);
            assert!(positions.max() <= Some(LIMITS.context_tokens));
        }
        assert_eq!(last, [Some((true, Some(FinishReason::Length)))]);
    }

    #[test]
    fn more_requests_than_slots_wait_their_turn() {
        let mut h = Harness::new();
        for id in 1..=3 {
            h.add(id, request(2, 1));
        }
        assert_eq!(h.step(5).0, [(0, 0, 2), (1, 0, 2)]);
        assert_eq!(h.step(5).0.len(), 1);
        assert!(h.scheduler.is_idle());
        assert_eq!(h.step(5).0, []);
    }

    #[test]
    fn stages_share_the_running_answers_and_no_token_is_asked_for_twice() {
        let limits = Limits { slots: 5, ..LIMITS };
        let mut h = Harness { scheduler: Scheduler::new(limits, 2), ..Harness::new() };
        for id in 0..5 {
            h.add(id, request(1, 9));
        }
        let (mut turns, mut in_flight) = (Vec::new(), VecDeque::new());
        for _ in 0..7 {
            h.scheduler.schedule(&mut h.step);
            turns.push(h.step.segments.iter().map(|segment| segment.slot).collect::<Vec<_>>());
            in_flight.push_back(h.step.outputs.clone());
            if in_flight.len() > 2 {
                for output in in_flight.pop_front().unwrap() {
                    assert_eq!(h.commit(output, 7), TOKEN);
                }
            }
        }
        // The prompts in one step; then the answers in two turns, and nothing while all are out.
        let all = vec![0, 1, 2, 3, 4];
        let (some, rest) = (vec![0, 1, 2], vec![3, 4]);
        assert_eq!(turns, [all, vec![], vec![], some.clone(), rest, vec![], some]);
    }

    #[test]
    fn a_cancelled_request_frees_its_slot_at_once() {
        let mut h = Harness::new();
        for id in 1..=3 {
            h.add(id, request(2, 9));
        }
        h.step(5);
        let mut cancel = |request| {
            let done = h.scheduler.cancel(request, h.now)?;
            assert_eq!(done.reason, FinishReason::Cancelled);
            Some((done.prompt_tokens, done.generated_tokens))
        };
        assert_eq!(cancel(3), Some((2, 0)));
        assert_eq!(cancel(1), Some((2, 1)));
        assert_eq!(cancel(1), None);
        assert_eq!(h.step(5).0, [(1, 2, 1)]);
        assert_eq!(h.commit(Output { request: 1, position: 3 }, 5), None);
    }

    #[test]
    fn an_account_has_the_time_to_the_first_token_and_from_there() {
        let mut h = Harness::new();
        h.add(1, request(2, 3));
        for (seconds, token) in [(3, 5), (4, 5), (5, END)] {
            h.now += Duration::from_secs(seconds);
            h.scheduler.schedule(&mut h.step);
            let done = h.scheduler.commit(h.step.outputs[0], token, h.now).unwrap().done;
            let Some(done) = done else { continue };
            assert_eq!((done.prompt_tokens, done.generated_tokens), (2, 2));
            assert_eq!((done.prefill_us, done.decode_us), (3_000_000, 9_000_000));
        }
        assert!(h.scheduler.is_idle());
    }

    #[test]
    fn an_id_that_is_taken_and_a_full_queue_are_refused() {
        let mut h = Harness::new();
        let mut add = |id| h.scheduler.add(id, request(2, 1), h.now);
        for id in 0..WAITING_MAX as RequestId {
            assert_eq!(add(id), Ok(()));
            assert!(id != 1 || add(1) == Err(Refused::Duplicate { request: 1 }));
        }
        assert_eq!(add(RequestId::MAX), Err(Refused::Full));
    }
}
