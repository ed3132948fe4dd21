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
//! Anything that ends an epoch (a worker's death, a lost node, a broken link) ends its requests
//! with a reason that names the node, and leads back to `Gathering`; the survivors keep their
//! shards. New requests wait meanwhile. The machine knows no sockets and no processes: workers are
//! numbers, time is an argument, and all actions come out as [`Effect`]s.

mod events;
mod failures;
mod graph;
mod limits;
mod offer;
mod pace;
mod rank;
mod readiness;
mod requests;
mod ring;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod warm_up;
mod warnings;
mod workers;

use std::time::Duration;

use protocol::{EngineStats, InstanceSpec, RequestId, Secret, Split, WorkerCommand, WorkerEvent};
use store::Digest;

use crate::desired::Version;
use crate::wire::{Question, WorkerId, WorkerOrder};
use crate::{Error, GenerateEvent, GenerateRequest, InstanceState, InstanceStatus, NodeId, Result};

pub(crate) use graph::Apart;
use limits::{AWAY_MAX, AWAY_MIN, LINK_DEADLINE, SUSPECT_WAIT};
use rank::Worker;
pub(crate) use rank::{Path, Rank, Routes};
use requests::Requests;
use warm_up::{WARM_UP, warm_up};

#[derive(Debug)]
pub(crate) enum Input {
    NodeUp { node: NodeId, path: Path },
    NodeDown { node: NodeId, reason: String },
    Spawned { worker: WorkerId, pid: u32 },
    FromWorker { worker: WorkerId, event: WorkerEvent },
    Exited { worker: WorkerId, how: String },
    Cancel(RequestId),
    Tick,
}

#[derive(Debug)]
pub(crate) enum Effect {
    /// Start a worker, or take up the running one with this number.
    Spawn {
        node: NodeId,
        worker: WorkerId,
        order: Box<WorkerOrder>,
    },
    /// End a worker: with a grace period, or at once because it does not react.
    End {
        node: NodeId,
        worker: WorkerId,
        at_once: bool,
    },
    Send {
        node: NodeId,
        worker: WorkerId,
        command: WorkerCommand,
    },
    Emit {
        request: RequestId,
        event: GenerateEvent,
    },
    /// A request stops running here, through no fault of its own; it should be submitted again.
    LetGo {
        request: RequestId,
        reason: String,
    },
    /// Not every two nodes can link. Answer with [`Instance::reorder`], the ranks being on these
    /// nodes in this order, with these shares, or with [`Instance::give_up`].
    Reorder(Vec<(NodeId, u32)>),
    /// Nodes are missing: answer with [`Instance::replace`] or [`Instance::give_up`].
    Replan,
    /// These pairs have no link, and no ring avoids all of them. Answer with [`Instance::move_to`]
    /// if the instance can run without some of the nodes.
    Part(Vec<Apart>),
}

/// The constants of an instance.
#[derive(Debug, Clone)]
pub(crate) struct Fixed {
    pub id: String,
    pub model: String,
    /// The owner's claim.
    pub claim: Version,
    pub digest: Digest,
    pub model_bytes: u64,
    pub spec: InstanceSpec,
    pub secret: Secret,
    /// The first worker number; instances use disjoint ranges.
    pub first_worker: WorkerId,
}

#[derive(Debug)]
pub(crate) struct Instance {
    fixed: Fixed,
    ranks: Vec<Rank>,
    split: Split,
    phase: Phase,
    /// The links that its nodes can make.
    graph: graph::Graph,
    routes: Routes,
    epoch: u64,
    /// Why it is not ready, once it has been in trouble.
    trouble: Option<String>,
    /// The earliest time of the next attempt to link.
    link_at: Duration,
    /// The earliest time of the next placement on other nodes, after one that failed.
    replan_at: Duration,
    link_failures: failures::Recent,
    /// How often it gave up since its last answer.
    given_up: u32,
    requests: Requests,
    /// Lost requests that wait for a better reason.
    doomed: Option<Doomed>,
    next_worker: WorkerId,
    ticked_at: Duration,
    last_decode_tokens_per_sec: Option<f64>,
    pace: pace::Pace,
    readiness: readiness::Readiness,
    /// The last epoch with a generated token.
    generated_in: u64,
    /// Rank 0's last report in this epoch.
    stats: Option<EngineStats>,
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
    /// A worker kept dying, or links failed: a request tries again from `until` on.
    Failures { until: Duration, retry_at: Duration },
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
    pub(crate) fn new(fixed: Fixed, ranks: Vec<Rank>, split: Split, now: Duration) -> Self {
        let mut instance = Self {
            requests: Requests::new(split.sequences_max),
            next_worker: fixed.first_worker,
            fixed,
            ranks,
            split,
            phase: Phase::Gathering,
            graph: graph::Graph::default(),
            routes: Routes::new(),
            epoch: 0,
            trouble: None,
            link_at: now,
            replan_at: now,
            link_failures: failures::Recent::default(),
            given_up: 0,
            doomed: None,
            ticked_at: now,
            last_decode_tokens_per_sec: None,
            pace: pace::Pace::default(),
            readiness: readiness::Readiness::default(),
            generated_in: 0,
            stats: None,
            effects: Vec::new(),
        };
        instance.advance(now);
        instance
    }

    /// An instance without enough nodes yet; `why` is the reason.
    pub(crate) fn waiting(fixed: Fixed, why: &str, now: Duration) -> Self {
        let mut instance = Self::new(fixed, Vec::new(), Split::default(), now);
        instance.effects.clear();
        instance.fail(why.to_owned(), GaveUp::Missing);
        instance
    }

    pub(crate) fn step(&mut self, event: Input, now: Duration) -> Vec<Effect> {
        match event {
            Input::NodeUp { node, path } => self.node_up(node, path),
            Input::NodeDown { node, reason } => self.node_down(node, &reason, now),
            Input::Spawned { worker, pid } => {
                if let Some((_, worker)) = self.find(worker) {
                    worker.pid = Some(pid);
                    (worker.heard_at, worker.progressed_at) = (now, now);
                }
            }
            Input::FromWorker { worker, event } => self.said(worker, event, now),
            Input::Exited { worker, how } => self.exited(worker, &how, now),
            Input::Cancel(request) => self.cancel(request),
            Input::Tick => self.tick(now),
        }
        self.advance(now);
        std::mem::take(&mut self.effects)
    }

    /// Accepts a request: it runs now or waits its turn.
    ///
    /// # Errors
    /// It can never run, too many requests wait, or the instance has failed.
    pub(crate) fn submit(&mut self, request: GenerateRequest, now: Duration) -> Result<RequestId> {
        // The vocabulary is left to the API and the worker.
        let checked = request.check(self.split.context_tokens, usize::MAX);
        checked.map_err(|invalid| Error::Unusable(invalid.to_string()))?;
        if let Phase::Failed { reason, why } = &self.phase {
            match why {
                GaveUp::Failures { until, .. } if now >= *until => self.try_again(now),
                _ => {
                    let (model, reason) = (self.fixed.model.clone(), reason.clone());
                    return Err(Error::Failed { model, reason });
                }
            }
        }
        let limit = requests::WAITING_MAX;
        let model = &self.fixed.model;
        let full = || Error::QueueFull { model: model.clone(), limit };
        let unread = self.readiness.unread(&Question::of(&request));
        let id = self.requests.submit(request, unread).ok_or_else(full)?;
        self.advance(now);
        if self.requests.is_waiting(id) {
            let reason = self.waiting_reason();
            self.emit(id, GenerateEvent::Waiting { reason });
        }
        Ok(id)
    }

    /// Sets the order in which ranks try each other's addresses, from the next epoch on.
    pub(crate) fn set_routes(&mut self, routes: Routes) {
        self.routes = routes;
    }

    /// Effects of calls since the last [`Self::step`].
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Answers `Effect::Replan`: there are not enough nodes, because of `why`. While a lost node
    /// may soon return, requests wait.
    pub(crate) fn give_up(&mut self, why: &str, now: Duration) -> Vec<Effect> {
        let is_gone = |rank: &Rank| rank.is_away_since(now, AWAY_MAX);
        let may_return =
            !self.ranks.iter().all(Rank::is_node_up) && !self.ranks.iter().any(is_gone);
        if self.phase == Phase::Gathering && may_return {
            self.replan_at = now + AWAY_MIN;
            return std::mem::take(&mut self.effects);
        }
        let away = self.ranks.iter().filter(|rank| !rank.is_node_up());
        let back = away.map(|rank| format!(". Or bring {} back", rank.node_name));
        let back: String = back.collect();
        let rest = "the nodes that are left do not suffice";
        let reason = match &self.trouble {
            Some(trouble) => format!("{trouble}; {rest}: {why}{back}"),
            None => why.to_owned(),
        };
        self.fail(reason, GaveUp::Missing);
        std::mem::take(&mut self.effects)
    }

    /// Ends all requests and workers; `why` is the reason.
    pub(crate) fn stop(&mut self, why: &str) -> Vec<Effect> {
        let reason = format!("{} ends here: {why}", self.fixed.model);
        self.let_go(&reason);
        self.fail(reason, GaveUp::Missing);
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn split(&self) -> &Split {
        &self.split
    }

    pub(crate) fn fixed(&self) -> &Fixed {
        &self.fixed
    }

    /// The nodes of its ranks, in order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.ranks.iter().map(|rank| rank.node)
    }

    /// Whether it has given up for lack of nodes or memory.
    pub(crate) fn lacks_nodes(&self) -> bool {
        matches!(self.phase, Phase::Failed { why: GaveUp::Missing, .. })
    }

    /// Whether it has no requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.running() == 0 && self.requests.waiting().is_empty()
    }

    /// Planned memory of its ranks on a node; 0 once it has given up.
    pub(crate) fn memory_bytes_on(&self, node: NodeId) -> u64 {
        if matches!(self.phase, Phase::Failed { .. }) {
            return 0;
        }
        let there = self.ranks.iter().filter(|rank| rank.node == node);
        there.map(|rank| rank.memory_bytes).sum()
    }

    /// When the next `Tick` is due, if that is before the regular one.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let doomed = self.doomed.as_ref().map(|doomed| doomed.until);
        if self.phase != Phase::Gathering {
            return doomed.into_iter().chain(self.graph.decide_at()).min();
        }
        let respawns = self.ranks.iter().filter_map(Rank::respawn_at);
        let link = self.all_loaded().then_some(self.link_at);
        respawns.chain(link).chain(doomed).min()
    }

    /// Whether it works: it has generated a token since its ranks were linked.
    pub(crate) fn has_generated(&self) -> bool {
        self.phase == Phase::Ready && self.generated_in == self.epoch
    }

    pub(crate) fn state(&self) -> InstanceState {
        match (&self.phase, &self.trouble) {
            // Recovering, not failed: clients would send no request to a failed instance.
            (Phase::Failed { reason, why: GaveUp::Failures { until, .. } }, _)
                if self.ticked_at >= *until =>
            {
                InstanceState::Recovering { reason: format!("{reason}; a request tries it again") }
            }
            (Phase::Failed { reason, .. }, _) => InstanceState::Failed { reason: reason.clone() },
            (Phase::Ready, _) => InstanceState::Ready,
            (_, None) => InstanceState::Loading,
            (_, Some(reason)) => InstanceState::Recovering { reason: reason.clone() },
        }
    }

    pub(crate) fn status(&self) -> InstanceStatus {
        let fixed = &self.fixed;
        let workers = || self.ranks.iter().filter_map(|rank| rank.worker.as_ref());
        let ring = self.ring_notes();
        let percents = rank::percents(&self.ranks, &self.split.shares);
        let shares = self.split.shares.iter().zip(percents);
        InstanceStatus {
            id: fixed.id.clone(),
            model: fixed.model.clone(),
            digest: Some(fixed.digest),
            model_bytes: fixed.model_bytes,
            file_nodes: Vec::new(),
            owner: fixed.claim.node,
            state: self.state(),
            epoch: self.epoch,
            context_tokens: self.split.context_tokens,
            created_unix_s: 0,
            transport: fixed.spec.options.transport,
            ranks: (self.ranks.iter().zip(shares).enumerate())
                .map(|(at, (rank, (share, percent)))| rank.status(at, *share, percent))
                .collect(),
            requests_running: self.requests.running(),
            requests_waiting: self.requests.waiting().len(),
            has_generated: self.has_generated(),
            last_decode_tokens_per_sec: self.last_decode_tokens_per_sec,
            stats: self.stats.clone(),
            placement: Vec::new(),
            prediction: None,
            notes: workers().flat_map(|worker| &worker.notes).cloned().chain(ring).collect(),
            replica_of: None,
            replicas_wanted: None,
            keep_alive: None,
            idle_since_unix_s: None,
            unloads_at_unix_s: None,
        }
    }

    /// Takes the steps that the present state allows.
    fn advance(&mut self, now: Duration) {
        if self.phase == Phase::Gathering {
            self.gather(now);
        }
        if let Phase::Linking { until } = self.phase {
            self.link(now, until);
        }
        if self.phase == Phase::Ready {
            for (request, generate) in self.requests.take_ready() {
                self.send(0, WorkerCommand::Generate { request, generate: Box::new(generate) });
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
        let is_due = now >= self.replan_at;
        if is_due && self.ranks.iter().any(|rank| rank.is_away_for_long(now)) {
            self.effects.push(Effect::Replan);
        } else if self.all_loaded() && now >= self.link_at {
            self.epoch += 1;
            self.pace.clear();
            self.readiness.forget();
            self.phase = Phase::Linking { until: now + LINK_DEADLINE };
            for at in 0..self.ranks.len() {
                let endpoints = rank::endpoints(&self.ranks, at, &self.routes);
                let (epoch, ring, segments) = (self.epoch, self.graph.is_sparse(), Vec::new());
                let secret = self.fixed.secret.clone();
                let connect = WorkerCommand::Connect { epoch, endpoints, ring, secret, segments };
                self.send(at, connect);
                if let Some(worker) = self.ranks[at].worker.as_mut().filter(|it| it.is_suspect) {
                    worker.must_speak_by = Some(now + SUSPECT_WAIT);
                }
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
            self.link_failures.succeeded();
            self.ranks.iter_mut().for_each(Rank::ready);
            if self.requests.waiting().is_empty() {
                self.send(0, WorkerCommand::Generate { request: WARM_UP, generate: warm_up() });
            }
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

    fn emit(&mut self, request: RequestId, event: GenerateEvent) {
        self.effects.push(Effect::Emit { request, event });
    }

    fn all_loaded(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.iter().all(Rank::is_loaded)
    }

    fn name(&self, at: usize) -> String {
        format!("node {} (rank {at})", self.ranks[at].node_name)
    }

    fn lost(&self, at: usize, why: &str) -> String {
        format!("{} was lost: {why}", self.name(at))
    }

    fn waiting_reason(&self) -> String {
        match (&self.phase, &self.trouble) {
            (Phase::Ready, _) => format!("all {} sequences are busy", self.split.sequences_max),
            (_, Some(trouble)) => format!("recovering: {trouble}"),
            (_, None) => rank::progress(&self.ranks),
        }
    }
}
