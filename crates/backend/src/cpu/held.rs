//! Weights on host memory.

use std::sync::Arc;

use kernels::Matrix;

use crate::Backend;

/// A backend with its weights on host memory.
pub(super) trait OnHost: Backend<Matrix = Option<Arc<Matrix>>, Vector = Vec<f32>> {}

impl<B: Backend<Matrix = Option<Arc<Matrix>>, Vector = Vec<f32>>> OnHost for B {}

/// A matrix that this rank has, because it has its input.
pub(super) fn held(matrix: &Option<Arc<Matrix>>) -> &Matrix {
    matrix.as_ref().expect("a rank with part of a layer holds its matrices")
}
