//! Applies events to an instance; `advance` then decides the next steps.

use std::time::Duration;

use protocol::{FailureKind, FinishReason, Generation, RequestId, WorkerCommand, WorkerEvent};

use super::graph::Suspicion;
use super::limits::{LINK_DEADLINE, REASON_WAIT, SUSPICION_WAIT};
use super::rank::{Path, Rank, Verdict};
use super::{Doomed, Effect, GaveUp, Instance, Phase, requests};
use crate::membership::CLOCK_GAP;
use crate::wire::WorkerId;
use crate::{GenerateEvent, LINK_ADDRESSES_MAX, NodeId};

/// Limit of consecutive link failures before the instance gives up. With the pauses in between that
/// takes three seconds where links are refused at once, and a minute where they are not answered.
const LINK_FAILURES_MAX: u32 = 5;
/// Pauses after the instance has given up because of a dying worker or of links. The first request
/// after `GIVEN_UP_FOR` tries again. Without a request, a retry follows by itself: the first after
/// `GIVEN_UP_FOR`, later ones at growing intervals up to the maximum.
const GIVEN_UP_FOR: Duration = Duration::from_secs(30);
const GIVEN_UP_FOR_MAX: Duration = Duration::from_secs(600);

impl Instance {
    pub(super) fn node_up(&mut self, node: NodeId, path: Path) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.node == node) {
            rank.node_up(path);
        }
        self.graph.forget(node);
        for at in 0..self.ranks.len() {
            // A worker may have outlived the connection: its daemon keeps it for a while.
            if let (true, Some(worker)) = (self.ranks[at].node == node, &self.ranks[at].worker) {
                self.spawn(at, worker.id);
            }
        }
        if matches!(self.phase, Phase::Failed { why: GaveUp::Missing, .. }) {
            if !self.ranks.is_empty() && self.ranks.iter().all(Rank::is_node_up) {
                self.phase = Phase::Gathering;
            } else {
                self.effects.push(Effect::Replan);
            }
        }
    }

    pub(super) fn node_down(&mut self, node: NodeId, reason: &str, now: Duration) {
        let Some(at) = self.ranks.iter().position(|rank| rank.node == node) else { return };
        self.ranks[at].node_down(now);
        let reason = self.lost(at, reason);
        self.end_epoch(reason);
    }

    pub(super) fn exited(&mut self, worker: WorkerId, how: &str, now: Duration) {
        let Some((at, found)) = self.find(worker) else { return };
        let said = found.last_words.take();
        let how = match &said {
            Some(said) => format!("its worker stopped: {said}"),
            None => format!("its worker {how}"),
        };
        let reason = self.lost(at, &how);
        match self.ranks[at].worker_exited(now) {
            Verdict::Respawn => self.end_epoch(reason),
            Verdict::GiveUp { failures } => {
                let reason = format!("{reason} ({failures} times in a row)");
                self.fail_for_now(reason, now);
            }
        }
    }

    pub(super) fn said(&mut self, worker: WorkerId, event: WorkerEvent, now: Duration) {
        let epoch = self.epoch;
        let linking = matches!(self.phase, Phase::Linking { .. });
        let (is_ready, ranks) = (self.phase == Phase::Ready, self.ranks.len());
        let Some((at, found)) = self.find(worker) else { return };
        found.heard_at = now;
        found.must_speak_by = None;
        found.is_suspect = false;
        match event {
            WorkerEvent::Listening { port, mut more } => {
                more.truncate(LINK_ADDRESSES_MAX);
                (found.port, found.more) = (Some(port), more);
            }
            WorkerEvent::Loading { done_bytes, total_bytes, arrived_bytes } => {
                found.loads((done_bytes, arrived_bytes), total_bytes, now);
            }
            WorkerEvent::Loaded { weight_bytes, kv_bytes, buffer_bytes, .. } => {
                found.loaded(weight_bytes, kv_bytes, buffer_bytes);
            }
            WorkerEvent::Linked { epoch: linked, notes } => {
                found.linked = linking && linked == epoch;
                found.notes = notes;
            }
            WorkerEvent::Began(generation) => {
                let request = generation.request;
                if at == 0 && self.requests.begins(request) {
                    self.readiness.measured(&generation);
                    self.emit(request, GenerateEvent::Began(requests::account(generation)));
                }
            }
            WorkerEvent::Token { request, answer } => {
                self.note_generated(at);
                if at == 0 && self.requests.is_running(request) {
                    self.emit(request, GenerateEvent::Tokens(vec![answer]));
                }
            }
            WorkerEvent::Done(generation) => self.done(at, generation),
            WorkerEvent::Rejected { request, kind, reason } => {
                if at == 0 && self.requests.finish(request, 0) {
                    self.emit(request, GenerateEvent::Failed { kind, reason });
                }
            }
            WorkerEvent::Cached { came, gone } => {
                if at == 0 && self.phase == Phase::Ready {
                    self.readiness.note(came, &gone);
                }
            }
            // The pulse is for the worker's own node.
            WorkerEvent::Alive => {}
            WorkerEvent::Stats(stats) => {
                if at == 0 && self.phase == Phase::Ready {
                    self.stats = Some(*stats);
                }
            }
            WorkerEvent::RankStats(mut stats) => {
                stats.links.retain(|link| link.peer < ranks);
                stats.links.truncate(ranks);
                found.stats = is_ready.then_some(*stats);
            }
            WorkerEvent::Lost { epoch: lost, rank, reason, unreached } => {
                if lost == epoch && matches!(self.phase, Phase::Linking { .. } | Phase::Ready) {
                    let suspicion = Suspicion { by: at, rank, reason, unreached };
                    if let Some(Suspicion { rank, reason, .. }) = self.receive(suspicion, now) {
                        self.link_lost(at, rank, &reason, now);
                    }
                }
            }
            WorkerEvent::Failed { reason } => {
                found.last_words = Some(reason.clone());
                let reason = self.lost(at, &format!("its worker stopped: {reason}"));
                self.end_epoch(reason);
                self.end(at, false);
            }
        }
    }

    /// A worker has ended a request.
    fn done(&mut self, at: usize, generation: Generation) {
        if generation.reason != FinishReason::Cancelled {
            self.note_generated(at);
        }
        let request = generation.request;
        let is_alone = self.requests.is_alone();
        if at == 0 && self.requests.finish(request, generation.generated_tokens) {
            let rate = requests::rate(&generation);
            let told = self.ranks.iter().map(|rank| rank.stats().cloned().unwrap_or_default());
            self.pace.note(&generation, rate.filter(|_| is_alone), told.collect());
            let done = requests::account(generation);
            self.last_decode_tokens_per_sec = rate.or(self.last_decode_tokens_per_sec);
            if done.reason != FinishReason::Cancelled {
                self.forgive();
            }
            self.emit(request, GenerateEvent::Done(done));
        }
    }

    /// A rank reports the end of the epoch, usually because another rank has died.
    pub(super) fn link_lost(&mut self, by: usize, rank: Option<usize>, why: &str, now: Duration) {
        let reason = match rank.filter(|rank| *rank < self.ranks.len()) {
            // Either rank may be to blame, or the network between them.
            Some(rank) if matches!(self.phase, Phase::Linking { .. }) => {
                let (by, other) = (self.name(by), self.name(rank));
                format!(
                    "{by} and {other} cannot link: {why}; every two nodes of a model need a way \
                     to each other, or at least each of four and more to two others in one ring: \
                     look at the firewalls and addresses between the two, or serve the model on \
                     other nodes"
                )
            }
            Some(rank) => self.lost(rank, why),
            None => format!("{} lost the other ranks: {why}", self.name(by)),
        };
        self.link_at = now + self.link_failures.backoff(now);
        let failures = self.link_failures.in_a_row();
        if failures >= LINK_FAILURES_MAX {
            let reason = format!("{reason} ({failures} times in a row)");
            return self.fail_for_now(reason, now);
        }
        match (&self.phase, rank) {
            (Phase::Linking { until }, Some(rank)) => {
                self.require_sign_of_life(rank, until.saturating_sub(LINK_DEADLINE), now);
            }
            (Phase::Ready, Some(rank)) => {
                let worker = self.ranks.get_mut(rank).and_then(|rank| rank.worker.as_mut());
                worker.into_iter().for_each(|worker| worker.is_suspect = true);
            }
            _ => {}
        }
        let requests = self.requests.take_running();
        self.end_epoch(reason.clone());
        if !requests.is_empty() {
            self.doomed = Some(Doomed { until: now + REASON_WAIT, reason, requests });
        }
    }

    /// A worker that did not link and has been silent since may be frozen. A healthy one is about
    /// to report the others.
    fn require_sign_of_life(&mut self, rank: usize, since: Duration, now: Duration) {
        let worker = self.ranks.get_mut(rank).and_then(|rank| rank.worker.as_mut());
        if let Some(worker) = worker.filter(|worker| worker.heard_at < since) {
            worker.must_speak_by = Some(now + SUSPICION_WAIT);
        }
    }

    /// Rank 0's events of an older epoch arrive before it links in a new one.
    fn note_generated(&mut self, at: usize) {
        if at == 0 && self.phase == Phase::Ready {
            self.generated_in = self.epoch;
        }
    }

    /// A complete answer shows that the earlier failures were no pattern.
    fn forgive(&mut self) {
        self.given_up = 0;
        self.link_failures.clear();
        self.ranks.iter_mut().for_each(Rank::answered);
    }

    /// Returns all requests, to be submitted elsewhere or again; they did not cause the failure.
    pub(super) fn let_go(&mut self, reason: &str) {
        let mut requests = self.take_begun();
        requests.extend(self.requests.take_waiting());
        for request in requests {
            self.effects.push(Effect::LetGo { request, reason: reason.to_owned() });
        }
    }

    /// Takes the requests that ran until now.
    fn take_begun(&mut self) -> Vec<RequestId> {
        let mut requests = self.requests.take_running();
        requests.extend(self.doomed.take().into_iter().flat_map(|doomed| doomed.requests));
        requests
    }

    /// Ends the epoch: its requests fail with `reason`, and the surviving workers disconnect.
    pub(super) fn end_epoch(&mut self, reason: String) {
        for request in self.take_begun() {
            self.emit(request, lost(reason.clone()));
        }
        if matches!(self.phase, Phase::Linking { .. } | Phase::Ready) {
            self.phase = Phase::Gathering;
            self.stats = None;
            for at in 0..self.ranks.len() {
                self.send(at, WorkerCommand::Disconnect);
            }
        }
        for worker in self.ranks.iter_mut().filter_map(|rank| rank.worker.as_mut()) {
            worker.linked = false;
            worker.stats = None;
        }
        self.graph.forget_suspicions();
        if matches!(self.phase, Phase::Gathering) {
            self.trouble = Some(reason);
        }
    }

    /// Gives up: ends all requests and workers. `why` states what could change that.
    pub(super) fn fail(&mut self, reason: String, why: GaveUp) {
        self.end_epoch(reason.clone());
        for request in self.requests.take_waiting() {
            self.emit(request, lost(reason.clone()));
        }
        self.end_workers();
        self.phase = Phase::Failed { reason, why };
    }

    /// Gives up for a while.
    fn fail_for_now(&mut self, reason: String, now: Duration) {
        let pause = GIVEN_UP_FOR.saturating_mul(1 << self.given_up.min(8)).min(GIVEN_UP_FOR_MAX);
        self.given_up += 1;
        let (until, retry_at) = (now + GIVEN_UP_FOR, now + pause);
        self.fail(reason, GaveUp::Failures { until, retry_at });
    }

    pub(super) fn try_again(&mut self, now: Duration) {
        self.phase = Phase::Gathering;
        self.link_failures.clear();
        self.ranks.iter_mut().for_each(|rank| rank.forgive(now));
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        if self.requests.cancel(request) {
            self.send(0, WorkerCommand::Cancel { request });
        }
    }

    pub(super) fn tick(&mut self, now: Duration) {
        // After a sleep of this node, silence proves nothing.
        if now.saturating_sub(std::mem::replace(&mut self.ticked_at, now)) > CLOCK_GAP {
            let workers = self.ranks.iter_mut().filter_map(|rank| rank.worker.as_mut());
            workers.for_each(|worker| worker.heard_at = now);
        }
        if self.doomed.as_ref().is_some_and(|doomed| now >= doomed.until) {
            let reason = self.doomed.as_ref().map(|doomed| doomed.reason.clone());
            self.end_epoch(reason.unwrap_or_default());
        }
        if let Phase::Failed { why: GaveUp::Failures { retry_at, .. }, .. } = self.phase
            && now >= retry_at
        {
            self.try_again(now);
        }
        if self.graph.decide_at().is_some_and(|at| now >= at) {
            self.decide(now);
        }
        for at in 0..self.ranks.len() {
            if self.ranks[at].is_overdue(now) {
                self.last_words(at, "it did not react when links were built".to_owned());
                self.end(at, true);
            } else if let Some(why) = self.ranks[at].fails_to_load(now) {
                self.last_words(at, why);
                self.end(at, true);
            }
        }
        if self.requests.is_reminder_due(now) {
            let reason = self.waiting_reason();
            for request in self.requests.waiting() {
                self.emit(request, GenerateEvent::Waiting { reason: reason.clone() });
            }
        }
    }
}

/// The end of a request that has started or may have.
fn lost(reason: String) -> GenerateEvent {
    GenerateEvent::Failed { kind: FailureKind::Lost, reason }
}
