//! The cluster's members as this node remembers them.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// The design's limit on a full mesh.
pub(crate) const MEMBERS_MAX: usize = 64;
/// Addresses remembered for one node: a few interfaces, over a few networks.
pub(crate) const ADDRESSES_MAX: usize = 8;
/// Longer names are cut: they are shown in tables.
pub(crate) const NAME_CHARS_MAX: usize = 64;

/// What the cluster remembers of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub id: NodeId,
    pub name: String,
    /// Where it was reached or said that it listens, the best first.
    pub addresses: Vec<SocketAddr>,
}

impl Member {
    /// The same, within the limits and without what cannot be dialed or shown.
    pub(crate) fn sanitized(mut self) -> Self {
        self.name = clean_name(&self.name);
        let mut addresses = Vec::new();
        for address in self.addresses {
            let usable = address.port() != 0 && !address.ip().is_unspecified();
            if usable && !addresses.contains(&address) && addresses.len() < ADDRESSES_MAX {
                addresses.push(address);
            }
        }
        Self { addresses, ..self }
    }

    /// Takes over a newer name and newer addresses, keeping older addresses after them.
    /// Returns whether anything changed.
    pub(crate) fn update(&mut self, newer: Self) -> bool {
        let was = self.clone();
        self.name = newer.name;
        self.addresses = [newer.addresses, std::mem::take(&mut self.addresses)].concat();
        *self = self.clone().sanitized();
        *self != was
    }
}

/// A name without control characters (they could drive a terminal), cut to a sensible length.
pub(crate) fn clean_name(name: &str) -> String {
    let visible = name.chars().filter(|char| !char.is_control());
    let name: String = visible.take(NAME_CHARS_MAX).collect();
    if name.trim().is_empty() { "unnamed".to_owned() } else { name }
}

/// All members, as they are kept on disk.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Members {
    pub members: Vec<Member>,
}

impl Members {
    /// The same, within the limits.
    pub(crate) fn sanitized(self) -> Vec<Member> {
        self.members.into_iter().map(Member::sanitized).take(MEMBERS_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(addresses: &[&str]) -> Member {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Member { id: NodeId([7; 32]), name: "mac".to_owned(), addresses }
    }

    #[test]
    fn newer_addresses_come_first_and_the_list_is_bounded() {
        let mut known = member(&["10.0.0.1:1", "10.0.0.2:1"]);
        assert!(known.update(member(&["10.0.0.2:1", "0.0.0.0:1", "10.0.0.3:0"])));
        assert_eq!(known, member(&["10.0.0.2:1", "10.0.0.1:1"]));
        assert!(!known.update(member(&["10.0.0.2:1"])));
        for port in 1..100 {
            known.update(member(&[&format!("10.0.0.9:{port}")]));
        }
        assert_eq!(known.addresses.len(), ADDRESSES_MAX);
        assert_eq!(known.addresses[0], "10.0.0.9:99".parse().unwrap());
    }

    #[test]
    fn names_are_made_harmless() {
        for (name, expected) in [("\x1b[31mred", "[31mred"), (" \n", "unnamed")] {
            assert_eq!(clean_name(name), expected);
        }
        assert_eq!(clean_name(&"x".repeat(1000)).len(), NAME_CHARS_MAX);
    }
}
