//! Where the ranks' partial sums meet and join the residual stream.

use backend::Backend;

use super::context::Context;
use super::{Product, Reduce};

/// What happens to a half's sum on its way to the residual stream.
pub(super) struct Residual<B: Backend> {
    pub bias: Option<B::Vector>,
    /// The norm of what experts give, where a dense block stands beside them, whose part is added.
    pub beside: Option<B::Vector>,
    pub norm: Option<B::Vector>,
}

/// What all ranks' partial `sums` add up to: one rank's sum is the total, and stays on its device;
/// of several, `room` takes it, `[rows, width]`.
pub(super) fn total<'a, B: Backend, R: Reduce>(
    backend: &mut B,
    reduce: &mut R,
    product: Product,
    rows: usize,
    sums: &'a mut B::Rows,
    room: &'a mut B::Rows,
) -> Result<&'a mut B::Rows, R::Error> {
    if !reduce.has_others() {
        return Ok(sums);
    }
    let sums = backend.host(sums)?;
    backend.write(room, rows, |total| reduce.all_reduce(product, sums, total))?;
    Ok(room)
}

impl<B: Backend> Residual<B> {
    /// `x += norm(total over all ranks + bias)`, of the partial sums in `sums`.
    pub fn add<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
        product: Product,
    ) -> Result<(), R::Error> {
        let rows = c.rows;
        let Context { backend, config, scratch: s, .. } = c;
        let total = total(*backend, reduce, product, rows, &mut s.sums, &mut s.h)?;
        if let Some(bias) = &self.bias {
            backend.add_bias(total, bias);
        }
        if let (Some(norm), Some(beside)) = (&self.beside, &s.beside) {
            backend.rms_norm_in_place(total, norm, config.rms_eps);
            backend.add(total, beside);
        }
        if let Some(norm) = &self.norm {
            backend.rms_norm_in_place(total, norm, config.rms_eps);
        }
        if config.residual_scale != 1.0 {
            backend.scale(total, config.residual_scale);
        }
        backend.add(&mut s.x, total);
        Ok(())
    }
}
