//! An instance that this node runs: its state machine and the data around it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use placement::LinkSpeed;
use protocol::{FailureKind, KeepAlive, RequestId, Split};

use super::crowd::Crowd;
use super::place::{Candidate, Placed};
use crate::context::{Context, News, Prepared};
use crate::instance::{Effect, Fixed, Instance, Rank};
use crate::membership::ConnId;
use crate::wire::{Message, WorkerId};
use crate::{GenerateEvent, InstanceState, InstanceStatus, NodeId};

/// Bits of the worker numbers of one instance; no instance spawns more workers.
pub(crate) const WORKERS_BITS: u32 = 32;

/// An instance that this node runs, with data that its state machine does not need.
pub(crate) struct Owned {
    pub machine: Instance,
    pub prepared: Arc<Prepared>,
    pub sinks: BTreeMap<RequestId, Sink>,
    /// The reasons for its placement.
    pub why: Vec<String>,
    pub prediction: Option<placement::Prediction>,
    pub review: Review,
    /// The speed of the paths to its ranks' nodes at the time of its placement.
    pub links: BTreeMap<NodeId, LinkSpeed>,
    pub rest: Rest,
    /// The epochs of those that it has replaced in its moves: the count never falls.
    pub epochs_before: u64,
    /// How many replicas the model shall have, if as many as pay were asked for and this is the
    /// first one; else 0.
    pub replicas_wanted: usize,
    pub crowd: Crowd,
}

/// The receiver of a request's events.
#[derive(Clone, Copy)]
pub(crate) enum Sink {
    /// A stream of this node.
    Here(u64),
    /// A stream of the node at the other end.
    Peer { conn: ConnId, stream: u64 },
}

/// The outcome of the last review of a placement.
#[derive(Debug, Default)]
pub(crate) struct Review {
    /// The candidates at a review that found nothing better.
    pub nothing_better: Vec<Candidate>,
    /// Why the instance does not move although it must.
    pub stuck: Option<String>,
    pub idle_since: Option<Duration>,
}

/// The present idle time of an instance, and its limit.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// The `keep_alive` of the last request that had one.
    asked: Option<KeepAlive>,
    /// By this node's clock, and by the wall clock.
    pub idle_since: Option<(Duration, u64)>,
}

impl Rest {
    /// Records a request.
    pub(super) fn asked(&mut self, keep_alive: Option<KeepAlive>) {
        self.idle_since = None;
        self.asked = keep_alive.or(self.asked);
    }
}

impl Owned {
    /// A new instance on the ranks of a plan, or one that waits for nodes because of the given
    /// reason; with its first effects.
    pub(super) fn new(
        fixed: Fixed,
        prepared: Arc<Prepared>,
        placed: Result<Placed, String>,
        now: Duration,
    ) -> (Self, Vec<Effect>) {
        let (mut machine, why, prediction) = match placed {
            Ok(Placed { plan, candidates, .. }) => {
                let ranks = super::place::ranks(&plan, &candidates);
                (Instance::new(fixed, ranks, plan.split, now), plan.why, plan.prediction)
            }
            Err(why) => (Instance::waiting(fixed, &why, now), Vec::new(), None),
        };
        let effects = machine.take_effects();
        let (sinks, links) = (BTreeMap::new(), BTreeMap::new());
        let (review, rest) = (Review::default(), Rest::default());
        let (epochs_before, replicas_wanted, crowd) = (0, 0, Crowd::default());
        let own = Self {
            machine,
            prepared,
            sinks,
            why,
            prediction,
            review,
            links,
            rest,
            epochs_before,
            replicas_wanted,
            crowd,
        };
        (own, effects)
    }

    /// Whether a worker has one of this instance's numbers.
    pub(super) fn has_number(&self, worker: WorkerId) -> bool {
        self.machine.fixed().first_worker == worker >> WORKERS_BITS << WORKERS_BITS
    }

    /// Puts an instance on the ranks of a plan.
    pub(super) fn place(
        &mut self,
        placed: Placed,
        put: impl FnOnce(&mut Instance, Vec<Rank>, Split) -> Vec<Effect>,
    ) -> Vec<Effect> {
        let ranks = placed.ranks();
        (self.why, self.prediction) = (placed.plan.why, placed.plan.prediction);
        put(&mut self.machine, ranks, placed.plan.split)
    }

    /// The longest idle time; `None`: no limit.
    pub(super) fn keep_alive(&self) -> Option<KeepAlive> {
        let said = self.rest.asked.or(self.machine.fixed().spec.keep_alive);
        said.filter(|keep| keep.limit().is_some())
    }

    /// The status, for users and other nodes.
    pub(crate) fn told(&self) -> InstanceStatus {
        let (keep_alive, since) = (self.keep_alive(), self.rest.idle_since);
        let idle_since_unix_s = since.map(|(_, unix_s)| unix_s);
        let limit = keep_alive.and_then(KeepAlive::limit);
        let unloads_at_unix_s = idle_since_unix_s.zip(limit).map(|(s, keep)| s + keep.as_secs());
        let status = self.machine.status();
        let epoch = self.epochs_before + status.epoch;
        let replicas_wanted = Some(self.replicas_wanted).filter(|count| *count > 0);
        InstanceStatus {
            epoch,
            replicas_wanted,
            keep_alive,
            idle_since_unix_s,
            unloads_at_unix_s,
            ..status
        }
    }

    /// Whether it works and has no request.
    pub(super) fn is_idle(&self) -> bool {
        let works = self.machine.state() == InstanceState::Ready && self.machine.has_generated();
        works && self.machine.is_idle()
    }

    /// Forwards an event; the last one closes the stream.
    pub(super) fn emit(&mut self, ctx: &mut Context, request: RequestId, event: GenerateEvent) {
        let is_last = matches!(event, GenerateEvent::Done(_) | GenerateEvent::Failed { .. });
        ctx.changed_if(is_last);
        let sink = match is_last {
            true => self.sinks.remove(&request),
            false => self.sinks.get(&request).copied(),
        };
        match sink {
            Some(Sink::Here(stream)) => ctx.post(News::Answered { stream, event }),
            Some(Sink::Peer { conn, stream }) => {
                ctx.send(conn, Message::Generated { stream, event, let_go: false });
            }
            None => {}
        }
    }

    /// Returns a request to its client's node, which submits it again, here or elsewhere.
    pub(super) fn let_go(&mut self, ctx: &mut Context, request: RequestId, reason: String) {
        ctx.changed();
        match self.sinks.remove(&request) {
            Some(Sink::Here(stream)) => ctx.post(News::Interrupted { stream, reason }),
            Some(Sink::Peer { conn, stream }) => {
                let event = GenerateEvent::Failed { kind: FailureKind::Lost, reason };
                ctx.send(conn, Message::Generated { stream, event, let_go: true });
            }
            None => {}
        }
    }

    /// The requests of other nodes' streams that match.
    pub(super) fn of_peers(&self, is_it: impl Fn(ConnId, u64) -> bool) -> Vec<RequestId> {
        let is_it = |sink: &Sink| match sink {
            Sink::Peer { conn, stream } => is_it(*conn, *stream),
            Sink::Here(_) => false,
        };
        let sinks = self.sinks.iter().filter(|(_, sink)| is_it(sink));
        sinks.map(|(request, _)| *request).collect()
    }
}
