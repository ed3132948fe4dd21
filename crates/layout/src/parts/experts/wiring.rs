//! The tensors and buffers of mixtures of experts.

use crate::buffers::{BufferRows, Buffers};
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::parts::Experts;
use crate::row::{Column, Row};
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct Mixture;

impl Wiring for Mixture {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        match config.experts_of(layer.layer) {
            Some(experts) => layer.experts(config, experts),
            None => Ok(()),
        }
    }

    fn columns(&self, config: &Config, layer: usize, row: &mut Row) {
        if config.needs_tokens(layer) {
            row.add(Column::Token, 1);
        }
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Share { config, shard, .. } = share;
        let Some(experts) = &config.experts else { return };
        // In every row the router has a logit for each expert.
        buffers.add([("routing.logits", experts.count), ("routing.shared_gate", 1)]);
        if let Some(latent) = experts.latent {
            buffers.add([("expert.input", latent), ("expert.total", latent)]);
            buffers.add_rows(BufferRows::Parts, "expert.sums", latent);
            // The shared expert reads the residual stream: a block of its own.
            if let Some(leaves) = &shard.shared_expert {
                let (at, hidden) = (shard.feed_forward.len(), leaves.columns(shard.rank).len());
                buffers.add_at(at, "hidden.gate", hidden);
                buffers.add_at(at, "hidden.up", hidden);
            }
        }
        if config.arch.dense_beside_experts {
            buffers.add([("beside.total", config.width)]);
            buffers.add_rows(BufferRows::Parts, "beside.sums", config.width);
        }
    }
}

impl Layer<'_> {
    /// A mixture of experts.
    fn experts(&mut self, config: &Config, experts: &Experts) -> Result<(), Error> {
        let (width, count, hidden) = (config.width, experts.count, experts.hidden);
        let (all, gated) = (Part::Of(0..width), config.arch.gated_feed_forward);
        // The width of experts' inputs and outputs: the residual stream's, or a narrower one.
        let inner = experts.latent.unwrap_or(width);
        let own = |first| Part::Expert { first, hidden };
        if experts.latent.is_some() {
            self.latent_space(width, inner)?;
        }
        let apart = self.has(&names::layer(self.layer, "ffn_up_exps"));
        let fused = !apart && self.has(&names::layer(self.layer, "ffn_gate_up_exps"));
        for (role, name, first) in
            [("ffn_gate_exps", "ffn_gate_up_exps", 0), ("ffn_up_exps", "ffn_gate_up_exps", hidden)]
        {
            if role == "ffn_gate_exps" && !gated {
                continue;
            }
            let (name, rows, first) =
                if fused { (name, 2 * hidden, first) } else { (role, hidden, 0) };
            let found = self.several(role, name, count, [inner, rows])?;
            (found.matrices, found.rows) = (Part::Experts { count }, own(first));
        }
        let found = self.several("ffn_down_exps", "ffn_down_exps", count, [hidden, inner])?;
        (found.matrices, found.cols) = (Part::Experts { count }, own(0));
        if self.has(&names::bias(self.layer, "ffn_gate_exps")) {
            for (role, name) in [
                ("ffn_gate_exps.bias", "ffn_gate_exps"),
                ("ffn_up_exps.bias", "ffn_up_exps"),
                ("ffn_down_exps.bias", "ffn_down_exps"),
            ] {
                let down = name == "ffn_down_exps";
                let name = names::bias(self.layer, name);
                let found =
                    self.add_vector(role, &name, count, if down { width } else { hidden })?;
                (found.matrices, found.rows) = match down {
                    true => (Part::BiasedExperts { count }, all.clone()),
                    false => (Part::Experts { count }, own(0)),
                };
            }
        }
        let scales = names::scale(self.layer, "ffn_down_exps");
        if self.has(&scales) {
            self.add_vector("ffn_down_exps.scale", &scales, 1, count)?;
        }
        if config.arch.dense_beside_experts {
            self.beside_dense(width)?;
        }
        self.matrix("ffn_gate_inp", [width, count], Part::Of(0..count), all.clone())?;
        self.find_bias("ffn_gate_inp.bias", "ffn_gate_inp", count, Part::Of(0..count))?;
        if self.layer < experts.by_token {
            let name = names::layer(self.layer, names::EXPERTS_BY_TOKEN);
            self.table(names::EXPERTS_BY_TOKEN, &name, [experts.used, config.vocab])?;
        }
        if let Some(name) = names::choice_bias(self.directory, self.layer) {
            self.add_vector(names::CHOICE_BIAS, &name, 1, count)?;
        }
        let Some(shared) = experts.shared_hidden else { return Ok(()) };
        for name in ["ffn_gate_shexp", "ffn_up_shexp"].into_iter().skip(usize::from(!gated)) {
            self.matrix(name, [width, shared], Part::SharedExpert, all.clone())?;
        }
        self.matrix("ffn_down_shexp", [shared, width], all.clone(), Part::SharedExpert)?;
        if experts.shared_gate {
            self.matrix("ffn_gate_inp_shexp", [width, 1], Part::Of(0..1), all)?;
        }
        Ok(())
    }

    /// The projections to the experts' narrower space, and back.
    fn latent_space(&mut self, width: usize, inner: usize) -> Result<(), Error> {
        let (rows, cols) = (Part::Of(0..inner), Part::Of(0..width));
        let routed =
            ["ffn_routed_down", "ffn_routed_up"].map(|name| names::layer(self.layer, name));
        let latent =
            ["ffn_latent_down", "ffn_latent_up"].map(|name| names::layer(self.layer, name));
        let [down, up] = if routed.iter().any(|name| self.has(name)) { routed } else { latent };
        self.add("ffn_latent_down", &down, [width, inner], rows.clone(), cols.clone())?;
        self.add("ffn_latent_up", &up, [inner, width], cols, rows)?;
        if self.has(&names::layer(self.layer, "ffn_routed_norm")) {
            self.vector("ffn_latent_norm", "ffn_routed_norm", inner)?;
        }
        Ok(())
    }

    /// The norms of a dense block, of the experts beside it, and of the router's input.
    fn beside_dense(&mut self, width: usize) -> Result<(), Error> {
        self.vector("experts_norm", "pre_ffw_norm_2", width)?;
        self.vector("after_dense_norm", "post_ffw_norm_1", width)?;
        self.vector("after_experts_norm", "post_ffw_norm_2", width)?;
        let router = names::scale(self.layer, "ffn_gate_inp");
        self.add_vector("router_norm", &router, 1, width).map(drop)
    }
}
