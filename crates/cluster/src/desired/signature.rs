//! Signatures of the document: a version and a claim are signed by the node that made them.
//!
//! Entries are passed on by other nodes, even after their maker is gone. So the signature counts,
//! not the sender.

use std::fmt;
use std::sync::Arc;

use super::document::{Drain, Entry, PresetEntry, Signature, Signatures};
use crate::NodeId;
use crate::id::is_signed_by;

/// Contexts that keep a signature of one kind from passing as another.
const VERSION: &str = "sinew 2026 version";
const CLAIM: &str = "sinew 2026 claim";
const DRAIN: &str = "sinew 2026 drain";
const PRESET: &str = "sinew 2026 preset";

/// Signs with this node's key, and checks the signatures of others.
#[derive(Clone)]
pub(crate) struct Signer {
    sign: Arc<Sign>,
    check: fn(NodeId, &[u8], &[u8]) -> bool,
}

type Sign = dyn Fn(&[u8]) -> Vec<u8> + Send + Sync;

impl Signer {
    pub(crate) fn new(sign: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self { sign: Arc::new(sign), check: is_signed_by }
    }

    /// For simulations, whose nodes have no keys: signs nothing and accepts every signature.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        Self { sign: Arc::new(|_| Vec::new()), check: |_, _, _| true }
    }

    pub(super) fn has_signed(&self, entry: &Entry) -> bool {
        let Signatures { version, claim } = &entry.signatures;
        (self.check)(entry.version.node, &entry.version_text(), &version.0)
            && (self.check)(entry.claim.node, &entry.claim_text(), &claim.0)
    }

    pub(super) fn has_signed_drain(&self, drain: &Drain) -> bool {
        (self.check)(drain.version.node, &drain.text(), &drain.signature.0)
    }

    pub(super) fn has_signed_preset(&self, preset: &PresetEntry) -> bool {
        (self.check)(preset.version.node, &preset.signed_text(), &preset.signature.0)
    }

    pub(super) fn sign_preset(&self, preset: &mut PresetEntry) {
        preset.signature = Signature((self.sign)(&preset.signed_text()));
    }

    pub(super) fn sign_drain(&self, drain: &mut Drain) {
        drain.signature = Signature((self.sign)(&drain.text()));
    }

    pub(super) fn sign_version(&self, entry: &mut Entry) {
        entry.signatures.version = Signature((self.sign)(&entry.version_text()));
    }

    pub(super) fn sign_claim(&self, entry: &mut Entry) {
        entry.signatures.claim = Signature((self.sign)(&entry.claim_text()));
    }
}

impl Entry {
    fn version_text(&self) -> Vec<u8> {
        let said = (VERSION, &self.name, self.version, &self.wanted);
        serde_json::to_vec(&said).expect("it is JSON")
    }

    fn claim_text(&self) -> Vec<u8> {
        let said = (CLAIM, &self.name, self.version, self.claim, self.unloaded);
        serde_json::to_vec(&said).expect("it is JSON")
    }
}

impl Drain {
    fn text(&self) -> Vec<u8> {
        let said = (DRAIN, self.node, self.version, self.is_on);
        serde_json::to_vec(&said).expect("it is JSON")
    }
}

impl PresetEntry {
    fn signed_text(&self) -> Vec<u8> {
        let said = (PRESET, &self.name, self.version, &self.wanted);
        serde_json::to_vec(&said).expect("it is JSON")
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

#[cfg(test)]
mod tests {
    use protocol::Preset;

    use super::super::tests::wanted;
    use super::super::{Desired, Document};
    use super::*;
    use crate::io::identity::Identity;

    fn node() -> (tempfile::TempDir, Desired) {
        let home = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(home.path()).unwrap();
        let id = identity.id();
        let signer = Signer::new(move |bytes| identity.sign(bytes));
        (home, Desired::new(id, Document::default(), signer))
    }

    #[test]
    fn what_a_node_says_is_signed_and_nothing_of_it_can_be_changed() {
        let ((_home, mut owner), (_other_home, mut other)) = (node(), node());
        let entry = owner.serve("m", wanted("i-1"));
        let json = serde_json::to_string(&entry).unwrap();
        assert!(other.is_signed(&serde_json::from_str::<Entry>(&json).unwrap()));
        let foreign = other.serve("m", wanted("i-2"));
        let lies: [fn(&mut Entry, &Entry); 6] = [
            |entry, _| entry.claim.count += 1,
            |entry, _| entry.version.count += 1,
            |entry, _| entry.wanted = None,
            |entry, _| entry.name = "another".to_owned(),
            |entry, foreign| entry.claim = foreign.claim,
            |entry, foreign| entry.signatures = foreign.signatures.clone(),
        ];
        for (at, lie) in lies.iter().enumerate() {
            let mut forged = entry.clone();
            lie(&mut forged, &foreign);
            assert!(!other.is_signed(&forged), "lie {at}");
        }
        let stopped = owner.stop("m");
        assert!(other.is_signed(&stopped));
        let drained = owner.drain(NodeId([9; 32]), true);
        let mut forged = drained.clone();
        forged.drains[0].is_on = false;
        forged.drains[0].version.count += 1;
        assert!(other.strip_forged(&mut forged) && forged.is_empty());
        let preset = Preset { name: "p".to_owned(), model: "m".to_owned(), ..Preset::default() };
        let written = owner.write_preset("p", Some(preset));
        let mut forged = written.clone();
        forged.presets[0].wanted = None;
        assert!(other.strip_forged(&mut forged) && forged.is_empty());
        let mut honest = written.clone();
        assert!(!other.strip_forged(&mut honest) && honest == written);
        let mut honest = drained.clone();
        assert!(!other.strip_forged(&mut honest) && honest == drained);
    }

    #[test]
    fn a_takeover_is_signed_by_who_takes_over() {
        let ((_home, mut owner), (_other_home, mut heir)) = (node(), node());
        let entry = owner.serve("m", wanted("i-1"));
        heir.merge(vec![entry.clone()]);
        let has = vec![(entry.wanted.unwrap().digest, true)];
        let second = std::time::Duration::from_secs(1);
        assert_eq!(heir.take_over(&has, &[], second, |_| false), []);
        let claims = heir.take_over(&has, &[], second * 2, |_| false);
        assert!(claims[0].claim.node != claims[0].version.node && owner.is_signed(&claims[0]));
    }
}
