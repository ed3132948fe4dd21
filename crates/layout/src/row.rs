//! The columns of a row between two stages of a model.

use std::ops::Range;

/// What some columns of a row hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// The residual streams. Before the first layer all of them are the embedding, so it is there
    /// once.
    Streams,
    /// The embedding, where later layers read it.
    Embedding,
    /// The embeddings of each layer from this one on.
    ByLayer,
    /// The embeddings of n-grams.
    Ngrams,
    /// The streams that earlier layers banked.
    Banks,
    /// The token, where it chooses experts.
    Token,
}

/// A row at the first layer of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub columns: Vec<(Column, Range<usize>)>,
    /// Elements, f32.
    pub width: usize,
}

impl Row {
    /// `width` may be 0: the buffer behind the columns is there all the same.
    pub(crate) fn add(&mut self, column: Column, width: usize) {
        self.columns.push((column, self.width..self.width + width));
        self.width += width;
    }

    /// Gives the columns that are there as `of` another name.
    pub(crate) fn share(&mut self, column: Column, of: Column) {
        let found = self.columns.iter().find(|(known, _)| *known == of);
        let found = found.map(|(_, range)| (column, range.clone()));
        self.columns.extend(found);
    }
}
