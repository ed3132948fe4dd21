//! The factors of matrices in NVFP4: a tensor `<matrix>.scale` of one f32, or of one for each
//! matrix in a tensor of experts. They multiply all weights. The scale of a matrix's input,
//! `<matrix>.input_scale`, belongs to products in four bits, which Sinew does not have.

use std::collections::HashSet;

use gguf::{Directory, TensorInfo, TensorType};

use crate::file::{Error, names};
use crate::tensors::{Tensor, check_float};

/// The experts' output matrices, whose factors are read with the weights of experts, as other
/// types' are.
const ROUTED: &str = "ffn_down_exps";

/// The factors of a matrix, if it has any.
pub fn factors_of<'a>(directory: &'a Directory, matrix: &Tensor) -> Option<&'a TensorInfo> {
    if matrix.ty != TensorType::NVFP4 || matrix.role == ROUTED {
        return None;
    }
    directory.find_tensor(&format!("{}.scale", matrix.name.strip_suffix(".weight")?))
}

/// Checks the shapes and types of all factors.
pub(crate) fn check<'a>(
    directory: &Directory,
    mut matrices: impl Iterator<Item = &'a Tensor>,
) -> Result<(), Error> {
    matrices.try_for_each(|matrix| {
        let Some(found) = factors_of(directory, matrix) else { return Ok(()) };
        check_float(found)?;
        let (found_cols, found_rows) = (found.columns(), found.rows());
        let count = matrix.shape[0];
        if [Some(1), Some(count)].contains(&found_cols.checked_mul(found_rows)) {
            return Ok(());
        }
        Err(Error::Shape { name: found.name.clone(), found_cols, found_rows, cols: count, rows: 1 })
    })
}

/// Whether tensor `name` is of a matrix in NVFP4 among those `read`.
pub(crate) fn is_one(directory: &Directory, name: &str, read: &HashSet<&str>) -> bool {
    let stem = name.strip_suffix(".scale").or_else(|| name.strip_suffix(".input_scale"));
    let matrix = stem.map(|stem| format!("{stem}.weight"));
    matrix.is_some_and(|matrix| {
        let found = directory.find_tensor(&matrix);
        // Embeddings are looked up, without a factor.
        let is_product = matrix != names::EMBEDDING && read.contains(matrix.as_str());
        is_product && found.is_some_and(|found| found.ty == TensorType::NVFP4)
    })
}
