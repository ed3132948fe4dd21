use std::collections::HashMap;
use std::sync::Arc;

use backend::Backend;
use gguf::{Source, Strided, TensorInfo};
use layout::{Column, Config, Ngrams, Row, names};

use crate::ModelError;

/// Bytes of cached rows: some thousand tokens, more than most texts use repeatedly.
const KEPT_BYTES: usize = 8 << 20;

/// The token embeddings, read row by row from the file. Recently used rows are cached, so that a
/// step seldom waits for a disk.
///
/// Only rank 0 has them: it looks up the rows and sends them with the step, so no rank has a packed
/// copy of what is often the largest tensor of a small model.
pub struct Embedding {
    source: Arc<dyn Source>,
    /// The columns of a row.
    row: Row,
    /// The table that starts the residual stream and, in models that have it, that of all layers.
    embedding: Table,
    by_layer: Option<Table>,
    /// The table of n-grams, in models that have one, and the rows of a look-up.
    ngrams: Option<(Ngrams, Table)>,
    places: Vec<u32>,
    /// The rows of one table.
    found: Vec<f32>,
}

/// A table with one row for each token or n-gram.
struct Table {
    name: &'static str,
    tensor: TensorInfo,
    scale: f32,
    /// The epsilon of the embeddings' norm, in models that have one.
    norm_eps: Option<f32>,
    kept: Kept,
    /// The rows of one look-up, in the file's format.
    bytes: Vec<u8>,
}

/// Cached rows in the file's format. The oldest one is replaced.
struct Kept {
    row_bytes: usize,
    rows_max: usize,
    /// The rows, one after the other.
    bytes: Vec<u8>,
    /// The token of each row.
    tokens: Vec<u32>,
    places: HashMap<u32, usize>,
    next: usize,
}

impl Kept {
    fn new(row_bytes: usize) -> Self {
        let rows_max = (KEPT_BYTES / row_bytes.max(1)).max(1);
        let (bytes, tokens, places) = Default::default();
        Self { row_bytes, rows_max, bytes, tokens, places, next: 0 }
    }

    fn get(&self, token: u32) -> Option<&[u8]> {
        let at = *self.places.get(&token)?;
        self.bytes.get(at * self.row_bytes..)?.get(..self.row_bytes)
    }

    fn put(&mut self, token: u32, row: &[u8]) {
        let at = self.next % self.rows_max;
        self.next = at + 1;
        match self.tokens.get_mut(at) {
            Some(old) => {
                self.places.remove(&std::mem::replace(old, token));
                self.bytes[at * self.row_bytes..][..self.row_bytes].copy_from_slice(row);
            }
            None => {
                self.tokens.push(token);
                self.bytes.extend(row);
            }
        }
        self.places.insert(token, at);
    }
}

impl Embedding {
    /// # Errors
    /// A tensor is missing or has another shape than the model's sizes require.
    pub fn open(source: Arc<dyn Source>, config: &Config) -> Result<Self, ModelError> {
        let table = |name, [width, rows]: [usize; 2], scale, norm_eps| {
            let tensor = layout::checked(source.directory(), name, [width, rows])?.clone();
            let kept = Kept::new(tensor.row_bytes());
            Ok::<_, ModelError>(Table { name, tensor, scale, norm_eps, kept, bytes: Vec::new() })
        };
        let norm_eps = config.arch.embedding_norm.then_some(config.rms_eps);
        let vocab = source.directory().tensor(names::EMBEDDING);
        let vocab = vocab.map_err(layout::Error::from)?.rows();
        let (width, scale) = (config.width, config.embedding_scale);
        let embedding = table(names::EMBEDDING, [width, vocab], scale, norm_eps)?;
        let by_layer = match config.by_layer {
            Some(own) => {
                let scale = (own as f32).sqrt();
                Some(table(names::BY_LAYER, [own * config.layers, vocab], scale, None)?)
            }
            None => None,
        };
        let ngrams = match &config.ngrams {
            Some(ngrams) => {
                let rows = source.directory().tensor(names::BY_LAYER);
                let rows = rows.map_err(layout::Error::from)?.rows();
                let own = table(names::BY_LAYER, [ngrams.dim, rows], 1.0, None)?;
                Some((ngrams.clone(), own))
            }
            None => None,
        };
        let (row, places, found) = (config.row(0), Vec::new(), Vec::new());
        Ok(Self { source, row, embedding, by_layer, ngrams, places, found })
    }

    /// The number of earlier tokens that a look-up needs.
    pub fn before(&self) -> usize {
        self.ngrams.as_ref().map_or(0, |(ngrams, _)| ngrams.before())
    }

    /// The scaled, or normalised, embeddings of `tokens`: `[tokens, input_width]` f32, row-major,
    /// replacing the content of `out`. `before`: the tokens before each, the nearest first, or
    /// [`Ngrams::NONE`], `[tokens, self.before()]`.
    ///
    /// # Errors
    /// A token is not in the vocabulary, or the bytes cannot be read.
    pub fn look_up<B: Backend>(
        &mut self,
        backend: &mut B,
        tokens: &[u32],
        before: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let Self { source, row, embedding, by_layer, ngrams, places, found } = self;
        let line = row.width;
        out.resize(tokens.len() * line, 0.0);
        for (column, range) in &row.columns {
            let table = match column {
                Column::Streams => Some((&mut *embedding, tokens)),
                // The same columns; and none before the first layer.
                Column::Embedding | Column::Banks => continue,
                Column::ByLayer => by_layer.as_mut().map(|table| (table, tokens)),
                Column::Ngrams => ngrams.as_mut().map(|(ngrams, table)| {
                    places.clear();
                    for (token, before) in tokens.iter().zip(before.chunks_exact(ngrams.before())) {
                        places.extend(ngrams.rows(*token, before));
                    }
                    (table, places.as_slice())
                }),
                Column::Token => None,
            };
            let lines = out.chunks_exact_mut(line).map(|out| &mut out[range.clone()]);
            match table {
                Some((table, places)) => {
                    table.look_up(source.as_ref(), backend, places, found)?;
                    let found = found.chunks_exact(range.len());
                    lines.zip(found).for_each(|(out, row)| out.copy_from_slice(row));
                }
                // f32 counts exactly far beyond the number of tokens.
                None => lines.zip(tokens).for_each(|(out, token)| out[0] = *token as f32),
            }
        }
        Ok(())
    }
}

impl Table {
    /// The scaled rows of `tokens`.
    fn look_up<B: Backend>(
        &mut self,
        source: &dyn Source,
        backend: &mut B,
        tokens: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let (cols, rows) = (self.tensor.columns(), self.tensor.rows());
        let row_bytes = self.tensor.row_bytes();
        let name = || self.name.to_owned();
        self.bytes.resize(tokens.len() * row_bytes, 0);
        for (token, bytes) in tokens.iter().zip(self.bytes.chunks_exact_mut(row_bytes)) {
            if *token as usize >= rows {
                let what = format!("token {token} in a vocabulary of {rows}");
                return Err(ModelError::Impossible { what });
            }
            if let Some(row) = self.kept.get(*token) {
                bytes.copy_from_slice(row);
                continue;
            }
            let piece = row_bytes as u64;
            let start = self.tensor.range.start + u64::from(*token) * piece;
            let pieces = Strided { start, piece, stride: piece, count: 1 };
            let read = source.read_again(pieces, bytes);
            read.map_err(|source| ModelError::Read { name: name(), source })?;
            self.kept.put(*token, bytes);
        }
        out.resize(tokens.len() * cols, 0.0);
        let done = backend.dequantize(self.tensor.ty, cols, &self.bytes, out);
        done.map_err(|source| ModelError::Backend { name: name(), source })?;
        if self.scale != 1.0 {
            out.iter_mut().for_each(|value| *value *= self.scale);
        }
        if let Some(eps) = self.norm_eps {
            out.chunks_exact_mut(cols).for_each(|row| normalise(row, eps));
        }
        Ok(())
    }
}

/// Divides a row by its root mean square, summed from left to right.
fn normalise(row: &mut [f32], eps: f32) {
    let squares: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let scale = 1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt();
    row.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_kept_and_the_oldest_gives_way() {
        let mut kept = Kept { rows_max: 3, ..Kept::new(2) };
        for round in 0..4u8 {
            for token in 0..5 {
                assert_eq!(kept.get(token), None, "{round} {token}");
                kept.put(token, &[token as u8, round]);
                assert_eq!(kept.get(token), Some(&[token as u8, round][..]));
            }
            for (token, is_kept) in [(0, false), (1, false), (2, true), (3, true), (4, true)] {
                assert_eq!(kept.get(token).is_some(), is_kept, "{token}");
            }
            kept.put(7, &[7, 7]);
            kept.put(8, &[8, 8]);
            kept.put(9, &[9, 9]);
            assert_eq!((kept.places.len(), kept.bytes.len()), (3, 6));
        }
    }
}
