//! The content of the caches as bytes: what a page, or a checkpoint, holds of a text.
//!
//! The bits of a part depend on the text, the model and the part's heads, not on the split, the
//! process or the number of the page. So a page can be written down and read by another process.

use backend::{Backend, Place};
use layout::{Recurrence, RecurrenceKind};

use super::Model;
use super::context::{IndexKept, Kept};
use super::part::{Cut, Holder, LayerCache, Part};

/// Columns of a state come in blocks of this many.
const LANES: usize = 16;

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
                let whole = (Vec::new(), Cut::Whole);
                let (holder, (heads, cut)) = match cache {
                    LayerCache::State => (Holder::Checkpoint, self.state_heads()),
                    LayerCache::Ngrams => (Holder::Checkpoint, whole),
                    LayerCache::Entries(_) => (Holder::Page, whole),
                    LayerCache::Keys => (own, self.key_heads(layer, bytes)),
                    LayerCache::Index | LayerCache::Rows(_) => (own, whole),
                };
                if bytes > 0 {
                    parts.push(Part { layer, cache, holder, heads, cut, bytes });
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

    fn key_heads(&self, layer: usize, bytes: usize) -> (Vec<u32>, Cut) {
        let keys = &self.shard.attention[self.config.heads_kind(layer)].keys;
        let cut = Cut::Keys { head_bytes: bytes / keys.len().max(1) };
        (vec![keys.start as u32, keys.end as u32], cut)
    }

    fn state_heads(&self) -> (Vec<u32>, Cut) {
        let heads = &self.shard.recurrent_heads;
        let runs = std::iter::once(&heads.keys).chain(&heads.values);
        let runs = runs.flat_map(|run| [run.start as u32, run.end as u32]).collect();
        let cut = self.config.recurrence.as_ref().map_or(Cut::Whole, state_cut);
        (runs, cut)
    }
}

/// As states lie in memory: `kernels::States`.
fn state_cut(sizes: &Recurrence) -> Cut {
    let numbers = |count: usize| count * size_of::<f32>();
    let Recurrence { k_dim, v_dim, .. } = *sizes;
    let (state, key_bytes, value_bytes) = match sizes.kind {
        // Each of its channels is a head, and has no state but its inputs.
        RecurrenceKind::ShortConvolution => (0, 0, numbers(1)),
        _ => (k_dim * v_dim.next_multiple_of(LANES), numbers(k_dim), numbers(v_dim)),
    };
    let rows = sizes.taps as u32 - 1;
    Cut::State { state_bytes: numbers(state), rows, key_bytes, value_bytes }
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
