//! Reading a rank's slice of a tensor, from the disk or from a peer, and packing it on the way: the
//! memory beside the packed weights is two chunks, whatever the tensor's size.

mod chunks;

use std::collections::HashSet;
use std::ops::Range;

use backend::Backend;
use gguf::{Source, Strided, TensorInfo, TensorType};

use crate::{ModelError, names};
use chunks::Buffer;

/// Called with the bytes that were just loaded.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// Loads slices of one file into one backend.
pub(crate) struct Loader<'a, B: Backend> {
    pub backend: &'a mut B,
    pub source: &'a dyn Source,
    pub progress: Progress<'a>,
    /// Bytes of all matrices so far, as the device holds them.
    pub device_bytes: u64,
    /// The names of all tensors so far.
    read: HashSet<String>,
    /// Kept from tensor to tensor.
    buffers: Vec<Buffer>,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub fn new(backend: &'a mut B, source: &'a dyn Source, progress: Progress<'a>) -> Self {
        let (read, buffers) = (HashSet::new(), Vec::new());
        Self { backend, source, progress, device_bytes: 0, read, buffers }
    }

    /// Rows `rows` of a `[rows_all, cols]` matrix: a column-parallel weight.
    pub fn rows(
        &mut self,
        name: &str,
        cols: usize,
        rows_all: usize,
        rows: Range<usize>,
    ) -> Result<B::Matrix, ModelError> {
        self.matrix(name, [cols, rows_all], 0..cols, std::slice::from_ref(&rows))
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

    /// Rows and columns of some of the `count` equal matrices `[cols_all, rows_all]` of a tensor:
    /// experts, or heads.
    pub fn several(
        &mut self,
        name: &str,
        count: usize,
        wanted: Range<usize>,
        [cols_all, rows_all]: [usize; 2],
        cols: Range<usize>,
        rows: Range<usize>,
    ) -> Result<Vec<B::Matrix>, ModelError> {
        let (shape, matrices) = ([cols_all, rows_all * count], wanted.len());
        if rows == (0..rows_all) {
            let all = wanted.start * rows_all..wanted.end * rows_all;
            return self.matrices(name, shape, matrices, cols, std::slice::from_ref(&all));
        }
        let of_one = |at: usize| at * rows_all + rows.start..at * rows_all + rows.end;
        let runs: Vec<_> = wanted.map(of_one).collect();
        self.matrices(name, shape, matrices, cols, &runs)
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

    fn matrix(
        &mut self,
        name: &str,
        shape: [usize; 2],
        cols: Range<usize>,
        runs: &[Range<usize>],
    ) -> Result<B::Matrix, ModelError> {
        let mut matrices = self.matrices(name, shape, 1, cols, runs)?;
        Ok(matrices.pop().expect("the backend ends as many as were begun"))
    }

    /// `count` equal matrices out of some runs of rows. `shape` is the whole tensor's
    /// `[cols, rows]`.
    fn matrices(
        &mut self,
        name: &str,
        shape: [usize; 2],
        count: usize,
        cols: Range<usize>,
        runs: &[Range<usize>],
    ) -> Result<Vec<B::Matrix>, ModelError> {
        let tensor = self.find(name, shape)?;
        let failed = |source| ModelError::Backend { name: name.to_owned(), source };
        let rows = runs.iter().map(Range::len).sum::<usize>() / count.max(1);
        let start = self.backend.start_matrices(tensor.ty, count, rows, cols.len());
        let mut loading = start.map_err(failed)?;
        let pieces = chunks::of_runs(&tensor, &cols, runs);
        let read = chunks::read(self.source, &pieces, &mut self.buffers, |bytes| {
            self.backend.push_rows(&mut loading, bytes).map_err(failed)?;
            (self.progress)(bytes.len() as u64);
            Ok(())
        });
        read.map_err(|error| error.of_tensor(name))?;
        let matrices = self.backend.finish_matrices(loading).map_err(failed)?;
        let bytes = matrices.iter().map(|matrix| self.backend.matrix_bytes(matrix) as u64);
        self.device_bytes += bytes.sum::<u64>();
        Ok(matrices)
    }

    fn find(&mut self, name: &str, [cols, rows]: [usize; 2]) -> Result<TensorInfo, ModelError> {
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
        self.read.insert(name.to_owned());
        Ok(tensor.clone())
    }

    /// A layer's tensor that nothing reads would have changed the results: the file is of a kind
    /// that this version does not know.
    ///
    /// # Errors
    /// There is one in `layers`, all of whose known tensors have been loaded.
    pub fn check_all_read(&self, arch: &str, layers: &Range<usize>) -> Result<(), ModelError> {
        let of_layers = |name: &str| {
            let redundant = names::REDUNDANT.iter().any(|redundant| name.ends_with(redundant));
            !redundant && names::layer_of(name).is_some_and(|at| layers.contains(&at))
        };
        let mut names = self.source.directory().tensors().iter().map(|tensor| &tensor.name);
        match names.find(|name| of_layers(name) && !self.read.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                Err(ModelError::UnknownTensor { name: name.clone(), arch: arch.to_owned() })
            }
        }
    }

    fn read(&mut self, name: &str, pieces: Strided, out: &mut [u8]) -> Result<(), ModelError> {
        let read = self.source.read(pieces, out);
        read.map_err(|source| ModelError::Read { name: name.to_owned(), source })?;
        (self.progress)(out.len() as u64);
        Ok(())
    }
}
