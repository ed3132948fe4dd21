//! The requests of this node's clients, from their arrival to their end.
//!
//! A request runs on the node that owns its instance, which may be this one. Here is kept what it
//! takes to go on elsewhere: the prompt, the options, and the tokens that the client has. So an
//! epoch that ends, or an owner that is lost, is a pause in the stream: what follows is computed
//! again from there, and is what would have followed.

use std::time::Duration;

use protocol::{FailureKind, FinishReason, RequestId};
use tokio::sync::mpsc;
use tracing::info;

use super::{Daemon, Events};
use crate::desired::{Entry, Wanted};
use crate::membership::ConnId;
use crate::wire::Message;
use crate::{Error, GenerateDone, GenerateEvent, GenerateRequest, InstanceState, NodeId, Result};

/// A request that was lost more often without a token in between is given up: it may itself be what
/// kills the workers.
const FRUITLESS_MAX: u32 = 5;
/// Longer each time: an owner that has just lost an instance is believed by the others to have it
/// until its next heartbeat.
const FRUITLESS_PAUSE: Duration = Duration::from_millis(250);
/// How long a request waits while no node that can be reached has the model's file.
const HOMELESS_MAX: Duration = Duration::from_secs(10);
/// How long it waits for an owner that this node does not reach, though others may.
const OWNERLESS_MAX: Duration = Duration::from_secs(30);
/// A request takes one node between its client's and the owner.
const RELAYS_MAX: u32 = 1;
/// How often a client whose request runs nowhere is told so.
const REMINDER: Duration = Duration::from_secs(2);

/// A request of a client of this node.
pub(super) struct Stream {
    instance: String,
    model: String,
    /// With the tokens that the client has.
    request: GenerateRequest,
    audience: Audience,
    /// How many more nodes may pass it on.
    relays: u32,
    place: Place,
    /// How often it was lost since its last token.
    fruitless: u32,
    asked: Duration,
    first_token: Option<Duration>,
    /// Of the prompt, when it first ran.
    cached_tokens: usize,
    was_lost: bool,
}

/// Who hears what comes of a request.
pub(super) enum Audience {
    Client(mpsc::UnboundedSender<GenerateEvent>),
    /// The client is one of a node that does not reach the owner.
    Peer {
        conn: ConnId,
        stream: u64,
    },
}

/// Where a request runs, or waits to run.
enum Place {
    Here {
        request: RequestId,
    },
    Peer {
        conn: ConnId,
    },
    /// Nowhere, for this reason.
    Lost {
        reason: String,
        since: Duration,
        told: Duration,
    },
}

impl Daemon {
    /// Asks an instance, wherever it is.
    ///
    /// The channel is unbounded, but what goes in is not: at most one event a token, and the
    /// context limits the tokens.
    pub(super) fn generate(&mut self, name: &str, request: GenerateRequest) -> Result<Events> {
        let (events, receiver) = mpsc::unbounded_channel();
        let stream = self.begin(name, request, Audience::Client(events.clone()), RELAYS_MAX)?;
        self.outside.watch_client(stream, events);
        Ok(receiver)
    }

    /// Passes the request of a peer's client on to the owner, which that peer does not reach.
    pub(super) fn relay(
        &mut self,
        conn: ConnId,
        stream: u64,
        name: &str,
        request: GenerateRequest,
        relays: u32,
    ) -> Result<()> {
        self.begin(name, request, Audience::Peer { conn, stream }, relays - 1).map(drop)
    }

    pub(super) fn begin(
        &mut self,
        name: &str,
        request: GenerateRequest,
        audience: Audience,
        relays: u32,
    ) -> Result<u64> {
        let Some((entry, wanted)) = self.desired.find(name) else {
            return Err(self.not_served(name));
        };
        let (instance, model) = (wanted.id.clone(), entry.name.clone());
        self.next_stream += 1;
        let stream = self.next_stream;
        let now = self.now();
        let place = Place::Lost { reason: String::new(), since: now, told: now };
        let new = Stream {
            instance: instance.clone(),
            model,
            request: request.clone(),
            audience,
            relays,
            place,
            fruitless: 0,
            asked: now,
            first_token: None,
            cached_tokens: 0,
            was_lost: false,
        };
        // Known before it is placed: an instance may tell at once that the request waits.
        self.streams.insert(stream, new);
        let placed = match self.place(stream, &instance, &request, relays) {
            Ok(placed) => placed,
            Err(error) => {
                self.streams.remove(&stream);
                return Err(error);
            }
        };
        let why = self.why_nowhere(&instance);
        match (placed, self.streams.get_mut(&stream).map(|found| &mut found.place)) {
            (Some(place), Some(was)) => *was = place,
            (None, Some(Place::Lost { reason, .. })) => {
                reason.clone_from(&why);
                self.tell(stream, GenerateEvent::Waiting { reason: why });
            }
            _ => {}
        }
        Ok(stream)
    }

    /// Whoever has left needs no answer; a client's leaving is noticed by its stream's closing.
    pub(super) fn tell(&mut self, stream: u64, event: GenerateEvent) {
        let found = self.streams.get(&stream);
        let is_ours = found.is_some_and(|found| matches!(found.audience, Audience::Client(_)));
        // What a peer's client asked is told by the peer.
        if let (true, GenerateEvent::Failed { kind, reason }) = (is_ours, &event) {
            let instance = found.map_or_else(String::new, |found| found.instance.clone());
            self.note_failure(&instance, *kind, reason);
        }
        match self.streams.get(&stream).map(|stream| &stream.audience) {
            Some(Audience::Client(events)) => drop(events.send(event)),
            Some(Audience::Peer { conn, stream }) => {
                let (conn, stream) = (*conn, *stream);
                self.send(conn, Message::Generated { stream, event, let_go: false });
            }
            None => {}
        }
    }

    /// Hands a request to the instance's owner, through another node if need be; `None` if it
    /// cannot be reached.
    fn place(
        &mut self,
        stream: u64,
        id: &str,
        request: &GenerateRequest,
        relays: u32,
    ) -> Result<Option<Place>> {
        if self.owned.contains_key(id) {
            let request = self.submit(id, request.clone(), super::requests::Sink::Here(stream))?;
            return Ok(Some(Place::Here { request }));
        }
        let Some((entry, _)) = self.desired.find(id) else { return Err(self.not_served(id)) };
        if entry.owner() == self.me {
            self.load_on_request(id, request.keep_alive);
            return Ok(None);
        }
        let Some((entry, wanted)) = self.desired.find(id) else { return Err(self.not_served(id)) };
        let (conn, relays) = match self.membership.conn(entry.owner()) {
            Some(_) => match self.conn_to_owner(entry, wanted) {
                Some(conn) => (conn, 0),
                None => return Ok(None),
            },
            None => match self.way_round(entry.owner()).filter(|_| relays > 0) {
                Some(conn) => (conn, relays),
                None => return Ok(None),
            },
        };
        let (name, request) = (id.to_owned(), request.clone());
        self.send(conn, Message::Generate { stream, name, request, relays });
        Ok(Some(Place::Peer { conn }))
    }

    /// The connection to another node that owns an instance, if it says that it runs it, or would
    /// load it.
    pub(super) fn conn_to_owner(&self, entry: &Entry, wanted: &Wanted) -> Option<ConnId> {
        let heartbeat = self.views.get(&entry.owner())?.heartbeat.as_ref()?;
        let runs = entry.unloaded || heartbeat.instances.iter().any(|one| one.id == wanted.id);
        self.membership.conn(entry.owner()).filter(|_| runs)
    }

    /// A peer that reaches a node which this one does not.
    pub(super) fn way_round(&self, node: NodeId) -> Option<ConnId> {
        let reaches = |peer: NodeId| {
            let heartbeat = self.views.get(&peer).and_then(|view| view.heartbeat.as_ref());
            heartbeat.is_some_and(|heartbeat| heartbeat.sees.contains(&node))
        };
        let peer = self.membership.reachable().find(|peer| reaches(*peer))?;
        self.membership.conn(peer)
    }

    /// What an instance answers to a request of this node's client.
    pub(super) fn answered(&mut self, stream: u64, event: GenerateEvent) {
        let now = self.now();
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let event = match event {
            GenerateEvent::Tokens(tokens) => {
                found.request.answered.extend(tokens.iter().map(|answer| answer.token));
                found.first_token.get_or_insert(now);
                found.fruitless = 0;
                GenerateEvent::Tokens(tokens)
            }
            // A queue that is full now has room for those who were in it before.
            GenerateEvent::Failed { kind, reason }
                if kind == FailureKind::Lost || (kind == FailureKind::Busy && found.was_lost) =>
            {
                found.fruitless += u32::from(kind == FailureKind::Lost);
                return self.interrupted(stream, reason);
            }
            // Only the first run tells what was cached: a later one finds what that one left.
            GenerateEvent::Began(_) if found.was_lost => return,
            GenerateEvent::Began(began) => {
                found.cached_tokens = began.cached_tokens;
                GenerateEvent::Began(began)
            }
            GenerateEvent::Done(done) => GenerateEvent::Done(found.account(done, now)),
            event => event,
        };
        let is_last = matches!(event, GenerateEvent::Done(_) | GenerateEvent::Failed { .. });
        self.tell(stream, event);
        if is_last {
            self.streams.remove(&stream);
        }
    }

    /// A request runs nowhere for now. If its owner has let it go, that is no sign that what it
    /// asks is to blame.
    pub(super) fn interrupted(&mut self, stream: u64, reason: String) {
        let now = self.now();
        let Some(found) = self.streams.get_mut(&stream) else { return };
        info!(stream, reason, "a request was interrupted");
        found.was_lost = true;
        found.place = Place::Lost { reason: reason.clone(), since: now, told: now };
        self.tell(stream, GenerateEvent::Waiting { reason });
    }

    /// What a peer's instance answers; `let_go`: its owner ends it, or moves it.
    pub(super) fn generated(
        &mut self,
        conn: ConnId,
        stream: u64,
        event: GenerateEvent,
        let_go: bool,
    ) {
        let place = self.streams.get(&stream).map(|stream| &stream.place);
        if !matches!(place, Some(Place::Peer { conn: at }) if *at == conn) {
            return;
        }
        match event {
            GenerateEvent::Failed { reason, .. } if let_go => self.interrupted(stream, reason),
            event => self.answered(stream, event),
        }
    }

    /// A client has left.
    pub(super) fn abandoned(&mut self, stream: u64) {
        let Some(Stream { instance, place, .. }) = self.streams.remove(&stream) else { return };
        match place {
            Place::Here { request } => self.cancel(&instance, request),
            Place::Peer { conn } => self.send(conn, Message::CancelGenerate { stream }),
            Place::Lost { .. } => {}
        }
    }

    /// A connection is gone, and with it the requests that went over it, which are not why.
    pub(super) fn lose_streams(&mut self, conn: ConnId, reason: &str) {
        let over = |stream: &Stream| matches!(stream.place, Place::Peer { conn: at } if at == conn);
        let lost = self.streams.iter().filter(|(_, stream)| over(stream));
        for stream in lost.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.interrupted(stream, reason.to_owned());
        }
    }

    /// A peer does not want its client's requests passed on any more.
    pub(super) fn abandon_relayed(&mut self, is_it: impl Fn(ConnId, u64) -> bool) {
        let relayed = self.streams.iter().filter(|(_, found)| match found.audience {
            Audience::Peer { conn, stream } => is_it(conn, stream),
            Audience::Client(_) => false,
        });
        for stream in relayed.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.abandoned(stream);
        }
    }

    /// Lets requests that were lost go on, as soon as there is somebody to ask.
    pub(super) fn resume_streams(&mut self) {
        let is_lost = |stream: &Stream| matches!(stream.place, Place::Lost { .. });
        let lost = self.streams.iter().filter(|(_, stream)| is_lost(stream));
        for stream in lost.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            if let Some(event) = self.resume(stream) {
                self.dirty = true;
                self.tell(stream, event);
                self.streams.remove(&stream);
            }
        }
    }

    /// Tries to let a request go on; the last event, if it cannot.
    fn resume(&mut self, stream: u64) -> Option<GenerateEvent> {
        let now = self.now();
        let found = self.streams.get(&stream)?;
        let Place::Lost { reason, since, .. } = &found.place else { return None };
        let (reason, since, id) = (reason.clone(), *since, found.instance.clone());
        let ended = |kind, reason| Some(GenerateEvent::Failed { kind, reason });
        let failed = |reason| ended(FailureKind::Lost, reason);
        let Some((entry, wanted)) = self.desired.find(&id) else {
            return failed(format!("{} was stopped, or is served anew", found.model));
        };
        if found.request.is_answered(wanted.spec.context_tokens.unwrap_or(usize::MAX)) {
            return Some(GenerateEvent::Done(found.answered_in_full(now)));
        }
        let state = match self.owned.get(&id) {
            Some(owned) => owned.machine.state(),
            None => self.status_of(entry, wanted).state,
        };
        let limit = if self.has_heir(wanted) { OWNERLESS_MAX } else { HOMELESS_MAX };
        let is_over = now.saturating_sub(since) >= limit;
        match state {
            InstanceState::Failed { reason } => return failed(reason),
            InstanceState::Recovering { reason } if is_over => {
                let model = entry.name.clone();
                return ended(FailureKind::Away, Error::Away { model, reason }.to_string());
            }
            _ if found.fruitless > FRUITLESS_MAX => {
                let times = found.fruitless;
                return failed(format!(
                    "{reason}. The request was lost {times} times in a row without a token, and \
                     may itself be what ends the workers. If others fail as well, look at sinew \
                     events, then ask again"
                ));
            }
            _ => {}
        }
        let pause = FRUITLESS_PAUSE * found.fruitless.saturating_sub(1);
        if now.saturating_sub(since) < pause {
            return None;
        }
        let (request, relays) = (found.request.clone(), found.relays);
        let placed = match self.place(stream, &id, &request, relays) {
            Err(Error::QueueFull { .. }) => None,
            Err(error) => return failed(error.to_string()),
            Ok(placed) => placed,
        };
        let why = self.why_nowhere(&id);
        let found = self.streams.get_mut(&stream)?;
        match (placed, &mut found.place) {
            (Some(place), was) => *was = place,
            (None, Place::Lost { told, .. }) if now.saturating_sub(*told) >= REMINDER => {
                *told = now;
                self.tell(stream, GenerateEvent::Waiting { reason: why });
            }
            (None, _) => {}
        }
        None
    }

    /// Why a request cannot be handed to anybody now.
    pub(super) fn why_nowhere(&self, id: &str) -> String {
        let status = self.desired.find(id).map(|(entry, wanted)| self.status_of(entry, wanted));
        match status.map(|status| status.state) {
            Some(InstanceState::Recovering { reason } | InstanceState::Failed { reason }) => reason,
            _ => self.why_not_yet(id),
        }
    }

    /// This node shuts down, and with it the streams of its clients.
    pub(super) fn end_streams(&mut self) {
        for stream in self.streams.keys().copied().collect::<Vec<_>>() {
            let (kind, reason) = (FailureKind::Lost, "this node was shut down".to_owned());
            self.tell(stream, GenerateEvent::Failed { kind, reason });
        }
        self.streams.clear();
    }
}

impl Stream {
    /// Since when a client waits for the first token, and of which instance.
    pub(super) fn waits_since(&self) -> Option<(Duration, &str)> {
        let waits = matches!(self.audience, Audience::Client(_)) && self.first_token.is_none();
        (waits && self.request.answered.is_empty()).then_some((self.asked, &self.instance))
    }

    #[cfg(test)]
    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    #[cfg(test)]
    pub(super) fn is_of_a_client(&self) -> bool {
        matches!(self.audience, Audience::Client(_))
    }

    /// The account of a request that ran in several pieces is this node's own.
    fn account(&self, done: GenerateDone, now: Duration) -> GenerateDone {
        if !self.was_lost {
            return done;
        }
        let first_token = self.first_token.unwrap_or(now);
        let (prefill, decode) = (first_token - self.asked, now - first_token);
        let cached_tokens = self.cached_tokens;
        let (queue, waits) = Default::default();
        GenerateDone { cached_tokens, queue, prefill, decode, waits, ..done }
    }

    /// It was lost between its last token and its end.
    fn answered_in_full(&self, now: Duration) -> GenerateDone {
        let done = GenerateDone {
            reason: FinishReason::Length,
            prompt_tokens: self.request.prompt.len(),
            generated_tokens: self.request.answered.len(),
            cached_tokens: 0,
            queue: Duration::ZERO,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            waits: Vec::new(),
            embedding: None,
        };
        self.account(done, now)
    }
}
