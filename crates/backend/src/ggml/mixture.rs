//! Mixtures of experts: the host chooses, the device multiplies.
//!
//! Rows go to the same experts as on the CPU where their logits are the same; the price is a wait
//! for the logits in each layer.

use ggml::{Error, Node, Type};

use super::build::Builder;
use super::inputs::Input;
use super::ops::{GluKey, Matrix, Op, Operand, Ref};
use super::{Ggml, Rows, Vector};
use crate::routing::Routes;
use crate::{Expert, ExpertBias, Mixture, MixtureParts, RoutingRule, SharedExpert};

const F32: usize = size_of::<f32>();

/// Where the rows of a step go.
#[derive(Default)]
pub struct Chosen {
    routes: Routes,
    rows: usize,
    /// How many experts a row goes to, and how many there are.
    used: usize,
    experts: usize,
    shared: bool,
}

/// The three products of a gated block; of a mixture's experts, each a stack of them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Block {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// What a mixture is on the device.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Experts {
    block: Block,
    /// Of gate, up and down: `[experts, numbers]` each.
    biases: [Option<Ref>; 3],
    glu: GluKey,
    /// Experts of each row.
    pub(super) used: usize,
    /// `[rows, used]`: numbers of experts, and their weights.
    ids: Ref,
    weights: Ref,
    /// Which every row goes to, and its weights, `[rows]`.
    shared: Option<(Block, Ref)>,
}

impl Block {
    fn of(expert: &Expert<Ggml>) -> Option<Self> {
        let (gate, up, down) = (expert.gate.clone()?, expert.up.clone()?, expert.down.clone()?);
        Some(Self { gate, up, down })
    }
}

impl Ggml {
    /// What the host needs of the device's numbers.
    fn fetch(&mut self, x: &Rows) -> Vec<f32> {
        self.submit();
        let mut numbers = vec![0.0; x.rows * x.width];
        if let (Some(array), None) = (&x.array, &self.fault) {
            self.stream.read(&array.0, &mut numbers);
        }
        numbers
    }

    pub(super) fn choose(
        &mut self,
        rule: &RoutingRule,
        logits: &Rows,
        choice_bias: Option<&Option<Vector>>,
        shared: SharedExpert<'_, Rows>,
        chosen: &mut Chosen,
    ) {
        let numbers = self.fetch(logits);
        let bias = choice_bias.and_then(Option::as_ref).map(|bias| &*bias.values);
        chosen.routes.route(rule, &numbers, bias);
        (chosen.rows, chosen.used, chosen.experts) = (logits.rows, rule.used, rule.experts);
        chosen.shared = !matches!(shared, SharedExpert::Absent);
        match shared {
            SharedExpert::Absent => {}
            SharedExpert::Full => chosen.routes.add_shared(rule.experts, logits.rows, None),
            SharedExpert::Gated(gate) => {
                let gate = self.fetch(gate);
                chosen.routes.add_shared(rule.experts, logits.rows, Some(&gate));
            }
        }
    }

    pub(super) fn experts(
        &mut self,
        chosen: &Chosen,
        mixture: &Mixture<Self>,
        parts: &MixtureParts,
        glu: GluKey,
    ) -> Option<Experts> {
        let (first, last) = (mixture.experts.first()?, mixture.experts.last()?);
        let Chosen { rows, used, .. } = *chosen;
        // Experts of other ranks count for nothing here.
        let (mut ids, mut weights) = (vec![0; rows * used], vec![0.0; rows * used]);
        let (mut shared, mut filled) = (vec![0.0; rows], vec![0; rows]);
        for route in chosen.routes.routes() {
            let (row, expert) = (route.row as usize, route.expert as usize);
            if expert == chosen.experts {
                shared[row] = route.weight;
                continue;
            }
            if let Some(place) = parts.place(expert) {
                let at = row * used + filled[row];
                (ids[at], weights[at]) = (place as u32, route.weight);
                filled[row] += 1;
            }
        }
        let of_shared = match chosen.shared {
            true => Some((Block::of(last)?, self.input(Input::Weights(shared))?)),
            false => None,
        };
        let routed = &mixture.experts[..mixture.experts.len() - usize::from(chosen.shared)];
        Some(Experts {
            block: Block::of(first)?,
            biases: self.biases(routed),
            glu,
            used,
            ids: self.input(Input::Experts(ids))?,
            weights: self.input(Input::Weights(weights))?,
            shared: of_shared,
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
        let (rows, used, width) = (x.rows, experts.used, out.width);
        let flat = used * F32;
        let ids = self.array(&experts.ids);
        let ids = self.recorder.view(ids, [used, rows, 1, 1], [flat, flat * rows, flat * rows], 0);
        let from = self.operand(x);
        let line = x.width * F32;
        let input = self.recorder.view(from, [x.width, 1, rows, 1], [line, line, line * rows], 0);
        let of_one = |block: &Block| [block.gate.clone(), block.up.clone(), block.down.clone()];
        let [gate, up, down] = of_one(&experts.block).map(|matrix| self.array(&matrix.stack));
        let gate = self.recorder.mul_mat_id(gate, input, ids)?;
        let gate = self.biased(gate, &experts.biases[0], ids)?;
        let up = self.recorder.mul_mat_id(up, input, ids)?;
        let up = self.biased(up, &experts.biases[1], ids)?;
        let hidden = self.recorder.glu(experts.glu.glu(), gate, up, None)?;
        let sums = self.recorder.mul_mat_id(down, hidden, ids)?;
        let sums = self.biased(sums, &experts.biases[2], ids)?;
        let weights = self.array(&experts.weights);
        let strides = [F32, flat, flat * rows];
        let weights = self.recorder.view(weights, [1, used, rows, 1], strides, 0);
        let sums = self.recorder.mul(sums, weights, None)?;
        let line = width * F32;
        let strides = [line * used, line * used * rows, line * used * rows];
        let mut total = self.recorder.view(sums, [width, rows, 1, 1], strides, 0);
        for at in 1..used {
            let next = self.recorder.view(sums, [width, rows, 1, 1], strides, at * line);
            total = self.recorder.add(total, next, None)?;
        }
        if let Some((block, weights)) = &experts.shared {
            let [gate, up, down] = of_one(block).map(|matrix| self.matrix(&matrix));
            let gate = self.recorder.mul_mat(gate, from, None)?;
            let up = self.recorder.mul_mat(up, from, None)?;
            let hidden = self.recorder.glu(experts.glu.glu(), gate, up, None)?;
            let sums = self.recorder.mul_mat(down, hidden, None)?;
            let weights = self.array(weights);
            let strides = [F32, F32 * rows, F32 * rows];
            let weights = self.recorder.view(weights, [1, rows, 1, 1], strides, 0);
            let sums = self.recorder.mul(sums, weights, None)?;
            total = self.recorder.add(total, sums, None)?;
        }
        let place = self.place(out);
        let node = self.recorder.copy(total, place);
        self.wrote(out, node, [width, rows]);
        Ok(())
    }

    fn biased(&mut self, x: Node, bias: &Option<Ref>, ids: Node) -> Result<Node, Error> {
        let Some(bias) = bias else { return Ok(x) };
        let bias = self.array(bias);
        self.recorder.add_id(x, bias, ids)
    }
}
