//! The requests of an instance: where their events go.

use protocol::{FailureKind, RequestId};

use super::table::Owned;
use crate::GenerateEvent;
use crate::core::{Context, News};
use crate::membership::ConnId;
use crate::wire::Message;

/// Where the events of a request go.
#[derive(Clone, Copy)]
pub(crate) enum Sink {
    /// A stream of this node.
    Here(u64),
    /// A stream of the node at the other end.
    Peer { conn: ConnId, stream: u64 },
}

impl Owned {
    /// Passes an event on; the last one closes the stream.
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

    /// Hands a request back to the node of its client, which asks again, here or elsewhere.
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
