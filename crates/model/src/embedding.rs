use std::sync::Arc;

use backend::Backend;
use gguf::{Source, Strided, TensorInfo};
use layout::{Config, names};

use crate::ModelError;

/// The token embedding, read row by row where the file lies.
///
/// Only rank 0 has one: it looks the rows up and sends them along with the step, so no rank holds
/// a packed copy of what is often the largest tensor of a small model.
pub struct Embedding {
    source: Arc<dyn Source>,
    tensor: TensorInfo,
    scale: f32,
    /// The rows of one look-up, as the file has them.
    bytes: Vec<u8>,
}

impl Embedding {
    /// # Errors
    /// The tensor is missing or has another shape than the model's sizes ask for.
    pub fn open(source: Arc<dyn Source>, config: &Config) -> Result<Self, ModelError> {
        let shape = [config.width, config.vocab];
        let tensor = layout::checked(source.directory(), names::EMBEDDING, shape)?.clone();
        Ok(Self { source, tensor, scale: config.embedding_scale, bytes: Vec::new() })
    }

    /// The scaled embeddings of `tokens`: `[tokens, width]` f32, row-major, replacing what `out`
    /// held.
    ///
    /// # Errors
    /// A token is not in the vocabulary, or the bytes cannot be read.
    pub fn look_up<B: Backend>(
        &mut self,
        backend: &mut B,
        tokens: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let (cols, rows) = (self.tensor.columns(), self.tensor.rows());
        let row_bytes = self.tensor.row_bytes();
        let name = || names::EMBEDDING.to_owned();
        self.bytes.resize(tokens.len() * row_bytes, 0);
        for (token, bytes) in tokens.iter().zip(self.bytes.chunks_exact_mut(row_bytes)) {
            if *token as usize >= rows {
                let what = format!("token {token} in a vocabulary of {rows}");
                return Err(ModelError::Impossible { what });
            }
            let piece = row_bytes as u64;
            let start = self.tensor.range.start + u64::from(*token) * piece;
            let pieces = Strided { start, piece, stride: piece, count: 1 };
            let read = self.source.read(pieces, bytes);
            read.map_err(|source| ModelError::Read { name: name(), source })?;
        }
        out.resize(tokens.len() * cols, 0.0);
        let done = backend.dequantize(self.tensor.ty, cols, &self.bytes, out);
        done.map_err(|source| ModelError::Backend { name: name(), source })?;
        if self.scale != 1.0 {
            out.iter_mut().for_each(|value| *value *= self.scale);
        }
        Ok(())
    }
}
