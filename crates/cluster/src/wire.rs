//! The messages between nodes over a TLS connection: one handshake, then the messages of its
//! purpose.
//!
//! ```text
//! dialer                         listener
//!   Hello(purpose)     ->
//!                      <-        Welcome | Refused(reason)
//!   purpose Control: Message ... both ways, until either end closes
//!   purpose Join:    JoinRequest ->   <- JoinAnswer
//!   purpose Fleet:   FleetProof ->   <- FleetProof   Members ->   <- JoinAnswer
//!   purpose Pair:    PairAsk ->   <- PairNews (later again)   PairProof ->   <- JoinAnswer
//!   purpose Bulk:    raw requests and answers of `store::slices`
//!   purpose Probe:   bytes and their echoes, as in `probe`
//! ```

pub(crate) mod bounds;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use protocol::frame::{self, FrameError};
use protocol::{InstanceSpec, Split, WorkerCommand, WorkerEvent};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use store::Digest;

use crate::desired::{Document, Files, Version};
use crate::device::NodeDevice;
use crate::members::Members;
use crate::{
    Edge, GenerateEvent, GenerateRequest, InstanceStatus, Machine, NodeId, PairRequest, Paired,
    PullStatus, Sensors,
};

/// Version of this protocol. Two nodes speak the lower one of theirs, so that nodes can be updated
/// one after the other: additions of version N are not sent to a node that speaks N - 1. Version 14
/// knows no replicas, 13 measures every path by a whole mebibyte, and 12 has no reports on machines
/// and paths.
///
/// [`protocol::NUMERICS`] is the version of the computation, which must be equal only among the
/// ranks of one instance.
pub(crate) const PROTOCOL: u32 = 15;
/// The oldest version that this build still speaks.
pub(crate) const PROTOCOL_OLDEST: u32 = 12;
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A handshake is a few hundred bytes; a caller that is not a member gets no more memory than this.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 8 << 10;
/// A list of 64 members with eight addresses each is about 40 KB.
pub(crate) const JOIN_BYTES_MAX: usize = 256 << 10;

/// The first frame of the dialer. Its fields never change their meaning.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub node: About,
    pub purpose: Purpose,
}

/// A node's introduction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct About {
    pub protocol: u32,
    pub protocol_oldest: u32,
    pub version: String,
    pub name: String,
    /// A random number drawn when the daemon starts.
    pub boot: u64,
    /// Its listen addresses, as far as it knows.
    pub addresses: Vec<SocketAddr>,
    /// Fills packets, to test whether full ones pass; the answer has the same length.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub padding: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    Control,
    Join,
    /// Forms one cluster with the listener, which has the same fleet key.
    Fleet,
    /// Joins once a user has typed the dialer's number at the listener.
    Pair,
    /// A member leaves the cluster; the listener's `Welcome` confirms it.
    Leave,
    /// Slices of the model file with this content.
    Bulk {
        digest: Digest,
    },
    /// Measures the path between the two nodes.
    Probe,
    /// Models that a member has fetched or is fetching: [`crate::transfer::sharing`].
    Share,
}

/// The listener's answer to [`Hello`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HandshakeReply {
    Welcome(About),
    Refused {
        /// Text for the user at the dialing end.
        reason: String,
        /// The consequence for the dialer's membership, if there is one.
        #[serde(default)]
        verdict: Option<Verdict>,
        /// As in [`About`].
        #[serde(default, skip_serializing_if = "String::is_empty")]
        padding: String,
    },
}

/// The listener's verdict on the dialer's membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The dialer was removed from the listener's cluster with this version.
    pub removed: Option<u64>,
    /// The listener belongs to no cluster.
    pub alone: bool,
}

/// A node's versions of protocol and numerics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// Of the protocol between nodes.
    pub newest: u32,
    pub oldest: u32,
    /// Equal for the ranks of one instance.
    pub numerics: u32,
}

impl Versions {
    /// Those of this program.
    pub const CURRENT: Self =
        Self { newest: PROTOCOL, oldest: PROTOCOL_OLDEST, numerics: protocol::NUMERICS };
}

impl About {
    /// The version that both ends speak; the error names both.
    pub(crate) fn agree(&self, ours: Versions) -> Result<u32, String> {
        let Versions { newest, oldest, .. } = ours;
        if self.protocol >= oldest && self.protocol_oldest <= newest {
            return Ok(self.protocol.min(newest));
        }
        let (theirs, version) = (self.protocol, &self.version);
        Err(format!(
            "this node speaks protocol {oldest} to {newest} (sinew {VERSION}), the other one {0} to \
             {theirs} (sinew {version}). Update the older of the two",
            self.protocol_oldest
        ))
    }
}

/// Proves that its sender has the fleet key: first the dialer's, then the listener's. Then the
/// dialer sends its members, and a [`JoinAnswer`] follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FleetProof {
    pub proof: Vec<u8>,
}

/// Requests admission by number: the asker's half of the exchange of [`crate::secrets::pake`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PairAsk {
    pub half: Vec<u8>,
}

/// The state of a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PairNews {
    Waiting,
    /// A user has typed a number.
    Answer(crate::secrets::pake::Answer),
    Refused {
        reason: String,
    },
}

/// Proves that the asker has that number too. A [`JoinAnswer`] follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PairProof {
    pub proof: Vec<u8>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    /// The code's secret in bytes; users see it in base 32.
    pub secret: Vec<u8>,
    /// Whether the dialer sends [`JoinKept`] once its membership is on its disk.
    #[serde(default)]
    pub confirms: bool,
}

/// A new member's last message of a join: its membership survives a crash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinKept {}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JoinAnswer {
    /// All members, including the answering node and the new one.
    Accepted(Members),
    Refused {
        reason: String,
    },
}

/// The messages of a control connection. Order is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    Heartbeat(Box<Heartbeat>),
    HeartbeatSeen {
        seq: u64,
    },
    Members(Members),
    /// Entries of the document that the sender considers new to the receiver.
    Desired(Document),

    /// Start a worker, or take up the running one with this number.
    Spawn {
        worker: WorkerId,
        order: Box<WorkerOrder>,
    },
    Command {
        worker: WorkerId,
        command: WorkerCommand,
    },
    /// End a worker: with a grace period, or at once because it does not react.
    End {
        worker: WorkerId,
        at_once: bool,
    },

    Spawned {
        worker: WorkerId,
        pid: u32,
    },
    Event {
        worker: WorkerId,
        event: WorkerEvent,
    },
    Exited {
        worker: WorkerId,
        how: String,
    },

    /// A client of the sending node has a request for an instance that the receiving node owns.
    Generate {
        stream: u64,
        name: String,
        /// With the names of its parameters: an owner refuses a parameter that it does not know.
        #[serde(with = "protocol::parameters")]
        request: Box<GenerateRequest>,
        /// How many more nodes may pass it on, if the owner is reachable only through another one.
        relays: u32,
    },
    CancelGenerate {
        stream: u64,
    },
    /// What would a request cost an instance that the receiver owns? From version 15 on.
    Quote {
        stream: u64,
        instance: String,
        question: Question,
    },
    /// The answer; no offer: the instance takes no request now.
    Quoted {
        stream: u64,
        instance: String,
        offer: Option<Offer>,
    },
    Generated {
        stream: u64,
        event: GenerateEvent,
        /// The owner ends or moves the instance; the request is not the cause.
        #[serde(default)]
        let_go: bool,
    },
    /// From version 13 on.
    Report(Box<Report>),
    /// A user at the sending node admits or rejects a machine that waits at the receiving node.
    /// Sent only to the member that reported the request.
    Decide {
        call: u64,
        node: NodeId,
        number: Option<String>,
    },
    /// The outcome: the admitted node, or the reason as text.
    Decided {
        call: u64,
        outcome: Result<Option<Paired>, String>,
    },
}

/// A request, as far as its cost depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    /// Of the prompt's whole pages, see [`protocol::page_keys`].
    pub keys: Vec<u64>,
    pub prompt_tokens: usize,
    /// The most of its answer.
    pub answer_tokens: usize,
}

/// What a request would cost an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Tokens of its prompt that are not in the cache.
    pub unread_tokens: usize,
    /// Until its first token, and what it and the answers beside it lose by each other.
    pub cost_us: u64,
}

impl Offer {
    /// Whether this version has offers.
    pub(crate) fn is_known_in(protocol: u32) -> bool {
        protocol >= 15
    }
}

/// Prefix of messages that a reader may skip if it does not know them. Other unknown messages are
/// errors: nodes that speak an older version do not get them.
const OPTIONAL: &str = "optional_";

impl Message {
    /// Decodes a frame's body; `None` if it may be skipped.
    ///
    /// # Errors
    /// It is not a message.
    pub(crate) fn decode(body: &[u8]) -> Result<Option<Self>, FrameError> {
        let error = match frame::decode(body) {
            Ok(message) => return Ok(Some(message)),
            Err(error) => error,
        };
        let named: Result<BTreeMap<String, IgnoredAny>, _> = serde_json::from_slice(body);
        let is_optional = |named: BTreeMap<String, IgnoredAny>| {
            named.len() == 1 && named.keys().all(|name| name.starts_with(OPTIONAL))
        };
        if named.is_ok_and(is_optional) { Ok(None) } else { Err(error) }
    }
}

/// A node's report on its machine and its paths to others, sent every few seconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub machine: Machine,
    pub sensors: Sensors,
    pub edges: Vec<Edge>,
    /// The members that it cannot call, although they may call it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncalled: Vec<NodeId>,
    /// Its downloads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub downloads: Vec<PullStatus>,
    /// Its clock, in milliseconds since 1970.
    pub unix_ms: Option<u64>,
}

impl Report {
    /// Whether this version has reports.
    pub(crate) fn is_known_in(protocol: u32) -> bool {
        protocol >= 13
    }
}

/// A worker of one owner. The owner assigns the numbers and never reuses them.
pub(crate) type WorkerId = u64;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub seq: u64,
    pub name: String,
    pub version: String,
    pub memory_bytes: u64,
    pub memory_used_bytes: u64,
    pub threads: usize,
    /// The version of its numerics; only equal versions share an instance.
    #[serde(default = "numerics_of_12")]
    pub numerics: u32,
    /// Memory and arithmetic speed of its threads, once measured.
    #[serde(default)]
    pub speed: Option<placement::Speed>,
    /// The device of its ranks; absent: its CPU.
    #[serde(default)]
    pub device: Option<NodeDevice>,
    /// The instances that the sender owns.
    pub instances: Vec<InstanceStatus>,
    /// The members that the sender can reach.
    pub sees: Vec<NodeId>,
    /// Fingerprint of the sender's document, to compare with the receiver's.
    pub document: u64,
    /// Whether the sender has the files of served models.
    pub files: Files,
    /// Ranks without an owner, for the next owner.
    pub kept: Vec<KeptRank>,
    /// Files that the sender failed to copy.
    #[serde(default)]
    pub cannot_copy: Vec<Digest>,
    /// Machines that wait for admission at the sender.
    #[serde(default)]
    pub requests: Vec<PairRequest>,
}

/// A rank whose worker has outlived its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptRank {
    pub instance: String,
    pub rank: usize,
    pub split: Split,
}

impl WorkerOrder {
    /// Whether a worker started for one of the two orders also satisfies the other.
    pub(crate) fn is_of_one_rank(&self, other: &Self) -> bool {
        let what = |order: &Self| (order.rank, order.digest, order.model_bytes, order.bind);
        let how = |order: &Self| (order.instance.clone(), order.spec.clone(), order.split.clone());
        what(self) == what(other) && how(self) == how(other)
    }
}

/// The version of nodes with protocol 12, which do not send it.
fn numerics_of_12() -> u32 {
    1
}

/// An owner's order for a worker. The node that runs it adds local data (threads, the source of the
/// model's bytes).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerOrder {
    pub instance: String,
    /// The owner's claim; a node that knows a higher one starts nothing.
    pub claim: Version,
    pub rank: usize,
    /// The owner's numerics version; a node with another one starts nothing.
    #[serde(default = "numerics_of_12")]
    pub numerics: u32,
    pub spec: InstanceSpec,
    pub split: Split,
    /// The model file's content and length.
    pub digest: Digest,
    pub model_bytes: u64,
    /// The planned memory of this rank.
    pub memory_bytes: u64,
    pub bind: IpAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_refused_by_name() {
        let about = |protocol, protocol_oldest| About {
            padding: String::new(),
            protocol,
            protocol_oldest,
            version: "9.9.9".to_owned(),
            name: String::new(),
            boot: 0,
            addresses: Vec::new(),
        };
        let ours = Versions { newest: 13, oldest: 12, numerics: 1 };
        for (theirs, agreed) in [((13, 12), 13), ((12, 11), 12), ((12, 12), 12), ((14, 13), 13)] {
            assert_eq!(about(theirs.0, theirs.1).agree(ours), Ok(agreed));
        }
        for (protocol, oldest) in [(15, 14), (11, 10), (0, 0)] {
            let reason = about(protocol, oldest).agree(ours).unwrap_err();
            assert!(reason.contains(VERSION) && reason.contains("9.9.9"), "{reason}");
        }
    }

    #[test]
    fn unknown_fields_are_ignored_and_unknown_messages_only_where_they_say_so() {
        let known = br#"{"heartbeat_seen":{"seq":7,"of_the_future":[1]}}"#;
        assert!(matches!(Message::decode(known), Ok(Some(Message::HeartbeatSeen { seq: 7 }))));
        assert!(matches!(Message::decode(br#"{"optional_news":{"a":1}}"#), Ok(None)));
        for wrong in [&br#"{"news":{"a":1}}"#[..], b"[]", b"\"optional_news\"", b"{"] {
            assert!(Message::decode(wrong).is_err(), "{wrong:?}");
        }
        let newer = br#"{"generate":{"stream":1,"name":"i-1","relays":0,"request":{"prompt":[1],
            "min_tokens":1,"beams":4,"must_know":["min_tokens","beams"]}}}"#;
        let Ok(Some(Message::Generate { request, .. })) = Message::decode(newer) else { panic!() };
        assert_eq!(request.must_know, ["beams"]);
        let sparse = br#"{"report":{"machine":{"chip":"c","sockets":2},"moods":[]}}"#;
        let Ok(Some(Message::Report(report))) = Message::decode(sparse) else { panic!() };
        assert_eq!((report.machine.chip.as_str(), report.edges.len()), ("c", 0));
    }
}
