//! A matrix and its bias, if the file has one.

use std::ops::Range;

use backend::Backend;

use crate::loader::Loader;
use crate::{Config, ModelError, names};

pub(super) struct Projection<B: Backend> {
    pub matrix: B::Matrix,
    bias: Option<B::Vector>,
}

/// Rows of a projection's matrix: all of them, and where they begin in their tensor.
pub(super) struct Rows {
    pub name: &'static str,
    pub tensor_rows: usize,
    pub first: usize,
    pub all: usize,
}

impl Rows {
    /// The tensor's own: it holds nothing else.
    pub fn whole(name: &'static str, all: usize) -> Self {
        Self { name, tensor_rows: all, first: 0, all }
    }
}

impl<B: Backend> Projection<B> {
    /// The rows `own` of a projection out of the residual stream.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        layer: usize,
        rows: &Rows,
        own: Range<usize>,
    ) -> Result<Self, ModelError> {
        let own = rows.first + own.start..rows.first + own.end;
        let (tensor, bias) = (names::layer(layer, rows.name), names::bias(layer, rows.name));
        Ok(Self {
            matrix: loader.rows(&tensor, config.width, rows.tensor_rows, own.clone())?,
            bias: loader.find_part(&bias, rows.tensor_rows, own)?,
        })
    }

    /// `out += bias`, after the product.
    pub fn add_bias(&self, backend: &mut B, out: &mut B::Rows) {
        if let Some(bias) = &self.bias {
            backend.add_bias(out, bias);
        }
    }
}
