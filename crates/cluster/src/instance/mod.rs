//! One served model: its ranks, their epochs and its requests, as a pure state machine at the node
//! that owns it.
//!
//! ```text
//! Gathering   some rank has no worker that holds its shard: spawn, wait, spawn again
//! Linking     all have; Connect(epoch) is out, Linked(epoch) is awaited from each
//! Ready       requests run
//! Failed      gave up for a reason; tries again when that may have gone
//! ```
//!
//! Whatever ends an epoch (a worker's death, a lost node, a broken link) ends its requests with a
//! reason that names the node, and leads back to `Gathering`; the shards of the survivors stay.
//! Requests that come meanwhile wait. The machine knows no sockets and no processes: workers are
//! numbers, time is an argument, and everything to be done comes out as [`Effect`]s.

mod failures;
mod rank;
mod requests;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use protocol::{Command, Event as Said, Generate, RequestId, Secret, Transport};
use store::Digest;

use crate::wire::{WorkerId, WorkerOrder};
use crate::{Error, GenerateEvent, GenerateRequest, InstanceState, InstanceStatus, NodeId, Result};

pub(crate) use rank::{Path, Rank};
use rank::{Verdict, Worker};
use requests::Requests;

/// All links of an epoch stand within this time, or the ranks that stay silent are ended.
const LINK_DEADLINE: Duration = Duration::from_secs(20);
/// A worker that loads and says nothing for this long is ended.
const LOAD_SILENCE_MAX: Duration = Duration::from_secs(120);
/// How long a lost node may stay away before the model is placed on the others.
const NODE_AWAY_MAX: Duration = Duration::from_secs(10);
/// A survivor may notice a death before the dead worker's daemon tells how it died. Its requests
/// wait this long for the better reason.
const REASON_PATIENCE: Duration = Duration::from_millis(50);
/// After giving up on a worker that keeps dying: the first request after this tries once more.
const GIVEN_UP_FOR: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) enum Event {
    NodeUp { node: NodeId, path: Path },
    NodeDown { node: NodeId, reason: String },
    Spawned { worker: WorkerId, pid: u32 },
    Said { worker: WorkerId, event: Said },
    Exited { worker: WorkerId, how: String },
    Cancel(RequestId),
    Tick,
}

#[derive(Debug)]
pub(crate) enum Effect {
    /// Start a worker, or take up the one that still runs under this number.
    Spawn {
        node: NodeId,
        worker: WorkerId,
        order: Box<WorkerOrder>,
    },
    /// End a worker: with a moment to clean up, or at once because it does not react.
    End {
        node: NodeId,
        worker: WorkerId,
        at_once: bool,
    },
    Send {
        node: NodeId,
        worker: WorkerId,
        command: Command,
    },
    Emit {
        request: RequestId,
        event: GenerateEvent,
    },
    /// Nodes are missing: answer with [`Instance::replace`] or [`Instance::give_up`].
    Replan,
}

/// What does not change over an instance's life.
#[derive(Debug, Clone)]
pub(crate) struct Fixed {
    pub id: String,
    pub model: String,
    pub owner: NodeId,
    pub digest: Digest,
    pub model_bytes: u64,
    pub context_tokens: usize,
    pub sequences_max: usize,
    pub transport: Transport,
    pub secret: Secret,
    /// The first worker number; the numbers of two instances never meet.
    pub first_worker: WorkerId,
}

#[derive(Debug)]
pub(crate) struct Instance {
    fixed: Fixed,
    ranks: Vec<Rank>,
    phase: Phase,
    epoch: u64,
    /// Why it is not ready, once it has been in trouble.
    trouble: Option<String>,
    /// Not before this are links tried again.
    link_at: Duration,
    link_failures: failures::Recent,
    requests: Requests,
    /// Requests that are lost, for a reason that may yet be told better.
    doomed: Option<Doomed>,
    next_worker: WorkerId,
    last_decode_tokens_per_sec: Option<f64>,
    effects: Vec<Effect>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Gathering,
    Linking { until: Duration },
    Ready,
    Failed { reason: String, why: GaveUp },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GaveUp {
    /// A worker kept dying; its next chance comes with a request after this time.
    Crashes { until: Duration },
    /// Nodes are missing; their return is the next chance.
    Missing,
}

#[derive(Debug)]
struct Doomed {
    until: Duration,
    reason: String,
    requests: Vec<RequestId>,
}

impl Instance {
    /// An instance whose workers are about to be spawned.
    pub(crate) fn new(fixed: Fixed, ranks: Vec<Rank>, now: Duration) -> Self {
        let mut instance = Self {
            requests: Requests::new(fixed.sequences_max),
            next_worker: fixed.first_worker,
            fixed,
            ranks,
            phase: Phase::Gathering,
            epoch: 0,
            trouble: None,
            link_at: now,
            link_failures: failures::Recent::default(),
            doomed: None,
            last_decode_tokens_per_sec: None,
            effects: Vec::new(),
        };
        instance.advance(now);
        instance
    }

    pub(crate) fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        match event {
            Event::NodeUp { node, path } => self.node_up(node, path),
            Event::NodeDown { node, reason } => self.node_down(node, &reason, now),
            Event::Spawned { worker, pid } => {
                if let Some((_, worker)) = self.find(worker) {
                    worker.pid = Some(pid);
                    worker.heard_at = now;
                }
            }
            Event::Said { worker, event } => self.said(worker, event, now),
            Event::Exited { worker, how } => self.exited(worker, &how, now),
            Event::Cancel(request) => self.cancel(request),
            Event::Tick => self.tick(now),
        }
        self.advance(now);
        std::mem::take(&mut self.effects)
    }

    /// Takes a request in: it runs now or waits its turn.
    ///
    /// # Errors
    /// It can never run, too many wait already, or the instance has failed.
    pub(crate) fn submit(&mut self, request: GenerateRequest, now: Duration) -> Result<RequestId> {
        let (asked, limit) = (request.prompt.len(), self.fixed.context_tokens);
        if asked == 0 {
            return Err(Error::Unusable("the prompt is empty".to_owned()));
        }
        if asked >= limit {
            let why = format!(
                "the prompt has {asked} tokens; with a context of {limit} at most {} can be \
                 answered. Shorten it, or serve the model with a larger context",
                limit.saturating_sub(1)
            );
            return Err(Error::Unusable(why));
        }
        if let Phase::Failed { reason, why } = &self.phase {
            match why {
                GaveUp::Crashes { until } if now >= *until => self.try_again(now),
                _ => return Err(Error::Unusable(reason.clone())),
            }
        }
        let limit = requests::WAITING_MAX;
        let model = &self.fixed.model;
        let full = || Error::QueueFull { model: model.clone(), limit };
        let id = self.requests.submit(request).ok_or_else(full)?;
        self.advance(now);
        if self.requests.is_waiting(id) {
            let reason = self.waiting_reason();
            self.emit(id, GenerateEvent::Waiting { reason });
        }
        Ok(id)
    }

    /// What calls made since the last [`Self::step`] led to.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Starts over on other nodes.
    pub(crate) fn replace(&mut self, ranks: Vec<Rank>, now: Duration) -> Vec<Effect> {
        self.end_workers();
        self.ranks = ranks;
        self.phase = Phase::Gathering;
        self.advance(now);
        std::mem::take(&mut self.effects)
    }

    /// Says that there are not enough nodes, and why.
    pub(crate) fn give_up(&mut self, why: &str) -> Vec<Effect> {
        let reason = match &self.trouble {
            Some(trouble) => format!("{trouble}; the nodes that are left do not suffice: {why}"),
            None => why.to_owned(),
        };
        self.fail(reason, GaveUp::Missing);
        std::mem::take(&mut self.effects)
    }

    /// Ends all requests and workers.
    pub(crate) fn stop(&mut self) -> Vec<Effect> {
        let reason = format!("{} was stopped", self.fixed.model);
        self.fail(reason, GaveUp::Missing);
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn fixed(&self) -> &Fixed {
        &self.fixed
    }

    /// What its ranks are planned to take on a node; nothing once it has given up.
    pub(crate) fn memory_bytes_on(&self, node: NodeId) -> u64 {
        if matches!(self.phase, Phase::Failed { .. }) {
            return 0;
        }
        let there = self.ranks.iter().filter(|rank| rank.node == node);
        there.map(|rank| rank.memory_bytes).sum()
    }

    /// When to come back with a `Tick`, if that is before the next regular one.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let respawns = self.ranks.iter().filter_map(Rank::respawn_at);
        let link = matches!(self.phase, Phase::Gathering) && self.all_loaded();
        let doomed = self.doomed.as_ref().map(|doomed| doomed.until);
        respawns.chain(link.then_some(self.link_at)).chain(doomed).min()
    }

    pub(crate) fn status(&self) -> InstanceStatus {
        let reason = || self.trouble.clone().unwrap_or_default();
        let state = match &self.phase {
            Phase::Failed { reason, .. } => InstanceState::Failed { reason: reason.clone() },
            Phase::Ready => InstanceState::Ready,
            _ if self.trouble.is_none() => InstanceState::Loading,
            _ => InstanceState::Recovering { reason: reason() },
        };
        let fixed = &self.fixed;
        InstanceStatus {
            id: fixed.id.clone(),
            model: fixed.model.clone(),
            owner: fixed.owner,
            state,
            epoch: self.epoch,
            context_tokens: fixed.context_tokens,
            transport: fixed.transport,
            ranks: self.ranks.iter().enumerate().map(|(at, rank)| rank.status(at)).collect(),
            requests_running: self.requests.running(),
            last_decode_tokens_per_sec: self.last_decode_tokens_per_sec,
        }
    }

    fn node_up(&mut self, node: NodeId, path: Path) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.node == node) {
            rank.node_up(path);
        }
        for at in 0..self.ranks.len() {
            // A worker may have outlived the connection: its daemon keeps it for a while.
            if let (true, Some(worker)) = (self.ranks[at].node == node, &self.ranks[at].worker) {
                self.spawn(at, worker.id);
            }
        }
        if matches!(self.phase, Phase::Failed { why: GaveUp::Missing, .. }) {
            if self.ranks.iter().all(Rank::is_node_up) {
                self.phase = Phase::Gathering;
            } else {
                self.effects.push(Effect::Replan);
            }
        }
    }

    fn node_down(&mut self, node: NodeId, reason: &str, now: Duration) {
        let Some(at) = self.ranks.iter().position(|rank| rank.node == node) else { return };
        self.ranks[at].node_down(now);
        let reason = self.lost(at, reason);
        self.end_epoch(reason);
    }

    fn exited(&mut self, worker: WorkerId, how: &str, now: Duration) {
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
                self.fail(reason, GaveUp::Crashes { until: now + GIVEN_UP_FOR });
            }
        }
    }

    fn said(&mut self, worker: WorkerId, event: Said, now: Duration) {
        let epoch = self.epoch;
        let linking = matches!(self.phase, Phase::Linking { .. });
        let Some((at, found)) = self.find(worker) else { return };
        found.heard_at = now;
        match event {
            Said::Listening { port } => found.port = Some(port),
            Said::Loading { done_bytes, total_bytes } => {
                (found.loaded_bytes, found.total_bytes) = (done_bytes, total_bytes);
            }
            Said::Loaded { weight_bytes, kv_bytes, .. } => found.loaded(weight_bytes, kv_bytes),
            Said::Linked { epoch: linked } => found.linked = linking && linked == epoch,
            Said::Tokens { request, tokens } => {
                if at == 0 && self.requests.is_running(request) {
                    self.emit(request, GenerateEvent::Tokens(tokens));
                }
            }
            Said::Done(generation) => {
                if at == 0 && self.requests.finish(generation.request) {
                    let (rate, done) = requests::account(&generation);
                    self.last_decode_tokens_per_sec = rate.or(self.last_decode_tokens_per_sec);
                    self.emit(generation.request, GenerateEvent::Done(done));
                }
            }
            Said::Rejected { request, reason } => {
                if at == 0 && self.requests.finish(request) {
                    self.emit(request, GenerateEvent::Failed { reason });
                }
            }
            Said::Lost { epoch: lost, rank, reason } => {
                if lost == epoch && matches!(self.phase, Phase::Linking { .. } | Phase::Ready) {
                    self.link_lost(at, rank, &reason, now);
                }
            }
            Said::Failed { reason } => {
                found.last_words = Some(reason.clone());
                let reason = self.lost(at, &format!("its worker stopped: {reason}"));
                self.end_epoch(reason);
                self.end(at, false);
            }
        }
    }

    /// A rank reports that the epoch is over, usually because another one has died.
    fn link_lost(&mut self, by: usize, rank: Option<usize>, why: &str, now: Duration) {
        let reason = match rank.filter(|rank| *rank < self.ranks.len()) {
            Some(rank) => self.lost(rank, why),
            None => format!("{} lost the other ranks: {why}", self.name(by)),
        };
        self.link_at = now + self.link_failures.backoff(now);
        let requests = self.requests.take_running();
        self.end_epoch(reason.clone());
        if !requests.is_empty() {
            self.doomed = Some(Doomed { until: now + REASON_PATIENCE, reason, requests });
        }
    }

    /// Ends the epoch for one reason: its requests are told, the surviving workers let go.
    fn end_epoch(&mut self, reason: String) {
        let mut requests = self.requests.take_running();
        requests.extend(self.doomed.take().into_iter().flat_map(|doomed| doomed.requests));
        for request in requests {
            self.emit(request, GenerateEvent::Failed { reason: reason.clone() });
        }
        if matches!(self.phase, Phase::Linking { .. } | Phase::Ready) {
            self.phase = Phase::Gathering;
            for at in 0..self.ranks.len() {
                self.send(at, Command::Disconnect);
            }
        }
        for worker in self.ranks.iter_mut().filter_map(|rank| rank.worker.as_mut()) {
            worker.linked = false;
        }
        if matches!(self.phase, Phase::Gathering) {
            self.trouble = Some(reason);
        }
    }

    /// Gives up: ends all requests and workers. `why` says what could change that.
    fn fail(&mut self, reason: String, why: GaveUp) {
        self.end_epoch(reason.clone());
        for request in self.requests.take_waiting() {
            self.emit(request, GenerateEvent::Failed { reason: reason.clone() });
        }
        self.end_workers();
        self.phase = Phase::Failed { reason, why };
    }

    fn try_again(&mut self, now: Duration) {
        self.phase = Phase::Gathering;
        self.ranks.iter_mut().for_each(|rank| rank.forgive(now));
    }

    fn cancel(&mut self, request: RequestId) {
        if self.requests.cancel(request) {
            self.send(0, Command::Cancel { request });
        }
    }

    fn tick(&mut self, now: Duration) {
        if self.doomed.as_ref().is_some_and(|doomed| now >= doomed.until) {
            let reason = self.doomed.as_ref().map(|doomed| doomed.reason.clone());
            self.end_epoch(reason.unwrap_or_default());
        }
        for at in 0..self.ranks.len() {
            if self.ranks[at].loads_in_silence_since(now, LOAD_SILENCE_MAX) {
                let limit = LOAD_SILENCE_MAX.as_secs();
                self.last_words(at, format!("it made no progress for {limit} s while loading"));
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

    /// Does whatever the present state allows.
    fn advance(&mut self, now: Duration) {
        if self.phase == Phase::Gathering {
            self.gather(now);
        }
        if let Phase::Linking { until } = self.phase {
            self.link(now, until);
        }
        if self.phase == Phase::Ready {
            for (request, asked) in self.requests.take_ready() {
                self.send(0, Command::Generate(generate(request, asked)));
            }
        }
    }

    fn gather(&mut self, now: Duration) {
        for at in 0..self.ranks.len() {
            if self.ranks[at].is_spawn_due(now) {
                self.next_worker += 1;
                let bind = rank::bind_address(&self.ranks, at);
                self.ranks[at].worker = Some(Worker::new(self.next_worker, bind, now));
                self.spawn(at, self.next_worker);
            }
        }
        if self.ranks.iter().any(|rank| rank.is_away_since(now, NODE_AWAY_MAX)) {
            self.effects.push(Effect::Replan);
        } else if self.all_loaded() && now >= self.link_at {
            self.epoch += 1;
            self.phase = Phase::Linking { until: now + LINK_DEADLINE };
            for at in 0..self.ranks.len() {
                let endpoints = rank::endpoints(&self.ranks, at);
                self.send(at, Command::Connect { epoch: self.epoch, endpoints });
            }
        }
    }

    fn link(&mut self, now: Duration, until: Duration) {
        let is_linked = |rank: &Rank| rank.worker.as_ref().is_some_and(|worker| worker.linked);
        let silent: Vec<usize> =
            (0..self.ranks.len()).filter(|at| !is_linked(&self.ranks[*at])).collect();
        if silent.is_empty() {
            self.phase = Phase::Ready;
            self.trouble = None;
            self.ranks.iter_mut().for_each(Rank::ready);
        } else if now >= until {
            let limit = LINK_DEADLINE.as_secs();
            for at in &silent {
                self.last_words(*at, format!("it did not link within {limit} s"));
                self.end(*at, true);
            }
            let names: Vec<String> = silent.iter().map(|at| self.name(*at)).collect();
            self.end_epoch(format!("{} did not link within {limit} s", names.join(", ")));
        }
    }

    fn spawn(&mut self, at: usize, worker: WorkerId) {
        let (rank, fixed) = (&self.ranks[at], &self.fixed);
        let bind = rank.worker.as_ref().map_or(IpAddr::from([127, 0, 0, 1]), |worker| worker.bind);
        let order = WorkerOrder {
            instance: fixed.id.clone(),
            rank: at,
            shares: self.ranks.iter().map(|rank| rank.share).collect(),
            digest: fixed.digest,
            model_bytes: fixed.model_bytes,
            memory_bytes: rank.memory_bytes,
            context_tokens: fixed.context_tokens,
            sequences_max: fixed.sequences_max,
            transport: fixed.transport,
            bind,
            secret: fixed.secret.clone(),
        };
        self.effects.push(Effect::Spawn { node: rank.node, worker, order: Box::new(order) });
    }

    fn send(&mut self, at: usize, command: Command) {
        let rank = &self.ranks[at];
        if let Some(worker) = rank.worker.as_ref().filter(|worker| !worker.ending)
            && rank.is_node_up()
        {
            self.effects.push(Effect::Send { node: rank.node, worker: worker.id, command });
        }
    }

    fn end(&mut self, at: usize, at_once: bool) {
        let node = self.ranks[at].node;
        if let Some(worker) = &mut self.ranks[at].worker {
            worker.ending = true;
            self.effects.push(Effect::End { node, worker: worker.id, at_once });
        }
    }

    fn end_workers(&mut self) {
        for at in 0..self.ranks.len() {
            self.end(at, false);
            self.ranks[at].worker = None;
        }
    }

    fn last_words(&mut self, at: usize, words: String) {
        if let Some(worker) = &mut self.ranks[at].worker {
            worker.last_words = Some(words);
        }
    }

    fn emit(&mut self, request: RequestId, event: GenerateEvent) {
        self.effects.push(Effect::Emit { request, event });
    }

    fn find(&mut self, id: WorkerId) -> Option<(usize, &mut Worker)> {
        let workers = self.ranks.iter_mut().map(|rank| rank.worker.as_mut()).enumerate();
        workers.filter_map(|(at, worker)| Some((at, worker?))).find(|(_, worker)| worker.id == id)
    }

    fn all_loaded(&self) -> bool {
        self.ranks.iter().all(Rank::is_loaded)
    }

    fn name(&self, at: usize) -> String {
        format!("node {} (rank {at})", self.ranks[at].node_name)
    }

    fn lost(&self, at: usize, why: &str) -> String {
        format!("{} was lost: {why}", self.name(at))
    }

    fn waiting_reason(&self) -> String {
        match (&self.phase, &self.trouble) {
            (Phase::Ready, _) => format!("all {} sequences are busy", self.fixed.sequences_max),
            (_, Some(trouble)) => format!("recovering: {trouble}"),
            (_, None) => rank::progress(&self.ranks),
        }
    }
}

fn generate(request: RequestId, asked: GenerateRequest) -> Generate {
    let GenerateRequest { prompt, sampling, max_tokens, end_tokens } = asked;
    Generate { request, prompt, sampling, max_tokens, end_tokens }
}

/// The endpoint list needs one entry a rank; a rank's own is never dialed.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
