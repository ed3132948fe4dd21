//! Plans the rows of the next step: `step = schedule -> run -> commit`, on rank 0.
//!
//! Every running sequence gets its next token in every step. The remaining room goes to prompts, in
//! chunks (of the length decided by [`pace`]) and in the order of [`Turns`]. A sequence has a slot
//! in the steps, and [`pages`] of the cache for its filled positions. When pages run out, the
//! latest sequence gives up its pages and waits to be computed again: its tokens are known, and the
//! next draw depends only on them.
//!
//! If the model runs in stages, several steps are in flight. A sequence is in the next one only
//! after its token is known, so the running ones are spread over as many steps as there are stages.
//! All ranks run steps in the same order. So a page may pass to another sequence, and be shared
//! with it, while a step that reads or writes it is still in flight.
//!
//! A pure state machine: it knows no model and no links, and time is an argument.

mod cached_keys;
mod checkpoints;
mod costs;
mod fetch;
mod fetching;
mod guess;
mod guessing;
mod keeping;
mod looking;
mod pace;
mod page_id;
mod pages;
mod pictures;
mod prefixes;
mod refused;
mod reports;
mod sequence;
#[cfg(test)]
mod simulation;
mod state;
#[cfg(test)]
mod tests;
mod windows;

use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::{
    AnswerToken, EngineStats, FinishReason, GenerateRequest, Generation, RequestId, Speculation,
    Token, Turns,
};

use crate::prompt_store::Shelf;
use crate::sight::Placed;
use crate::step::{Limits, Output, Step};
use guess::HitRate;
use pace::{Measured, Pace};
use pages::Pages;
pub use refused::Refused;
use refused::WAITING_MAX;
use sequence::Sequence;
use vision::Seen;

/// The effect of a sampled token on its request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Committed {
    /// Whether the token belongs to the answer.
    pub is_answer: bool,
    /// The request's account so far, if this is its first token and not the last.
    pub began: Option<Generation>,
    /// The request's account, if it has ended.
    pub done: Option<Generation>,
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    stages: usize,
    speculation: Speculation,
    pages: Pages,
    /// In order of arrival.
    running: Vec<Sequence>,
    waiting: Vec<Sequence>,
    free_slots: Vec<usize>,
    turns: Turns,
    pace: Pace,
    /// Unfinished steps, and their rows of prompts.
    in_flight: usize,
    prompt_rows_in_flight: usize,
    /// The next request's [`Sequence::order`].
    next_order: u64,
    /// The running sequences in the order of their turns, and the rows of each.
    turn: Vec<((u64, u64), u64, RequestId)>,
    planned: Vec<(RequestId, usize)>,
    /// The hit rate of drafts at the end of recent answers, with which new ones begin.
    draft_rate: HitRate,
    /// The time that this rank has waited for each rank, in microseconds.
    waited_us: Vec<u64>,
    stats: EngineStats,
    /// Tokens of prompts that were read from disk.
    loaded_tokens: u64,
}

impl Scheduler {
    /// `shelf`: where prompts are kept on disk, if they are.
    pub fn new(
        limits: Limits,
        stages: usize,
        speculation: Speculation,
        shelf: Option<Arc<dyn Shelf>>,
    ) -> Self {
        Self {
            stages,
            speculation,
            pages: Pages::new(&limits, shelf),
            loaded_tokens: 0,
            running: Vec::with_capacity(limits.slots),
            waiting: Vec::new(),
            free_slots: (0..limits.slots).rev().collect(),
            turns: Turns::default(),
            pace: Pace::new(limits.rows_max, stages),
            in_flight: 0,
            prompt_rows_in_flight: 0,
            next_order: 0,
            turn: Vec::with_capacity(limits.slots),
            planned: Vec::with_capacity(limits.slots),
            draft_rate: HitRate::default(),
            waited_us: Vec::new(),
            stats: EngineStats::default(),
            limits,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && !self.pages.has_due()
    }

    /// Adds a request that has passed [`GenerateRequest::check`].
    ///
    /// # Errors
    /// Too many are waiting, or one with this id is running.
    pub fn add(
        &mut self,
        id: RequestId,
        (request, pictures): (GenerateRequest, Vec<Placed>),
        now: Instant,
    ) -> Result<(), Refused> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(Refused::Full);
        }
        if self.knows(id) {
            return Err(Refused::Duplicate { request: id });
        }
        let due = self.turns.arrive(request.client, request.prompt.len());
        let order = self.next_order;
        self.next_order += 1;
        let mut new = Sequence::new(id, request, pictures, &self.limits, now);
        (new.order, new.due) = (order, due);
        self.waiting.push(new);
        Ok(())
    }

    /// Ends a request early; returns its account, if it was known. Its pages are free at once.
    pub fn cancel(&mut self, request: RequestId, now: Instant) -> Option<Generation> {
        self.finish(request, FinishReason::Cancelled, now)
    }

    /// Ends a running request with a complete answer.
    pub fn stop(&mut self, request: RequestId, now: Instant) -> Option<Generation> {
        self.finish(request, FinishReason::Stop, now)
    }

    /// Plans the next step; `false` if there is nothing to compute. A planned step must run and
    /// [`come back`](Self::finish_step).
    pub fn schedule(&mut self, step: &mut Step, now: Instant) -> bool {
        step.clear();
        if let Some(checkpoints) = self.pages.checkpoints() {
            checkpoints.start_step();
        }
        self.plan_keeps(step);
        self.admit(now);
        self.plan_fetches(step, now);
        self.planned.clear();
        self.plan_answers();
        self.plan_prompts(now);
        for at in 0..self.planned.len() {
            let (id, rows) = self.planned[at];
            self.emit(id, rows, step);
        }
        if step.segments.is_empty() && step.keeps.is_empty() && step.loads.is_empty() {
            return false;
        }
        self.pages.plan_copies(&mut step.copies);
        step.note.begun = Some(now);
        self.in_flight += 1;
        self.prompt_rows_in_flight += step.note.prompt_rows;
        step.note.prompt_rows_ahead = self.prompt_rows_in_flight;
        true
    }

    /// Records the total time that this rank has waited for each rank.
    pub fn note_waits(&mut self, waits: impl Iterator<Item = (usize, Duration)>) {
        for (rank, waited) in waits {
            if self.waited_us.len() <= rank {
                self.waited_us.resize(rank + 1, 0);
            }
            self.waited_us[rank] = waited.as_micros() as u64;
        }
    }

    /// The next picture of each running sequence that waits for its rows.
    pub fn wanted_pictures(&self) -> impl Iterator<Item = (RequestId, &Placed)> {
        let running = self.running.iter();
        running.filter_map(|one| Some((one.id, one.pictures.wanted()?)))
    }

    /// Gives a sequence the rows of the picture that it waits for.
    pub fn show(&mut self, id: RequestId, seen: Arc<Seen>) {
        let mut running = self.running.iter_mut();
        if let Some(sequence) = running.find(|sequence| sequence.id == id) {
            sequence.pictures.show(seen);
        }
    }

    /// Records a finished step, before its results are [committed](Self::commit).
    pub fn finish_step(&mut self, step: &Step, now: Instant) {
        let note = step.note;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.prompt_rows_in_flight = self.prompt_rows_in_flight.saturating_sub(note.prompt_rows);
        self.note_loads(&step.loads, now);
        let Some(begun) = note.begun.filter(|_| !step.segments.is_empty()) else { return };
        let took = now - begun;
        self.pace.learn(Measured { note, took });
        let answer_rows = note.answer_rows + note.guess_rows;
        self.stats.steps.add(took.as_micros() as u64, note.prompt_rows, answer_rows);
    }

    /// Adds the token sampled for output `of` to its sequence; `None` if that has ended.
    pub fn commit(&mut self, of: Output, answer: &AnswerToken, now: Instant) -> Option<Committed> {
        let (id, token) = (of.request, answer.token);
        let sequence = self.find_any(id).filter(|sequence| sequence.awaits(of))?;
        let at = sequence.guess_at;
        let (tried, right) = sequence.check_guess(of, token);
        if tried {
            self.stats.note_guess(at, right);
        }
        let sequence = self.find_any(id)?;
        if sequence.request.end_tokens.contains(&token) {
            let done = self.finish(id, FinishReason::Stop, now);
            return Some(Committed { is_answer: false, began: None, done });
        }
        sequence.tokens.push(token);
        sequence.request.sampling.mirostat_mu = answer.mirostat_mu;
        let is_first = sequence.first_token.is_none();
        sequence.first_token.get_or_insert(now);
        let is_long = sequence.answer().len() >= sequence.request.max_tokens;
        self.stats.generated_tokens += 1;
        let is_full = of.position + 1 >= self.limits.context_tokens;
        let is_last = is_full || is_long;
        let began = (is_first && !is_last).then(|| self.began(id, now)).flatten();
        if right {
            self.publish(id, of.position);
        }
        let done = is_last.then(|| self.finish(id, FinishReason::Length, now)).flatten();
        Some(Committed { is_answer: true, began, done })
    }

    /// The account so far of a request.
    fn began(&self, id: RequestId, now: Instant) -> Option<Generation> {
        let mut all = self.running.iter().chain(&self.waiting);
        let sequence = all.find(|sequence| sequence.id == id)?;
        Some(sequence.account(FinishReason::Cancelled, now, &self.waited_us))
    }

    /// Whether a request is waiting or running.
    pub fn knows(&self, request: RequestId) -> bool {
        self.running.iter().chain(&self.waiting).any(|sequence| sequence.id == request)
    }

    /// A sequence's request and its answer so far, if a token for `output` continues it: after a
    /// wrong guess, none of the step's further tokens does.
    pub fn progress(&self, output: Output) -> Option<(&GenerateRequest, &[Token])> {
        let mut all = self.running.iter().chain(&self.waiting);
        let sequence = all.find(|sequence| sequence.awaits(output))?;
        Some((&sequence.request, sequence.answer()))
    }

    fn find(&self, request: RequestId) -> Option<usize> {
        self.running.iter().position(|sequence| sequence.id == request)
    }

    fn find_any(&mut self, request: RequestId) -> Option<&mut Sequence> {
        self.running.iter_mut().chain(&mut self.waiting).find(|sequence| sequence.id == request)
    }

    /// Ends a request, waiting or running.
    fn finish(
        &mut self,
        request: RequestId,
        reason: FinishReason,
        now: Instant,
    ) -> Option<Generation> {
        let sequence = match self.find(request) {
            Some(at) => self.withdraw(at),
            None => {
                let at = self.waiting.iter().position(|waiting| waiting.id == request)?;
                self.waiting.remove(at)
            }
        };
        self.turns.leave(sequence.request.client);
        sequence.drafts.teach(&mut self.draft_rate);
        Some(sequence.account(reason, now, &self.waited_us))
    }

    /// Removes a running sequence from the steps, and frees its slot and pages.
    fn withdraw(&mut self, at: usize) -> Sequence {
        let mut sequence = self.running.remove(at);
        sequence.give_back(&mut self.pages);
        self.free_slots.push(sequence.slot);
        sequence
    }

    /// Gives free slots to waiting sequences in turn, while there are pages for all known tokens of
    /// these and of the running ones. A sequence that needs many pages is not skipped.
    fn admit(&mut self, now: Instant) {
        while !self.free_slots.is_empty() {
            let rank = |one: &Sequence| self.turns.rank(one.request.client, one.due);
            let ready = self.waiting.iter().enumerate().filter(|(_, one)| !one.awaits_token);
            let Some((at, next)) = ready.min_by_key(|(_, one)| (rank(one), one.order)) else {
                return;
            };
            let held = |page: &u32| self.pages.is_held(*page);
            let skipped = next.known_pages(&self.pages).take(next.skippable(&self.pages));
            let shared = skipped.filter(held).count();
            let promised: usize = self.running.iter().map(Sequence::pages_missing).sum();
            if next.pages_missing() - shared + promised > self.pages.available() {
                return;
            }
            let Some(slot) = self.free_slots.pop() else { return };
            let mut sequence = self.waiting.remove(at);
            sequence.slot = slot;
            if sequence.started.is_none() {
                sequence.started = Some(now);
                sequence.waited_before_us.clone_from(&self.waited_us);
                sequence.drafts.rate = self.draft_rate;
                self.stats.prefix_queried_tokens += sequence.request.prompt.len() as u64;
            }
            let at = self.running.partition_point(|one| one.order < sequence.order);
            self.running.insert(at, sequence);
        }
    }

    /// Plans a row for every answer, spread over the stages.
    fn plan_answers(&mut self) {
        let answers = self.running.iter().filter(|one| one.is_answering()).count();
        let turns = answers.div_ceil(self.stages).min(self.limits.rows_max);
        let ready = self.running.iter().filter(|one| one.is_answering() && !one.awaits_token);
        self.turn.clear();
        self.turn.extend(ready.take(turns).map(|one| ((0, 0), one.order, one.id)));
        for at in 0..self.turn.len() {
            self.provide(self.turn[at].2, 1);
        }
        let is_on = self.speculation == Speculation::Prompt;
        if is_on && self.running.iter().all(|one| one.is_answering()) {
            self.plan_guesses();
        }
    }

    /// Plans chunks of prompts.
    fn plan_prompts(&mut self, now: Instant) {
        let answers = self.running.iter().filter(|one| one.is_answering()).count();
        // In stages, each step with rows of prompts would delay all answers behind it once more.
        if answers > 0 && self.prompt_rows_in_flight > 0 {
            return;
        }
        let mut most = self.limits.rows_max - self.planned.len();
        let mut room = most.saturating_sub(self.limits.picture_room);
        // Without other work, prompts continue, even if answers wait for pages.
        if answers > 0 && (!self.planned.is_empty() || self.in_flight > 0) {
            room = room.min(self.pace.rows(answers.div_ceil(self.stages)));
        }
        let rank = |one: &Sequence| self.turns.rank(one.request.client, one.due);
        self.turn.clear();
        let prompts = self.running.iter().filter(|one| !one.is_answering());
        self.turn.extend(prompts.map(|one| (rank(one), one.order, one.id)));
        self.turn.sort_unstable();
        // Each sequence may have one output; the rest is for those that need outputs of all rows.
        let guesses = self.running.iter().map(|one| one.guesses.len()).sum::<usize>();
        let mut outputs_room = self.limits.outputs_max.saturating_sub(self.running.len() + guesses);
        for at in 0..self.turn.len() {
            if room == 0 {
                return;
            }
            let id = self.turn[at].2;
            let Some(place) = self.find(id) else { continue };
            if !self.end_fetch(place, now) {
                continue;
            }
            let sequence = &mut self.running[place];
            self.stats.prefix_hit_tokens += sequence.share(&mut self.pages) as u64;
            let rows = self.running[place].chunk(room, 1 + outputs_room, most);
            let rows = if rows > 0 { self.provide(id, rows) } else { 0 };
            room = room.saturating_sub(rows);
            most -= rows;
            outputs_room = outputs_room.saturating_sub(rows.saturating_sub(1));
        }
    }

    /// Plans up to `rows` rows, as pages allow, of a sequence; later sequences give up their pages
    /// for it. Returns their number.
    fn provide(&mut self, id: RequestId, rows: usize) -> usize {
        let provided = loop {
            let Some(at) = self.find(id) else { return 0 };
            let provided = self.running[at].take_pages(rows, &mut self.pages);
            // The running ones are in order of arrival.
            if provided == rows || at + 1 == self.running.len() {
                break provided;
            }
            self.preempt(self.running.len() - 1);
        };
        if provided > 0 {
            self.planned.push((id, provided));
        }
        provided
    }

    /// Preempts a running sequence: frees its pages and its slot; it waits to be computed again.
    fn preempt(&mut self, at: usize) {
        let sequence = self.withdraw(at);
        self.planned.retain(|(id, _)| *id != sequence.id);
        self.stats.preemptions += 1;
        self.waiting.push(sequence);
    }

    /// Publishes a page that a right guess has filled.
    fn publish(&mut self, id: RequestId, first_position: usize) {
        let Self { running, pages, .. } = self;
        let sequence = running.iter_mut().find(|sequence| sequence.id == id);
        sequence.into_iter().for_each(|sequence| sequence.publish(first_position, pages));
    }

    /// Puts planned rows into the step.
    fn emit(&mut self, id: RequestId, rows: usize, step: &mut Step) {
        let Some(at) = self.find(id) else { return };
        let sequence = &mut self.running[at];
        let (is_answer, first_position) = (sequence.is_answering(), sequence.cached);
        self.stats.prompt_tokens += sequence.plan(rows, step, &self.pages) as u64;
        sequence.publish(first_position, &mut self.pages);
        if let Some(segment) = step.segments.last_mut() {
            sequence.plan_state(segment, &mut self.pages);
        }
        sequence.move_window(&mut self.pages);
        let guess_rows = sequence.guesses.len();
        sequence.guess_at = 0;
        self.stats.guess_steps += u64::from(guess_rows > 0);
        self.stats.guess_rows += guess_rows as u64;
        let (prompt_rows, answer_rows) = if is_answer { (0, 1) } else { (rows, 0) };
        self.turns.serve(sequence.request.client, prompt_rows, answer_rows + guess_rows);
        step.note.prompt_rows += prompt_rows;
        step.note.answer_rows += answer_rows;
        step.note.guess_rows += guess_rows;
    }
}
