//! Embeddings of the last few tokens of each row, found by hashes; one layer adds them to its
//! residual streams before its halves (Qwen3.8-Flash-Next).
//!
//! Gates weigh an embedding's value for each stream. A convolution adds the values of earlier rows,
//! so the layer has a second state. Every rank computes all of it.

use std::convert::Infallible;

use backend::{
    Activation, Backend, GroupNorm, RecurrentInputs, RecurrentShape, RecurrentWeights, Rule,
};
use layout::{Config, Slices};

use super::streams::group_norm;
use crate::ModelError;
use crate::decoder::context::Context;
use crate::loader::Loader;

pub(crate) struct NgramLayer<B: Backend> {
    key: B::Matrix,
    value: B::Matrix,
    norm: GroupNorm,
    key_gain: B::Vector,
    query_gain: B::Vector,
    gain: B::Vector,
    convolution: B::Recurrent,
}

impl<B: Backend> NgramLayer<B> {
    /// `None` in all other layers.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Option<Self>, ModelError> {
        let Some(shape) = ngram_shape(config, layer) else { return Ok(None) };
        let found = loader.table(&slices.get("ple_conv1d"))?;
        let ngrams = config.ngrams.as_ref().expect("the layer has a shape of them");
        // Positions between the taps have zero weights.
        let (taps, apart) = (ngrams.taps, ngrams.size);
        let mut conv_v = vec![0.0; shape.taps * shape.v_dim];
        for (own, found) in conv_v.chunks_exact_mut(shape.taps).zip(found.chunks_exact(taps)) {
            own.iter_mut().step_by(apart).zip(found).for_each(|(own, found)| *own = *found);
        }
        let weights = RecurrentWeights { conv_v, ..RecurrentWeights::default() };
        Ok(Some(Self {
            key: loader.matrix(&slices.get("ple_key"))?,
            value: loader.matrix(&slices.get("ple_value"))?,
            norm: group_norm(config),
            key_gain: loader.vector(&slices.get("ple_norm_key"))?,
            query_gain: loader.vector(&slices.get("ple_norm_query"))?,
            gain: loader.vector(&slices.get("ple_norm_conv"))?,
            convolution: loader.backend.recurrent(shape, weights),
        }))
    }

    /// `x += gated + silu(convolution(norm(gated)))`, where `gated` is the value after each
    /// stream's gate.
    pub fn add(&self, c: &mut Context<'_, B>) {
        let rows = c.rows;
        let Context { backend, config, scratch: s, states, .. } = c;
        let (eps, all) = (config.rms_eps, config.stream_width());
        let n = s.ngrams.as_mut().expect("made for models with n-gram embeddings");
        let mut norm = |backend: &mut B, x: &mut B::Rows, gain| {
            backend.group_squares(x, &self.norm, 1, &mut n.squares);
            backend.group_norm(x, &n.squares, &self.norm, gain, eps);
        };
        backend.linear(&n.own, &mut [(&self.key, &mut n.keys), (&self.value, &mut n.value)]);
        norm(backend, &mut n.keys, &self.key_gain);
        backend.columns(&s.x, 0..all, &mut n.queries);
        norm(backend, &mut n.queries, &self.query_gain);
        backend.gate_ngrams([&n.keys, &n.queries], &n.value, &mut n.gated);
        backend.columns(&n.gated, 0..all, &mut n.keys);
        norm(backend, &mut n.keys, &self.gain);
        let Ok(()) = backend.write(&mut n.ones, rows, |ones| {
            ones.fill(1.0);
            Ok::<_, Infallible>(())
        });
        let (none, ones) = (&n.none, &n.ones);
        let inputs = RecurrentInputs { q: ones, k: ones, v: &n.keys, decay: none, beta: none };
        let kept = c.kept.ngram_states();
        backend.recur(kept, &self.convolution, states, inputs, &mut n.queries);
        backend.activate(Activation::Silu, &mut n.queries);
        backend.add(&mut n.gated, &n.queries);
        backend.add(&mut s.x, &n.gated);
    }
}

/// The convolution over all streams, if layer `layer` reads n-gram embeddings.
pub(crate) fn ngram_shape(config: &Config, layer: usize) -> Option<RecurrentShape> {
    let ngrams = config.ngrams.as_ref().filter(|ngrams| ngrams.layer == layer)?;
    Some(RecurrentShape {
        rule: Rule::Convolution,
        k_heads: 1,
        v_heads: 1,
        k_dim: config.stream_width(),
        v_dim: config.stream_width(),
        k_of_v: vec![0],
        taps: ngrams.reach(),
        decay_bound: None,
    })
}
