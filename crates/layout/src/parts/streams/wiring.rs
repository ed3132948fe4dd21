//! The tensors and buffers of several residual streams.

use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::parts::Streams;
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct ResidualStreams;

impl Wiring for ResidualStreams {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        match &config.streams {
            Some(streams) => layer.streams(config.width, streams),
            None => Ok(()),
        }
    }

    fn head(&self, head: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        match &config.streams {
            Some(streams) => head.head_streams(config.width, streams),
            None => Ok(()),
        }
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Some(streams) = share.config.streams else { return };
        let all = share.config.stream_width();
        buffers.add([
            // All streams, normalised; the weights of a half and of the head; a half's input.
            ("streams.normed", all),
            ("streams.weights", streams.weights()),
            ("streams.head_weights", streams.count),
            ("streams.mixed", share.config.width),
        ]);
        if let Some(rank) = streams.rank() {
            // The gates, their inputs, and the streams' squares.
            buffers.add([
                ("streams.gates", all),
                ("streams.narrow", rank),
                ("streams.squares", streams.count),
            ]);
        }
    }
}

impl Layer<'_> {
    /// The tensors that mix the residual streams in a layer's halves.
    fn streams(&mut self, width: usize, streams: &Streams) -> Result<(), Error> {
        if let Some(rank) = streams.rank() {
            return self.gated_streams(width * streams.count, streams.count, rank);
        }
        let (all, weights) = (width * streams.count, streams.weights());
        for [matrix, base, scale] in [
            ["hc_attn_fn", "hc_attn_base", "hc_attn_scale"],
            ["hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale"],
        ] {
            self.matrix(matrix, [all, weights], Part::Of(0..weights), Part::Of(0..all))?;
            self.vector(base, base, weights)?;
            self.vector(scale, scale, 3)?;
        }
        Ok(())
    }

    /// The same with gates, for `all` elements of `count` streams.
    fn gated_streams(&mut self, all: usize, count: usize, rank: usize) -> Result<(), Error> {
        for (roles, inject) in [
            (["hc_attn_norm", "hc_attn_down", "hc_attn_up"], "hc_attn_inject"),
            (["hc_ffn_norm", "hc_ffn_down", "hc_ffn_up"], "hc_ffn_inject"),
        ] {
            let names = roles.map(|role| names::layer(self.layer, role));
            self.gates(roles, names, all, rank)?;
            self.matrix(inject, [all, count], Part::Of(0..count), Part::Of(0..all))?;
        }
        Ok(())
    }

    /// A norm of all streams, and the two matrices that compute gates from it.
    fn gates(
        &mut self,
        [norm, down, up]: [&'static str; 3],
        names: [String; 3],
        all: usize,
        rank: usize,
    ) -> Result<(), Error> {
        self.add_vector(norm, &names[0], 1, all)?;
        let (narrow, wide) = (Part::Of(0..rank), Part::Of(0..all));
        self.add(down, &names[1], [all, rank], narrow.clone(), wide.clone())?;
        self.add(up, &names[2], [rank, all], wide, narrow).map(drop)
    }

    /// The tensors that mix the streams for the head: their mean, if the file has none.
    fn head_streams(&mut self, width: usize, streams: &Streams) -> Result<(), Error> {
        if let Some(rank) = streams.rank() {
            let names = names::OUTPUT_GATES.map(str::to_owned);
            let roles = ["streams_norm", "streams_down", "streams_up"];
            return self.gates(roles, names, width * streams.count, rank);
        }
        let names =
            [names::OUTPUT_STREAMS, names::OUTPUT_STREAMS_BASE, names::OUTPUT_STREAMS_SCALE];
        if !names.iter().any(|name| self.has(name)) {
            return Ok(());
        }
        let (all, count) = (width * streams.count, streams.count);
        let (rows, cols) = (Part::Of(0..count), Part::Of(0..all));
        self.add("streams", names::OUTPUT_STREAMS, [all, count], rows, cols)?;
        self.add_vector("streams_base", names::OUTPUT_STREAMS_BASE, 1, count)?;
        self.add_vector("streams_scale", names::OUTPUT_STREAMS_SCALE, 1, 1).map(drop)
    }
}
