//! The content of the caches as bytes: what a page, or a checkpoint, holds of a text.
//!
//! The bits of a part depend on the text, the model and the part's heads, not on the split, the
//! process or the number of the page. So a page can be written down and read by another process.

use backend::{Backend, Place};

use super::Model;
use super::context::{IndexKept, Kept};
use super::part::{Holder, LayerCache, Part};

impl<B: Backend> Model<B> {
    /// The parts of this rank, without empty ones; `None` if the device cannot give their content.
    ///
    /// `windows`: layers with a window have pages of their own.
    pub fn parts(&mut self, backend: &mut B, windows: bool) -> Option<Vec<Part>> {
        let mut parts = Vec::new();
        let first_layer = self.first_layer();
        for at in 0..self.kept.len() {
            let layer = first_layer + at;
            let has_window = windows && self.config.windows[layer].is_some();
            let own = if has_window { Holder::Window } else { Holder::Page };
            for cache in self.kept[at].caches() {
                let bytes = backend.content(self.kept[at].place(cache)?, 0)?.len();
                let (holder, heads) = match cache {
                    LayerCache::State => (Holder::Checkpoint, self.state_heads()),
                    LayerCache::Ngrams => (Holder::Checkpoint, Vec::new()),
                    LayerCache::Entries(_) => (Holder::Page, self.key_heads(layer)),
                    LayerCache::Keys | LayerCache::Index | LayerCache::Rows(_) => {
                        (own, self.key_heads(layer))
                    }
                };
                if bytes > 0 {
                    parts.push(Part { layer, cache, holder, heads, bytes });
                }
            }
        }
        Some(parts)
    }

    /// The content of a part, which that of a rank with the same heads may replace.
    ///
    /// # Panics
    /// If it is none of [`Self::parts`], or there is no page or checkpoint of this number.
    pub fn content(&mut self, backend: &mut B, part: &Part, number: u32) -> &mut [u8] {
        let first_layer = self.first_layer();
        let place = self.kept[part.layer - first_layer].place(part.cache);
        let content = place.and_then(|place| backend.content(place, number));
        content.expect("it is one of this rank's parts")
    }

    fn key_heads(&self, layer: usize) -> Vec<u32> {
        let keys = &self.shard.attention[self.config.heads_kind(layer)].keys;
        vec![keys.start as u32, keys.end as u32]
    }

    fn state_heads(&self) -> Vec<u32> {
        let heads = &self.shard.recurrent_heads;
        let runs = std::iter::once(&heads.keys).chain(&heads.values);
        runs.flat_map(|run| [run.start as u32, run.end as u32]).collect()
    }
}

impl<B: Backend> Kept<B> {
    /// Its caches.
    fn caches(&self) -> Vec<LayerCache> {
        let entries =
            |count: u8| (0..count).flat_map(|at| [LayerCache::Entries(at), LayerCache::Rows(at)]);
        let keys = std::iter::once(LayerCache::Keys);
        match self {
            Self::Nothing => Vec::new(),
            Self::KeysAndValues(_, None) => keys.collect(),
            Self::KeysAndValues(_, Some(IndexKept::Positions(_))) => {
                keys.chain([LayerCache::Index]).collect()
            }
            Self::KeysAndValues(_, Some(IndexKept::Entries(_))) => keys.chain(entries(1)).collect(),
            Self::Compressed(_, all) => keys.chain(entries(all.len() as u8)).collect(),
            Self::States(_, None) => vec![LayerCache::State],
            Self::States(_, Some(_)) => vec![LayerCache::State, LayerCache::Ngrams],
        }
    }

    fn place(&mut self, cache: LayerCache) -> Option<Place<'_, B>> {
        Some(match (cache, self) {
            (LayerCache::Keys, Self::KeysAndValues(kv, _) | Self::Compressed(kv, _)) => {
                Place::Page(kv)
            }
            (LayerCache::Index, Self::KeysAndValues(_, Some(IndexKept::Positions(keys)))) => {
                Place::Page(keys)
            }
            (LayerCache::State, Self::States(states, _)) => Place::Checkpoint(states),
            (LayerCache::Ngrams, Self::States(_, Some(own))) => Place::Checkpoint(own),
            (LayerCache::Entries(at), kept) => Place::Entries(kept.entries(at)?),
            (LayerCache::Rows(at), kept) => Place::Rows(kept.entries(at)?),
            _ => return None,
        })
    }

    fn entries(&mut self, at: u8) -> Option<&mut B::Entries> {
        match self {
            Self::KeysAndValues(_, Some(IndexKept::Entries(entries))) => Some(entries),
            Self::Compressed(_, all) => all.get_mut(usize::from(at)),
            _ => None,
        }
    }
}
