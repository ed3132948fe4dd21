//! A layer of experts, of which each token visits a few.
//!
//! Every rank routes every token, from the same logits to the same experts. It has its columns of
//! every expert, so that all ranks have the same work; or, where experts are too narrow for that,
//! some experts whole. Either way the sum over all ranks is one reduction, as in a dense layer. A
//! shared expert is one more, which every token visits, and of which every rank has its columns.

use std::ops::Range;

use backend::{Backend, Expert, ExpertBias, Mixture, MixtureParts, RoutingRule, SharedExpert};

use super::context::Context;
use crate::loader::Loader;
use crate::{Config, Experts, ModelError, Shard, names};

pub(super) struct SparseBlock<B: Backend> {
    rule: RoutingRule,
    router: B::Matrix,
    router_bias: Option<B::Vector>,
    /// Counts for the choice of experts, not for their weights, `[experts]`.
    choice_bias: Option<B::Vector>,
    /// How much of the shared expert a token gets: the sigmoid of this product.
    shared_gate: Option<B::Matrix>,
    shared: bool,
    mixture: Mixture<B>,
    parts: Option<MixtureParts>,
}

/// The tensors of one kind of expert.
struct Kind<'a> {
    gate: &'a str,
    up: &'a str,
    down: &'a str,
    count: usize,
    hidden: usize,
    /// Those that this rank has a part of, and its hidden numbers of each.
    experts: Range<usize>,
    own: Range<usize>,
}

impl<B: Backend> SparseBlock<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        experts: &Experts,
        shard: &Shard,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (width, rule, rank) = (config.width, experts.rule, shard.rank);
        let leaves = shard.experts.as_ref().unwrap_or(&shard.feed_forward);
        let [gate, up, down] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
        let (count, hidden) = (rule.experts, experts.hidden);
        let (own_experts, own) = match shard.whole_experts {
            true => (leaves.columns(rank), 0..hidden),
            false => (0..count, leaves.columns(rank)),
        };
        let first = own_experts.start;
        let routed = Kind { gate, up, down, count, hidden, experts: own_experts, own };
        let down_bias = shard.whole_experts || leaves.spans()[rank].start == 0;
        let mut own_experts = routed.load(loader, width, layer)?;
        routed.load_biases(loader, width, layer, down_bias, &mut own_experts)?;
        let shared = experts.shared_hidden.zip(shard.shared_expert.as_ref());
        if let Some((hidden, leaves)) = shared {
            let [gate, up, down] = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
            let own = leaves.columns(rank);
            let kind = Kind { gate, up, down, count: 1, hidden, experts: 0..1, own };
            own_experts.extend(kind.load(loader, width, layer)?);
        }
        let shared_ends = shared.map(|(_, leaves)| leaves.leaf_ends(rank));
        let (leaf_ends, part_ends) = (leaves.leaf_ends(rank), leaves.part_ends(rank));
        let parts = match shard.whole_experts {
            true => MixtureParts::whole(count, first, hidden, leaf_ends, shared_ends, part_ends),
            false => MixtureParts::new(leaf_ends, shared_ends, part_ends),
        };
        let shared_gate = names::layer(layer, "ffn_gate_inp_shexp");
        let choice_bias = names::bias(layer, names::CHOICE_BIAS);
        let router_bias = names::bias(layer, "ffn_gate_inp");
        Ok(Self {
            rule,
            router: loader.rows(&names::layer(layer, "ffn_gate_inp"), width, count, 0..count)?,
            router_bias: loader.find_part(&router_bias, count, 0..count)?,
            choice_bias: loader.find_part(&choice_bias, count, 0..count)?,
            shared_gate: match shared.is_some() && experts.shared_gate {
                true => Some(loader.rows(&shared_gate, width, 1, 0..1)?),
                false => None,
            },
            shared: shared.is_some(),
            mixture: Mixture { experts: own_experts, activation: config.arch.activation },
            // A rank without leaves has none.
            parts: parts.ok(),
        })
    }

    /// `sums = mixture(h)`, this rank's part.
    pub fn forward(&self, c: &mut Context<'_, B>) {
        let Context { backend, scratch: s, .. } = c;
        let r = s.routing.as_mut().expect("made for models with experts");
        backend.linear(&s.h, &mut [(&self.router, &mut r.logits)]);
        if let Some(bias) = &self.router_bias {
            backend.add_bias(&mut r.logits, bias);
        }
        let shared = match &self.shared_gate {
            _ if !self.shared => SharedExpert::Absent,
            None => SharedExpert::Full,
            Some(gate) => {
                backend.linear(&s.h, &mut [(gate, &mut r.shared_gate)]);
                SharedExpert::Gated(&r.shared_gate)
            }
        };
        let bias = self.choice_bias.as_ref();
        backend.route(&self.rule, &r.logits, bias, shared, &mut r.routes);
        backend.mixture(&s.h, &r.routes, &self.mixture, self.parts.as_ref(), &mut s.sums);
    }
}

impl Kind<'_> {
    fn load<B: Backend>(
        &self,
        loader: &mut Loader<'_, B>,
        width: usize,
        layer: usize,
    ) -> Result<Vec<Expert<B>>, ModelError> {
        let name = |name| names::layer(layer, name);
        let (hidden, count) = (self.hidden, self.count);
        let inner = [width, hidden];
        let mut matrices = |name: String, shape, cols, rows| {
            loader.several(&name, count, self.experts.clone(), shape, cols, rows)
        };
        let (all, own) = (0..width, self.own.clone());
        let gates = matrices(name(self.gate), inner, all.clone(), own.clone())?;
        let ups = matrices(name(self.up), inner, all.clone(), own.clone())?;
        let downs = matrices(name(self.down), [hidden, width], own, all)?;
        let experts = gates.into_iter().zip(ups).zip(downs);
        Ok(experts.map(|((gate, up), down)| Expert { gate, up, down, bias: None }).collect())
    }

    /// Gives the experts their biases, if the file has any. The bias of the down product
    /// belongs to the rank that holds an expert's first leaf.
    fn load_biases<B: Backend>(
        &self,
        loader: &mut Loader<'_, B>,
        width: usize,
        layer: usize,
        down_bias: bool,
        experts: &mut [Expert<B>],
    ) -> Result<(), ModelError> {
        let name = |name| names::bias(layer, name);
        if loader.source.directory().find_tensor(&name(self.gate)).is_none() {
            return Ok(());
        }
        let (hidden, count) = (self.hidden, self.count);
        let gate = loader.floats(&name(self.gate), [hidden, count])?;
        let up = loader.floats(&name(self.up), [hidden, count])?;
        let down = loader.floats(&name(self.down), [width, count])?;
        let rows = gate.chunks_exact(hidden).zip(up.chunks_exact(hidden));
        let rows = rows.zip(down.chunks_exact(width)).skip(self.experts.start);
        for (expert, ((gate, up), down)) in experts.iter_mut().zip(rows) {
            expert.bias = Some(ExpertBias {
                gate: loader.backend.vector(&gate[self.own.clone()]),
                up: loader.backend.vector(&up[self.own.clone()]),
                down: down_bias.then(|| loader.backend.vector(down)),
            });
        }
        Ok(())
    }
}
