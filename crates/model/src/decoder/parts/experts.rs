//! A layer of experts; each token uses a few.
//!
//! Every rank routes every token, from the same logits to the same experts. It has its columns of
//! every expert, so that all ranks have the same work; or some whole experts, if they are too
//! narrow to cut. Either way the sum over all ranks is one reduction, as in a dense layer. A shared
//! expert is another one for every token; every rank has its columns.

use backend::{
    Activation, Backend, Expert, ExpertBias, Mixture, MixtureParts, RoutingRule, RoutingVectors,
    SharedExpert, StreamedLayer,
};
use layout::{Config, Experts, Shard, Slices, names};

use super::dense::DenseBlock;
use crate::ModelError;
use crate::decoder::context::Context;
use crate::decoder::reduce::{Product, Reduce};
use crate::decoder::residual::total;
use crate::loader::Loader;
use crate::loader::shelf::ROLES;
use crate::loader::slabs::load_layer;
use crate::operations::{activation, parts, routing_rule};

pub(crate) struct SparseBlock<B: Backend> {
    rule: RoutingRule,
    router: B::Matrix,
    router_bias: Option<B::Vector>,
    /// A bias on the choice of experts, not on their weights, `[experts]`.
    choice_bias: Option<B::Vector>,
    /// Factors of the weights, `[experts]`.
    scales: Option<B::Vector>,
    /// The experts of each token, `[vocab, used]`, in layers that choose by token.
    by_token: Option<Vec<u32>>,
    /// The gate of the shared expert's weight: the sigmoid of this product.
    shared_gate: Option<B::Matrix>,
    /// Whether this rank's mixture includes a part of the shared expert.
    shared: bool,
    latent: Option<LatentExperts<B>>,
    mixture: Mixture<B>,
    parts: Option<MixtureParts>,
}

/// Experts that are narrower than the residual stream. Their outputs are summed over all ranks
/// before they are projected back, so the shared expert, which has the full width, is a separate
/// block.
struct LatentExperts<B: Backend> {
    down: B::Matrix,
    /// The norm of their outputs, in models that have it.
    norm: Option<B::Vector>,
    up: B::Matrix,
    shared: DenseBlock<B>,
}

impl<B: Backend> SparseBlock<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        experts: &Experts,
        shard: &Shard,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (rank, leaves) = (shard.rank, shard.expert_leaves());
        let [activation, shared_activation] =
            config.clamps(layer).map(|limit| activation(config, limit));
        let (mut own, streamed) = load_routed(loader, slices, activation, layer)?;
        load_biases(loader, slices, &mut own)?;
        let shared_leaves = shard.shared_expert.as_ref();
        // If it is narrow, some ranks have no part of it.
        let held = shared_leaves.is_some_and(|leaves| !leaves.columns(rank).is_empty());
        let shared = held && experts.latent.is_none();
        let roles = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
        if shared {
            own.extend(load(loader, slices, roles, shared_activation)?);
        }
        let latent = match experts.latent {
            None => None,
            Some(_) => Some(LatentExperts {
                down: loader.matrix(&slices.get("ffn_latent_down"))?,
                norm: loader.find_vector(slices.find("ffn_latent_norm"))?,
                up: loader.matrix(&slices.get("ffn_latent_up"))?,
                shared: {
                    let parts = shared_leaves.and_then(|leaves| parts(leaves, rank));
                    let own = (parts, shard.feed_forward.len());
                    DenseBlock::load(loader, slices, roles, own, shared_activation)?
                },
            }),
        };
        let shared_ends = shared_leaves.filter(|_| shared).map(|leaves| leaves.leaf_ends(rank));
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
            scales: loader.find_vector(slices.find("ffn_down_exps.scale"))?,
            by_token: match slices.find("ffn_gate_tid2eid") {
                Some(slice) => Some(loader.integers(&slice, experts.count)?),
                None => None,
            },
            shared_gate: shared_gate.map(|slice| loader.matrix(&slice)).transpose()?,
            shared,
            latent,
            mixture: Mixture { experts: own, streamed },
            // A rank without leaves has no parts.
            parts: parts.ok(),
        })
    }

    /// Begins to read the experts that these tokens choose in this layer, before its turn.
    pub fn prefetch(&self, tokens: &[u32]) {
        let (Some(table), Some(parts)) = (&self.by_token, &self.parts) else { return };
        let used = self.rule.used;
        let experts = tokens.iter().flat_map(|token| &table[*token as usize * used..][..used]);
        self.mixture.prefetch(parts, experts.map(|expert| *expert as usize));
    }

    /// `sums = mixture(h)`, this rank's part.
    pub fn forward<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
    ) -> Result<(), R::Error> {
        self.route(c);
        self.mix(c, reduce)
    }

    /// Sends each row of `h` to experts.
    pub fn route(&self, c: &mut Context<'_, B>) {
        let Context { backend, scratch: s, .. } = c;
        let r = s.routing.as_mut().expect("made for models with experts");
        backend.linear(&s.h, &mut [(&self.router, &mut r.router.logits)]);
        if let Some(bias) = &self.router_bias {
            backend.add_bias(&mut r.router.logits, bias);
        }
        let shared = match &self.shared_gate {
            _ if !self.shared => SharedExpert::Absent,
            None => SharedExpert::Full,
            Some(gate) => {
                backend.linear(&s.h, &mut [(gate, &mut r.router.shared_gate)]);
                SharedExpert::Gated(&r.router.shared_gate)
            }
        };
        let (choice_bias, scales) = (self.choice_bias.as_ref(), self.scales.as_ref());
        r.given.clear();
        if let Some(table) = &self.by_token {
            let (used, tokens) = (self.rule.used, s.tokens.iter().map(|token| *token as usize));
            r.given.extend(tokens.flat_map(|token| &table[token * used..][..used]));
        }
        let experts = self.by_token.as_ref().map(|_| r.given.as_slice());
        let vectors = RoutingVectors { choice_bias, scales, experts };
        backend.route(&self.rule, &r.router.logits, vectors, shared, &mut r.routes);
    }

    /// `sums = mixture(h)`, this rank's part, of the experts that rows were routed to.
    pub fn mix<R: Reduce>(&self, c: &mut Context<'_, B>, reduce: &mut R) -> Result<(), R::Error> {
        let Context { backend, scratch: s, .. } = c;
        let r = s.routing.as_mut().expect("made for models with experts");
        let Some(latent) = &self.latent else {
            backend.mixture(&s.h, &r.routes, &self.mixture, self.parts.as_ref(), &mut s.sums);
            return Ok(());
        };
        let e = s.expert.as_mut().expect("made for experts in a latent space");
        backend.linear(&s.h, &mut [(&latent.down, &mut e.input)]);
        backend.mixture(&e.input, &r.routes, &self.mixture, self.parts.as_ref(), &mut e.sums);
        latent.finish(c, reduce)
    }
}

impl<B: Backend> LatentExperts<B> {
    /// Adds up the outputs of all ranks' experts, and projects them back: `x += up(norm(total))`.
    /// Afterwards `sums` has the shared expert's part.
    fn finish<R: Reduce>(&self, c: &mut Context<'_, B>, reduce: &mut R) -> Result<(), R::Error> {
        let rows = c.rows;
        let Context { backend, config, scratch: s, .. } = c;
        self.shared.forward(*backend, &s.h, &mut s.hidden, &mut s.sums);
        let e = s.expert.as_mut().expect("made for experts in a latent space");
        let product = Product::FeedForward;
        let total = total(*backend, reduce, product, rows, &mut e.sums, &mut e.total)?;
        if let Some(norm) = &self.norm {
            backend.rms_norm_in_place(total, norm, config.rms_eps);
        }
        backend.linear(total, &mut [(&self.up, &mut s.h)]);
        backend.add(&mut s.x, &s.h);
        Ok(())
    }
}

/// This rank's part of the routed experts. Those that lie on disk are here without matrices.
fn load_routed<B: Backend>(
    loader: &mut Loader<'_, B>,
    slices: &Slices<'_>,
    activation: Activation,
    layer: usize,
) -> Result<(Vec<Expert<B>>, Option<StreamedLayer>), ModelError> {
    let streamed = match loader.shelf.clone() {
        Some(shelf) => load_layer(loader, &shelf, slices, layer)?,
        None => None,
    };
    if streamed.is_none() {
        return Ok((load(loader, slices, ROLES, activation)?, None));
    }
    let [count, _, _] = slices.get(ROLES[1]).shape();
    let own = (0..count).map(|_| {
        let gate = slices.find(ROLES[0]).map(|_| loader.nothing()).transpose()?;
        let (up, down) = (loader.nothing()?, loader.nothing()?);
        Ok(Expert { gate, up, down, bias: None, activation })
    });
    Ok((own.collect::<Result<_, ModelError>>()?, streamed))
}

/// This rank's part of the experts whose three products have these roles.
fn load<B: Backend>(
    loader: &mut Loader<'_, B>,
    slices: &Slices<'_>,
    roles: [&str; 3],
    activation: Activation,
) -> Result<Vec<Expert<B>>, ModelError> {
    let [gate, up, down] = roles;
    let gates = match slices.find(gate) {
        Some(slice) => loader.matrices(&slice)?,
        None => Vec::new(),
    };
    let mut gates = gates.into_iter();
    let (ups, downs) = (loader.matrices(&slices.get(up))?, loader.matrices(&slices.get(down))?);
    let expert = |(up, down)| Expert { gate: gates.next(), up, down, bias: None, activation };
    Ok(ups.into_iter().zip(downs).map(expert).collect())
}

/// Sets the experts' biases, if the file has any. The bias of the down product is added by the rank
/// with an expert's first leaf.
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
