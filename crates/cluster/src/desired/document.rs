//! The types of the document.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use data_encoding::HEXLOWER;
use protocol::{InstanceSpec, Preset};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use store::Digest;

use super::verbatim::Verbatim;
use crate::NodeId;

/// Counts changes. The maker's id orders two versions with the same count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Version {
    pub count: u64,
    pub node: NodeId,
}

/// An instance as a user requested it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Service {
    /// The instance's id.
    pub id: String,
    pub spec: Verbatim<InstanceSpec>,
    /// The model file's content and length.
    pub digest: Digest,
    pub bytes: u64,
    /// Time of the request, in seconds since 1970 by the maker's clock. No decision depends on it.
    #[serde(default)]
    pub created_unix_s: u64,
}

/// The state of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The name in clients' requests.
    pub name: String,
    /// Of `wanted`.
    pub version: Version,
    /// `None` once it was stopped.
    pub wanted: Option<Service>,
    /// The owner of the instance, and the number of takeovers.
    pub claim: Version,
    /// Whether the model stays out of memory until the next request. Part of the claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unloaded: bool,
    /// By the makers of the version and the claim, so that any node may pass the entry on and none
    /// can forge it.
    pub signatures: Signatures,
}

/// The served instances, the drained nodes and the presets: the whole document, as on disk, or only
/// changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Document {
    pub entries: Vec<Entry>,
    #[serde(default)]
    pub drains: Vec<Drain>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<PresetEntry>,
}

impl Document {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.drains.is_empty() && self.presets.is_empty()
    }

    /// Drops what has a count above this one.
    pub(super) fn believe_to(&mut self, highest: u64) {
        self.entries.retain(|entry| entry.counts().iter().all(|count| *count <= highest));
        self.drains.retain(|drain| drain.version.count <= highest);
        self.presets.retain(|preset| preset.version.count <= highest);
    }

    /// The counts of all versions and claims.
    pub(super) fn counts(&self) -> impl Iterator<Item = u64> {
        let entries = self.entries.iter().flat_map(Entry::counts);
        let drains = self.drains.iter().map(|drain| drain.version.count);
        let presets = self.presets.iter().map(|preset| preset.version.count);
        entries.chain(drains).chain(presets)
    }
}

impl From<Vec<Entry>> for Document {
    fn from(entries: Vec<Entry>) -> Self {
        Self { entries, ..Self::default() }
    }
}

impl Entry {
    /// Of two entries of one name the later one stays. Equal versions occur only after a node has
    /// lost its disk; then the content decides, in the same way on all nodes.
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

    pub(super) fn counts(&self) -> [u64; 2] {
        [self.version.count, self.claim.count]
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

/// Whether a node is drained, by the last command of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Drain {
    pub node: NodeId,
    pub version: Version,
    pub is_on: bool,
    /// By the maker of the version.
    pub signature: Signature,
}

/// The state of one preset's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PresetEntry {
    pub name: String,
    pub version: Version,
    /// `None` once it was removed.
    pub wanted: Option<Verbatim<Preset>>,
    /// By the maker of the version.
    pub signature: Signature,
}

/// Bytes of a signature, hexadecimal in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Signature(pub(super) Vec<u8>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Signatures {
    /// Over the name, the version and `wanted`, by the version's node.
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
        // Invalid text becomes an empty signature, which matches no key.
        Ok(Self(HEXLOWER.decode(text.as_bytes()).unwrap_or_default()))
    }
}

/// Whether a node has the files of these models. Files still to be looked for are missing from the
/// list.
pub(crate) type Files = Vec<(Digest, bool)>;

/// The nodes that hold a rank of an instance, or own it, by its id.
pub(crate) type Held = BTreeSet<(NodeId, String)>;

/// A reachable member, by its last heartbeat.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub node: NodeId,
    pub name: String,
    /// The members that it can reach.
    pub sees: Vec<NodeId>,
    pub files: Files,
    /// The ids of the instances that it owns and that have run.
    pub runs: Vec<String>,
}
