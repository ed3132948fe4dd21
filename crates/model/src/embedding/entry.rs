//! What an encoder adds to the embeddings of tokens: positions, token types and a norm.

use backend::Backend;
use gguf::Source;
use layout::{Config, Encoder, names};

use super::table::Table;
use crate::ModelError;
use crate::pooled::{floats, normalise};

pub(super) struct EncoderEntry {
    positions: Option<Table>,
    /// The token types, and their number.
    types: Option<(Table, u32)>,
    norm: Option<EntryNorm>,
    /// The token type of each row.
    numbers: Vec<u32>,
}

struct EntryNorm {
    gain: Vec<f32>,
    bias: Option<Vec<f32>>,
    eps: f32,
}

impl EncoderEntry {
    pub fn open(
        source: &dyn Source,
        config: &Config,
        encoder: &Encoder,
    ) -> Result<Self, ModelError> {
        let width = config.width;
        let table = |name, rows: Option<usize>| {
            rows.map(|rows| Table::open(source, name, [width, rows])).transpose()
        };
        let positions = table(names::POSITIONS, encoder.positions)?;
        let types = table(names::TOKEN_TYPES, encoder.token_types)?;
        let count = encoder.token_types.unwrap_or(0) as u32;
        let bias = source.directory().find_tensor(names::EMBEDDING_NORM_BIAS);
        let norm = match encoder.has_norm {
            true => Some(EntryNorm {
                gain: floats(source, names::EMBEDDING_NORM, width)?,
                bias: bias
                    .map(|_| floats(source, names::EMBEDDING_NORM_BIAS, width))
                    .transpose()?,
                eps: config.rms_eps,
            }),
            false => None,
        };
        let types = types.map(|table| (table, count));
        Ok(Self { positions, types, norm, numbers: Vec::new() })
    }

    /// Adds the rows of `positions` and of `types` to `out`, `[rows, width]` f32, and normalises
    /// it. Without `types`, all are the first one. `found` is scratch.
    pub fn add<B: Backend>(
        &mut self,
        source: &dyn Source,
        backend: &mut B,
        [positions, types]: [&[u32]; 2],
        found: &mut Vec<f32>,
        out: &mut [f32],
    ) -> Result<(), ModelError> {
        let mut sum = |found: &[f32]| out.iter_mut().zip(found).for_each(|(x, add)| *x += add);
        if let Some((table, count)) = &mut self.types {
            self.numbers.clear();
            // Encoders of one text have one type (XLM-RoBERTa).
            let types = types.iter().chain(std::iter::repeat(&0)).take(positions.len());
            self.numbers.extend(types.map(|of| (*of).min(*count - 1)));
            table.look_up(source, backend, &self.numbers, found)?;
            sum(found);
        }
        if let Some(table) = &mut self.positions {
            table.look_up(source, backend, positions, found)?;
            sum(found);
        }
        if let Some(norm) = &self.norm {
            out.chunks_exact_mut(norm.gain.len()).for_each(|row| norm.apply(row));
        }
        Ok(())
    }
}

impl EntryNorm {
    fn apply(&self, row: &mut [f32]) {
        normalise(row, &self.gain, self.eps);
        if let Some(bias) = &self.bias {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    }
}
