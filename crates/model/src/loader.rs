//! Reads a rank's slice of a tensor, from the disk or from a peer, and packs it meanwhile: the
//! memory beside the packed weights is two chunks, whatever the tensor's size.

mod chunks;
mod in_place;
pub(crate) mod shelf;
pub(crate) mod slabs;

use std::ops::Range;
use std::sync::Arc;

use backend::{Backend, Factors};
use gguf::{Source, Strided, TensorInfo, TensorType};
use layout::Slice;

use crate::ModelError;
use chunks::Buffer;
use shelf::Shelf;

/// Called with the number of bytes just loaded.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// Loads slices of one file into one backend.
pub(crate) struct Loader<'a, B: Backend> {
    pub backend: &'a mut B,
    pub source: &'a dyn Source,
    pub progress: Progress<'a>,
    /// Device bytes of all weights so far.
    pub device_bytes: u64,
    /// Where experts lie that are not loaded into memory.
    pub shelf: Option<Arc<Shelf>>,
    /// Reused for every tensor.
    buffers: Vec<Buffer>,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub fn new(backend: &'a mut B, source: &'a dyn Source, progress: Progress<'a>) -> Self {
        Self { backend, source, progress, device_bytes: 0, shelf: None, buffers: Vec::new() }
    }

    /// Loads a slice that is one matrix.
    pub fn matrix(&mut self, slice: &Slice<'_>) -> Result<B::Matrix, ModelError> {
        let mut matrices = self.matrices(slice)?;
        Ok(matrices.pop().expect("the backend ends as many as were begun"))
    }

    /// Loads a slice of several equal matrices: experts, or heads.
    pub fn matrices(&mut self, slice: &Slice<'_>) -> Result<Vec<B::Matrix>, ModelError> {
        let (name, [count, rows, cols]) = (&slice.tensor.name, slice.shape());
        let failed = |source| ModelError::Backend { name: name.clone(), source };
        let tensor = self.source.directory().tensor(name)?;
        let start = self.backend.start_matrices(tensor.ty, count, rows, cols);
        let mut loading = start.map_err(failed)?;
        let pieces = chunks::of_runs(tensor, &slice.cols, &slice.runs());
        let read = chunks::read(self.source, &pieces, &mut self.buffers, |bytes| {
            self.backend.push_rows(&mut loading, bytes).map_err(failed)?;
            (self.progress)(bytes.len() as u64);
            Ok(())
        });
        read.map_err(|error| error.of_tensor(name))?;
        if let Some(factors) = self.factors(slice)? {
            loading.set_factors(&factors).map_err(failed)?;
        }
        let matrices = self.backend.finish_matrices(loading).map_err(failed)?;
        let bytes = matrices.iter().map(|matrix| self.backend.matrix_bytes(matrix) as u64);
        self.device_bytes += bytes.sum::<u64>();
        Ok(matrices)
    }

    /// A matrix without rows, in place of one that is elsewhere.
    pub fn nothing(&mut self) -> Result<B::Matrix, ModelError> {
        let start = self.backend.start_matrices(TensorType::F32, 1, 0, 0);
        let mut made = start
            .and_then(|loading| self.backend.finish_matrices(loading))
            .map_err(ModelError::Device)?;
        Ok(made.pop().expect("the backend ends as many as were begun"))
    }

    /// The factors of a slice's matrices, if the file has any.
    pub(crate) fn factors(&mut self, slice: &Slice<'_>) -> Result<Option<Vec<f32>>, ModelError> {
        let source = self.source;
        let Some(tensor) = layout::factors_of(source.directory(), slice.tensor) else {
            return Ok(None);
        };
        let all = self.floats(tensor, 0..tensor.columns() * tensor.rows())?;
        Ok(Some(slice.factors(&all)))
    }

    /// Loads a slice that is one vector, such as a norm's gain.
    pub fn vector(&mut self, slice: &Slice<'_>) -> Result<B::Vector, ModelError> {
        let values = self.numbers(slice)?;
        Ok(self.backend.vector(&values))
    }

    /// Loads a vector that the model may not have.
    pub fn find_vector(
        &mut self,
        slice: Option<Slice<'_>>,
    ) -> Result<Option<B::Vector>, ModelError> {
        slice.map(|slice| self.vector(&slice)).transpose()
    }

    /// Loads a slice of several equal vectors: one for each of this rank's experts.
    pub fn vectors(&mut self, slice: &Slice<'_>) -> Result<Vec<B::Vector>, ModelError> {
        let [count, len, _] = slice.shape();
        let values = self.numbers(slice)?;
        let vector = |at: usize| self.backend.vector(&values[at * len..][..len]);
        Ok((0..count).map(vector).collect())
    }

    /// Loads a slice of vectors as numbers.
    pub fn numbers(&mut self, slice: &Slice<'_>) -> Result<Vec<f32>, ModelError> {
        let tensor = self.source.directory().tensor(&slice.tensor.name)?.clone();
        let mut numbers = Vec::new();
        for run in slice.runs() {
            numbers.extend(self.floats(&tensor, run.start..run.end)?);
        }
        self.device_bytes += (numbers.len() * size_of::<f32>()) as u64;
        (self.progress)(slice.file_bytes());
        Ok(numbers)
    }

    /// Loads a slice that is a whole table of numbers of any type.
    pub fn table(&mut self, slice: &Slice<'_>) -> Result<Vec<f32>, ModelError> {
        let (tensor, bytes) = self.all_bytes(slice)?;
        let mut numbers = vec![0.0; tensor.columns() * tensor.rows()];
        let done = self.backend.dequantize(tensor.ty, tensor.columns(), &bytes, &mut numbers);
        done.map_err(|source| ModelError::Backend { name: tensor.name, source })?;
        self.device_bytes += (numbers.len() * size_of::<f32>()) as u64;
        Ok(numbers)
    }

    /// Loads a slice that is a whole table of integers below `end`.
    pub fn integers(&mut self, slice: &Slice<'_>, end: usize) -> Result<Vec<u32>, ModelError> {
        let (tensor, bytes) = self.all_bytes(slice)?;
        if tensor.ty != TensorType::I32 {
            let what = format!("tensor \"{}\" of type {}", tensor.name, tensor.ty);
            return Err(layout::Error::Unsupported { what }.into());
        }
        let integer = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let found: Vec<u32> = bytes.chunks_exact(size_of::<u32>()).map(integer).collect();
        if let Some(large) = found.iter().find(|found| **found as usize >= end) {
            let what = format!("tensor \"{}\" names {} of {end}", tensor.name, *large as i32);
            return Err(ModelError::Impossible { what });
        }
        self.device_bytes += bytes.len() as u64;
        Ok(found)
    }

    /// A tensor and all its bytes in the file.
    fn all_bytes(&mut self, slice: &Slice<'_>) -> Result<(TensorInfo, Vec<u8>), ModelError> {
        let tensor = self.source.directory().tensor(&slice.tensor.name)?.clone();
        let piece = tensor.range.end - tensor.range.start;
        let mut bytes = vec![0; piece as usize];
        let pieces = Strided { start: tensor.range.start, piece, stride: piece, count: 1 };
        let read = self.source.read(pieces, &mut bytes);
        read.map_err(|source| ModelError::Read { name: tensor.name.clone(), source })?;
        (self.progress)(piece);
        Ok((tensor, bytes))
    }

    /// Loads elements `part` of an F32 tensor.
    pub fn floats(
        &mut self,
        tensor: &TensorInfo,
        part: Range<usize>,
    ) -> Result<Vec<f32>, ModelError> {
        let mut bytes = vec![0; part.len() * size_of::<f32>()];
        let (start, piece) = ((part.start * size_of::<f32>()) as u64, bytes.len() as u64);
        let pieces = Strided { start: tensor.range.start + start, piece, stride: piece, count: 1 };
        let read = self.source.read(pieces, &mut bytes);
        read.map_err(|source| ModelError::Read { name: tensor.name.clone(), source })?;
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
        Ok(bytes.chunks_exact(size_of::<f32>()).map(float).collect())
    }
}
