//! The cluster's members as this node remembers them, and the file that keeps them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::identity::write_atomic;
use crate::{Error, NodeId, Result};

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

#[derive(Debug, Clone)]
pub(crate) struct MembersFile {
    path: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    members: Vec<Member>,
}

impl MembersFile {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self { path: data_dir.join("members.json") }
    }

    /// The remembered members; none if there is no file yet.
    pub(crate) fn load(&self) -> Result<Vec<Member>> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(Error::DataDir { path: self.path.clone(), source }),
        };
        let content: Content = serde_json::from_slice(&bytes)
            .map_err(|error| Error::Damaged { path: self.path.clone(), why: error.to_string() })?;
        Ok(content.members.into_iter().map(Member::sanitized).take(MEMBERS_MAX).collect())
    }

    pub(crate) fn save(&self, members: Vec<Member>) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(&Content { members }).expect("members are JSON");
        write_atomic(&self.path, &bytes)
            .map_err(|source| Error::DataDir { path: self.path.clone(), source })
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
    fn members_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = MembersFile::new(dir.path());
        assert_eq!(file.load().unwrap(), []);
        for addresses in [&["10.0.0.1:1"][..], &["10.0.0.2:1", "[::1]:2"]] {
            file.save(vec![member(addresses)]).unwrap();
            assert_eq!(file.load().unwrap(), [member(addresses)]);
        }
        std::fs::write(dir.path().join("members.json"), b"{").unwrap();
        assert!(matches!(file.load(), Err(Error::Damaged { .. })));
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
