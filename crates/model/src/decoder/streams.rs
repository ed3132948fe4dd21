//! Several residual streams: what a half of a layer, or the head, reads of them, and how they take
//! in what a half gives.

use backend::{Backend, StreamMix};
use layout::{Config, Slices, Streams};

use super::scratch::StreamScratch;
use crate::ModelError;
use crate::loader::Loader;

pub(super) struct StreamHalf<B: Backend> {
    /// What weights are made of, out of all streams, normalised together.
    matrix: B::Matrix,
    mix: StreamMix,
    /// A gain that changes nothing.
    ones: B::Vector,
    eps: f32,
}

impl<B: Backend> StreamHalf<B> {
    /// The matrix, the base and the scale of these roles, in models with several streams.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        [matrix, base, scale]: [&str; 3],
    ) -> Result<Option<Self>, ModelError> {
        let Some(Streams { count, rounds, eps }) = config.streams else { return Ok(None) };
        let mut scales = [0.0; 3];
        let numbers = loader.numbers(&slices.get(scale))?;
        scales[..numbers.len()].copy_from_slice(&numbers);
        let base = loader.numbers(&slices.get(base))?;
        Ok(Some(Self {
            matrix: loader.matrix(&slices.get(matrix))?,
            mix: StreamMix { count, rounds, eps, scale: scales, base },
            ones: loader.backend.vector(&vec![1.0; config.stream_width()]),
            eps: config.rms_eps,
        }))
    }

    /// Makes the weights of each row of `x`; `s.mixed` is what a half reads.
    pub fn read(&self, backend: &mut B, x: &B::Rows, s: &mut StreamScratch<B>) {
        backend.rms_norm(x, &self.ones, self.eps, &mut s.normed);
        backend.linear(&s.normed, &mut [(&self.matrix, &mut s.weights)]);
        backend.weigh_streams(&self.mix, &mut s.weights);
        backend.read_streams(&self.mix, x, &s.weights, &mut s.mixed);
    }

    /// The same for the head, which gives nothing back.
    pub fn read_last(&self, backend: &mut B, x: &B::Rows, s: &mut StreamScratch<B>) {
        backend.rms_norm(x, &self.ones, self.eps, &mut s.normed);
        backend.linear(&s.normed, &mut [(&self.matrix, &mut s.head_weights)]);
        backend.weigh_streams(&self.mix, &mut s.head_weights);
        backend.read_streams(&self.mix, x, &s.head_weights, &mut s.mixed);
    }

    /// Adds what the half gave, by the weights that were made last.
    pub fn give(&self, backend: &mut B, x: &mut B::Rows, given: &B::Rows, s: &StreamScratch<B>) {
        backend.give_streams(&self.mix, x, given, &s.weights);
    }
}
