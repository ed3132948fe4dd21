//! A dense block beside a layer's experts: both read the residual stream, each through its own
//! norm, and each output is normalised before the sum (Gemma 4).

use backend::Backend;
use layout::{Config, Slices};

use super::dense::DenseBlock;
use super::experts::SparseBlock;
use crate::ModelError;
use crate::decoder::context::Context;
use crate::decoder::norm::Norm;
use crate::decoder::reduce::Reduce;
use crate::loader::Loader;

pub(crate) struct DenseBeside<B: Backend> {
    dense: DenseBlock<B>,
    router_norm: Norm<B>,
    experts_norm: Norm<B>,
    experts: SparseBlock<B>,
}

impl<B: Backend> DenseBeside<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        dense: DenseBlock<B>,
        experts: SparseBlock<B>,
    ) -> Result<Self, ModelError> {
        let mut router_gain = loader.numbers(&slices.get("router_norm"))?;
        let factor = 1.0 / (config.width as f32).sqrt();
        router_gain.iter_mut().for_each(|gain| *gain *= factor);
        let [router, experts_gain] =
            [loader.backend.vector(&router_gain), loader.vector(&slices.get("experts_norm"))?];
        let [router_norm, experts_norm] =
            [router, experts_gain].map(|gain| Norm::root_mean_square(config, gain));
        Ok(Self { dense, router_norm, experts_norm, experts })
    }

    /// `beside.sums = dense(h)` and `sums = mixture(norm(x))`, this rank's parts.
    pub fn forward<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
    ) -> Result<(), R::Error> {
        let Context { backend, scratch: s, .. } = c;
        let beside = s.beside.as_mut().expect("made for models with both in a layer");
        self.dense.forward(*backend, &s.h, &mut s.hidden, &mut beside.sums);
        c.norm(Some(&self.router_norm), (None, None));
        self.experts.route(c);
        c.norm(Some(&self.experts_norm), (None, None));
        self.experts.mix(c, reduce)
    }
}
