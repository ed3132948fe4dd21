//! Notifications from owners of state to those above them.

use crate::instance::Input;
use crate::membership::{ConnId, Effect};
use crate::wire::WorkerId;
use crate::{GenerateEvent, NodeId};

#[derive(Debug)]
pub(crate) enum News {
    /// A member is connected. `returned`: the same process was connected before.
    PeerUp {
        peer: NodeId,
        conn: ConnId,
        returned: bool,
    },
    /// A member is gone.
    PeerDown {
        peer: NodeId,
        conn: ConnId,
        reason: String,
    },
    MembersChanged,
    /// This node belongs to no cluster any more; its connections end with these effects.
    Parted {
        rest: Vec<Effect>,
    },
    /// Heartbeats should not wait for the next tick.
    Heartbeats,
    /// The document changed.
    Reconcile,
    /// A neighbour may have received this node's first heartbeat.
    RoundTrip,
    /// A worker of `host` reports to its owner, which is this node.
    Worker {
        host: NodeId,
        worker: WorkerId,
        event: Input,
    },
    /// An instance of this node answers a stream of this node.
    Answered {
        stream: u64,
        event: GenerateEvent,
    },
    /// An instance of this node returns the request of a stream of this node.
    Interrupted {
        stream: u64,
        reason: String,
    },
    /// Streams that wait for an instance may go on.
    Resume,
}
