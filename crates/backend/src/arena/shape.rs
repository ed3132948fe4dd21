//! How the matrices of one expert lie in a slab.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use gguf::TensorType;
use kernels::Matrix;

/// Each matrix of a slab begins at a cache line.
const LINE_BYTES: usize = 64;
/// Bytes of the model's file that are read and packed at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Rows that are packed together.
const PANEL_ROWS: usize = 16;

/// Weights in the form that a device reads.
pub trait PackedWeights: Send {
    /// Whether such weights can be kept in files.
    const IN_FILES: bool = false;

    /// The bytes of weights that can, unless the rank has none.
    fn packed(&self) -> Option<&[u8]> {
        None
    }
}

impl PackedWeights for Option<Arc<Matrix>> {
    const IN_FILES: bool = true;

    fn packed(&self) -> Option<&[u8]> {
        self.as_ref().map(|matrix| matrix.packed())
    }
}

/// One of the matrices of each expert of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixShape {
    pub ty: TensorType,
    pub rows: usize,
    pub cols: usize,
    /// The factor of each expert's, in types that have it.
    pub factors: Option<Vec<f32>>,
}

/// A rank's part of each expert of a layer: `[hidden, width]` twice and `[width, hidden]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertShape {
    pub gate: Option<MatrixShape>,
    pub up: MatrixShape,
    pub down: MatrixShape,
}

impl MatrixShape {
    fn bytes(&self) -> usize {
        Matrix::bytes_of(self.ty, self.rows, self.cols).unwrap_or(0)
    }
}

impl ExpertShape {
    /// The matrices in the order of their bytes.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixShape> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    /// The same, to be changed.
    pub fn matrices_mut(&mut self) -> impl Iterator<Item = &mut MatrixShape> {
        self.gate.iter_mut().chain([&mut self.up, &mut self.down])
    }

    /// Where each of them begins, and the bytes of all.
    pub(super) fn places(&self) -> ([usize; 3], usize) {
        let (mut at, mut end) = ([0; 3], 0);
        for (place, matrix) in at.iter_mut().zip(self.matrices()) {
            *place = end;
            end += matrix.bytes().next_multiple_of(LINE_BYTES);
        }
        (at, end)
    }

    /// Bytes of a slab.
    pub fn slab_bytes(&self) -> u64 {
        self.places().1 as u64
    }

    /// Whether every matrix has weights on this rank, of types with kernels.
    pub fn is_whole(&self) -> bool {
        self.matrices().all(|matrix| matrix.bytes() > 0)
    }

    /// Packs an expert's matrices into a slab. `read` gives rows of the matrix with a number, in
    /// the file's layout.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn pack(
        &self,
        slab: &mut [u8],
        mut read: impl FnMut(usize, Range<usize>, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut piece = Vec::new();
        for (number, (matrix, start)) in self.matrices().zip(self.places().0).enumerate() {
            let row_bytes = matrix.ty.row_bytes(matrix.cols);
            let panels = (PIECE_BYTES / (PANEL_ROWS * row_bytes).max(1)).max(1);
            let packed = &mut slab[start..start + matrix.bytes()];
            for first in (0..matrix.rows).step_by(panels * PANEL_ROWS) {
                let rows = first..matrix.rows.min(first + panels * PANEL_ROWS);
                piece.resize(rows.len() * row_bytes, 0);
                read(number, rows, &mut piece)?;
                let packed = &mut packed[first * row_bytes..];
                kernels::pack_rows(matrix.ty, matrix.cols, &piece, packed)
                    .map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Writes an expert's packed matrices, in their order, to a slab.
    ///
    /// # Panics
    /// They have other lengths.
    pub fn fill<'a>(&self, packed: impl Iterator<Item = &'a [u8]>, slab: &mut [u8]) {
        let (places, _) = self.places();
        for ((matrix, at), packed) in self.matrices().zip(places).zip(packed) {
            slab[at..at + matrix.bytes()].copy_from_slice(packed);
        }
    }
}
