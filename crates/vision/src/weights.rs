//! Reads tensors of an mmproj file. Shapes are compared with the configuration before memory is
//! taken, and at the end no tensor of the tower may be left unread.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use gguf::{Directory, Source, Strided, TensorInfo, TensorType};
use kernels::{Dequantizer, Matrix, Packer, Pool};

use crate::TowerError;
use crate::linear::{Clamp, Linear};
use crate::norm::Norm;

/// Bytes read and packed at a time.
const CHUNK_BYTES: usize = 2 << 20;

/// The tower's tensors of a file that may hold a model beside it, or what hears.
pub(crate) fn of_tower(directory: &Directory) -> impl Iterator<Item = &TensorInfo> {
    let is_alone = directory.find_str("general.architecture").ok().flatten() == Some("clip");
    let of_ears = |name: &str| name.starts_with("a.") || name.starts_with("mm.a.");
    directory.tensors().iter().filter(move |tensor| {
        let is_named = tensor.name.starts_with("v.") || tensor.name.starts_with("mm.");
        (is_alone || is_named) && !of_ears(&tensor.name)
    })
}

/// The tensors of one file.
pub(crate) struct Weights<'a> {
    pub pool: &'a Pool,
    pub source: &'a dyn Source,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Weights<'a> {
    pub fn new(pool: &'a Pool, source: &'a dyn Source) -> Self {
        Self { pool, source, read: RefCell::default() }
    }

    pub fn has(&self, name: &str) -> bool {
        self.source.directory().find_tensor(name).is_some()
    }

    /// `[rows, cols]` of `name.weight`, the bias `name.bias` and the limits `name.input_min` and so
    /// on, if there are any.
    pub fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear, TowerError> {
        self.linear_rows(name, rows, 0..rows, cols)
    }

    /// The same for some of the tensor's `rows_all` rows.
    pub fn linear_rows(
        &self,
        name: &str,
        rows_all: usize,
        rows: Range<usize>,
        cols: usize,
    ) -> Result<Linear, TowerError> {
        let tensor = self.tensor(&format!("{name}.weight"), rows_all * cols)?;
        if tensor.columns() != cols {
            return Err(shape(tensor, format!("{rows_all} rows of {cols}")));
        }
        let matrix = self.matrix(tensor, rows.clone())?;
        let bias = self.find_vector(&format!("{name}.bias"), rows_all)?;
        let bias = bias.map(|bias| bias[rows].to_vec());
        Ok(Linear { matrix, bias, clamp: self.clamp(name)? })
    }

    /// A matrix `[rows, cols]` of other numbers than the file's: a sum or another order of them.
    pub fn linear_of(
        &self,
        name: &str,
        rows: usize,
        numbers: &[f32],
    ) -> Result<Linear, TowerError> {
        let failed = |source| TowerError::Kernel { name: name.to_owned(), source };
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut packer =
            Packer::new(TensorType::F32, rows, numbers.len() / rows).map_err(failed)?;
        packer.push(self.pool, &bytes).map_err(failed)?;
        let matrix = packer.finish().map_err(failed)?;
        let bias = self.find_vector(&format!("{name}.bias"), rows)?;
        Ok(Linear { matrix, bias, clamp: None })
    }

    /// A norm over `len` numbers: `name.weight`, and `name.bias` if the mean is subtracted.
    pub fn norm(&self, name: &str, len: usize, rms: bool, eps: f32) -> Result<Norm, TowerError> {
        let gain = self.numbers(&format!("{name}.weight"), len)?;
        let bias = format!("{name}.bias");
        let bias = if rms { None } else { Some(self.numbers(&bias, len)?) };
        Ok(Norm { rms, gain, bias, eps })
    }

    /// The same, if the file has it.
    pub fn find_norm(
        &self,
        name: &str,
        len: usize,
        rms: bool,
        eps: f32,
    ) -> Result<Option<Norm>, TowerError> {
        let is_there = self.has(&format!("{name}.weight"));
        if is_there { self.norm(name, len, rms, eps).map(Some) } else { Ok(None) }
    }

    pub fn find_vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, TowerError> {
        if self.has(name) { self.numbers(name, len).map(Some) } else { Ok(None) }
    }

    /// The `len` numbers of a tensor of any type and shape.
    pub fn numbers(&self, name: &str, len: usize) -> Result<Vec<f32>, TowerError> {
        let tensor = self.tensor(name, len)?;
        let mut numbers = vec![0.0; len];
        let bytes = self.bytes(tensor, 0..tensor.rows())?;
        let read = Dequantizer::default().run(tensor.ty, tensor.columns(), &bytes, &mut numbers);
        read.map_err(|source| TowerError::Kernel { name: name.to_owned(), source })?;
        Ok(numbers)
    }

    /// A tensor of `len` numbers.
    pub fn tensor(&self, name: &str, len: usize) -> Result<&'a TensorInfo, TowerError> {
        let tensor = self.source.directory().tensor(name)?;
        let found = tensor.dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(*dim));
        if found != Some(len as u64) {
            return Err(shape(tensor, len.to_string()));
        }
        self.read.borrow_mut().insert(name.to_owned());
        Ok(tensor)
    }

    /// Numbers of a tensor's row.
    pub fn columns(&self, name: &str) -> Result<usize, TowerError> {
        Ok(self.source.directory().tensor(name)?.columns())
    }

    /// The rows of a tensor if each has `cols` numbers.
    pub fn rows_of(&self, name: &str, cols: usize) -> Result<usize, TowerError> {
        let tensor = self.source.directory().tensor(name)?;
        let numbers: u64 = tensor.columns() as u64 * tensor.rows() as u64;
        match numbers % cols as u64 {
            0 if numbers > 0 => Ok((numbers / cols as u64) as usize),
            _ => Err(shape(tensor, format!("a multiple of {cols}"))),
        }
    }

    /// Marks a tensor that another part of the program needs, or nobody.
    pub fn leave(&self, name: &str) {
        self.read.borrow_mut().insert(name.to_owned());
    }

    /// Checks that every tensor of the tower was read. Those of an ear (`a.`, `mm.a.`) are no part
    /// of it.
    pub fn check_all_read(&self, projector: &'static str) -> Result<(), TowerError> {
        let read = self.read.borrow();
        let mut names = of_tower(self.source.directory()).map(|tensor| &tensor.name);
        match names.find(|name| !read.contains(*name)) {
            Some(name) => Err(TowerError::Unread { name: name.clone(), projector }),
            None => Ok(()),
        }
    }

    fn clamp(&self, name: &str) -> Result<Option<Clamp>, TowerError> {
        let limit = |end: &str, none: f32| {
            let found = self.find_vector(&format!("{name}.{end}"), 1)?;
            Ok::<f32, TowerError>(found.map_or(none, |found| found[0]))
        };
        let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
        let input = (limit("input_min", low)?, limit("input_max", high)?);
        let output = (limit("output_min", low)?, limit("output_max", high)?);
        let all = [input, output];
        if all.iter().any(|(low, high)| low.is_nan() || high.is_nan() || low > high) {
            let what = format!("the limits of \"{name}\" are {all:?}");
            return Err(TowerError::impossible(what));
        }
        Ok((all != [(low, high); 2]).then_some(Clamp { input, output }))
    }

    fn matrix(&self, tensor: &TensorInfo, rows: Range<usize>) -> Result<Matrix, TowerError> {
        let failed = |source| TowerError::Kernel { name: tensor.name.clone(), source };
        let mut packer = Packer::new(tensor.ty, rows.len(), tensor.columns()).map_err(failed)?;
        let at_once = (CHUNK_BYTES / tensor.row_bytes()).max(1);
        for first in rows.clone().step_by(at_once) {
            let bytes = self.bytes(tensor, first..rows.end.min(first + at_once))?;
            packer.push(self.pool, &bytes).map_err(failed)?;
        }
        packer.finish().map_err(failed)
    }

    /// The bytes of some rows.
    fn bytes(&self, tensor: &TensorInfo, rows: Range<usize>) -> Result<Vec<u8>, TowerError> {
        let row = tensor.row_bytes();
        let piece = (row * rows.len()) as u64;
        let start = tensor.range.start + (row * rows.start) as u64;
        let mut bytes = vec![0; piece as usize];
        let read = self.source.read(Strided { start, piece, stride: piece, count: 1 }, &mut bytes);
        read.map_err(|source| TowerError::Read { name: tensor.name.clone(), source })?;
        Ok(bytes)
    }
}

fn shape(tensor: &TensorInfo, wanted: String) -> TowerError {
    let dims: Vec<String> = tensor.dims.iter().map(u64::to_string).collect();
    TowerError::Shape { name: tensor.name.clone(), found: dims.join(" x "), wanted }
}
