//! What one layer keeps of a text in a page or a checkpoint.

/// What one layer of this rank keeps of a page's positions, or of the text up to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub layer: usize,
    pub cache: LayerCache,
    pub holder: Holder,
    /// First and last head of keys and values, or the runs of heads of a state: ranks with the same
    /// numbers hold the same bits.
    pub heads: Vec<u32>,
    pub bytes: usize,
}

/// One of the caches of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerCache {
    Keys,
    /// The keys of its indexer.
    Index,
    /// Entries of blocks, and the rows for the next ones.
    Entries(u8),
    Rows(u8),
    State,
    /// The state of the convolution over n-gram embeddings, whose channels every rank has.
    Ngrams,
}

/// The numbers by which a part is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Page,
    /// A page of layers that keep only their window.
    Window,
    Checkpoint,
}
