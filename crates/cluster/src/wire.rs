//! What nodes say to each other over a TLS connection: one handshake, then what it was opened for.
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
//!   purpose Probe:   bytes and their echoes, as `probe` has them
//! ```

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

/// Counts changes of this protocol. Two nodes speak the lower one of theirs, so that nodes can be
/// updated one after the other: what version N adds is not sent to one that speaks
/// N - 1. Version 12 does not report on machines and ways.
///
/// What nodes compute is versioned by [`protocol::NUMERICS`], which binds the ranks of one instance
/// and nobody else.
pub(crate) const PROTOCOL: u32 = 13;
/// The oldest one that this build still speaks.
pub(crate) const PROTOCOL_OLDEST: u32 = 12;
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A handshake is a few hundred bytes; nobody who is not a member gets more of our memory.
pub(crate) const HANDSHAKE_BYTES_MAX: usize = 8 << 10;
/// A list of 64 members with eight addresses each is about 40 KB.
pub(crate) const JOIN_BYTES_MAX: usize = 256 << 10;

/// The first frame of the dialer. Its fields never change their meaning.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub node: About,
    pub purpose: Purpose,
}

/// How a node introduces itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct About {
    pub protocol: u32,
    pub protocol_oldest: u32,
    pub version: String,
    pub name: String,
    /// Drawn at random when the daemon starts.
    pub boot: u64,
    /// Where it listens, as far as it knows.
    pub addresses: Vec<SocketAddr>,
    /// Fills packets, so that it shows whether these pass; the answer has as much.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub padding: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    Control,
    Join,
    /// To become one cluster with the listener, which has the same fleet key.
    Fleet,
    /// To be let in once a person has typed the dialer's number at the listener.
    Pair,
    /// A member leaves the cluster; the listener's `Welcome` says that it has noted it.
    Leave,
    /// Slices of the model file with this content.
    Bulk {
        digest: Digest,
    },
    /// To measure the way between the two nodes.
    Probe,
    /// Models that a member has fetched or is fetching: [`crate::sharing`].
    Share,
}

/// The listener's answer to [`Hello`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HandshakeReply {
    Welcome(About),
    Refused {
        /// For a person at the dialing end.
        reason: String,
        /// What that means for the dialer's membership, if anything.
        #[serde(default)]
        verdict: Option<Verdict>,
        /// As in [`About`].
        #[serde(default, skip_serializing_if = "String::is_empty")]
        padding: String,
    },
}

/// What a listener says of the dialer's membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// It was taken out of the listener's cluster under this version.
    pub removed: Option<u64>,
    /// The listener belongs to no cluster.
    pub alone: bool,
}

/// The versions that a node speaks and computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// Of the protocol between nodes.
    pub newest: u32,
    pub oldest: u32,
    /// Ranks of one instance have the same.
    pub numerics: u32,
}

impl Versions {
    /// Those of this program.
    pub const CURRENT: Self =
        Self { newest: PROTOCOL, oldest: PROTOCOL_OLDEST, numerics: protocol::NUMERICS };
}

impl About {
    /// The version that both ends speak; if there is none, why, naming both.
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

/// Shows that its sender has the fleet key: first the dialer, then the listener. Then the dialer
/// tells its members, and a [`JoinAnswer`] follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FleetProof {
    pub proof: Vec<u8>,
}

/// Asks for a person: the asker's half of the exchange of [`crate::pake`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PairAsk {
    pub half: Vec<u8>,
}

/// How it stands with a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PairNews {
    Waiting,
    /// A person has typed a number.
    Answer(crate::admission::pake::Answer),
    Refused {
        reason: String,
    },
}

/// Shows that the asker has that number too. A [`JoinAnswer`] follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PairProof {
    pub proof: Vec<u8>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    /// Base 32 of the code's secret is the person's matter; here it is bytes.
    pub secret: Vec<u8>,
    /// Whether the dialer says [`JoinKept`] once its membership is on its disk.
    #[serde(default)]
    pub confirms: bool,
}

/// A new member's last word about a join: it will know of it after a crash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinKept {}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JoinAnswer {
    /// All members, the answering node and the new one included.
    Accepted(Members),
    Refused {
        reason: String,
    },
}

/// What travels over a control connection. Order is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    Heartbeat(Box<Heartbeat>),
    HeartbeatSeen {
        seq: u64,
    },
    Members(Members),
    /// What is to be served and which nodes are to be empty, as far as the sender thinks that it is
    /// news.
    Desired(Document),

    /// Start a worker, or go on with the one that already runs under this number.
    Spawn {
        worker: WorkerId,
        order: Box<WorkerOrder>,
    },
    Command {
        worker: WorkerId,
        command: WorkerCommand,
    },
    /// End a worker: with a moment to clean up, or at once because it does not react.
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

    /// A client of the sending node asks an instance that the receiving node owns.
    Generate {
        stream: u64,
        name: String,
        /// With the names of its parameters: an owner refuses one that it does not know.
        #[serde(with = "protocol::parameters")]
        request: GenerateRequest,
        /// How many more nodes may pass it on: the owner may be reached only through another one.
        relays: u32,
    },
    CancelGenerate {
        stream: u64,
    },
    Generated {
        stream: u64,
        event: GenerateEvent,
        /// The owner ends the instance, or moves it: what is asked is not why the request is lost.
        #[serde(default)]
        let_go: bool,
    },
    /// From version 13 on.
    Report(Box<Report>),
    /// A person at the sending node lets in who asks at the receiving one and shows this number, or
    /// sends it away. Told to those alone that told of the request.
    Decide {
        call: u64,
        node: NodeId,
        number: Option<String>,
    },
    /// What came of it: who was let in, or in words why nobody was.
    Decided {
        call: u64,
        outcome: Result<Option<Paired>, String>,
    },
}

/// How the name of a message begins that a reader who does not know it may pass over. Any other
/// unknown one is an error: a node that speaks an older version is not sent it.
const OPTIONAL: &str = "optional_";

impl Message {
    /// Reads a frame's body; `None` if it may be passed over.
    ///
    /// # Errors
    /// It is no message.
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

/// What a node tells of its machine, and of its ways to others, every few seconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub machine: Machine,
    pub sensors: Sensors,
    pub edges: Vec<Edge>,
    /// The members that it cannot call, although they may call it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncalled: Vec<NodeId>,
    /// The models that it is fetching.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub downloads: Vec<PullStatus>,
    /// Its clock, milliseconds since 1970.
    pub unix_ms: Option<u64>,
}

impl Report {
    /// Whether nodes tell it to each other in this version.
    pub(crate) fn is_known_in(protocol: u32) -> bool {
        protocol >= 13
    }
}

/// A worker of one owner; the owner hands the numbers out and never uses one twice.
pub(crate) type WorkerId = u64;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub seq: u64,
    pub name: String,
    pub version: String,
    pub memory_bytes: u64,
    pub memory_used_bytes: u64,
    pub threads: usize,
    /// In which version it computes: only those that have the same share an instance.
    #[serde(default = "numerics_of_12")]
    pub numerics: u32,
    /// What its threads read and multiply, once that is measured.
    #[serde(default)]
    pub speed: Option<placement::Speed>,
    /// Where its ranks compute; absent: its CPU.
    #[serde(default)]
    pub device: Option<NodeDevice>,
    /// The instances that the sender owns.
    pub instances: Vec<InstanceStatus>,
    /// The members that the sender can reach.
    pub sees: Vec<NodeId>,
    /// Tells whether both have the same document of what is to be served.
    pub document: u64,
    /// Which files of what is to be served the sender has.
    pub files: Files,
    /// Ranks whose owner is gone, for the next one to go on with.
    pub kept: Vec<KeptRank>,
    /// Files that the sender should have had a copy of and could not.
    #[serde(default)]
    pub cannot_copy: Vec<Digest>,
    /// Machines that ask the sender to let them in.
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
    /// Whether a worker that was started for one of the two holds what the other one asks for.
    pub(crate) fn is_of_one_rank(&self, other: &Self) -> bool {
        let what = |order: &Self| (order.rank, order.digest, order.model_bytes, order.bind);
        let how = |order: &Self| (order.instance.clone(), order.spec.clone(), order.split.clone());
        what(self) == what(other) && how(self) == how(other)
    }
}

/// Version 12 does not tell; it computes so.
fn numerics_of_12() -> u32 {
    1
}

/// A worker as its owner orders it; the node that runs it adds what only it knows (threads, where
/// the model's bytes are).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerOrder {
    pub instance: String,
    /// By which its owner owns the instance; a node that knows a higher one starts nothing.
    pub claim: Version,
    pub rank: usize,
    /// In which version its owner computes; a node that has another one starts nothing.
    #[serde(default = "numerics_of_12")]
    pub numerics: u32,
    pub spec: InstanceSpec,
    pub split: Split,
    /// The model file's content and length.
    pub digest: Digest,
    pub model_bytes: u64,
    /// What the plan sets aside for this rank.
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
