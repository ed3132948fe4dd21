//! Reduces the ranks' partial sums and adds them to the residual stream.

use std::convert::Infallible;

use backend::Backend;
use layout::{Config, Slices};

use super::context::Context;
use super::norm::Norm;
use super::parts::banks::BankHalf;
use super::parts::streams::StreamHalf;
use super::reduce::{Product, Reduce};
use super::scratch::BesideScratch;
use crate::ModelError;
use crate::loader::Loader;

/// The steps between a half's sum and the residual stream.
pub(super) struct Residual<B: Backend> {
    pub bias: Option<B::Vector>,
    /// The norms of the outputs of a dense block and of the experts beside it, before their sum.
    pub beside: Option<[B::Vector; 2]>,
    pub norm: Option<B::Vector>,
    /// The epsilon of the norm.
    pub eps: f32,
    /// The norm of the residual stream after the sum (BERT).
    pub sum_norm: Option<Norm<B>>,
    /// How the half mixes the residual streams, if there are several.
    pub streams: Option<StreamHalf<B>>,
    /// How the half reads banked streams, if there are any.
    pub banks: Option<BankHalf<B>>,
}

/// The total of all ranks' partial `sums`. A single rank's sum is the total and stays on its
/// device; otherwise `room` receives it, `[rows, width]`.
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
    backend.write(room, rows, |total| reduce.all_reduce(product, rows, sums, total))?;
    Ok(room)
}

/// The totals of all ranks' partial sums of a dense block and of the experts beside it, in one
/// exchange. `experts`: their sums, and room for the total.
fn totals<'a, B: Backend, R: Reduce>(
    backend: &mut B,
    reduce: &mut R,
    product: Product,
    rows: usize,
    (sums, room): (&'a mut B::Rows, &'a mut B::Rows),
    (beside, both, width): (&'a mut BesideScratch<B>, &mut Vec<f32>, usize),
) -> Result<[&'a mut B::Rows; 2], R::Error> {
    let BesideScratch { sums: dense, total } = beside;
    if !reduce.has_others() {
        return Ok([dense, sums]);
    }
    both.resize(2 * rows * width, 0.0);
    let sums = [backend.host(dense)?, backend.host(sums)?];
    reduce.all_reduce_both(product, rows, sums, both)?;
    let (of_dense, of_experts) = both.split_at(rows * width);
    for (place, numbers) in [(&mut *total, of_dense), (&mut *room, of_experts)] {
        let Ok(()) = backend.write(place, rows, |out: &mut [f32]| {
            out.copy_from_slice(numbers);
            Ok::<_, Infallible>(())
        });
    }
    Ok([total, room])
}

impl<B: Backend> Residual<B> {
    /// Loads the bias, the norm and the norm of the sum with these roles, if the model has them,
    /// and the streams of a half.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        [bias, norm, sum_norm]: [&str; 3],
        half: &str,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            bias: loader.find_vector(slices.find(bias))?,
            beside: None,
            norm: loader.find_vector(slices.find(norm))?,
            eps: config.arch.after_norms_eps.unwrap_or(config.rms_eps),
            sum_norm: Norm::find(loader, config, slices, sum_norm)?,
            streams: StreamHalf::load(loader, config, slices, half)?,
            banks: None,
        })
    }

    /// The norms of a dense block and of the experts beside it, in layers that have both.
    pub fn beside(
        loader: &mut Loader<'_, B>,
        slices: &Slices<'_>,
    ) -> Result<Option<[B::Vector; 2]>, ModelError> {
        let Some(dense) = slices.find("after_dense_norm") else { return Ok(None) };
        let experts = slices.get("after_experts_norm");
        Ok(Some([loader.vector(&dense)?, loader.vector(&experts)?]))
    }

    /// How the half reads the residual streams, and those that are banked.
    pub fn input(&self) -> (Option<&StreamHalf<B>>, Option<&BankHalf<B>>) {
        (self.streams.as_ref(), self.banks.as_ref())
    }

    /// `x += norm(total over all ranks + bias)`, of the partial sums in `sums`, or the mix of it
    /// into several streams. Then `x` may be normalised itself.
    pub fn add<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
        product: Product,
    ) -> Result<(), R::Error> {
        let rows = c.rows;
        let Context { backend, config, scratch: s, .. } = c;
        let total = match &self.beside {
            None => total(*backend, reduce, product, rows, &mut s.sums, &mut s.h)?,
            Some(norms) => {
                let beside = s.beside.as_mut().expect("made for models with both in a layer");
                let (experts, beside) =
                    ((&mut s.sums, &mut s.h), (beside, &mut s.both, config.width));
                let [dense, experts] = totals(*backend, reduce, product, rows, experts, beside)?;
                backend.rms_norm_in_place(dense, &norms[0], config.rms_eps);
                backend.rms_norm_in_place(experts, &norms[1], config.rms_eps);
                backend.add(experts, dense);
                experts
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
        match (&self.streams, &s.streams) {
            (Some(streams), Some(room)) => streams.give(*backend, &mut s.x, total, room),
            _ => backend.add(&mut s.x, total),
        }
        if let Some(norm) = &self.sum_norm {
            norm.apply(*backend, &s.x, &mut s.h);
            backend.columns(&s.h, 0..config.width, &mut s.x);
        }
        Ok(())
    }
}
