use protocol::{FailureKind, RequestId};

use super::Daemon;
use super::streams::Audience;
use crate::instance::{Effect, Input};
use crate::membership::ConnId;
use crate::wire::Message;
use crate::{Error, GenerateEvent, GenerateRequest, Result};

/// Where the events of a request go.
pub(super) enum Sink {
    /// A client of this node, by the number of its stream.
    Here(u64),
    /// A client of the node at the other end.
    Peer { conn: ConnId, stream: u64 },
}

impl Daemon {
    /// Hands a request to an instance of this node.
    pub(super) fn submit(
        &mut self,
        id: &str,
        request: GenerateRequest,
        sink: Sink,
    ) -> Result<RequestId> {
        self.dirty = true;
        let now = self.now();
        let Some(owned) = self.owned.get_mut(id) else { return Err(self.not_served(id)) };
        let keep_alive = request.keep_alive;
        let request = owned.machine.submit(request, now)?;
        owned.rest.asked(keep_alive);
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
            Some(Sink::Here(stream)) => {
                let stream = *stream;
                self.answered(stream, event);
            }
            Some(Sink::Peer { conn, stream }) => {
                let (conn, stream) = (*conn, *stream);
                self.send(conn, Message::Generated { stream, event, let_go: false });
            }
            None => {}
        }
        if let (true, Some(owned)) = (is_last, self.owned.get_mut(id)) {
            owned.sinks.remove(&request);
        }
    }

    /// Hands a request back to whoever asked, who asks again, here or elsewhere.
    pub(super) fn let_go(&mut self, id: &str, request: RequestId, reason: String) {
        self.dirty = true;
        let Some(owned) = self.owned.get_mut(id) else { return };
        match owned.sinks.remove(&request) {
            Some(Sink::Here(stream)) => self.interrupted(stream, reason),
            Some(Sink::Peer { conn, stream }) => {
                let event = GenerateEvent::Failed { kind: FailureKind::Lost, reason };
                self.send(conn, Message::Generated { stream, event, let_go: true });
            }
            None => {}
        }
    }

    /// Ends a request whose client is gone; what it still yields goes nowhere.
    pub(super) fn cancel(&mut self, id: &str, request: RequestId) {
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
        relays: u32,
    ) {
        let outcome = match self.find_owned(name) {
            Some(id) => self.submit(&id, request, Sink::Peer { conn, stream }).map(drop),
            None if self.is_mine(name) => {
                self.begin(name, request, Audience::Peer { conn, stream }, 0).map(drop)
            }
            None if relays > 0 => self.relay(conn, stream, name, request, relays),
            None => Err(self.runs_no_more(name)),
        };
        if let Err(error) = outcome {
            let kind = match error {
                Error::QueueFull { .. } => FailureKind::Busy,
                Error::Unusable(_) => FailureKind::Invalid,
                _ => FailureKind::Lost,
            };
            let event = GenerateEvent::Failed { kind, reason: error.to_string() };
            self.send(conn, Message::Generated { stream, event, let_go: false });
        }
    }

    /// To a node that still believes that this one runs an instance.
    fn runs_no_more(&self, id: &str) -> Error {
        let model = self.desired.find(id).map_or("the model", |(entry, _)| &entry.name).to_owned();
        Error::Away { model, reason: format!("node {} does not run it", self.config.name) }
    }

    pub(super) fn cancel_for(&mut self, conn: ConnId, stream: u64) {
        self.cancel_peer_sinks(|on, its| on == conn && its == stream);
        self.abandon_relayed(|on, its| on == conn && its == stream);
    }

    /// The clients of a node that is gone.
    pub(super) fn cancel_all_for(&mut self, conn: ConnId) {
        self.cancel_peer_sinks(|on, _| on == conn);
        self.abandon_relayed(|on, _| on == conn);
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
