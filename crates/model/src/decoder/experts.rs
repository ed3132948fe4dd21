//! A layer of experts, of which each token visits a few.
//!
//! Every rank routes every token, from the same logits to the same experts. It has its columns of
//! every expert, so that all ranks have the same work; or, where experts are too narrow for that,
//! some experts whole. Either way the sum over all ranks is one reduction, as in a dense layer. A
//! shared expert is one more, which every token visits, and of which every rank has its columns.

use backend::{Backend, Expert, ExpertBias, Mixture, MixtureParts, RoutingRule, SharedExpert};
use layout::{Config, Experts, Shard, Slices, names};

use super::context::Context;
use crate::ModelError;
use crate::loader::Loader;
use crate::operations::{activation, routing_rule};

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

impl<B: Backend> SparseBlock<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        experts: &Experts,
        shard: &Shard,
        slices: &Slices<'_>,
    ) -> Result<Self, ModelError> {
        let (rank, leaves) = (shard.rank, shard.expert_leaves());
        let mut own = load(loader, slices, ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"])?;
        load_biases(loader, slices, &mut own)?;
        let shared = slices.find("ffn_gate_shexp").is_some();
        if shared {
            let roles = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
            own.extend(load(loader, slices, roles)?);
        }
        let shared_ends = shard.shared_expert.as_ref().map(|leaves| leaves.leaf_ends(rank));
        let (leaf_ends, part_ends) = (leaves.leaf_ends(rank), leaves.part_ends(rank));
        let parts = match shard.whole_experts {
            true => {
                let (count, first) = (experts.count, shard.experts(experts.count).start);
                let hidden = experts.hidden;
                MixtureParts::whole(count, first, hidden, leaf_ends, shared_ends, part_ends)
            }
            false => MixtureParts::new(leaf_ends, shared_ends, part_ends),
        };
        let shared_gate = slices.find("ffn_gate_inp_shexp");
        Ok(Self {
            rule: routing_rule(experts),
            router: loader.matrix(&slices.get("ffn_gate_inp"))?,
            router_bias: loader.find_vector(slices.find("ffn_gate_inp.bias"))?,
            choice_bias: loader.find_vector(slices.find(names::CHOICE_BIAS))?,
            shared_gate: shared_gate.map(|slice| loader.matrix(&slice)).transpose()?,
            shared,
            mixture: Mixture { experts: own, activation: activation(config) },
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

/// This rank's part of the experts whose three products have these roles.
fn load<B: Backend>(
    loader: &mut Loader<'_, B>,
    slices: &Slices<'_>,
    roles: [&str; 3],
) -> Result<Vec<Expert<B>>, ModelError> {
    let [gates, ups, downs] = roles.map(|role| loader.matrices(&slices.get(role)));
    let experts = gates?.into_iter().zip(ups?).zip(downs?);
    Ok(experts.map(|((gate, up), down)| Expert { gate, up, down, bias: None }).collect())
}

/// Gives the experts their biases, if the file has any. The bias of the down product belongs to
/// the rank that holds an expert's first leaf.
fn load_biases<B: Backend>(
    loader: &mut Loader<'_, B>,
    slices: &Slices<'_>,
    experts: &mut [Expert<B>],
) -> Result<(), ModelError> {
    let Some(gates) = slices.find("ffn_gate_exps.bias") else { return Ok(()) };
    let gates = loader.vectors(&gates)?.into_iter();
    let ups = loader.vectors(&slices.get("ffn_up_exps.bias"))?;
    let mut downs = loader.vectors(&slices.get("ffn_down_exps.bias"))?.into_iter();
    for (expert, (gate, up)) in experts.iter_mut().zip(gates.zip(ups)) {
        expert.bias = Some(ExpertBias { gate, up, down: downs.next() });
    }
    Ok(())
}
