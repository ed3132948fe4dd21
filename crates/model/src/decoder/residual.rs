//! Where the ranks' partial sums meet and join the residual stream.

use backend::Backend;

use super::context::Context;
use super::{Product, Reduce};

/// What happens to a half's sum on its way to the residual stream.
pub(super) struct Residual<B: Backend> {
    pub bias: Option<B::Vector>,
    pub norm: Option<B::Vector>,
}

impl<B: Backend> Residual<B> {
    /// `x += norm(total over all ranks + bias)`, of the partial sums in `sums`.
    pub fn add<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
        product: Product,
    ) -> Result<(), R::Error> {
        let Context { backend, config, scratch: s, .. } = c;
        let numbers = backend.host(&s.x).len();
        let sums = backend.host(&s.sums);
        let total = reduce.all_reduce(product, sums, &mut s.total[..numbers])?;
        if self.bias.is_none() && self.norm.is_none() && config.residual_scale == 1.0 {
            backend.add(&mut s.x, total);
            return Ok(());
        }
        backend.upload(total, &mut s.h);
        if let Some(bias) = &self.bias {
            backend.add_bias(&mut s.h, bias);
        }
        if let Some(norm) = &self.norm {
            backend.rms_norm_in_place(&mut s.h, norm, config.rms_eps);
        }
        if config.residual_scale != 1.0 {
            backend.scale(&mut s.h, config.residual_scale);
        }
        let y = backend.host(&s.h);
        backend.add(&mut s.x, y);
        Ok(())
    }
}
