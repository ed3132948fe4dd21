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

    /// Adds what the half gave, by the weights that were made last.
    pub fn give(&self, backend: &mut B, x: &mut B::Rows, given: &B::Rows, s: &StreamScratch<B>) {
        backend.give_streams(&self.mix, x, given, &s.weights);
    }
}

/// How the head reads the streams.
pub(super) enum HeadStreams<B: Backend> {
    /// As a half does.
    Weighed(StreamHalf<B>),
    /// The mean of so many, of so many numbers each.
    Mean(usize, usize),
}

impl<B: Backend> HeadStreams<B> {
    /// `None` for models with one stream.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let Some(Streams { count, .. }) = config.streams else { return Ok(None) };
        if slices.find("streams").is_none() {
            return Ok(Some(Self::Mean(count, config.width)));
        }
        let roles = ["streams", "streams_base", "streams_scale"];
        Ok(StreamHalf::load(loader, config, slices, roles)?.map(Self::Weighed))
    }

    /// `s.mixed` is what the head reads; `one` is room for one stream.
    pub fn read(&self, backend: &mut B, x: &B::Rows, one: &mut B::Rows, s: &mut StreamScratch<B>) {
        match self {
            Self::Weighed(half) => {
                backend.rms_norm(x, &half.ones, half.eps, &mut s.normed);
                backend.linear(&s.normed, &mut [(&half.matrix, &mut s.head_weights)]);
                backend.weigh_streams(&half.mix, &mut s.head_weights);
                backend.read_streams(&half.mix, x, &s.head_weights, &mut s.mixed);
            }
            Self::Mean(count, width) => {
                backend.columns(x, 0..*width, &mut s.mixed);
                for stream in 1..*count {
                    backend.columns(x, stream * width..(stream + 1) * width, one);
                    backend.add(&mut s.mixed, one);
                }
                backend.scale(&mut s.mixed, 1.0 / *count as f32);
            }
        }
    }
}
