//! What a node announces of itself on its networks.

use crate::members::Member;
use crate::{FleetKey, NodeId};

/// An announced property has at most 255 bytes, and a character has up to four.
const NAME_CHARS_MAX: usize = 48;

/// The announced properties of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub id: NodeId,
    pub name: String,
    /// Members of its cluster, including itself.
    pub nodes: usize,
    /// Hash of the cluster's keys; equal for members with equal lists.
    pub cluster: String,
    /// Hash of the fleet key.
    pub fleet: Option<String>,
}

impl Announcement {
    pub(crate) fn of(id: NodeId, name: &str, members: &[Member], fleet: Option<&FleetKey>) -> Self {
        let mut ids: Vec<NodeId> = members.iter().map(|member| member.id).collect();
        ids.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for id in &ids {
            hasher.update(&id.0);
        }
        let cluster = hasher.finalize().to_hex()[..16].to_owned();
        let name = name.chars().take(NAME_CHARS_MAX).collect();
        Self { id, name, nodes: ids.len(), cluster, fleet: fleet.map(FleetKey::tag) }
    }
}
