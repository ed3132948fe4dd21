//! What nodes say to each other over a TLS connection: one handshake, then what it was opened for.
//!
//! ```text
//! dialer                         listener
//!   Hello(purpose)     ->
//!                      <-        Welcome | Refused(reason)
//!   purpose Control: Message ... both ways, until either end closes
//!   purpose Join:    JoinRequest ->   <- JoinAnswer
//!   purpose Bulk:    raw requests and answers of `store::slices`
//!   purpose Probe:   bytes and their echoes, as `probe` has them
//! ```

use std::net::{IpAddr, SocketAddr};

use protocol::{InstanceSpec, Split, WorkerCommand, WorkerEvent};
use serde::{Deserialize, Serialize};
use store::Digest;

use crate::desired::{Entry, Files, Version};
use crate::members::Members;
use crate::{GenerateEvent, GenerateRequest, InstanceStatus, NodeId};

/// Counts changes of this protocol that the version before does not understand.
pub(crate) const PROTOCOL: u32 = 12;
/// The oldest one that this build still speaks. Version 11 does not sign what is to be served, and
/// keys links once for all epochs; version 10 knows no document of what is
/// to be served; version 9 would ignore most of what a request asks
/// for, such as penalties and grammars; version 8 describes an instance in another form,
/// and calls a ring otherwise; version 7 rounds activations before the output head
/// in another way, so that ranks would differ; version 6 has other scales for all activations, and
/// other rings in shared memory; version 5 tells tokens in another form; version 4 caches quantised
/// models in half precision where this one has integers, and ranks would differ; version 3 has no
/// part of the output head in rank 0; version 2 knows one address of each rank; version 1 would
/// ignore the type of a cache, and ranks with other types compute something else.
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    Control,
    Join,
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

impl About {
    /// Whether both ends can talk; if not, why, naming both versions.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.protocol >= PROTOCOL_OLDEST && self.protocol_oldest <= PROTOCOL {
            return Ok(());
        }
        let (theirs, version) = (self.protocol, &self.version);
        Err(format!(
            "this node speaks protocol {PROTOCOL} (sinew {VERSION}), the other one {theirs} (sinew \
             {version}). Update the older of the two"
        ))
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    /// Base 32 of the code's secret is the person's matter; here it is bytes.
    pub secret: Vec<u8>,
}

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
    /// What is to be served, as far as the sender thinks that it is news.
    Desired {
        entries: Vec<Entry>,
    },

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
    },
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
    /// What its threads read and multiply, once that is measured.
    #[serde(default)]
    pub speed: Option<placement::Speed>,
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

/// A worker as its owner orders it; the node that runs it adds what only it knows (threads, where
/// the model's bytes are).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerOrder {
    pub instance: String,
    /// By which its owner owns the instance; a node that knows a higher one starts nothing.
    pub claim: Version,
    pub rank: usize,
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
            protocol,
            protocol_oldest,
            version: "9.9.9".to_owned(),
            name: String::new(),
            boot: 0,
            addresses: Vec::new(),
        };
        assert_eq!(about(PROTOCOL, PROTOCOL_OLDEST).check(), Ok(()));
        assert_eq!(about(PROTOCOL + 1, PROTOCOL).check(), Ok(()));
        for (protocol, oldest) in [(PROTOCOL + 2, PROTOCOL + 1), (0, 0)] {
            let reason = about(protocol, oldest).check().unwrap_err();
            assert!(reason.contains(VERSION) && reason.contains("9.9.9"), "{reason}");
        }
    }
}
