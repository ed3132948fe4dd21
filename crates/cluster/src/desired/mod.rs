//! The document of served instances and presets, which every member has on disk and in memory.
//!
//! It has one entry for each name. A user's request has a version, and of two versions the higher
//! one wins; a stopped name stays as an entry without content. The claim ranks below the version:
//! the maker of the highest claim owns the instance. A takeover is nothing but a higher claim. So
//! no two nodes own an instance under one claim, and the two halves of a cut network agree on one
//! owner as soon as they connect. A node that reaches no member claims in secret ([`owner`]).
//!
//! A merge takes the maximum of both, so order, repetition and loss of messages do no harm. A pure
//! state machine; it knows no files and no connections.

mod document;
mod owner;
mod presets;
mod replicas;
mod signature;
#[cfg(test)]
mod simulation;
mod sound;
#[cfg(test)]
mod tests;
mod verbatim;

use std::collections::BTreeMap;
use std::time::Duration;

use presets::Presets;
use protocol::Preset;

use crate::NodeId;
use crate::counts::{Counts, KEPT_MAX};

pub(crate) use document::{
    Document, Drain, Entry, Files, Held, PresetEntry, Seen, Service, Signatures, Version,
};
pub(crate) use signature::Signer;
pub(crate) use sound::{MODEL_BYTES_MAX, check_spec, check_split};
use sound::{is_sound, largest_part};

/// Names in the document, including stopped ones; a whole document stays far below a message's
/// limit. Of the node with the most entries, the names that were stopped first are dropped first.
pub(crate) const ENTRIES_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Desired {
    me: NodeId,
    /// This node's.
    name: String,
    /// By name.
    entries: BTreeMap<String, Entry>,
    drains: BTreeMap<NodeId, Drain>,
    pub(crate) presets: Presets,
    /// Since when the owner of a name is missing.
    missing: BTreeMap<String, Duration>,
    /// By name: the published entry behind each secret claim ([`owner`]); and since when this node
    /// has met a member again.
    secret: BTreeMap<String, Entry>,
    met: Option<Duration>,
    fingerprint: u64,
    /// Where the replicas of models with several are.
    held: Held,
    /// What members told of counts.
    told: Counts,
    signer: Signer,
}

impl Desired {
    /// `signer` signs with this node's key. Of a document from the disk, what has absurd counts is
    /// left out.
    pub(crate) fn new(me: NodeId, mut document: Document, signer: Signer) -> Self {
        let (entries, drains, presets, missing, name) = Default::default();
        let (secret, met, fingerprint, told, held) = Default::default();
        let mut desired = Self {
            me,
            name,
            entries,
            drains,
            presets,
            missing,
            secret,
            met,
            fingerprint,
            held,
            told,
            signer,
        };
        document.believe_to(KEPT_MAX);
        desired.merge(document);
        desired.changed();
        desired
    }

    /// Sets the name that `--nodes` may list.
    pub(crate) fn called(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// A hash of the document, equal for equal documents.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// All served instances.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = (&Entry, &Service)> {
        self.entries.values().filter_map(|entry| Some((entry, entry.wanted.as_ref()?)))
    }

    /// The instance with this name or id.
    pub(crate) fn find(&self, name_or_id: &str) -> Option<(&Entry, &Service)> {
        self.wanted().find(|(entry, wanted)| entry.name == name_or_id || wanted.id == name_or_id)
    }

    /// All replicas of an instance, that one too; the first comes first. Empty if it is not served,
    /// or its first replica is not.
    pub(crate) fn replicas(&self, id: &str) -> Vec<(&Entry, &Service)> {
        let Some((_, wanted)) = self.find(id) else { return Vec::new() };
        let first = wanted.spec.replica_of.as_deref().unwrap_or(&wanted.id);
        let mut all: Vec<_> = self.wanted().filter(|(_, one)| one.is_replica_of(first)).collect();
        all.sort_by_key(|(entry, one)| (one.id != first, replicas::number(&entry.name)));
        match all.first() {
            Some((_, one)) if one.id == first => all,
            _ => Vec::new(),
        }
    }

    /// The other replicas of an instance.
    pub(crate) fn other_replicas(&self, id: &str) -> Vec<(&Entry, &Service)> {
        let mut all = self.replicas(id);
        all.retain(|(_, one)| one.id != id);
        all
    }

    /// The name of a further replica.
    pub(crate) fn free_replica_name(&self, name: &str) -> String {
        let mut names = (2..).map(|number| replicas::name(name, number));
        names.find(|name| self.find(name).is_none()).expect("one is free")
    }

    /// Records the nodes of each replica of models with several.
    pub(crate) fn note_held(&mut self, held: Held) {
        self.held = held;
    }

    /// Whether a node has another replica of an instance, and so is no place for this one.
    pub(crate) fn has_another_replica(&self, wanted: &Service, node: NodeId) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let others = self.other_replicas(&wanted.id);
        others.iter().any(|(_, other)| self.held.contains(&(node, other.id.clone())))
    }

    /// Serves an instance under this name, with this node as its owner.
    pub(crate) fn serve(&mut self, name: &str, wanted: Service) -> Entry {
        self.write(name, Some(wanted))
    }

    /// Stops the instance of this name.
    pub(crate) fn stop(&mut self, name: &str) -> Entry {
        self.write(name, None)
    }

    /// Writes a preset, or removes the one of this name; returns the change.
    pub(crate) fn write_preset(&mut self, name: &str, wanted: Option<Preset>) -> Document {
        let version = self.next_version();
        let entry = self.presets.write((name, wanted), version, &self.signer);
        self.changed();
        Document { presets: vec![entry], ..Document::default() }
    }

    /// Clears the document, because this node belongs to another cluster now, or to none.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.drains.clear();
        self.presets.clear();
        self.missing.clear();
        self.secret.clear();
        self.told.forget();
        self.changed();
    }

    /// Merges another node's entries; returns those that were new.
    pub(crate) fn merge(&mut self, told: impl Into<Document>) -> Document {
        let told = told.into();
        let (drains, presets) = (self.merge_drains(told.drains), self.presets.merge(told.presets));
        let mut news = Document { entries: Vec::new(), drains, presets };
        for entry in told.entries {
            if self.is_news(&entry) {
                self.secret.remove(&entry.name);
                self.entries.insert(entry.name.clone(), entry.clone());
                news.entries.push(entry);
            }
        }
        if !news.is_empty() {
            self.changed();
        }
        news
    }

    /// Whether merging this would change the document.
    pub(crate) fn is_news(&self, entry: &Entry) -> bool {
        let known = self.published_of(&entry.name);
        is_sound(entry) && known.is_none_or(|known| entry.replaces(known))
    }

    /// Whether the version and the claim are signed by the nodes that they name.
    #[cfg(test)]
    pub(crate) fn is_signed(&self, entry: &Entry) -> bool {
        self.signer.has_signed(entry)
    }

    /// Keeps only what is believed of a member's document: new entries with sound counts and valid
    /// signatures of the nodes that they name. Returns what else there was.
    pub(crate) fn strip_false(
        &mut self,
        by: NodeId,
        others: impl Iterator<Item = NodeId>,
        told: &mut Document,
    ) -> Option<&'static str> {
        let highest = told.counts().max().unwrap_or(0);
        let limit = self.told.limit((by, highest), self.highest(), others);
        told.believe_to(limit);
        let is_high = (highest > limit).then_some("changes in a number that cannot be");
        self.strip_forged(told).then_some("what another node wants served").or(is_high)
    }

    /// Keeps only new entries with valid signatures of the nodes that they name; returns whether a
    /// new entry had an invalid one.
    fn strip_forged(&self, told: &mut Document) -> bool {
        told.entries.retain(|entry| self.is_news(entry));
        told.drains.retain(|drain| self.is_news_of_drain(drain));
        told.presets.retain(|preset| self.presets.is_news(preset));
        let count = |told: &Document| told.entries.len() + told.drains.len() + told.presets.len();
        let all = count(told);
        told.entries.retain(|entry| self.signer.has_signed(entry));
        told.drains.retain(|drain| self.signer.has_signed_drain(drain));
        told.presets.retain(|preset| self.signer.has_signed_preset(preset));
        count(told) < all
    }

    /// A version above all known ones, so that none of these undoes it.
    pub(crate) fn next_version(&self) -> Version {
        Version { count: self.highest().saturating_add(1), node: self.me }
    }

    fn highest(&self) -> u64 {
        let entries = self.entries.values().flat_map(Entry::counts);
        let drains = self.drains.values().map(|drain| drain.version.count);
        let presets = self.presets.entries().map(|preset| preset.version.count);
        entries.chain(drains).chain(presets).max().unwrap_or(0)
    }

    fn write(&mut self, name: &str, wanted: Option<Service>) -> Entry {
        let version = self.next_version();
        let unloaded = wanted.as_ref().is_some_and(|wanted| wanted.spec.on_request);
        let (name, signatures) = (name.to_owned(), Signatures::default());
        let mut entry = Entry { name, version, wanted, claim: version, unloaded, signatures };
        self.signer.sign_version(&mut entry);
        self.signer.sign_claim(&mut entry);
        self.secret.remove(&entry.name);
        self.entries.insert(entry.name.clone(), entry.clone());
        self.changed();
        entry
    }

    /// Keeps the document within its limits, and updates its fingerprint.
    fn changed(&mut self) {
        self.forget_drains();
        while self.entries.len() > ENTRIES_MAX {
            let makers = self.entries.values().map(|entry| (entry.version.node, 1));
            let maker = largest_part(makers);
            let its = self.entries.values().filter(|entry| Some(entry.version.node) == maker);
            let stopped = its.clone().filter(|entry| entry.wanted.is_none());
            let oldest = stopped.min_by_key(|entry| entry.version);
            let newest = its.max_by_key(|entry| entry.version);
            let name = oldest.or(newest).map(|entry| entry.name.clone());
            name.and_then(|name| self.entries.remove(&name));
        }
        let entries = self.published();
        let content: Vec<_> =
            entries.map(|e| (&e.name, e.version, &e.wanted, e.claim, e.unloaded)).collect();
        let drains = self.drains.values();
        let drains: Vec<_> = drains.map(|d| (d.node, d.version, d.is_on)).collect();
        let mut said = serde_json::to_vec(&(content, drains)).expect("it is JSON");
        // Without presets the hash is that of versions that know none.
        for preset in self.presets.entries() {
            said.extend(serde_json::to_vec(preset).expect("it is JSON"));
        }
        let hash = blake3::hash(&said);
        self.fingerprint = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("8 bytes"));
    }
}
