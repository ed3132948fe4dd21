//! The tensors of a model, with the part of each that a rank has.

use std::ops::Range;

use std::collections::HashSet;

use gguf::{Directory, TensorInfo, TensorType, WEIGHT_TYPES};

use crate::file::{Error, names};

/// A tensor of a layer or of the output head: one or several equal matrices, one below the other
/// (experts, heads). A vector is a matrix of one column.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The name under which code looks it up.
    pub(crate) role: &'static str,
    /// Its name in the file.
    pub name: String,
    pub ty: TensorType,
    /// The matrices, their rows and their columns; a rank has these parts of each:
    pub(crate) shape: [usize; 3],
    pub(crate) matrices: Part,
    pub(crate) rows: Part,
    pub(crate) cols: Part,
    /// Whether each matrix is multiplied separately; else a rank's form one, row below row.
    pub(crate) apart: bool,
    /// Whether it is added or scales, instead of a matrix multiplication.
    pub is_vector: bool,
}

/// Refuses types without multiplication kernels among the used tensors.
pub(crate) fn check_types(directory: &Directory, read: &HashSet<&str>) -> Result<(), Error> {
    let is_apart = |name: &str| names::APART.contains(&name) || names::is_of_pooled(name);
    let is_read = |name: &str| read.contains(name) || is_apart(name);
    let is_known = |tensor: &TensorInfo| {
        WEIGHT_TYPES.contains(&tensor.ty) || names::is_of_integers(&tensor.name)
    };
    let mut read = directory.tensors().iter().filter(|tensor| is_read(&tensor.name));
    match read.find(|tensor| !is_known(tensor)) {
        None => Ok(()),
        Some(found) => {
            let of_files = WEIGHT_TYPES.iter().filter(|ty| !ty.is_own());
            let known = of_files.map(TensorType::to_string).collect::<Vec<_>>().join(", ");
            Err(Error::WeightType { name: found.name.clone(), ty: found.ty, known })
        }
    }
}

/// Refuses vectors of another type than f32.
pub(crate) fn check_float(tensor: &TensorInfo) -> Result<(), Error> {
    let TensorInfo { name, ty, .. } = tensor;
    match ty {
        TensorType::F32 => Ok(()),
        _ => Err(Error::Unsupported { what: format!("tensor \"{name}\" of type {ty}") }),
    }
}

/// A rank's part of a dimension.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// This range, on every rank.
    Of(Range<usize>),
    /// `dim` elements for each of its query heads of a kind, from `first` on.
    Queries { kind: usize, first: usize, dim: usize },
    /// The same of its key/value heads.
    Keys { kind: usize, first: usize, dim: usize },
    /// Its groups of heads of a kind with jointly compressed outputs.
    OutputGroups { kind: usize },
    /// Columns of the attention output matrix for heads of a kind.
    Attention { kind: usize },
    /// `dim` elements for each key head of its recurrent heads: head `k` begins at `first + k *
    /// stride`.
    RecurrentKeys { first: usize, dim: usize, stride: usize },
    /// `dim` elements for each of its recurrent value heads, in the rank's order: head `v` begins
    /// at `first + v / group * stride + v % group * dim`.
    RecurrentValues { first: usize, dim: usize, group: usize, stride: usize },
    /// Its hidden elements of a dense block of a kind, from `first` on.
    FeedForward { kind: usize, first: usize },
    /// Its experts, if ranks have whole ones, else all `count`.
    Experts { count: usize },
    /// The experts that it adds the whole expert's bias to: this rank has the first leaf.
    BiasedExperts { count: usize },
    /// Its hidden elements of each expert of `hidden`, from `first` on.
    Expert { first: usize, hidden: usize },
    /// Its hidden elements of the shared expert.
    SharedExpert,
    /// Its rows of the output head.
    Vocab,
}

impl Part {
    /// `dim` elements for each recurrent value head, one head after the other from `first` on.
    pub fn values(first: usize, dim: usize) -> Self {
        Self::RecurrentValues { first, dim, group: 1, stride: dim }
    }

    /// The same for each key head.
    pub fn keys(first: usize, dim: usize) -> Self {
        Self::RecurrentKeys { first, dim, stride: dim }
    }
}

/// The tensor `name`, which must have the shape `[cols, rows]`.
///
/// # Errors
/// It is missing or has another shape.
pub fn checked<'a>(
    directory: &'a Directory,
    name: &str,
    [cols, rows]: [usize; 2],
) -> Result<&'a TensorInfo, Error> {
    let tensor = directory.tensor(name)?;
    if (tensor.columns(), tensor.rows()) == (cols, rows) {
        return Ok(tensor);
    }
    let (found_cols, found_rows) = (tensor.columns(), tensor.rows());
    Err(Error::Shape { name: name.to_owned(), found_cols, found_rows, cols, rows })
}

/// The vector `name` of `len` floats.
///
/// # Errors
/// It is missing, or something else.
pub fn checked_vector<'a>(
    directory: &'a Directory,
    name: &str,
    len: usize,
) -> Result<&'a TensorInfo, Error> {
    let tensor = checked(directory, name, [len, 1])?;
    check_float(tensor)?;
    Ok(tensor)
}
