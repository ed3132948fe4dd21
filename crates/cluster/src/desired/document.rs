//! What the document consists of.

use std::cmp::Ordering;

use data_encoding::HEXLOWER;
use protocol::InstanceSpec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use store::Digest;

use super::told::Told;
use crate::NodeId;

/// Counts changes; the node that made this one tells two of the same count apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Version {
    pub count: u64,
    pub node: NodeId,
}

/// An instance as a person asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// The instance's id.
    pub id: String,
    pub spec: Told<InstanceSpec>,
    /// The model file's content and length.
    pub digest: Digest,
    pub bytes: u64,
    /// When it was asked for, seconds since 1970 by that node's clock. Nothing depends on it.
    #[serde(default)]
    pub created_unix_s: u64,
}

/// What is known of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Under which clients ask for the instance.
    pub name: String,
    /// Of `wanted`.
    pub version: Version,
    /// `None` once it was stopped.
    pub wanted: Option<Wanted>,
    /// The node that owns the instance, and how often it was taken over.
    pub claim: Version,
    /// Whether its owner has it in no node's memory until somebody asks for it; goes with the
    /// claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unloaded: bool,
    /// Of the nodes that made the version and the claim, so that anybody may pass them on and
    /// nobody can make them in another's name.
    pub signatures: Signatures,
}

/// What is to be served and which nodes are to be empty: all of it, as it is kept on disk, or what
/// is news of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document {
    pub entries: Vec<Entry>,
    #[serde(default)]
    pub drains: Vec<Drain>,
}

impl Document {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.drains.is_empty()
    }
}

impl From<Vec<Entry>> for Document {
    fn from(entries: Vec<Entry>) -> Self {
        Self { entries, drains: Vec::new() }
    }
}

impl Entry {
    /// Of two entries of one name the later one stays. Versions differ, unless a node has lost its
    /// disk; then the content decides, in the same way everywhere.
    pub(super) fn replaces(&self, known: &Self) -> bool {
        let versions = |entry: &Self| (entry.version, entry.claim);
        let content = |entry: &Self| {
            serde_json::to_string(&(&entry.wanted, entry.unloaded)).expect("it is JSON")
        };
        match versions(self).cmp(&versions(known)) {
            Ordering::Equal => content(self) > content(known),
            order => order == Ordering::Greater,
        }
    }

    /// Whether copies of this file are wanted.
    pub(crate) fn wants(&self, digest: &Digest) -> bool {
        let wanted = self.wanted.as_ref().filter(|wanted| wanted.digest == *digest);
        wanted.is_some_and(|wanted| wanted.spec.copies.is_some())
    }

    pub(crate) fn owner(&self) -> NodeId {
        self.claim.node
    }
}

/// Whether a node is to be empty, as a person said last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Drain {
    pub node: NodeId,
    pub version: Version,
    pub is_on: bool,
    /// Of the node that made the version.
    pub signature: Signature,
}

/// Bytes of a signature, in hexadecimal where people may see them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Signature(pub(super) Vec<u8>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Signatures {
    /// Over the name, the version and what is wanted, by the version's node.
    pub(super) version: Signature,
    /// Over the name, the version and the claim, by the claim's node.
    pub(super) claim: Signature,
}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Signature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // What is no signature is none of anybody.
        Ok(Self(HEXLOWER.decode(text.as_bytes()).unwrap_or_default()))
    }
}

/// Whether a node has the files of these models; those that it has not looked for yet are not
/// listed.
pub(crate) type Files = Vec<(Digest, bool)>;

/// A member that can be reached, as it last told of itself.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub node: NodeId,
    pub name: String,
    /// The members that it can reach.
    pub sees: Vec<NodeId>,
    pub files: Files,
}
