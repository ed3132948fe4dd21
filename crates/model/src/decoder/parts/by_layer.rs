//! Embeddings of single layers: besides the one that starts the residual stream, a token has a
//! short one for every layer. Together with a projection of the first, it gates the layer's last
//! addition to the residual stream (Gemma 4's E models).

use std::f32::consts::FRAC_1_SQRT_2;
use std::ops::Range;

use backend::{Activation, Backend};
use layout::{Config, Slices};

use crate::ModelError;
use crate::decoder::context::Context;
use crate::loader::Loader;

pub(crate) struct LayerEmbedding<B: Backend> {
    /// The projection of the shared embedding.
    projection: B::Matrix,
    projection_norm: B::Vector,
    /// Its columns among those of all layers from the stage's first on.
    columns: Range<usize>,
    gate: B::Matrix,
    output: B::Matrix,
    norm: B::Vector,
}

impl<B: Backend> LayerEmbedding<B> {
    /// The embedding of layer `at` of its stage, in models that have them.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        at: usize,
    ) -> Result<Option<Self>, ModelError> {
        let Some(own) = config.by_layer else { return Ok(None) };
        Ok(Some(Self {
            projection: loader.matrix(&slices.get("by_layer_projection"))?,
            projection_norm: loader.vector(&slices.get("by_layer_projection_norm"))?,
            columns: at * own..(at + 1) * own,
            gate: loader.matrix(&slices.get("by_layer_gate"))?,
            output: loader.matrix(&slices.get("by_layer_output"))?,
            norm: loader.vector(&slices.get("after_by_layer_norm"))?,
        }))
    }

    /// `x += norm(output(gelu(gate(x)) * own))`, where `own` is the mean of the layer's embedding
    /// and of the projection, times `sqrt(2)`. Every rank computes all of it.
    pub fn add(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let e = s.by_layer.as_mut().expect("made for models with embeddings by layer");
        backend.linear(&e.shared, &mut [(&self.projection, &mut e.gate)]);
        backend.scale(&mut e.gate, 1.0 / (config.width as f32).sqrt());
        backend.rms_norm_in_place(&mut e.gate, &self.projection_norm, config.rms_eps);
        backend.columns(&e.all, self.columns.clone(), &mut e.own);
        backend.add(&mut e.own, &e.gate);
        backend.scale(&mut e.own, FRAC_1_SQRT_2);
        backend.linear(&s.x, &mut [(&self.gate, &mut e.gate)]);
        backend.gated(Activation::Gelu, &mut e.gate, &e.own);
        backend.linear(&e.gate, &mut [(&self.output, &mut s.h)]);
        backend.rms_norm_in_place(&mut s.h, &self.norm, config.rms_eps);
        backend.add(&mut s.x, &s.h);
    }
}
