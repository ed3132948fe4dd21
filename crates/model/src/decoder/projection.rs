//! A matrix and its bias, if the file has one.

use backend::Backend;
use layout::Slices;

use crate::ModelError;
use crate::loader::Loader;

pub(super) struct Projection<B: Backend> {
    pub matrix: B::Matrix,
    bias: Option<B::Vector>,
}

impl<B: Backend> Projection<B> {
    /// The slice with the role `role`, applied to the residual stream.
    pub fn load(
        loader: &mut Loader<'_, B>,
        slices: &Slices<'_>,
        role: &str,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            matrix: loader.matrix(&slices.get(role))?,
            bias: loader.find_vector(slices.find(&format!("{role}.bias")))?,
        })
    }

    /// `out += bias`, after the product.
    pub fn add_bias(&self, backend: &mut B, out: &mut B::Rows) {
        if let Some(bias) = &self.bias {
            backend.add_bias(out, bias);
        }
    }
}
