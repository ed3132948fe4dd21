//! Several residual streams: the mixed input of a layer's half, or of the head, and the addition of
//! a half's output.

use backend::{Activation, Backend, GroupNorm, MatrixMix, StreamMix};
use layout::{Config, Mixing, Slices, Streams};

use crate::ModelError;
use crate::decoder::scratch::StreamScratch;
use crate::loader::Loader;

pub(crate) struct StreamHalf<B: Backend> {
    reader: Reader<B>,
    mix: StreamMix,
    eps: f32,
}

/// The source of the mixing weights.
enum Reader<B: Backend> {
    /// A matrix that computes weights from all streams, normalised together; and a gain of ones.
    Weights(B::Matrix, B::Vector),
    Gates(Gates<B>),
}

/// Gates on all elements of the streams, each stream normalised separately.
struct Gates<B: Backend> {
    norm: GroupNorm,
    gain: B::Vector,
    /// Projections into a narrow space, and out of it.
    down: B::Matrix,
    up: B::Matrix,
    /// Computes the weights of a half's output; the head has none.
    inject: Option<B::Matrix>,
}

impl<B: Backend> StreamHalf<B> {
    /// The mixing of half `half` of a layer, in models with several streams.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        half: &str,
    ) -> Result<Option<Self>, ModelError> {
        let Some(Streams { mixing, .. }) = config.streams else { return Ok(None) };
        let names: &[&str] = match mixing {
            Mixing::Matrix { .. } => &["fn", "base", "scale"],
            Mixing::Gates { .. } => &["norm", "down", "up", "inject"],
        };
        let roles: Vec<String> = names.iter().map(|name| format!("hc_{half}_{name}")).collect();
        let roles: Vec<&str> = roles.iter().map(String::as_str).collect();
        Self::of(loader, config, slices, &roles).map(Some)
    }

    /// The mixing with these roles.
    fn of(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        roles: &[&str],
    ) -> Result<Self, ModelError> {
        let Streams { count, mixing } = config.streams.expect("the caller looked");
        let eps = config.rms_eps;
        let Mixing::Matrix { rounds, eps: mix_eps } = mixing else {
            let reader = Reader::Gates(Gates::load(loader, config, slices, roles)?);
            return Ok(Self { reader, mix: StreamMix::Gates { count }, eps });
        };
        let mut scale = [0.0; 3];
        let numbers = loader.numbers(&slices.get(roles[2]))?;
        scale[..numbers.len()].copy_from_slice(&numbers);
        let base = loader.numbers(&slices.get(roles[1]))?;
        let matrix = loader.matrix(&slices.get(roles[0]))?;
        let ones = loader.backend.vector(&vec![1.0; config.stream_width()]);
        let mix = StreamMix::Matrix(MatrixMix { count, rounds, eps: mix_eps, scale, base });
        Ok(Self { reader: Reader::Weights(matrix, ones), mix, eps })
    }

    /// Computes the weights of each row of `x`; `s.mixed` gets the half's input.
    pub fn read(&self, backend: &mut B, x: &B::Rows, s: &mut StreamScratch<B>) {
        self.read_by(backend, x, s, false);
    }

    /// The same for the head, or for a half.
    fn read_by(&self, backend: &mut B, x: &B::Rows, s: &mut StreamScratch<B>, is_head: bool) {
        let StreamScratch { normed, weights, head_weights, mixed, gates, narrow, squares } = s;
        let weights = if is_head { head_weights } else { weights };
        match (&self.reader, (gates, narrow, squares)) {
            (Reader::Weights(matrix, ones), _) => {
                backend.rms_norm(x, ones, self.eps, normed);
                backend.linear(normed, &mut [(matrix, &mut *weights)]);
                backend.weigh_streams(&self.mix, weights);
                backend.read_streams(&self.mix, x, weights, mixed);
            }
            (Reader::Gates(own), (Some(gates), Some(narrow), Some(squares))) => {
                backend.columns(x, 0..own.norm.heads_all * own.norm.head_dim, normed);
                backend.group_squares(normed, &own.norm, 1, squares);
                backend.group_norm(normed, squares, &own.norm, &own.gain, self.eps);
                match &own.inject {
                    Some(inject) => {
                        let outs = &mut [(&own.down, &mut *narrow), (inject, &mut *weights)];
                        backend.linear(normed, outs);
                        backend.weigh_streams(&self.mix, weights);
                    }
                    None => backend.linear(normed, &mut [(&own.down, &mut *narrow)]),
                }
                backend.scale(narrow, 1.0 / own.norm.heads_all as f32);
                backend.activate(Activation::Silu, narrow);
                backend.linear(narrow, &mut [(&own.up, &mut *gates)]);
                backend.gated(Activation::Sigmoid, gates, normed);
                backend.read_streams(&self.mix, gates, squares, mixed);
            }
            _ => panic!("made for models with gates"),
        }
    }

    /// Adds the half's output, with the last computed weights.
    pub fn give(&self, backend: &mut B, x: &mut B::Rows, given: &B::Rows, s: &StreamScratch<B>) {
        backend.give_streams(&self.mix, x, given, &s.weights);
    }
}

impl<B: Backend> Gates<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        roles: &[&str],
    ) -> Result<Self, ModelError> {
        Ok(Self {
            norm: group_norm(config),
            gain: loader.vector(&slices.get(roles[0]))?,
            down: loader.matrix(&slices.get(roles[1]))?,
            up: loader.matrix(&slices.get(roles[2]))?,
            inject: match roles.get(3) {
                Some(role) => Some(loader.matrix(&slices.get(role))?),
                None => None,
            },
        })
    }
}

/// A norm of each stream separately. Every rank has all streams.
pub(crate) fn group_norm(config: &Config) -> GroupNorm {
    let heads_all = config.streams.map_or(1, |streams| streams.count);
    GroupNorm { head_dim: config.width, first_head: 0, heads_all, group_heads: 1 }
}

/// The head's mixing of the streams.
pub(crate) enum HeadStreams<B: Backend> {
    /// Like a half.
    Weighed(StreamHalf<B>),
    /// The mean of this many streams, of this width each.
    Mean(usize, usize),
}

impl<B: Backend> HeadStreams<B> {
    /// `None` for models with one stream.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let Some(Streams { count, mixing }) = config.streams else { return Ok(None) };
        let roles = match mixing {
            Mixing::Matrix { .. } if slices.find("streams").is_none() => {
                return Ok(Some(Self::Mean(count, config.width)));
            }
            Mixing::Matrix { .. } => ["streams", "streams_base", "streams_scale"],
            Mixing::Gates { .. } => ["streams_norm", "streams_down", "streams_up"],
        };
        Ok(Some(Self::Weighed(StreamHalf::of(loader, config, slices, &roles)?)))
    }

    /// `s.mixed` gets the head's input; `one` is a buffer for one stream.
    pub fn read(&self, backend: &mut B, x: &B::Rows, one: &mut B::Rows, s: &mut StreamScratch<B>) {
        match self {
            Self::Weighed(half) => half.read_by(backend, x, s, true),
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
