//! The requests of this node's clients, from their arrival to their end.
//!
//! A request runs on the node that owns its instance, which may be this one. A [`Stream`] keeps the
//! data that the request needs to continue elsewhere: the prompt, the options, and the tokens that
//! the client has. The end of an epoch, or the loss of an owner, is therefore a pause in the
//! stream: the rest is computed again from there, and equals the uninterrupted answer.

mod below;
mod choosing;
mod replicas;
mod stream;
pub(crate) mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::FailureKind;
use tokio::sync::mpsc;
use tracing::info;

use crate::context::{Context, Events};

use crate::instances::{Sink, load, reported, status};
use crate::membership::ConnId;
use crate::peers::{conn_to_owner, way_round};
use crate::wire::{Message, Question};
use crate::{Error, GenerateEvent, GenerateRequest, InstanceState, Result};
pub(crate) use below::Below;
pub(crate) use replicas::quote;
pub(crate) use stream::Stream;
use stream::{Audience, Place};

/// Losses without a token in between after which a request is given up: it may itself crash the
/// workers.
const FRUITLESS_MAX: u32 = 5;
/// Unit of the pause before a retry, which grows with each loss: until its next heartbeat, others
/// believe that an owner still has an instance that it has just lost.
const FRUITLESS_PAUSE: Duration = Duration::from_millis(250);
/// How long a request waits while no reachable node has the model's file.
const HOMELESS_MAX: Duration = Duration::from_secs(10);
/// How long it waits for an owner that this node does not reach, though others may.
const OWNERLESS_MAX: Duration = Duration::from_secs(30);
/// Requests that a node passes on here at a time, to an owner that only this node reaches.
const RELAYED_MAX: usize = 64;
/// A request passes at most one node between its client's and the owner.
const RELAYS_MAX: u32 = 1;
/// Interval of the events to a client whose request runs nowhere.
const REMINDER: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(crate) struct Requests {
    streams: BTreeMap<u64, Stream>,
    last: u64,
    /// The replicas that were chosen, the last one last.
    chosen: Vec<String>,
    /// Requests of this node's clients that have just failed, for the journal: instance and reason.
    pub failures: Vec<(String, String)>,
}

impl Requests {
    /// Submits a request to an instance on any node.
    ///
    /// The channel is unbounded, but its content is not: at most one event a token, and the context
    /// limits the tokens.
    pub(crate) fn generate(
        &mut self,
        below: &mut Below<'_>,
        name: &str,
        request: GenerateRequest,
    ) -> Result<Events> {
        let (events, receiver) = mpsc::unbounded_channel();
        let audience = Audience::Client(events.clone());
        let stream = self.begin(below, name, request, audience, RELAYS_MAX)?;
        below.host.ctx.outside.watch_client(stream, events);
        Ok(receiver)
    }

    /// Submits a request of another node's client: to an instance of this node; to one that this
    /// node owns and has to load first; or, if `relays` is not 0, to one whose owner the other node
    /// does not reach.
    pub(crate) fn generate_for(
        &mut self,
        below: &mut Below<'_>,
        (conn, stream): (ConnId, u64),
        name: &str,
        request: GenerateRequest,
        relays: u32,
    ) {
        let audience = Audience::Peer { conn, stream };
        let ctx = &below.host.ctx;
        let outcome = match below.instances.find(name) {
            Some(id) => {
                let sink = Sink::Peer { conn, stream };
                below.instances.submit(below.host, &id, request, sink).map(drop)
            }
            None if self.relayed(conn) >= RELAYED_MAX => {
                Err(Error::QueueFull { model: name.to_owned(), limit: RELAYED_MAX })
            }
            None if ctx.is_mine(name) => self.begin(below, name, request, audience, 0).map(drop),
            None if relays > 0 => self.begin(below, name, request, audience, relays - 1).map(drop),
            None => Err(runs_no_more(ctx, name)),
        };
        if let Err(error) = outcome {
            let kind = match error {
                Error::QueueFull { .. } => FailureKind::Busy,
                Error::Unusable(_) => FailureKind::Invalid,
                _ => FailureKind::Lost,
            };
            let event = GenerateEvent::Failed { kind, reason: error.to_string() };
            below.host.ctx.send(conn, Message::Generated { stream, event, let_go: false });
        }
    }

    /// The requests that the node of a connection has passed on here.
    fn relayed(&self, conn: ConnId) -> usize {
        let is_its = |stream: &&Stream| match stream.audience {
            Audience::Peer { conn: of, .. } => of == conn,
            Audience::Client(_) => false,
        };
        self.streams.values().filter(is_its).count()
    }

    /// The requests of this node's clients at an instance.
    fn there(&self, id: &str) -> usize {
        self.streams.values().filter(|found| found.runs_at(id)).count()
    }

    fn begin(
        &mut self,
        below: &mut Below<'_>,
        name: &str,
        request: GenerateRequest,
        audience: Audience,
        relays: u32,
    ) -> Result<u64> {
        let Some((entry, wanted)) = below.host.ctx.desired.find(name) else {
            return Err(status::not_served(below.instances, below.host, name));
        };
        let (first, model) = (wanted.id.clone(), entry.name.clone());
        self.last += 1;
        let stream = self.last;
        let now = below.host.ctx.now();
        let is_client = matches!(audience, Audience::Client(_));
        let ready = if is_client { replicas::ready(below, &first) } else { Vec::new() };
        if ready.len() > 1 {
            let question = Question::of(&request);
            let reason = "the owners of its replicas are asked".to_owned();
            let place = Place::Lost { reason, since: now, told: now };
            let instance = first.clone();
            let new =
                Stream::new((instance, first, model), request, (audience, relays), place, now);
            self.streams.insert(stream, new);
            self.ask_for_offers(below, stream, &ready, &question);
            return Ok(stream);
        }
        let next = replicas::next_place(below, (&first, &first), |id| self.there(id));
        let instance = next.filter(|_| is_client).unwrap_or_else(|| first.clone());
        let placed = place(below, stream, &instance, &request, relays)?;
        let is_placed = placed.is_some();
        let reason = match is_placed {
            true => String::new(),
            false => status::why_nowhere(below.instances, below.host, &instance),
        };
        let place = placed.unwrap_or(Place::Lost { reason: reason.clone(), since: now, told: now });
        let new = Stream::new((instance, first, model), request, (audience, relays), place, now);
        self.streams.insert(stream, new);
        if !is_placed {
            self.tell(&mut below.host.ctx, stream, GenerateEvent::Waiting { reason });
        }
        Ok(stream)
    }

    /// Forwards an event to the client or to its node. If a client has left, its stream reports
    /// that separately.
    fn tell(&mut self, ctx: &mut Context, stream: u64, event: GenerateEvent) {
        let Some(found) = self.streams.get(&stream) else { return };
        match &found.audience {
            Audience::Client(events) => {
                // The client's mistakes, and requests that it may repeat, are no failures of this
                // node.
                if let GenerateEvent::Failed { kind: FailureKind::Lost, reason } = &event {
                    self.failures.push((found.instance.clone(), reason.clone()));
                }
                // The client may have left.
                let _ = events.send(event);
            }
            Audience::Peer { conn, stream } => {
                let (conn, stream) = (*conn, *stream);
                ctx.send(conn, Message::Generated { stream, event, let_go: false });
            }
        }
    }

    /// An instance answers a request of this node.
    pub(crate) fn answered(&mut self, ctx: &mut Context, stream: u64, event: GenerateEvent) {
        let now = ctx.now();
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let event = match event {
            GenerateEvent::Tokens(tokens) => {
                found.request.answered.extend(tokens.iter().map(|answer| answer.token));
                if let Some(last) = tokens.last() {
                    found.request.sampling.mirostat_mu = last.mirostat_mu;
                }
                found.first_token.get_or_insert(now);
                found.fruitless = 0;
                GenerateEvent::Tokens(tokens)
            }
            // If the queue is full now, it will still have room for the requests that were in it
            // before.
            GenerateEvent::Failed { kind, reason }
                if kind == FailureKind::Lost || (kind == FailureKind::Busy && found.was_lost) =>
            {
                found.fruitless += u32::from(kind == FailureKind::Lost);
                return self.interrupted(ctx, stream, reason);
            }
            // Only the first run's count of cached tokens is right: a later run finds the cache of
            // the first.
            GenerateEvent::Began(_) if found.was_lost || found.has_begun => return,
            GenerateEvent::Began(began) => {
                found.has_begun = true;
                found.cached_tokens = began.cached_tokens;
                GenerateEvent::Began(began)
            }
            GenerateEvent::Done(done) => GenerateEvent::Done(found.account(done, now)),
            event => event,
        };
        let is_last = matches!(event, GenerateEvent::Done(_) | GenerateEvent::Failed { .. });
        self.tell(ctx, stream, event);
        if is_last {
            self.streams.remove(&stream);
        }
    }

    /// A request runs nowhere for now. If its owner returned it, that does not count against the
    /// request.
    pub(crate) fn interrupted(&mut self, ctx: &mut Context, stream: u64, reason: String) {
        let now = ctx.now();
        let Some(found) = self.streams.get_mut(&stream) else { return };
        info!(stream, reason, "a request was interrupted");
        found.was_lost = true;
        found.place = Place::Lost { reason: reason.clone(), since: now, told: now };
        ctx.changed();
        self.tell(ctx, stream, GenerateEvent::Waiting { reason });
    }

    /// An instance of a peer answers; `let_go`: its owner ends or moves it.
    pub(crate) fn generated(
        &mut self,
        ctx: &mut Context,
        (conn, stream): (ConnId, u64),
        event: GenerateEvent,
        let_go: bool,
    ) {
        let now = ctx.now();
        let Some(found) = self.streams.get_mut(&stream) else { return };
        if !matches!(found.place, Place::Peer { conn: at } if at == conn) {
            return;
        }
        match event {
            GenerateEvent::Waiting { .. } if !found.may_wait(now) => {}
            GenerateEvent::Tokens(tokens) if found.left() < tokens.len() => {
                let reason = "its owner sent more tokens than were asked for".to_owned();
                let failed = GenerateEvent::Failed { kind: FailureKind::Lost, reason };
                self.answered(ctx, stream, failed);
            }
            GenerateEvent::Failed { reason, .. } if let_go => self.interrupted(ctx, stream, reason),
            event => self.answered(ctx, stream, event),
        }
    }

    /// A client has left.
    pub(crate) fn abandoned(&mut self, below: &mut Below<'_>, stream: u64) {
        let Some(Stream { instance, place, .. }) = self.streams.remove(&stream) else { return };
        match place {
            Place::Here { request } => below.instances.cancel(below.host, &instance, request),
            Place::Peer { conn } => {
                below.host.ctx.send(conn, Message::CancelGenerate { stream });
            }
            Place::Choosing(_) | Place::Lost { .. } => {}
        }
    }

    /// A connection is gone, and with it the requests over it, which are not to blame.
    pub(crate) fn lose(&mut self, ctx: &mut Context, conn: ConnId, reason: &str) {
        let over = |stream: &Stream| matches!(stream.place, Place::Peer { conn: at } if at == conn);
        let lost = self.streams.iter().filter(|(_, stream)| over(stream));
        for stream in lost.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.interrupted(ctx, stream, reason.to_owned());
        }
    }

    /// Cancels the requests of other nodes' clients that match.
    pub(crate) fn cancel_for(
        &mut self,
        below: &mut Below<'_>,
        is_it: impl Fn(ConnId, u64) -> bool,
    ) {
        below.instances.cancel_for(below.host, &is_it);
        let relayed = self.streams.iter().filter(|(_, found)| match found.audience {
            Audience::Peer { conn, stream } => is_it(conn, stream),
            Audience::Client(_) => false,
        });
        for stream in relayed.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.abandoned(below, stream);
        }
    }

    /// Continues interrupted requests, as soon as a node can take them.
    pub(crate) fn resume(&mut self, below: &mut Below<'_>) {
        let is_lost = |stream: &Stream| matches!(stream.place, Place::Lost { .. });
        let lost = self.streams.iter().filter(|(_, stream)| is_lost(stream));
        for stream in lost.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            if let Some(event) = self.resume_one(below, stream) {
                below.host.ctx.changed();
                self.tell(&mut below.host.ctx, stream, event);
                self.streams.remove(&stream);
            }
        }
    }

    /// A lost request of a client goes on at the replica that is soonest ready.
    fn choose_again(&mut self, below: &Below<'_>, stream: u64) -> Option<()> {
        let found = self.streams.get(&stream)?;
        if matches!(found.audience, Audience::Client(_)) {
            let at = (found.first.as_str(), found.instance.as_str());
            let next = replicas::next_place(below, at, |id| self.there(id));
            let found = self.streams.get_mut(&stream)?;
            found.instance = next.unwrap_or_else(|| found.first.clone());
        }
        Some(())
    }

    /// Tries to continue a request; returns its last event if it cannot continue.
    fn resume_one(&mut self, below: &mut Below<'_>, stream: u64) -> Option<GenerateEvent> {
        self.choose_again(below, stream)?;
        let Below { instances, host } = below;
        let now = host.ctx.now();
        let found = self.streams.get(&stream)?;
        let Place::Lost { reason, since, .. } = &found.place else { return None };
        let (since, id) = (*since, &found.instance);
        let ended = |kind, reason| Some(GenerateEvent::Failed { kind, reason });
        let failed = |reason| ended(FailureKind::Lost, reason);
        let Some((entry, wanted)) = host.ctx.desired.find(id) else {
            return failed(format!("{} is not served here any more: {reason}", found.model));
        };
        if found.request.is_answered(wanted.spec.context_tokens.unwrap_or(usize::MAX)) {
            return Some(GenerateEvent::Done(found.answered_in_full(now)));
        }
        let state = match instances.table.get(id) {
            Some(owned) => owned.machine.state(),
            None => reported(host, &instances.table, entry, wanted).state,
        };
        let is_relayed = matches!(found.audience, Audience::Peer { .. });
        let starts = matches!(state, InstanceState::Loading | InstanceState::Unloaded);
        let is_elsewhere = entry.owner() != host.ctx.me || !starts;
        if is_relayed && is_elsewhere && !host.ctx.desired.other_replicas(id).is_empty() {
            // Its client's node chooses among the others.
            return failed(reason.clone());
        }
        let has_heir = host.files.places.has_heir(&host.ctx, wanted);
        let limit = if has_heir { OWNERLESS_MAX } else { HOMELESS_MAX };
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
        let placed = match place(below, stream, id, &found.request, found.relays) {
            Err(Error::QueueFull { .. }) => None,
            Err(error) => return failed(error.to_string()),
            Ok(placed) => placed,
        };
        let why = status::why_nowhere(below.instances, below.host, id);
        let found = self.streams.get_mut(&stream)?;
        match (placed, &mut found.place) {
            (Some(place), was) => *was = place,
            (None, Place::Lost { told, .. }) if now.saturating_sub(*told) >= REMINDER => {
                *told = now;
                self.tell(&mut below.host.ctx, stream, GenerateEvent::Waiting { reason: why });
            }
            (None, _) => {}
        }
        None
    }

    /// This node shuts down, and with it the streams of its clients.
    pub(crate) fn end_all(&mut self, ctx: &mut Context) {
        for stream in self.streams.keys().copied().collect::<Vec<_>>() {
            let (kind, reason) = (FailureKind::Lost, "this node was shut down".to_owned());
            self.tell(ctx, stream, GenerateEvent::Failed { kind, reason });
        }
        self.streams.clear();
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = &Stream> {
        self.streams.values()
    }

    #[cfg(test)]
    pub(crate) fn last(&self) -> u64 {
        self.last
    }
}

/// Submits a request to the instance's owner, through another node if needed; `None` if the owner
/// is unreachable.
fn place(
    below: &mut Below<'_>,
    stream: u64,
    id: &str,
    request: &GenerateRequest,
    relays: u32,
) -> Result<Option<Place>> {
    let Below { instances, host } = below;
    if instances.table.get(id).is_some() {
        let request = instances.submit(host, id, request.clone(), Sink::Here(stream))?;
        return Ok(Some(Place::Here { request }));
    }
    let Some((entry, wanted)) = host.ctx.desired.find(id) else {
        return Err(status::not_served(instances, host, id));
    };
    let owner = entry.owner();
    if owner == host.ctx.me {
        load(instances, &mut host.ctx, id, request.keep_alive);
        return Ok(None);
    }
    let (conn, relays) = match host.ctx.membership.conn(owner) {
        Some(_) => (conn_to_owner(&host.ctx, entry, wanted), 0),
        None if relays > 0 => (way_round(&host.ctx, owner), relays),
        None => (None, relays),
    };
    let Some(conn) = conn else { return Ok(None) };
    let (name, request) = (id.to_owned(), Box::new(request.clone()));
    host.ctx.send(conn, Message::Generate { stream, name, request, relays });
    Ok(Some(Place::Peer { conn }))
}

/// The reply to a node that still takes this one for the runner of an instance.
fn runs_no_more(ctx: &Context, id: &str) -> Error {
    let model = ctx.desired.find(id).map_or("the model", |(entry, _)| &entry.name).to_owned();
    Error::Away { model, reason: format!("node {} does not run it", ctx.config.name) }
}
