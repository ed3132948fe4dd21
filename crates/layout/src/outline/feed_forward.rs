//! The tensors of feed-forward blocks, and of mixtures of experts.

use super::Layer;
use crate::arch::Fused;
use crate::tensors::Part;
use crate::{Config, Error, Experts, names};

impl Layer<'_> {
    /// One gated block.
    pub(super) fn feed_forward(&mut self, config: &Config) -> Result<(), Error> {
        let (width, kind) = (config.width, config.feed_forward_kind(self.layer));
        let hidden = config.feed_forward[kind];
        let fused = config.arch.fused != Fused::Nothing;
        let skipped = usize::from(!config.arch.gated_feed_forward);
        for (role, bias, first) in
            [("ffn_gate", "ffn_gate.bias", 0), ("ffn_up", "ffn_up.bias", hidden)]
                .into_iter()
                .skip(skipped)
        {
            let (name, all) = if fused { ("ffn_up", 2 * hidden) } else { (role, hidden) };
            let rows = Part::FeedForward { kind, first: if fused { first } else { 0 } };
            let tensor = names::layer(self.layer, name);
            self.add(role, &tensor, [width, all], rows.clone(), Part::Of(0..width))?;
            self.find_bias(bias, name, all, rows)?;
        }
        let cols = Part::FeedForward { kind, first: 0 };
        self.matrix("ffn_down", [hidden, width], Part::Of(0..width), cols)
    }

    /// A mixture of experts.
    pub(super) fn experts(&mut self, config: &Config, experts: &Experts) -> Result<(), Error> {
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
