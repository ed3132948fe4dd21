//! Weights being loaded to a device, in the file's format.

use std::sync::Arc;

use ggml::{Array, Memory, Stream, Type};
use gguf::TensorType;

use super::ops::{Matrix, Ref};
use crate::{BackendError, Factors, PackedWeights};

impl PackedWeights for Option<Matrix> {}

/// Equal consecutive matrices.
pub struct Loader {
    /// `None` for a rank without a part of them.
    array: Option<Arc<Array>>,
    count: usize,
    rows: usize,
    cols: usize,
    ty: Type,
    /// Bytes received.
    filled: usize,
}

/// Refuses types that the device cannot multiply.
pub(super) fn check(
    stream: &Stream,
    ty: TensorType,
    rows: usize,
    cols: usize,
) -> Result<(), BackendError> {
    let device = stream.device();
    if ty.is_own() {
        let what = format!(
            "weights of type {ty}, which ggml does not know: run the model on the CPU, or its GGUF \
             file here"
        );
        return Err(BackendError::Unsupported { device: device.name().to_owned(), what });
    }
    if rows * cols == 0 || device.multiplies(Type::of_file(ty as u32), rows, cols) {
        return Ok(());
    }
    let what = format!("weights of type {ty:?} in matrices of {rows} by {cols}");
    Err(BackendError::Unsupported { device: device.name().to_owned(), what })
}

impl Factors for Loader {
    fn set_factors(&mut self, _: &[f32]) -> Result<(), BackendError> {
        let what = "the factors of tensors in NVFP4 (their .scale): run the model on the CPU, or a \
                    file in another type";
        Err(BackendError::Unsupported { device: "ggml".to_owned(), what: what.to_owned() })
    }
}

impl Loader {
    pub(super) fn start(
        stream: &Stream,
        memory: &mut Memory,
        ty: TensorType,
        [count, rows, cols]: [usize; 3],
    ) -> Result<Self, BackendError> {
        check(stream, ty, rows, cols)?;
        let own = Type::of_file(ty as u32);
        let is_empty = count * rows * cols == 0;
        let array = match is_empty {
            true => None,
            false => Some(memory.array(own, [cols, rows, count, 1])?),
        };
        Ok(Self { array, count, rows, cols, ty: own, filled: 0 })
    }

    pub(super) fn push(&mut self, stream: &Stream, bytes: &[u8]) -> Result<(), BackendError> {
        let Some(array) = &self.array else { return Ok(()) };
        let row = array.bytes() / (self.count * self.rows);
        if self.filled + bytes.len() > array.bytes() || !bytes.len().is_multiple_of(row) {
            let what = format!("{} bytes of rows of {row} bytes", bytes.len());
            return Err(BackendError::Rows { what });
        }
        stream.write(array, self.filled, bytes);
        self.filled += bytes.len();
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Vec<Option<Matrix>>, BackendError> {
        let Self { array, count, rows, cols, ty, filled } = self;
        let Some(array) = array else { return Ok(vec![None; count]) };
        if filled != array.bytes() {
            let what = format!("{filled} bytes of {}", array.bytes());
            return Err(BackendError::Rows { what });
        }
        let matrix = |at| Matrix { stack: Ref(array.clone()), ty, at, count, rows, cols };
        Ok((0..count).map(|at| Some(matrix(at))).collect())
    }
}
