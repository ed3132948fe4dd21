//! Where the ranks' partial sums meet and join the residual stream.

use backend::Backend;
use layout::{Config, Slices};

use super::context::Context;
use super::{Product, Reduce};
use crate::ModelError;
use crate::loader::Loader;

/// What happens to a half's sum on its way to the residual stream.
pub(super) struct Residual<B: Backend> {
    pub bias: Option<B::Vector>,
    pub norm: Option<B::Vector>,
    /// The norm's.
    pub eps: f32,
}

impl<B: Backend> Residual<B> {
    /// The bias and the norm of these roles, if the model has them.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        [bias, norm]: [&str; 2],
    ) -> Result<Self, ModelError> {
        Ok(Self {
            bias: loader.find_vector(slices.find(bias))?,
            norm: loader.find_vector(slices.find(norm))?,
            eps: config.arch.after_norms_eps.unwrap_or(config.rms_eps),
        })
    }

    /// `x += norm(total over all ranks + bias)`, of the partial sums in `sums`. One rank's sum is
    /// the total, and stays on its device.
    pub fn add<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
        product: Product,
    ) -> Result<(), R::Error> {
        let rows = c.rows;
        let Context { backend, config, scratch: s, .. } = c;
        let total = match reduce.has_others() {
            false => &mut s.sums,
            true => {
                let sums = backend.host(&mut s.sums)?;
                backend.write(&mut s.h, rows, |total| reduce.all_reduce(product, sums, total))?;
                &mut s.h
            }
        };
        if let Some(bias) = &self.bias {
            backend.add_bias(total, bias);
        }
        if let Some(norm) = &self.norm {
            backend.rms_norm_in_place(total, norm, self.eps);
        }
        if config.residual_scale != 1.0 {
            backend.scale(total, config.residual_scale);
        }
        backend.add(&mut s.x, total);
        Ok(())
    }
}
