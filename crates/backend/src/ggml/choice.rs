//! The choice of experts, on the device and by the same rule as on the CPU: softmax, sigmoid or
//! neither, the largest few, their weights. So the host does not wait for the router's logits. Of
//! experts with equal scores it may choose either.

use ggml::{Error, Node, Unary};

use super::build::Builder;
use super::ops::{Number, Operand, Ref};
use super::{Rows, Vector};
use crate::routing::{Gating, SUM_MIN};
use crate::{RoutingRule, RoutingVectors, SharedExpert};

const F32: usize = size_of::<f32>();
const I32: usize = size_of::<i32>();

/// The router of a step's rows; `None` after a failure, which is reported later.
#[derive(Default)]
pub struct Chosen(pub(super) Option<Router>);

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Router {
    rule: RuleKey,
    /// `[rows, experts]`.
    logits: Operand,
    /// A bias on the choice only.
    bias: Option<Ref>,
    /// Factors of the final weights.
    scales: Option<Ref>,
    pub shared: Option<SharedWeight>,
}

/// A rank's own experts, if it has whole ones: the first, and their number.
pub(super) type Own = Option<(usize, usize)>;

/// The weight of the shared expert, which every row uses.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum SharedWeight {
    One,
    /// The sigmoid of these, `[rows, 1]`.
    Gate(Operand),
}

/// [`RoutingRule`], compared by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RuleKey {
    experts: usize,
    used: usize,
    gating: Gating,
    groups: usize,
    groups_used: usize,
    normalised: bool,
    scale: Number,
    weighs_inputs: bool,
}

impl RuleKey {
    fn of(rule: &RoutingRule) -> Self {
        let RoutingRule { experts, used, gating, groups, groups_used, .. } = *rule;
        let RoutingRule { normalised, scale, weighs_inputs, .. } = *rule;
        let scale = Number(scale);
        Self { experts, used, gating, groups, groups_used, normalised, scale, weighs_inputs }
    }
}

impl Chosen {
    pub(super) fn by(
        rule: &RoutingRule,
        logits: &Rows,
        vectors: RoutingVectors<'_, Vector>,
        shared: SharedExpert<'_, Rows>,
    ) -> Self {
        let shared = match shared {
            SharedExpert::Absent => None,
            SharedExpert::Full => Some(SharedWeight::One),
            SharedExpert::Gated(gate) => gate.operand().map(SharedWeight::Gate),
        };
        let array = |vector: Option<&Vector>| vector.map(|vector| vector.array.clone());
        let (bias, scales) = (array(vectors.choice_bias), array(vectors.scales));
        let rule = RuleKey::of(rule);
        Self(logits.operand().map(|logits| Router { rule, logits, bias, scales, shared }))
    }
}

impl Router {
    /// Whether the weights multiply the experts' inputs.
    pub fn weighs_inputs(&self) -> bool {
        self.rule.weighs_inputs
    }

    /// The number of experts over all ranks.
    pub fn experts(&self) -> usize {
        self.rule.experts
    }

    /// The number of this rank's experts for each row. It may exceed the number of chosen ones
    /// among them: surplus experts have zero weight.
    pub fn used(&self, own: Own) -> usize {
        own.map_or(self.rule.used, |(_, count)| count.min(self.rule.used))
    }
}

impl Builder<'_> {
    /// The experts of each row `[used, rows]`, in this rank's numbering, and their weights `[1,
    /// used, rows]`.
    pub(super) fn chosen(&mut self, router: &Router, own: Own) -> Result<(Node, Node), Error> {
        let Router { rule, logits, bias, scales, .. } = router;
        let (experts, used, rows) = (rule.experts, rule.used, logits.rows);
        let logits = self.operand(logits);
        let scores = match rule.gating {
            Gating::Softmax => self.recorder.soft_max(logits, None, 1.0, None)?,
            Gating::Sigmoid => self.recorder.unary(Unary::Sigmoid, logits, None)?,
            // `check_routing` refuses the other cases.
            _ => logits,
        };
        let apart = self.recorder.reshape(scores, [1, experts, rows, 1]);
        let mut choice = scores;
        if let Some(bias) = bias {
            let bias = self.array(bias);
            choice = self.recorder.add(scores, bias, None)?;
        }
        if rule.groups > 1 {
            choice = self.close_groups(rule, choice, rows)?;
        }
        let ids = self.largest(choice, [experts, used], [rows, 1])?;
        let mut weights = self.recorder.get_rows(apart, ids, None)?;
        let each = [1, used, rows, 1];
        if rule.gating == Gating::SoftmaxOfChosen {
            weights = self.recorder.reshape(weights, [used, rows, 1, 1]);
            weights = self.recorder.soft_max(weights, None, 1.0, None)?;
            weights = self.recorder.reshape(weights, each);
        }
        if rule.gating == Gating::SigmoidOfChosen {
            weights = self.recorder.unary(Unary::Sigmoid, weights, None)?;
        }
        if rule.normalised {
            weights = self.recorder.reshape(weights, [used, rows, 1, 1]);
            let sum = self.recorder.sum_rows(weights)?;
            let sum = self.recorder.clamp(sum, SUM_MIN, f32::INFINITY)?;
            weights = self.recorder.div(weights, sum)?;
            weights = self.recorder.reshape(weights, each);
        }
        if rule.scale.0 != 1.0 {
            weights = self.recorder.scale(weights, rule.scale.0, None)?;
        }
        if let Some(scales) = scales {
            let scales = self.array(scales);
            let ones = self.recorder.fill(scores, 1.0)?;
            let of_all = self.recorder.mul(ones, scales, None)?;
            let of_all = self.recorder.reshape(of_all, [1, experts, rows, 1]);
            let scales = self.recorder.get_rows(of_all, ids, None)?;
            weights = self.recorder.mul(weights, scales, None)?;
        }
        match own {
            None => Ok((ids, weights)),
            Some(own) => self.own(router, [apart, ids, weights], own),
        }
    }

    /// This rank's experts among the chosen: its own ones with the largest weights. No row uses an
    /// expert twice, which devices rely on.
    fn own(
        &mut self,
        router: &Router,
        [apart, ids, weights]: [Node; 3],
        (first, count): (usize, usize),
    ) -> Result<(Node, Node), Error> {
        let (experts, rows, used) =
            (router.rule.experts, router.logits.rows, router.used(Some((first, count))));
        let none = self.recorder.fill(apart, 0.0)?;
        let of_all = self.recorder.set_rows(none, weights, ids);
        let line = experts * F32;
        let strides = [line, line * rows, line * rows];
        let of_own = self.recorder.view(of_all, [count, rows, 1, 1], strides, first * F32);
        let of_own = self.recorder.cont(of_own, None)?;
        let ids = self.largest(of_own, [count, used], [rows, 1])?;
        let apart = self.recorder.reshape(of_own, [1, count, rows, 1]);
        Ok((ids, self.recorder.get_rows(apart, ids, None)?))
    }

    /// The indices of the `count` largest of each row of `len` elements.
    fn largest(
        &mut self,
        x: Node,
        [len, count]: [usize; 2],
        [rows, more]: [usize; 2],
    ) -> Result<Node, Error> {
        let sorted = self.recorder.argsort(x)?;
        let line = len * I32;
        let strides = [line, line * rows, line * rows * more];
        Ok(self.recorder.view(sorted, [count, rows, more, 1], strides, 0))
    }

    /// `scores`, `[experts, rows]`, restricted to the best groups, as on the CPU.
    fn close_groups(&mut self, rule: &RuleKey, scores: Node, rows: usize) -> Result<Node, Error> {
        let RuleKey { experts, groups, .. } = *rule;
        let size = experts / groups;
        let best = if rule.gating == Gating::Sigmoid { 2.min(size) } else { 1 };
        let grouped = self.recorder.reshape(scores, [size, groups, rows, 1]);
        let ids = self.largest(grouped, [size, best], [groups, rows])?;
        let apart = self.recorder.reshape(grouped, [1, size, groups, rows]);
        let of_group = self.recorder.get_rows(apart, ids, None)?;
        let of_group = self.recorder.reshape(of_group, [best, groups, rows, 1]);
        let of_group = self.recorder.sum_rows(of_group)?;
        let of_group = self.recorder.reshape(of_group, [groups, rows, 1, 1]);
        let open = self.largest(of_group, [groups, rule.groups_used], [rows, 1])?;
        let kept = self.recorder.get_rows(grouped, open, None)?;
        let closed = self.recorder.fill(grouped, f32::NEG_INFINITY)?;
        let all = self.recorder.set_rows(closed, kept, open);
        Ok(self.recorder.reshape(all, [experts, rows, 1, 1]))
    }

    /// The factors of the shared expert's sums, `[1, rows]`; `None`: 1.
    pub(super) fn weights(
        &mut self,
        weight: &SharedWeight,
        rows: usize,
    ) -> Result<Option<Node>, Error> {
        let SharedWeight::Gate(gate) = weight else { return Ok(None) };
        let gate = self.operand(gate);
        let weights = self.recorder.unary(Unary::Sigmoid, gate, None)?;
        Ok(Some(self.recorder.reshape(weights, [1, rows, 1, 1])))
    }
}
