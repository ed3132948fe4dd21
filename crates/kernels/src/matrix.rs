//! Weight matrices, packed for the CPU.
//!
//! Packing moves the file's bits into the order in which the kernels read them (see
//! [`crate::format`]). It adds only zero rows that fill the last panel of 16. Rows are pushed as
//! they arrive, without a second copy.

use crate::error::Error;
use crate::format::{
    FloatFormat, Quantised, TILE, TILE_COLS, read_tile, with_float, with_quantised,
};
use crate::input::Forms;
use crate::isa::{Isa, Kernel, run};
use crate::memory::Region;
use crate::packed::{Packed, SharedBytes, pack_panel, panel_bytes};
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd, VECTOR_BYTES};
use gguf::TensorType;
use std::ops::Range;
use std::sync::Arc;

/// A weight matrix `[rows, cols]`, packed in panels of 16 rows.
pub struct Matrix {
    ty: TensorType,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    factor: f32,
    data: Packed,
    /// The offset of this matrix's panels in it, bytes.
    start: usize,
}

impl Matrix {
    /// Outputs of the product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the product.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// As in the file.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The factor of all weights, 1 unless it was set: NVFP4 has one for a tensor.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// Sets the factor.
    ///
    /// # Errors
    /// The type has none.
    pub fn set_factor(&mut self, factor: f32) -> Result<(), Error> {
        let has_one = with_quantised!(self.ty, T => T::FACTOR, _ => false);
        if !has_one {
            return Err(Error::Factor { ty: self.ty });
        }
        self.factor = factor;
        Ok(())
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes
    }

    /// The form of the input for this matrix.
    pub fn form(&self) -> Forms {
        match self.ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::F8_E4M3_128 => {
                Forms::FLOAT
            }
            _ => Forms::INT8,
        }
    }

    /// Bytes of a matrix of this type and shape, or `None` if it cannot be packed.
    pub fn bytes_of(ty: TensorType, rows: usize, cols: usize) -> Option<usize> {
        panel_bytes(ty, cols)?.checked_mul(rows.div_ceil(LANES))
    }

    /// Dequantises row `row` exactly as GGUF defines it, with the factor.
    ///
    /// # Panics
    /// There is no such row, or `out` is not `[cols]`.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of {} rows", self.rows);
        read_row(self.ty, self.panel(row / LANES), row % LANES, self.factor, out);
    }

    /// Panels of 16 rows, the last one padded.
    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// The bytes of one panel.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        self.panels_data(panel..panel + 1)
    }

    /// The bytes of some panels, one after the other.
    pub(crate) fn panels_data(&self, panels: Range<usize>) -> &[u8] {
        assert!(panels.start <= panels.end && panels.end <= self.panels());
        let first = self.start + panels.start * self.panel_bytes;
        self.data.bytes(first, panels.len() * self.panel_bytes)
    }

    /// All packed bytes, for [`Matrix::from_packed`].
    pub fn packed(&self) -> &[u8] {
        self.panels_data(0..self.panels())
    }

    /// A matrix over bytes that [`Matrix::packed`] gave, from `start` on.
    ///
    /// # Errors
    /// The type has no kernels, the shape is impossible, or there are fewer bytes.
    pub fn from_packed(
        ty: TensorType,
        rows: usize,
        cols: usize,
        bytes: SharedBytes,
        start: usize,
    ) -> Result<Self, Error> {
        let panel_bytes = panel_bytes(ty, cols).ok_or(Error::Type { ty })?;
        let needed = rows.div_ceil(LANES).checked_mul(panel_bytes).filter(|bytes| *bytes > 0);
        let needed = needed.ok_or(Error::Shape { ty, rows, cols })?;
        let found = (*bytes).as_ref().len().saturating_sub(start);
        if needed > found {
            return Err(Error::Packed { needed, found });
        }
        Ok(Self { ty, rows, cols, panel_bytes, factor: 1.0, data: Packed::Shared(bytes), start })
    }
}

/// Collects the rows of one [`Matrix`] or of several.
pub struct Packer {
    ty: TensorType,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    data: Region,
    /// Rows received so far.
    received: usize,
    /// Whole rows of the incomplete panel, in the file's layout.
    pending: Vec<u8>,
}

impl Packer {
    /// A packer for a matrix `[rows, cols]` of type `ty`; reserves its memory.
    ///
    /// # Errors
    /// The type has no kernels, the shape is impossible, or the allocation fails.
    pub fn new(ty: TensorType, rows: usize, cols: usize) -> Result<Self, Error> {
        if rows == 0 || cols == 0 || !cols.is_multiple_of(ty.block_len()) {
            return Err(Error::Shape { ty, rows, cols });
        }
        let panel_bytes = panel_bytes(ty, cols).ok_or(Error::Type { ty })?;
        let bytes = Matrix::bytes_of(ty, rows, cols).ok_or(Error::Shape { ty, rows, cols })?;
        let data = Region::zeroed(bytes)?;
        Ok(Self { ty, rows, cols, panel_bytes, data, received: 0, pending: Vec::new() })
    }

    /// Of one row in the file.
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols)
    }

    /// Adds the next rows, in the file's layout; any number of whole rows.
    ///
    /// # Errors
    /// `bytes` is not a whole number of rows, or more than are missing.
    pub fn push(&mut self, pool: &Pool, bytes: &[u8]) -> Result<(), Error> {
        let row_bytes = self.row_bytes();
        let rows = bytes.len() / row_bytes;
        let rows_left = self.rows - self.received;
        if !bytes.len().is_multiple_of(row_bytes) || rows > rows_left {
            return Err(Error::Push { bytes: bytes.len(), row_bytes, rows_left });
        }
        let mut bytes = bytes;
        if !self.pending.is_empty() {
            let missing = LANES * row_bytes - self.pending.len();
            let (head, tail) = bytes.split_at(missing.min(bytes.len()));
            self.pending.extend_from_slice(head);
            bytes = tail;
            self.received += head.len() / row_bytes;
            if self.pending.len() == LANES * row_bytes {
                let pending = std::mem::take(&mut self.pending);
                self.pack(pool, self.received / LANES - 1, &pending);
            }
        }
        let (whole, rest) = bytes.split_at(bytes.len() / (LANES * row_bytes) * LANES * row_bytes);
        self.pack(pool, self.received / LANES, whole);
        self.pending.extend_from_slice(rest);
        self.received += bytes.len() / row_bytes;
        Ok(())
    }

    /// The matrix, after all rows have been added.
    ///
    /// # Errors
    /// Rows are missing.
    pub fn finish(self) -> Result<Matrix, Error> {
        let mut matrices = self.finish_several(1)?;
        Ok(matrices.pop().expect("one was asked for"))
    }

    /// Whether the rows make `count` equal matrices that each start at a panel.
    pub fn divides_into(&self, count: usize) -> bool {
        count == 1 || (count > 0 && self.rows.is_multiple_of(count * LANES))
    }

    /// `count` equal matrices, one below the other, after all rows have been added. They share
    /// their memory.
    ///
    /// # Errors
    /// Rows are missing.
    ///
    /// # Panics
    /// If the rows do not divide evenly, see [`Self::divides_into`].
    pub fn finish_several(mut self, count: usize) -> Result<Vec<Matrix>, Error> {
        assert!(self.divides_into(count), "{} rows do not make {count} matrices", self.rows);
        if self.received != self.rows {
            return Err(Error::Incomplete { packed: self.received, rows: self.rows });
        }
        if !self.pending.is_empty() {
            // Zero rows have zero scales and add nothing.
            self.pending.resize(LANES * self.row_bytes(), 0);
            let pending = std::mem::take(&mut self.pending);
            self.pack_one(self.rows.div_ceil(LANES) - 1, &pending);
        }
        let Self { ty, cols, panel_bytes, .. } = self;
        let rows = self.rows / count;
        let matrix_bytes = rows.div_ceil(LANES) * panel_bytes;
        let data = Packed::Own(Arc::new(self.data));
        let matrix = |at| {
            let data = data.clone();
            Matrix { ty, rows, cols, panel_bytes, factor: 1.0, data, start: at * matrix_bytes }
        };
        Ok((0..count).map(matrix).collect())
    }

    /// Packs whole panels from `first` on.
    fn pack(&mut self, pool: &Pool, first: usize, rows: &[u8]) {
        let (ty, panel_bytes) = (self.ty, self.panel_bytes);
        let data = SharedMut::new(self.data.as_mut_ptr());
        let panels = rows.len() / panel_bytes;
        pool.run(panels, |index| {
            let source = &rows[index * panel_bytes..][..panel_bytes];
            // SAFETY: panel `first + index` lies inside the region (`push` checked the number of
            // rows), and belongs to this task only.
            let target = unsafe {
                let start = data.ptr().add((first + index) * panel_bytes);
                std::slice::from_raw_parts_mut(start, panel_bytes)
            };
            pack_panel(ty, source, target);
        });
    }

    fn pack_one(&mut self, panel: usize, rows: &[u8]) {
        let panel_bytes = self.panel_bytes;
        assert!(panel < self.rows.div_ceil(LANES) && rows.len() == panel_bytes);
        // SAFETY: the panel lies inside the region, which `self` owns.
        let target = unsafe {
            let start = self.data.as_mut_ptr().add(panel * panel_bytes);
            std::slice::from_raw_parts_mut(start, panel_bytes)
        };
        pack_panel(self.ty, rows, target);
    }
}

/// Converts rows in the file's layout to f32; reuses its memory between calls.
#[derive(Default)]
pub struct Dequantizer {
    /// 16 rows if fewer are left, and a panel.
    rows: Vec<u8>,
    panel: Vec<u8>,
}

impl Dequantizer {
    /// `bytes`: whole rows of `cols` elements of type `ty`; `out`: `[rows, cols]` f32.
    ///
    /// # Errors
    /// The type has no kernels, the shape is impossible, or the number of rows differs.
    pub fn run(
        &mut self,
        ty: TensorType,
        cols: usize,
        bytes: &[u8],
        out: &mut [f32],
    ) -> Result<(), Error> {
        let rows = out.len() / cols.max(1);
        if cols == 0 || !cols.is_multiple_of(ty.block_len()) {
            return Err(Error::Shape { ty, rows, cols });
        }
        let panel_bytes = panel_bytes(ty, cols).ok_or(Error::Type { ty })?;
        let row_bytes = ty.row_bytes(cols);
        if bytes.len() != rows * row_bytes || out.len() != rows * cols {
            return Err(Error::Push { bytes: bytes.len(), row_bytes, rows_left: rows });
        }
        self.panel.resize(panel_bytes, 0);
        for (bytes, out) in bytes.chunks(LANES * row_bytes).zip(out.chunks_mut(LANES * cols)) {
            self.rows.clear();
            self.rows.extend_from_slice(bytes);
            self.rows.resize(LANES * row_bytes, 0);
            pack_panel(ty, &self.rows, &mut self.panel);
            for (lane, out) in out.chunks_exact_mut(cols).enumerate() {
                read_row(ty, &self.panel, lane, 1.0, out);
            }
        }
        Ok(())
    }
}

/// Dequantises one lane of a panel.
fn read_row(ty: TensorType, panel: &[u8], lane: usize, factor: f32, out: &mut [f32]) {
    let isa = Isa::chosen();
    with_quantised!(ty, T => run(isa, QuantisedRow::<T>::new(panel, lane, factor, out)), _ => {
        with_float!(ty, T => run(isa, FloatRow::<T>::new(panel, lane, out)), _ => {
            unreachable!("no panel of type {ty} can be made")
        })
    });
}

/// Dequantises one lane of a panel.
struct QuantisedRow<'a, T> {
    panel: &'a [u8],
    lane: usize,
    factor: f32,
    out: &'a mut [f32],
    format: std::marker::PhantomData<T>,
}

impl<'a, T> QuantisedRow<'a, T> {
    fn new(panel: &'a [u8], lane: usize, factor: f32, out: &'a mut [f32]) -> Self {
        Self { panel, lane, factor, out, format: std::marker::PhantomData }
    }
}

impl<T: Quantised> Kernel for QuantisedRow<'_, T> {
    type Out = ();
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let records = self.panel.chunks_exact(T::RECORD);
        for (record, out) in records.zip(self.out.chunks_exact_mut(T::TILES * TILE_COLS)) {
            let record = record.as_ptr();
            // SAFETY: the chunk is a whole record of this type.
            let head = unsafe { T::head(s, record) };
            for (tile, out) in out.chunks_exact_mut(TILE_COLS).enumerate() {
                let mut weights = [0_u8; TILE * VECTOR_BYTES];
                let mut scales = [[0.0_f32; LANES]; 4];
                // SAFETY: as above, and each vector stored has its place in a buffer.
                unsafe {
                    let (unpacked, found) = read_tile::<S, T>(s, record, &head, tile, self.factor);
                    for i in 0..TILE {
                        s.store_i(weights.as_mut_ptr().add(i * VECTOR_BYTES), unpacked[i]);
                    }
                    for half in 0..2 {
                        s.store(scales[half].as_mut_ptr(), found.scale[half]);
                        s.store(scales[2 + half].as_mut_ptr(), found.offset[half]);
                    }
                }
                for (k, value) in out.iter_mut().enumerate() {
                    let half = k / 16;
                    let weight = weights[k / 4 * VECTOR_BYTES + 4 * self.lane + k % 4];
                    let number = (i32::from(weight) - T::ZERO) as f32;
                    *value = number * scales[half][self.lane];
                    if T::OFFSETS {
                        *value += scales[2 + half][self.lane];
                    }
                }
            }
        }
    }
}

/// Reads one lane of a panel of floats.
struct FloatRow<'a, T> {
    panel: &'a [u8],
    lane: usize,
    out: &'a mut [f32],
    format: std::marker::PhantomData<T>,
}

impl<'a, T> FloatRow<'a, T> {
    fn new(panel: &'a [u8], lane: usize, out: &'a mut [f32]) -> Self {
        Self { panel, lane, out, format: std::marker::PhantomData }
    }
}

impl<T: FloatFormat> Kernel for FloatRow<'_, T> {
    type Out = ();
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(self.panel.len() >= self.out.len().div_ceil(T::COLS) * T::RECORD);
        for (col, value) in self.out.iter_mut().enumerate() {
            let mut lanes = [0.0; LANES];
            // SAFETY: the panel has the column, as asserted; the buffer is one vector.
            unsafe { s.store(lanes.as_mut_ptr(), T::column(s, self.panel.as_ptr(), col)) };
            *value = lanes[self.lane];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::WEIGHT_TYPES;

    use crate::format::reference::{dequantise, random_rows};
    use fastrand::Rng;

    #[test]
    fn rows_are_dequantised_as_gguf_defines_them() {
        let mut rng = Rng::with_seed(1);
        let mut dequantizer = Dequantizer::default();
        for ty in WEIGHT_TYPES {
            for rows in [1, 16, 21] {
                let cols = 2 * ty.block_len();
                let bytes = random_rows(ty, rows, cols, &mut rng);
                let expected = bytes.chunks(ty.row_bytes(cols)).map(|row| dequantise(ty, row));
                let mut got = vec![f32::NAN; rows * cols];
                dequantizer.run(ty, cols, &bytes, &mut got).unwrap();
                assert_eq!(got, expected.flatten().collect::<Vec<_>>(), "{rows} rows of {ty}");
                let short = &bytes[1..];
                assert!(dequantizer.run(ty, cols, short, &mut got).is_err(), "{ty}");
            }
        }
    }
}
