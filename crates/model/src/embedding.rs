use std::sync::Arc;

use backend::Backend;
use gguf::Source;
use layout::{Column, Config, Ngrams, Row, names};

mod entry;
mod table;

use entry::EncoderEntry;
pub(crate) use table::Table;

use crate::ModelError;

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
    /// What an encoder adds to the rows.
    entry: Option<EncoderEntry>,
}

impl Embedding {
    /// # Errors
    /// A tensor is missing or has another shape than the model's sizes require.
    pub fn open(source: Arc<dyn Source>, config: &Config) -> Result<Self, ModelError> {
        let table = |name, shape, scale, norm_eps| {
            let mut table = Table::open(source.as_ref(), name, shape)?;
            (table.scale, table.norm_eps) = (scale, norm_eps);
            Ok::<_, ModelError>(table)
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
        let entry = match &config.encoder {
            Some(encoder) => Some(EncoderEntry::open(source.as_ref(), config, encoder)?),
            None => None,
        };
        Ok(Self { source, row, embedding, by_layer, ngrams, places, found, entry })
    }

    /// Finishes the rows of an encoder: adds their learned positions and their token types, and
    /// normalises them. `types`: `[rows]`, or empty for one type. `out`: the embeddings of their
    /// tokens, `[rows, width]` f32.
    ///
    /// # Errors
    /// A position has no row, or the bytes cannot be read.
    pub fn enter<B: Backend>(
        &mut self,
        backend: &mut B,
        positions: impl Iterator<Item = u32>,
        types: &[u32],
        out: &mut [f32],
    ) -> Result<(), ModelError> {
        let Self { source, places, found, entry, .. } = self;
        let Some(entry) = entry else { return Ok(()) };
        places.clear();
        places.extend(positions);
        entry.add(source.as_ref(), backend, [places, types], found, out)
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
        let Self { source, row, embedding, by_layer, ngrams, places, found, .. } = self;
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
