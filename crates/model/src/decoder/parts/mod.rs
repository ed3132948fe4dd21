//! The parts of a layer: their weights, and what they compute. Their names are those of `layout`'s
//! parts.

pub(super) mod banks;
pub(super) mod beside;
pub(super) mod by_layer;
pub(super) mod compressed;
pub(super) mod dense;
pub(super) mod experts;
mod gate;
pub(super) mod heads;
mod indexer;
pub(super) mod latent;
pub(super) mod ngrams;
pub(super) mod recurrence;
pub(super) mod streams;
