//! Which rows the next step computes: `step = schedule -> run -> commit`, on rank 0.
//!
//! Every running sequence gets its next token in every step; what room is left goes to prompts, in
//! the order of arrival and in chunks, so that a long prompt never stalls the others. Where the
//! model runs in stages, several steps are in flight: a sequence is in the next one only once its
//! token is known, and the running ones are dealt out over as many steps as there are stages. A
//! pure state machine: it knows no model, no links and no time.

use std::collections::VecDeque;

use protocol::{FinishReason, Generate, RequestId, Token};

use crate::logits::Wanted;
use crate::step::{Limits, Step, StepSegment};

/// Requests that may wait for a slot; the daemon bounds its own queue lower.
const WAITING_MAX: usize = 1024;

/// A request in a slot of the cache.
#[derive(Debug)]
struct Sequence {
    request: Generate,
    slot: usize,
    /// Positions already in the cache.
    cached: usize,
    generated: usize,
    /// Whether a step in flight will give its next token.
    awaits_token: bool,
    /// The token that goes into the next step once the prompt is done.
    next: Token,
}

/// Which request the output rows of a step belong to, in the step's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    pub request: RequestId,
    /// The position that the sampled token will have.
    pub position: usize,
}

/// What became of one sampled token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// It belongs to the answer.
    Token,
    /// It belongs to the answer and is its last one.
    LastToken(FinishReason),
    /// It ends the answer and is not part of it.
    End,
}

/// Why a request is refused at the door.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the prompt is empty")]
    Empty,
    #[error(
        "the prompt has {prompt} tokens, but the context has room for {context}, of which one must be left for the answer. Shorten it, or serve the model with a larger context"
    )]
    TooLong { prompt: usize, context: usize },
    #[error("token {token} is not in the vocabulary of {vocab} tokens")]
    Token { token: Token, vocab: usize },
    #[error("{WAITING_MAX} requests are waiting already")]
    Full,
    #[error("request {request} is running already")]
    Duplicate { request: RequestId },
}

#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    vocab: usize,
    stages: usize,
    running: Vec<Sequence>,
    waiting: VecDeque<Generate>,
    free_slots: Vec<usize>,
}

impl Scheduler {
    pub fn new(limits: Limits, vocab: usize, stages: usize) -> Self {
        let free_slots = (0..limits.slots).rev().collect();
        let (running, waiting) = Default::default();
        Self { limits, vocab, stages, running, waiting, free_slots }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// It cannot ever be done, or too many are waiting.
    pub fn add(&mut self, request: Generate) -> Result<(), Refused> {
        let (prompt, context) = (request.prompt.len(), self.limits.context_tokens);
        if prompt == 0 {
            return Err(Refused::Empty);
        }
        if prompt >= context {
            return Err(Refused::TooLong { prompt, context });
        }
        let vocab = self.vocab;
        if let Some(token) = request.prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(Refused::Token { token: *token, vocab });
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(Refused::Full);
        }
        let id = request.request;
        let mut known = self.running.iter().map(|sequence| sequence.request.request);
        if known.any(|known| known == id) || self.waiting.iter().any(|w| w.request == id) {
            return Err(Refused::Duplicate { request: id });
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// Ends a request early. Returns its prompt's and its answer's length if it was known.
    pub fn cancel(&mut self, request: RequestId) -> Option<(usize, usize)> {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.request == request) {
            let waiting = self.waiting.remove(at)?;
            return Some((waiting.prompt.len(), 0));
        }
        let at = self.find(request)?;
        Some(self.finish(at))
    }

    /// Ends everything, as when the epoch has ended.
    pub fn clear(&mut self) {
        *self = Self::new(self.limits, self.vocab, self.stages);
    }

    /// Plans the next step and appends its tokens and outputs; an empty step means nothing to do.
    pub fn schedule(
        &mut self,
        step: &mut Step,
        tokens: &mut Vec<Token>,
        outputs: &mut Vec<Output>,
    ) {
        step.segments.clear();
        tokens.clear();
        outputs.clear();
        self.admit();
        let mut room = self.limits.rows_max;
        let decoding = |sequence: &Sequence| sequence.cached >= sequence.request.prompt.len();
        let answers = self.running.iter().filter(|s| decoding(s)).count();
        let turns = answers.div_ceil(self.stages);
        let ready = |sequence: &&mut Sequence| decoding(sequence) && !sequence.awaits_token;
        for sequence in self.running.iter_mut().filter(ready).take(turns.min(room)) {
            room -= sequence.plan(room, step, tokens, outputs);
        }
        for sequence in self.running.iter_mut().filter(|s| !decoding(s)) {
            if room == 0 {
                return;
            }
            room -= sequence.plan(room, step, tokens, outputs);
        }
    }

    /// Takes the token that was sampled for `output` into its sequence.
    pub fn commit(&mut self, output: Output, token: Token) -> Option<Committed> {
        let at = self.find(output.request)?;
        let sequence = &mut self.running[at];
        sequence.awaits_token = false;
        if sequence.request.end_tokens.contains(&token) {
            self.finish(at);
            return Some(Committed::End);
        }
        sequence.generated += 1;
        sequence.next = token;
        let full = output.position + 1 >= self.limits.context_tokens;
        if sequence.generated >= sequence.request.max_tokens || full {
            self.finish(at);
            return Some(Committed::LastToken(FinishReason::Length));
        }
        Some(Committed::Token)
    }

    /// The request that a sequence is working on.
    pub fn request(&self, request: RequestId) -> Option<&Generate> {
        Some(&self.running[self.find(request)?].request)
    }

    fn find(&self, request: RequestId) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.request.request == request)
    }

    fn finish(&mut self, at: usize) -> (usize, usize) {
        let sequence = self.running.remove(at);
        self.free_slots.push(sequence.slot);
        (sequence.request.prompt.len(), sequence.generated)
    }

    fn admit(&mut self) {
        while let (false, Some(slot)) = (self.waiting.is_empty(), self.free_slots.last().copied()) {
            let Some(request) = self.waiting.pop_front() else { return };
            self.free_slots.pop();
            let (cached, generated, awaits_token, next) = Default::default();
            self.running.push(Sequence { request, slot, cached, generated, awaits_token, next });
        }
    }
}

impl Sequence {
    /// Adds this sequence's next rows to the step, at most `room`; returns how many.
    fn plan(
        &mut self,
        room: usize,
        step: &mut Step,
        tokens: &mut Vec<Token>,
        outputs: &mut Vec<Output>,
    ) -> usize {
        let prompt = &self.request.prompt;
        let first_position = self.cached;
        let rows = match prompt.len().saturating_sub(first_position) {
            0 => {
                tokens.push(self.next);
                1
            }
            left => {
                let rows = left.min(room);
                tokens.extend(&prompt[first_position..first_position + rows]);
                rows
            }
        };
        self.cached += rows;
        self.awaits_token = self.cached >= prompt.len();
        let wanted = match self.awaits_token {
            true => Wanted::by(&self.request.sampling),
            false => Wanted::Nothing,
        };
        if self.awaits_token {
            outputs.push(Output { request: self.request.request, position: self.cached });
        }
        step.segments.push(StepSegment { slot: self.slot, first_position, rows, wanted });
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Sampling;

    const LIMITS: Limits = Limits { slots: 2, context_tokens: 32, rows_max: 8, width: 1 };
    const VOCAB: usize = 100;
    const END: Token = 99;

    fn request(request: RequestId, prompt: usize, max_tokens: usize) -> Generate {
        Generate {
            request,
            prompt: (0..prompt as Token).collect(),
            sampling: Sampling::default(),
            max_tokens,
            end_tokens: vec![END],
        }
    }

    /// Slot, first position and rows of a segment.
    type Rows = (usize, usize, usize);

    struct Harness {
        scheduler: Scheduler,
        step: Step,
        tokens: Vec<Token>,
        outputs: Vec<Output>,
    }

    impl Harness {
        fn new() -> Self {
            let scheduler = Scheduler::new(LIMITS, VOCAB, 1);
            let (step, tokens, outputs) = Default::default();
            Self { scheduler, step, tokens, outputs }
        }

        /// One step in which every output samples `token`: its segments, what became of the tokens.
        fn step(&mut self, token: Token) -> (Vec<Rows>, Vec<Option<Committed>>) {
            self.scheduler.schedule(&mut self.step, &mut self.tokens, &mut self.outputs);
            assert_eq!(self.tokens.len(), self.step.rows());
            let wanted = self
                .step
                .segments
                .iter()
                .filter(|segment| segment.wanted != Wanted::Nothing)
                .count();
            assert_eq!(self.outputs.len(), wanted);
            let segments = self.step.segments.iter();
            let segments = segments.map(|s| (s.slot, s.first_position, s.rows)).collect();
            let outputs = self.outputs.clone();
            let commit = |output| self.scheduler.commit(output, token);
            (segments, outputs.into_iter().map(commit).collect())
        }
    }

    #[test]
    fn a_long_prompt_is_cut_and_never_stalls_a_running_answer() {
        let mut h = Harness::new();
        h.scheduler.add(request(1, 3, 10)).unwrap();
        assert_eq!(h.step(7), (vec![(0, 0, 3)], vec![Some(Committed::Token)]));
        h.scheduler.add(request(2, 12, 10)).unwrap();
        assert_eq!(h.step(7).0, [(0, 3, 1), (1, 0, 7)]);
        assert_eq!(h.tokens, [7, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(h.step(7).0, [(0, 4, 1), (1, 7, 5)]);
        assert_eq!(h.step(7).0, [(0, 5, 1), (1, 12, 1)]);
    }

    #[test]
    fn answers_end_at_the_end_token_the_limit_and_the_context() {
        let mut h = Harness::new();
        h.scheduler.add(request(1, 1, 5)).unwrap();
        assert_eq!(h.step(END).1, [Some(Committed::End)]);
        assert!(h.scheduler.is_idle());

        h.scheduler.add(request(2, 1, 2)).unwrap();
        assert_eq!(h.step(5).1, [Some(Committed::Token)]);
        assert_eq!(h.step(5).1, [Some(Committed::LastToken(FinishReason::Length))]);
        assert!(h.scheduler.is_idle());

        h.scheduler.add(request(3, 31, 50)).unwrap();
        let mut last = Vec::new();
        while !h.scheduler.is_idle() {
            last = h.step(5).1;
            let positions = h.step.segments.iter().map(|s| s.first_position + s.rows);
            assert!(positions.max() <= Some(LIMITS.context_tokens));
        }
        assert_eq!(last, [Some(Committed::LastToken(FinishReason::Length))]);
    }

    #[test]
    fn more_requests_than_slots_wait_their_turn() {
        let mut h = Harness::new();
        for id in 1..=3 {
            h.scheduler.add(request(id, 2, 1)).unwrap();
        }
        assert_eq!(h.step(5).0, [(0, 0, 2), (1, 0, 2)]);
        assert_eq!(h.step(5).0.len(), 1);
        assert!(h.scheduler.is_idle());
        assert_eq!(h.step(5).0, []);
    }

    #[test]
    fn stages_share_the_running_answers_and_no_token_is_asked_for_twice() {
        let limits = Limits { slots: 5, ..LIMITS };
        let mut scheduler = Scheduler::new(limits, VOCAB, 2);
        for id in 0..5 {
            scheduler.add(request(id, 1, 9)).unwrap();
        }
        let (mut step, mut tokens, mut in_flight) = (Step::default(), vec![], VecDeque::new());
        let mut turns = Vec::new();
        for _ in 0..7 {
            let mut outputs = Vec::new();
            scheduler.schedule(&mut step, &mut tokens, &mut outputs);
            turns.push(step.segments.iter().map(|segment| segment.slot).collect::<Vec<_>>());
            in_flight.push_back(outputs);
            if in_flight.len() > 2 {
                for output in in_flight.pop_front().unwrap() {
                    assert_eq!(scheduler.commit(output, 7), Some(Committed::Token));
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
            h.scheduler.add(request(id, 2, 9)).unwrap();
        }
        h.step(5);
        assert_eq!(h.scheduler.cancel(3), Some((2, 0)));
        assert_eq!(h.scheduler.cancel(1), Some((2, 1)));
        assert_eq!(h.scheduler.cancel(1), None);
        assert_eq!(h.step(5).0, [(1, 2, 1)]);
        let stale = Output { request: 1, position: 3 };
        assert_eq!(h.scheduler.commit(stale, 5), None);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let mut scheduler = Scheduler::new(LIMITS, VOCAB, 1);
        assert_eq!(scheduler.add(request(1, 0, 1)), Err(Refused::Empty));
        let too_long = Refused::TooLong { prompt: 32, context: 32 };
        assert_eq!(scheduler.add(request(1, 32, 1)), Err(too_long));
        let mut foreign = request(1, 2, 1);
        foreign.prompt[1] = 100;
        assert_eq!(scheduler.add(foreign), Err(Refused::Token { token: 100, vocab: VOCAB }));
        scheduler.add(request(1, 2, 1)).unwrap();
        assert_eq!(scheduler.add(request(1, 2, 1)), Err(Refused::Duplicate { request: 1 }));
    }
}
