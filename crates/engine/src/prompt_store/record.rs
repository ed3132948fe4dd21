//! The record of a part of a page: where the part lies, the record's key and its header.

use model::{Holder, LayerCache, Part};

use crate::page_orders::{PageKey, PageOrder};

/// The page or checkpoint of an order that a part lies in.
pub(super) fn number(order: &PageOrder, holder: Holder) -> Option<u32> {
    match holder {
        Holder::Page => order.page,
        Holder::Window => order.window,
        Holder::Checkpoint => order.checkpoint,
    }
}

/// The tokens of the page: compared beside the key.
pub(super) fn header(order: &PageOrder) -> Vec<u8> {
    order.tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// The key of a part's record.
pub(super) fn key_of(text: &PageKey, part: &Part) -> records::Key {
    let cache = match part.cache {
        LayerCache::Keys => [0, 0],
        LayerCache::Index => [1, 0],
        LayerCache::Entries(at) => [2, at],
        LayerCache::Rows(at) => [3, at],
        LayerCache::State => [4, 0],
        LayerCache::Ngrams => [5, 0],
    };
    let mut hasher = blake3::Hasher::new_keyed(text);
    hasher.update(&cache).update(&(part.layer as u32).to_le_bytes());
    for head in &part.heads {
        hasher.update(&head.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}
