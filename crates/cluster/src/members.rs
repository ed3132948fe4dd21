//! The cluster's members as this node remembers them.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::NodeId;
use crate::link_local::unscoped;

/// The design's limit on a full mesh.
pub(crate) const MEMBERS_MAX: usize = 64;
/// Addresses remembered for one node: a few interfaces, over a few networks.
pub(crate) const ADDRESSES_MAX: usize = 8;
/// Longer names are cut: they are shown in tables.
pub(crate) const NAME_CHARS_MAX: usize = 64;
/// A model may be named as a repository and a path in it.
pub(crate) const MODEL_NAME_CHARS_MAX: usize = 512;

/// Remembered removals: a node that missed more of them may bring an old member back.
pub(crate) const REMOVED_MAX: usize = 512;

/// The cluster's entry of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub id: NodeId,
    pub name: String,
    /// Addresses where it was reached, and its reported listen addresses, the best first.
    pub addresses: Vec<SocketAddr>,
    /// The version of its admission; 0 for a node that has never joined.
    #[serde(default)]
    pub admitted: u64,
}

/// A key that no longer belongs to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removed {
    pub id: NodeId,
    pub name: String,
    /// It undoes every admission up to this version.
    pub version: u64,
}

impl Member {
    /// Applies the limits, and removes addresses and characters that cannot be dialed or shown.
    pub(crate) fn sanitized(mut self) -> Self {
        self.name = clean_name(&self.name);
        let mut addresses = Vec::new();
        for address in self.addresses.into_iter().map(unscoped) {
            let usable = address.port() != 0 && !address.ip().is_unspecified();
            if usable && !addresses.contains(&address) && addresses.len() < ADDRESSES_MAX {
                addresses.push(address);
            }
        }
        Self { addresses, ..self }
    }

    /// Takes over a newer name and newer addresses, keeping older addresses after them. `admitted`
    /// stays, because a node cannot decide its own admission. Returns whether anything changed.
    pub(crate) fn update(&mut self, newer: Self) -> bool {
        let was = self.clone();
        self.name = newer.name;
        self.addresses = [newer.addresses, std::mem::take(&mut self.addresses)].concat();
        *self = self.clone().sanitized();
        *self != was
    }
}

/// Removes the characters that control a terminal, and truncates the name.
pub(crate) fn clean_name(name: &str) -> String {
    let visible = name.chars().filter(|char| !is_obeyed(*char));
    let name: String = visible.take(NAME_CHARS_MAX).collect();
    if name.trim().is_empty() { "unnamed".to_owned() } else { name }
}

/// Whether the character controls a terminal: control characters, and those that change the
/// direction of the following text (Unicode Standard Annex 9).
fn is_obeyed(char: char) -> bool {
    let turns = matches!(char,
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || turns
}

/// Whether the text is a valid name of a model.
pub(crate) fn is_model_name(name: &str) -> bool {
    let is_short = name.chars().count() <= MODEL_NAME_CHARS_MAX;
    is_short && !name.trim().is_empty() && !name.chars().any(is_obeyed)
}

/// The members and the removals of the cluster, as saved on disk and sent to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members {
    /// Including the node itself.
    pub members: Vec<Member>,
    #[serde(default)]
    pub removed: Vec<Removed>,
}

impl Members {
    /// Applies the limits.
    pub(crate) fn sanitized(self) -> Self {
        let members = self.members.into_iter().map(Member::sanitized).take(MEMBERS_MAX);
        let removed = self.removed.into_iter().take(REMOVED_MAX);
        let removed = removed.map(|removed| Removed { name: clean_name(&removed.name), ..removed });
        Self { members: members.collect(), removed: removed.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(addresses: &[&str]) -> Member {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Member { id: NodeId([7; 32]), name: "mac".to_owned(), addresses, admitted: 0 }
    }

    #[test]
    fn newer_addresses_come_first_and_the_list_is_bounded() {
        let mut known = member(&["10.0.0.1:1", "10.0.0.2:1"]);
        assert!(known.update(member(&["10.0.0.2:1", "0.0.0.0:1", "10.0.0.3:0"])));
        assert_eq!(known, member(&["10.0.0.2:1", "10.0.0.1:1"]));
        assert!(!known.update(member(&["10.0.0.2:1"])));
        // The scope of an address does not leave its machine.
        let mut local = member(&["[fe80::1]:1"]);
        assert!(!local.update(member(&["[fe80::1%7]:1"])));
        for port in 1..100 {
            known.update(member(&[&format!("10.0.0.9:{port}")]));
        }
        assert_eq!(known.addresses.len(), ADDRESSES_MAX);
        assert_eq!(known.addresses[0], "10.0.0.9:99".parse().unwrap());
    }

    #[test]
    fn names_are_made_harmless() {
        let turned = "a\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}b";
        for (name, expected) in [("\x1b[31mred", "[31mred"), (" \n", "unnamed"), (turned, "ab")] {
            assert_eq!(clean_name(name), expected);
        }
        assert_eq!(clean_name(&"x".repeat(1000)).len(), NAME_CHARS_MAX);
        assert!(is_model_name(&"x".repeat(MODEL_NAME_CHARS_MAX)));
        for name in ["", " ", "a\nb", turned, &"x".repeat(MODEL_NAME_CHARS_MAX + 1)] {
            assert!(!is_model_name(name), "{name:?}");
        }
    }
}
