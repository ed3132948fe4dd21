use protocol::{FailureKind, RequestId};
use tokio::sync::mpsc;

use super::{Daemon, Event, Events};
use crate::instance::{Effect, Input};
use crate::membership::ConnId;
use crate::wire::Message;
use crate::{Error, GenerateEvent, GenerateRequest, NodeId, Result};

/// Where the events of a request go.
pub(super) enum Sink {
    Here(mpsc::UnboundedSender<GenerateEvent>),
    /// A client of the node at the other end.
    Peer {
        conn: ConnId,
        stream: u64,
    },
}

/// A request of a client of this node, by where it runs.
pub(crate) enum StreamKey {
    Own { instance: String, request: RequestId },
    Forwarded { stream: u64 },
}

/// A request of this node's client that runs on another node's instance.
pub(super) struct Forwarded {
    conn: ConnId,
    events: mpsc::UnboundedSender<GenerateEvent>,
}

impl Daemon {
    /// Asks an instance of this node, or passes the request on to the node that owns one.
    ///
    /// The channel is unbounded, but what goes in is not: at most one event a token, and the
    /// context limits the tokens.
    pub(super) fn generate(&mut self, name: &str, request: GenerateRequest) -> Result<Events> {
        let (sender, events) = mpsc::unbounded_channel();
        let stream = if let Some(id) = self.find_owned(name) {
            let request = self.submit(&id, request, Sink::Here(sender.clone()))?;
            StreamKey::Own { instance: id, request }
        } else {
            let owner =
                self.instance_statuses().into_iter().find(|s| s.id == name || s.model == name);
            let conn = owner.and_then(|status| self.membership.conn(status.owner));
            let Some(conn) = conn else { return Err(self.not_served(name)) };
            self.next_stream += 1;
            let (stream, name) = (self.next_stream, name.to_owned());
            self.forwarded.insert(stream, Forwarded { conn, events: sender.clone() });
            self.send(conn, Message::Generate { stream, name, request });
            StreamKey::Forwarded { stream }
        };
        let inputs = self.inputs.clone();
        self.spawn(async move {
            sender.closed().await;
            // The driver is gone only if the whole node is.
            let _ = inputs.send(Event::Abandoned { stream }).await;
        });
        Ok(events)
    }

    fn submit(&mut self, id: &str, request: GenerateRequest, sink: Sink) -> Result<RequestId> {
        self.dirty = true;
        let now = self.now();
        let Some(owned) = self.owned.get_mut(id) else { return Err(self.not_served(id)) };
        let request = owned.machine.submit(request, now)?;
        owned.sinks.insert(request, sink);
        let effects: Vec<Effect> = owned.machine.take_effects();
        self.run_effects(id, effects);
        Ok(request)
    }

    /// Hands an event to whoever asked; the last one closes the stream.
    pub(super) fn emit(&mut self, id: &str, request: RequestId, event: GenerateEvent) {
        let is_last = matches!(event, GenerateEvent::Done(_) | GenerateEvent::Failed { .. });
        self.dirty |= is_last;
        let Some(owned) = self.owned.get_mut(id) else { return };
        match owned.sinks.get(&request) {
            // A client that has left is noticed by its stream's closing.
            Some(Sink::Here(events)) => drop(events.send(event)),
            Some(Sink::Peer { conn, stream }) => {
                let (conn, stream) = (*conn, *stream);
                self.send(conn, Message::Generated { stream, event });
            }
            None => {}
        }
        if let (true, Some(owned)) = (is_last, self.owned.get_mut(id)) {
            owned.sinks.remove(&request);
        }
    }

    pub(super) fn abandoned(&mut self, stream: StreamKey) {
        match stream {
            StreamKey::Own { instance, request } => self.cancel(&instance, request),
            StreamKey::Forwarded { stream } => {
                if let Some(Forwarded { conn, .. }) = self.forwarded.remove(&stream) {
                    self.send(conn, Message::CancelGenerate { stream });
                }
            }
        }
    }

    /// Ends a request whose client is gone; what it still yields goes nowhere.
    fn cancel(&mut self, id: &str, request: RequestId) {
        let now = self.now();
        let Some(owned) = self.owned.get_mut(id) else { return };
        if owned.sinks.remove(&request).is_some() {
            self.dirty = true;
            let effects = owned.machine.step(Input::Cancel(request), now);
            self.run_effects(id, effects);
        }
    }

    /// A peer's client asks an instance of this node.
    pub(super) fn generate_for(
        &mut self,
        conn: ConnId,
        stream: u64,
        name: &str,
        request: GenerateRequest,
    ) {
        let outcome = match self.find_owned(name) {
            Some(id) => self.submit(&id, request, Sink::Peer { conn, stream }).map(drop),
            None => Err(self.not_served(name)),
        };
        if let Err(error) = outcome {
            let kind = match error {
                Error::QueueFull { .. } => FailureKind::Busy,
                Error::Unusable(_) => FailureKind::Invalid,
                _ => FailureKind::Lost,
            };
            let event = GenerateEvent::Failed { kind, reason: error.to_string() };
            self.send(conn, Message::Generated { stream, event });
        }
    }

    pub(super) fn cancel_for(&mut self, conn: ConnId, stream: u64) {
        self.cancel_peer_sinks(|on, its| on == conn && its == stream);
    }

    /// Passes on what a peer's instance answers.
    pub(super) fn generated(&mut self, conn: ConnId, stream: u64, event: GenerateEvent) {
        let Some(forwarded) = self.forwarded.get(&stream).filter(|f| f.conn == conn) else {
            return;
        };
        let is_last = matches!(event, GenerateEvent::Done(_) | GenerateEvent::Failed { .. });
        // A client that has left is noticed by its stream's closing.
        let _ = forwarded.events.send(event);
        if is_last {
            self.forwarded.remove(&stream);
        }
    }

    /// A connection is gone, and with it the requests that went over it, either way.
    pub(super) fn end_forwarded(&mut self, peer: NodeId, conn: ConnId, reason: &str) {
        let name = self.node_name(peer);
        let gone = self.forwarded.extract_if(|_, forwarded| forwarded.conn == conn);
        for (_, forwarded) in gone {
            let reason = format!("node {name}, which owns the model, was lost: {reason}");
            let kind = FailureKind::Lost;
            let _ = forwarded.events.send(GenerateEvent::Failed { kind, reason });
        }
        self.cancel_peer_sinks(|on, _| on == conn);
    }

    fn cancel_peer_sinks(&mut self, is_it: impl Fn(ConnId, u64) -> bool) {
        let is_it = |sink: &Sink| match sink {
            Sink::Peer { conn, stream } => is_it(*conn, *stream),
            Sink::Here(_) => false,
        };
        let mut gone = Vec::new();
        for (id, owned) in &self.owned {
            let sinks = owned.sinks.iter().filter(|(_, sink)| is_it(sink));
            gone.extend(sinks.map(|(request, _)| (id.clone(), *request)));
        }
        for (id, request) in gone {
            self.cancel(&id, request);
        }
    }
}
