//! A dense block beside a layer's experts: both read the residual stream, each after a norm of its
//! own, and what each gives is normalised before it joins the other (Gemma 4).

use backend::Backend;
use layout::Slices;

use super::context::Context;
use super::experts::SparseBlock;
use super::feed_forward::DenseBlock;
use super::residual::total;
use super::{Product, Reduce};
use crate::ModelError;
use crate::loader::Loader;

pub(super) struct DenseBeside<B: Backend> {
    dense: DenseBlock<B>,
    after_dense: B::Vector,
    router_norm: B::Vector,
    experts_norm: B::Vector,
    experts: SparseBlock<B>,
}

impl<B: Backend> DenseBeside<B> {
    /// `width`: of the residual stream.
    pub fn load(
        loader: &mut Loader<'_, B>,
        slices: &Slices<'_>,
        dense: DenseBlock<B>,
        experts: SparseBlock<B>,
        width: usize,
    ) -> Result<Self, ModelError> {
        let mut router_gain = loader.numbers(&slices.get("router_norm"))?;
        let factor = 1.0 / (width as f32).sqrt();
        router_gain.iter_mut().for_each(|gain| *gain *= factor);
        let router_norm = loader.backend.vector(&router_gain);
        let mut norm = |role| loader.vector(&slices.get(role));
        Ok(Self {
            dense,
            after_dense: norm("after_dense_norm")?,
            router_norm,
            experts_norm: norm("experts_norm")?,
            experts,
        })
    }

    /// `beside = norm(dense(h))`, of all ranks, and `sums = mixture(norm(x))`, this rank's part.
    pub fn forward<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
    ) -> Result<(), R::Error> {
        self.dense.forward(c);
        let (rows, product) = (c.rows, Product::FeedForward);
        let Context { backend, config, scratch: s, .. } = c;
        let given = total(*backend, reduce, product, rows, &mut s.sums, &mut s.h)?;
        let beside = s.beside.as_mut().expect("made for models with both in a layer");
        backend.rms_norm(given, &self.after_dense, config.rms_eps, beside);
        c.norm(Some(&self.router_norm));
        self.experts.route(c);
        c.norm(Some(&self.experts_norm));
        self.experts.mix(c, reduce)
    }
}
