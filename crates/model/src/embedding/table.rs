//! Tables that are read row by row from the file.

use std::collections::HashMap;

use backend::Backend;
use gguf::{Source, Strided, TensorInfo};

use crate::ModelError;

/// Bytes of cached rows: some thousand tokens, more than most texts use repeatedly.
const KEPT_BYTES: usize = 8 << 20;

/// A table with one row for each token or n-gram.
pub(crate) struct Table {
    pub name: &'static str,
    tensor: TensorInfo,
    pub scale: f32,
    /// The epsilon of the embeddings' norm, in models that have one.
    pub norm_eps: Option<f32>,
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

impl Table {
    /// The tensor `name`, which must have the shape `[width, rows]`.
    pub fn open(
        source: &dyn Source,
        name: &'static str,
        shape: [usize; 2],
    ) -> Result<Self, ModelError> {
        let tensor = layout::checked(source.directory(), name, shape)?.clone();
        let kept = Kept::new(tensor.row_bytes());
        Ok(Self { name, tensor, scale: 1.0, norm_eps: None, kept, bytes: Vec::new() })
    }

    /// The scaled rows of `tokens`.
    pub fn look_up<B: Backend>(
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
