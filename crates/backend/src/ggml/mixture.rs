//! Mixtures of experts: the matrices of each row, and their weights.

use ggml::{Error, Glu, Node, Type, Unary};

use super::build::Builder;
use super::choice::{Chosen, Own, Router};
use super::ops::{GluKey, Matrix, Number, Op, Operand, Ref};
use super::{Ggml, Vector};
use crate::{Expert, ExpertBias, Mixture, MixtureParts};

const F32: usize = size_of::<f32>();

/// The three products of a gated block; for a mixture's experts, each is a stack.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Block {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// A mixture on the device.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Experts {
    block: Block,
    /// Of gate, up and down: `[experts, elements]` each.
    biases: [Option<Ref>; 3],
    /// The activations of the routed experts, and of the shared one.
    glus: [GluKey; 2],
    router: Router,
    own: Own,
    /// The shared expert, which every row uses.
    shared: Option<Block>,
}

impl Block {
    fn of(expert: &Expert<Ggml>) -> Option<Self> {
        let gate = expert.gate.clone().flatten()?;
        let (up, down) = (expert.up.clone()?, expert.down.clone()?);
        Some(Self { gate, up, down })
    }
}

impl Experts {
    /// Experts of each row, without the shared one.
    pub(super) fn used(&self) -> usize {
        self.router.used(self.own)
    }
}

impl Ggml {
    pub(super) fn experts(
        &mut self,
        chosen: &Chosen,
        mixture: &Mixture<Self>,
        parts: &MixtureParts,
        glus: [GluKey; 2],
    ) -> Option<Experts> {
        let (first, last) = (mixture.experts.first()?, mixture.experts.last()?);
        let router = chosen.0.clone()?;
        let has_shared = router.shared.is_some();
        let routed = &mixture.experts[..mixture.experts.len() - usize::from(has_shared)];
        Some(Experts {
            block: Block::of(first)?,
            biases: self.biases(routed),
            glus,
            // A rank with all experts uses the form that devices fuse into one operation.
            own: parts.own_experts().filter(|(_, count)| *count < router.experts()),
            router,
            shared: if has_shared { Some(Block::of(last)?) } else { None },
        })
    }

    /// The experts' biases, each kind as one array.
    fn biases(&mut self, experts: &[Expert<Self>]) -> [Option<Ref>; 3] {
        type Of = fn(&ExpertBias<Ggml>) -> Option<&Vector>;
        let kinds: [Of; 3] =
            [|of| of.gate.as_ref(), |of| of.up.as_ref(), |of| of.down.as_ref()?.as_ref()];
        kinds.map(|kind| {
            let vectors = experts.iter().map(|expert| kind(expert.bias.as_ref()?));
            let vectors: Vec<&Vector> = vectors.collect::<Option<_>>()?;
            let key = vectors.first()?.array.clone();
            if let Some(stack) = self.stacks.get(&key) {
                return Some(stack.clone());
            }
            let len = vectors[0].len;
            let all: Vec<f32> = vectors.iter().flat_map(|vector| vector.values.to_vec()).collect();
            let stack = self.stack(&all, len)?;
            self.stacks.insert(key, stack.clone());
            Some(stack)
        })
    }

    /// `[numbers.len() / len, len]` on the device.
    fn stack(&mut self, numbers: &[f32], len: usize) -> Option<Ref> {
        match self.weights.array(Type::F32, [len, numbers.len() / len, 1, 1]) {
            Ok(array) => {
                self.stream.write(&array, 0, &super::bytes(numbers));
                Some(Ref(array))
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }
}

/// The operation of a mixture.
pub(super) fn op(x: Operand, experts: Experts, out: Operand) -> Op {
    Op::Mixture { x, experts: Box::new(experts), out }
}

impl Builder<'_> {
    pub(super) fn mixture(
        &mut self,
        x: &Operand,
        experts: &Experts,
        out: &Operand,
    ) -> Result<(), Error> {
        let (rows, used, width) = (x.rows, experts.used(), out.width);
        let (ids, weights) = self.chosen(&experts.router, experts.own)?;
        let from = self.operand(x);
        let line = x.width * F32;
        let mut input =
            self.recorder.view(from, [x.width, 1, rows, 1], [line, line, line * rows], 0);
        if experts.router.weighs_inputs() {
            // `check_routing` allows one expert a row.
            input = self.recorder.mul(input, weights, None)?;
        }
        let of_one = |block: &Block| [block.gate.clone(), block.up.clone(), block.down.clone()];
        let [gate, up, down] = of_one(&experts.block).map(|matrix| self.array(&matrix.stack));
        let gate = self.recorder.mul_mat_id(gate, input, ids)?;
        let gate = self.biased(gate, &experts.biases[0], ids)?;
        let up = self.recorder.mul_mat_id(up, input, ids)?;
        let up = self.biased(up, &experts.biases[1], ids)?;
        let hidden = self.gated(experts.glus[0], gate, up, None)?;
        let sums = self.recorder.mul_mat_id(down, hidden, ids)?;
        let sums = self.biased(sums, &experts.biases[2], ids)?;
        let sums = match experts.router.weighs_inputs() {
            true => sums,
            false => self.recorder.mul(sums, weights, None)?,
        };
        let line = width * F32;
        let strides = [line * used, line * used * rows, line * used * rows];
        let place = self.place(out);
        let mut total = self.recorder.view(sums, [width, rows, 1, 1], strides, 0);
        let last = if experts.shared.is_some() { used } else { used - 1 };
        for at in 1..used {
            let next = self.recorder.view(sums, [width, rows, 1, 1], strides, at * line);
            total = self.recorder.add(total, next, (at == last).then_some(place))?;
        }
        if let (Some(block), Some(weight)) = (&experts.shared, &experts.router.shared) {
            let [gate, up, down] = of_one(block).map(|matrix| self.matrix(&matrix));
            let gate = self.recorder.mul_mat(gate, from, None)?;
            let up = self.recorder.mul_mat(up, from, None)?;
            let hidden = self.gated(experts.glus[1], gate, up, None)?;
            let mut sums = self.recorder.mul_mat(down, hidden, None)?;
            if let Some(weights) = self.weights(weight, rows)? {
                sums = self.recorder.mul(sums, weights, None)?;
            }
            total = self.recorder.add(total, sums, Some(place))?;
        } else if used == 1 {
            total = self.recorder.copy(total, place);
        }
        self.wrote(out, total, out.flat());
        Ok(())
    }

    /// `activation(gate) * up`.
    pub(super) fn gated(
        &mut self,
        glu: GluKey,
        gate: Node,
        up: Node,
        to: Option<Node>,
    ) -> Result<Node, Error> {
        let glu = match glu {
            GluKey::Gelu => Glu::Gelu,
            GluKey::Silu => Glu::Silu,
            GluKey::Clamped { alpha, limit } => Glu::Clamped { alpha: alpha.0, limit: limit.0 },
            GluKey::LimitedSilu { limit: Number(limit) } => {
                let gate = self.recorder.unary(Unary::Silu, gate, None)?;
                let gate = self.recorder.clamp(gate, f32::NEG_INFINITY, limit)?;
                let up = self.recorder.clamp(up, -limit, limit)?;
                return self.recorder.mul(gate, up, to);
            }
        };
        self.recorder.glu(glu, gate, up, to)
    }

    fn biased(&mut self, x: Node, bias: &Option<Ref>, ids: Node) -> Result<Node, Error> {
        let Some(bias) = bias else { return Ok(x) };
        let bias = self.array(bias);
        self.recorder.add_id(x, bias, ids)
    }
}
