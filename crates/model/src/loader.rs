//! Reading a rank's slice of a tensor, straight from the file's map or from a peer.

use std::ops::Range;

use backend::Backend;
use gguf::{Source, Strided, TensorInfo, TensorType};

use crate::ModelError;

/// Bytes that are read and packed at a time where the source cannot show them in place.
const CHUNK_BYTES: usize = 4 << 20;

/// Called with the bytes that were just loaded.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// Loads slices of one file into one backend.
pub(crate) struct Loader<'a, B: Backend> {
    pub backend: &'a mut B,
    pub source: &'a dyn Source,
    pub progress: Progress<'a>,
    /// Bytes of all matrices so far, as the device holds them.
    pub device_bytes: u64,
}

impl<B: Backend> Loader<'_, B> {
    /// Rows `rows` of a `[rows_all, cols]` matrix: a column-parallel weight.
    pub fn rows(
        &mut self,
        name: &str,
        cols: usize,
        rows_all: usize,
        rows: Range<usize>,
    ) -> Result<B::Matrix, ModelError> {
        self.matrix(name, [cols, rows_all], 0..cols, &[rows])
    }

    /// The rows of several runs, one after the other.
    pub fn runs_of_rows(
        &mut self,
        name: &str,
        cols: usize,
        rows_all: usize,
        runs: &[Range<usize>],
    ) -> Result<B::Matrix, ModelError> {
        self.matrix(name, [cols, rows_all], 0..cols, runs)
    }

    /// Columns `cols` of a `[rows, cols_all]` matrix: a row-parallel weight.
    pub fn columns(
        &mut self,
        name: &str,
        cols_all: usize,
        rows: usize,
        cols: Range<usize>,
    ) -> Result<B::Matrix, ModelError> {
        self.matrix(name, [cols_all, rows], cols, std::slice::from_ref(&(0..rows)))
    }

    /// Rows and columns of one of the `count` equal matrices `[rows_all, cols_all]` of a tensor:
    /// an expert, or a head.
    pub fn one_of(
        &mut self,
        name: &str,
        count: usize,
        index: usize,
        [cols_all, rows_all]: [usize; 2],
        cols: Range<usize>,
        rows: Range<usize>,
    ) -> Result<B::Matrix, ModelError> {
        let rows = index * rows_all + rows.start..index * rows_all + rows.end;
        self.matrix(name, [cols_all, rows_all * count], cols, &[rows])
    }

    /// A vector of exactly `len` numbers, such as a norm's gain.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<B::Vector, ModelError> {
        let values = self.floats(name, [len, 1])?;
        Ok(self.backend.vector(&values))
    }

    /// Numbers `part` of a vector of `len` numbers, if the file has it: a column-parallel bias.
    pub fn find_part(
        &mut self,
        name: &str,
        len: usize,
        part: Range<usize>,
    ) -> Result<Option<B::Vector>, ModelError> {
        if self.source.directory().find_tensor(name).is_none() {
            return Ok(None);
        }
        let values = self.floats(name, [len, 1])?;
        Ok(Some(self.backend.vector(&values[part])))
    }

    /// All numbers of an F32 tensor of `[cols, rows]`.
    pub fn floats(&mut self, name: &str, shape: [usize; 2]) -> Result<Vec<f32>, ModelError> {
        let tensor = self.find(name, shape)?;
        if tensor.ty != TensorType::F32 {
            let what = format!("tensor \"{name}\" of type {}", tensor.ty);
            return Err(ModelError::Unsupported { what });
        }
        let mut bytes = vec![0; shape[0] * shape[1] * size_of::<f32>()];
        let whole = bytes.len() as u64;
        let pieces = Strided { start: tensor.range.start, piece: whole, stride: whole, count: 1 };
        self.read(name, pieces, &mut bytes)?;
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
        Ok(bytes.chunks_exact(4).map(float).collect())
    }

    /// `shape` is the whole tensor's `[cols, rows]`.
    fn matrix(
        &mut self,
        name: &str,
        shape: [usize; 2],
        cols: Range<usize>,
        runs: &[Range<usize>],
    ) -> Result<B::Matrix, ModelError> {
        let tensor = self.find(name, shape)?;
        let failed = |source| ModelError::Backend { name: name.to_owned(), source };
        let rows = runs.iter().map(Range::len).sum();
        let start = self.backend.start_matrix(tensor.ty, rows, cols.len());
        let mut loader = start.map_err(failed)?;
        for run in runs {
            self.push_run(&tensor, &mut loader, cols.clone(), run.clone())?;
        }
        let matrix = self.backend.finish_matrix(loader).map_err(failed)?;
        self.device_bytes += self.backend.matrix_bytes(&matrix) as u64;
        Ok(matrix)
    }

    /// Reads one run of rows in chunks and hands them to the backend.
    fn push_run(
        &mut self,
        tensor: &TensorInfo,
        loader: &mut B::Loader,
        cols: Range<usize>,
        rows: Range<usize>,
    ) -> Result<(), ModelError> {
        let name = || tensor.name.clone();
        let row_bytes = tensor.row_bytes() as u64;
        let piece = tensor.ty.row_bytes(cols.len());
        let first = tensor.range.start + tensor.ty.row_bytes(cols.start) as u64;
        let rows_max = (CHUNK_BYTES / piece.max(1)).max(1);
        let whole_rows = cols.len() == tensor.columns();
        let mut buffer = Vec::new();
        for at in rows.clone().step_by(rows_max) {
            let count = rows_max.min(rows.end - at);
            let start = first + at as u64 * row_bytes;
            let len = piece * count;
            let view = self.source.view(start, len as u64).filter(|_| whole_rows);
            let bytes = match view {
                Some(bytes) => bytes,
                None => {
                    buffer.resize(len, 0);
                    let (piece, count) = (piece as u64, count as u64);
                    let pieces = Strided { start, piece, stride: row_bytes, count };
                    let read = self.source.read(pieces, &mut buffer);
                    read.map_err(|source| ModelError::Read { name: name(), source })?;
                    &buffer
                }
            };
            let pushed = self.backend.push_rows(loader, bytes);
            pushed.map_err(|source| ModelError::Backend { name: name(), source })?;
            (self.progress)(len as u64);
        }
        Ok(())
    }

    fn find(&self, name: &str, [cols, rows]: [usize; 2]) -> Result<TensorInfo, ModelError> {
        let tensor = self.source.directory().tensor(name)?;
        if (tensor.columns(), tensor.rows()) != (cols, rows) {
            return Err(ModelError::Shape {
                name: name.to_owned(),
                found_cols: tensor.columns(),
                found_rows: tensor.rows(),
                cols,
                rows,
            });
        }
        Ok(tensor.clone())
    }

    fn read(&mut self, name: &str, pieces: Strided, out: &mut [u8]) -> Result<(), ModelError> {
        let read = self.source.read(pieces, out);
        read.map_err(|source| ModelError::Read { name: name.to_owned(), source })?;
        (self.progress)(out.len() as u64);
        Ok(())
    }
}
