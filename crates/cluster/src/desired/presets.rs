//! The presets of the document. As with instances, the later version of a name wins, and a removed
//! name stays as an entry without content.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::{PRESET_BYTES_MAX, Preset};

use super::document::{PresetEntry, Signature, Version};
use super::signature::Signer;
use super::sound::largest_part;
use super::verbatim::Verbatim;
use crate::members::is_model_name;
use crate::{Error, NodeId, Result};

/// Names in the document, including removed ones.
const PRESETS_MAX: usize = 1024;
/// Bytes of all presets: a whole document stays far below a message's limit.
const BYTES_MAX: usize = 4 << 20;

impl PresetEntry {
    fn bytes(&self) -> usize {
        self.wanted.as_ref().map_or(0, |wanted| wanted.text().len())
    }

    /// Whether any node may keep it: another node's entry can have any content.
    fn is_sound(&self) -> bool {
        let is_named = |preset: &Preset| preset.name == self.name && preset.check().is_ok();
        is_model_name(&self.name)
            && self.bytes() <= PRESET_BYTES_MAX
            && self.wanted.as_deref().is_none_or(is_named)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Presets {
    by_name: BTreeMap<String, PresetEntry>,
    /// Those that were not removed, by name.
    all: Arc<[Preset]>,
}

impl Presets {
    pub(crate) fn all(&self) -> Arc<[Preset]> {
        self.all.clone()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|entry| entry.wanted.is_some())
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &PresetEntry> {
        self.by_name.values()
    }

    /// # Errors
    /// The preset cannot be used, or all presets together would be too large.
    pub(crate) fn check(&self, preset: &Preset, me: NodeId) -> Result<()> {
        preset.check().map_err(Error::Unusable)?;
        if !is_model_name(&preset.name) {
            return Err(Error::Unusable(format!("{:?} is no name for a preset", preset.name)));
        }
        let others = || self.entries().filter(|entry| entry.name != preset.name);
        let bytes: usize = others().map(PresetEntry::bytes).sum();
        let mine = others().filter(|entry| entry.version.node == me);
        let mine: usize = mine.map(PresetEntry::bytes).sum();
        let (limit, needed) = (BYTES_MAX, Verbatim::from(preset.clone()).text().len());
        // Another node that has more than half gives way.
        if bytes + needed > limit && mine + needed > limit / 2 {
            return Err(Error::Unusable(format!(
                "all presets may have {limit} bytes together, and the others have {bytes} \
                 already. Remove one: sinew preset rm NAME"
            )));
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        (name, wanted): (&str, Option<Preset>),
        version: Version,
        signer: &Signer,
    ) -> PresetEntry {
        let (name, wanted) = (name.to_owned(), wanted.map(Verbatim::from));
        let mut entry = PresetEntry { name, version, wanted, signature: Signature::default() };
        signer.sign_preset(&mut entry);
        self.merge(vec![entry.clone()]);
        entry
    }

    /// Merges presets; the later one wins. Returns those that were new.
    pub(super) fn merge(&mut self, told: Vec<PresetEntry>) -> Vec<PresetEntry> {
        let mut news = Vec::new();
        for entry in told {
            if self.is_news(&entry) {
                self.by_name.insert(entry.name.clone(), entry.clone());
                news.push(entry);
            }
        }
        if !news.is_empty() {
            self.forget();
            let all = self.entries().filter_map(|entry| entry.wanted.as_deref().cloned());
            self.all = all.collect();
        }
        news
    }

    pub(super) fn is_news(&self, entry: &PresetEntry) -> bool {
        let content = |entry: &PresetEntry| entry.wanted.as_ref().map(|w| w.text().to_owned());
        let order = |entry: &PresetEntry| (entry.version, content(entry));
        let known = self.by_name.get(&entry.name);
        entry.is_sound() && known.is_none_or(|known| order(entry) > order(known))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Keeps the presets within their limits. Of the node with the most of them, removed names go
    /// first, then the oldest.
    fn forget(&mut self) {
        loop {
            let is_many = self.by_name.len() > PRESETS_MAX;
            if !is_many && self.entries().map(PresetEntry::bytes).sum::<usize>() <= BYTES_MAX {
                return;
            }
            let weight = |entry: &PresetEntry| if is_many { 1 } else { entry.bytes() };
            let makers = self.entries().map(|entry| (entry.version.node, weight(entry)));
            let maker = largest_part(makers);
            let its = self.entries().filter(|entry| Some(entry.version.node) == maker);
            let oldest = its.min_by_key(|entry| (entry.wanted.is_some(), entry.version));
            oldest.map(|entry| entry.name.clone()).and_then(|name| self.by_name.remove(&name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Desired, Document};
    use super::*;

    fn preset(name: &str, system: &str) -> Preset {
        let (name, model) = (name.to_owned(), "m".to_owned());
        Preset { name, model, system: Some(system.to_owned()), ..Preset::default() }
    }

    fn node(id: u8) -> Desired {
        Desired::new(NodeId([id; 32]), Document::default(), Signer::of_nobody())
    }

    #[test]
    fn the_later_preset_wins_on_both_halves_and_a_removed_one_stays_away() {
        let (mut left, mut right) = (node(1), node(2));
        let empty = left.fingerprint();
        left.write_preset("a", Some(preset("a", "one")));
        right.merge(left.document());
        right.write_preset("a", Some(preset("a", "two")));
        left.write_preset("b", Some(preset("b", "three")));
        let (of_left, of_right) = (left.document(), right.document());
        left.merge(of_right);
        right.merge(of_left);
        assert_eq!(left.document(), right.document());
        assert!(left.fingerprint() == right.fingerprint() && left.fingerprint() != empty);
        let all = left.presets.all();
        let said: Vec<_> = all.iter().map(|preset| preset.system.as_deref()).collect();
        assert_eq!(said, [Some("two"), Some("three")]);
        let old = left.document();
        left.write_preset("a", None);
        assert!(left.merge(old).is_empty() && !left.presets.has("a") && left.presets.has("b"));
    }

    #[test]
    fn presets_have_limits_and_another_node_cannot_exceed_them() {
        let mut node = node(1);
        let long = "x".repeat(PRESET_BYTES_MAX - 100);
        let mut told = Vec::new();
        for at in 0..70 {
            let name = format!("p{at:02}");
            let wanted = preset(&name, &long);
            if node.presets.check(&wanted, node.me).is_ok() {
                node.write_preset(&name, Some(wanted));
            } else {
                told.push(wanted);
            }
        }
        let error = node.presets.check(&told[0], node.me).unwrap_err().to_string();
        assert!(error.contains("all presets may have 4194304 bytes"), "{error}");
        assert_eq!(node.presets.all().len() + told.len(), 70);
        let entry = |wanted: Preset, count| PresetEntry {
            name: wanted.name.clone(),
            version: Version { count, node: NodeId([2; 32]) },
            wanted: Some(wanted.into()),
            signature: Signature::default(),
        };
        let kept = node.presets.all().len();
        node.presets.merge(told.iter().map(|wanted| entry(wanted.clone(), 1000)).collect());
        assert!(node.presets.all().len() <= kept && node.presets.has(&told[0].name));
        // One node that fills the document leaves the others what they had, and room.
        for (count, text) in [(70, long.as_str()), (PRESETS_MAX + 50, "")] {
            let (mut quiet, mut loud) = (self::node(1), self::node(2));
            quiet.write_preset("mine", Some(preset("mine", "x")));
            for at in 0..count {
                let name = format!("a{at}");
                quiet.merge(loud.write_preset(&name, Some(preset(&name, text))));
            }
            quiet.presets.check(&preset("second", &long), quiet.me).unwrap();
            quiet.write_preset("second", Some(preset("second", &long)));
            assert!(quiet.presets.has("mine") && quiet.presets.has("second"));
        }
        let large = preset("large", &"x".repeat(PRESET_BYTES_MAX));
        let mut nameless = entry(preset("c", ""), 9);
        nameless.name = "another".to_owned();
        for bad in [entry(large, 9), entry(preset(" ", ""), 9), nameless] {
            assert!(!node.presets.is_news(&bad), "{}", bad.name);
        }
    }
}
