//! Builds one ggml graph from operations.

use std::collections::HashMap;
use std::sync::Arc;

use ggml::{Array, Error, Graph, Node, Recorder, Stream, Temporary, Type, Unary};

use super::ops::{Attention, Kv, Matrix, Op, Operand, Ref};

const F32: usize = size_of::<f32>();

/// Records `ops` as one graph; `exact`: products are added up in single precision.
pub(super) fn graph(
    stream: &Stream,
    temporary: &mut Temporary,
    exact: bool,
    ops: &[Op],
) -> Result<Graph, Error> {
    let nodes_max = ops.iter().map(Op::nodes_max).sum();
    let mut recorder = Recorder::new(stream, temporary, nodes_max);
    if exact {
        recorder.add_up_exactly();
    }
    let (written, lists) = (HashMap::new(), HashMap::new());
    let mut builder = Builder { recorder, stream, written, lists };
    for op in ops {
        builder.recorder.forget_temporary();
        builder.op(op)?;
    }
    // Another graph may read any result of this one.
    for (node, _) in builder.written.values() {
        builder.recorder.keep(*node);
    }
    Ok(builder.recorder.finish())
}

pub(super) struct Builder<'a> {
    pub(super) recorder: Recorder<'a>,
    stream: &'a Stream,
    /// The last node that wrote an array, and its shape, which readers depend on.
    written: HashMap<*const Array, (Node, Shape)>,
    /// Positions and places, by their array and length.
    lists: HashMap<(*const Array, usize), Node>,
}

/// `[width, rows, 1]`, or `[elements of a head, heads, rows]`.
type Shape = [usize; 3];

/// The shape of a node with elements out of order: it matches no requested shape.
const SCATTERED: Shape = [0; 3];

/// Heads of the queries and of the cache that attend together: `(first, count)` of each.
type Run = ((usize, usize), (usize, usize));

impl Builder<'_> {
    fn op(&mut self, op: &Op) -> Result<(), Error> {
        match op {
            Op::Norm { centred, x, gain, len, eps, out } => {
                let shape = match x.width / len {
                    1 => [*len, x.rows, 1],
                    heads => [*len, heads, x.rows],
                };
                let (from, gain) = (self.shaped(x, shape), self.array(gain));
                let normed = match centred {
                    false => self.recorder.rms_norm(from, eps.0, None)?,
                    true => self.recorder.norm(from, eps.0, None)?,
                };
                let place = self.place(out);
                let node = self.recorder.mul(normed, gain, Some(place))?;
                self.wrote(out, node, shape);
            }
            Op::Columns { x, first, out } => {
                let from = self.operand(x);
                let from = self.columns(from, x.width, *first, out);
                let place = self.place(out);
                let node = self.recorder.copy(from, place);
                self.wrote(out, node, out.flat());
            }
            Op::Join { a, a_dim, b, b_dim, out } => {
                let heads = a.width / a_dim * a.rows;
                let a = self.shaped(a, [*a_dim, heads, 1]);
                let b = self.shaped(b, [*b_dim, heads, 1]);
                let place = self.place(out);
                let node = self.recorder.concat(a, b, 0, Some(place))?;
                self.wrote(out, node, [a_dim + b_dim, heads, 1]);
            }
            Op::AddBias { x, bias } => {
                let (from, bias, place) = (self.operand(x), self.array(bias), self.place(x));
                let node = self.recorder.add(from, bias, Some(place))?;
                self.wrote(x, node, x.flat());
            }
            Op::Scale { x, factor } => {
                let (from, place) = (self.operand(x), self.place(x));
                let node = self.recorder.scale(from, factor.0, Some(place))?;
                self.wrote(x, node, x.flat());
            }
            Op::SoftCap { x, cap } => {
                let (from, place) = (self.operand(x), self.place(x));
                let part = self.recorder.scale(from, 1.0 / cap.0, None)?;
                let part = self.recorder.unary(Unary::Tanh, part, None)?;
                let node = self.recorder.scale(part, cap.0, Some(place))?;
                self.wrote(x, node, x.flat());
            }
            Op::ScaleRows { x, factors } => {
                let (from, place, factors) = (self.operand(x), self.place(x), self.array(factors));
                let factors = self.recorder.view(factors, [1, x.rows, 1, 1], [F32; 3], 0);
                let node = self.recorder.mul(from, factors, Some(place))?;
                self.wrote(x, node, x.flat());
            }
            Op::SquaredRelu { x } => {
                let (from, place) = (self.operand(x), self.place(x));
                let above = self.recorder.unary(Unary::Relu, from, None)?;
                let node = self.recorder.mul(above, above, Some(place))?;
                self.wrote(x, node, x.flat());
            }
            Op::Linear { x, matrix, out } => {
                let (matrix, from, place) = (self.matrix(matrix), self.operand(x), self.place(out));
                let node = self.recorder.mul_mat(matrix, from, Some(place))?;
                self.wrote(out, node, out.flat());
            }
            Op::LinearHeads { x, stack, out } => self.linear_heads(x, stack, out)?,
            Op::Rotate { x, head_dim, rope, positions, periods } => {
                let shape = [*head_dim, x.width / head_dim, x.rows];
                let (from, place) = (self.shaped(x, shape), self.place(x));
                let positions = self.list(positions, x.rows, size_of::<i32>());
                let periods = self.array(periods);
                let node = self.recorder.rope(rope.rope(), from, positions, periods, place)?;
                self.wrote(x, node, shape);
            }
            Op::Store { kv, k, v, indices } => self.store(kv, k, v, indices),
            Op::Attend { kv, shape, q, mask, n_kv, out } => {
                self.attend(kv, shape, q, (mask, *n_kv), out)?;
            }
            Op::Gated { glu, gate, up } => {
                let (from, up_node) = (self.operand(gate), self.operand(up));
                let place = self.place(gate);
                let node = match glu {
                    Some(glu) => self.gated(*glu, from, up_node, Some(place))?,
                    None => {
                        let part = self.recorder.unary(Unary::Sigmoid, from, None)?;
                        self.recorder.mul(part, up_node, Some(place))?
                    }
                };
                self.wrote(gate, node, gate.flat());
                self.lost(up);
            }
            Op::GateHeads { x, gate, head_dim } => {
                let (from, gates) = (self.operand(x), self.operand(gate));
                let (heads, rows) = (gate.width, x.rows);
                let gates = self.recorder.unary(Unary::Sigmoid, gates, None)?;
                let gates = self.recorder.reshape(gates, [1, heads, rows, 1]);
                let from = self.recorder.reshape(from, [*head_dim, heads, rows, 1]);
                let product = self.recorder.mul(from, gates, None)?;
                let product = self.recorder.reshape(product, [x.width, rows, 1, 1]);
                let place = self.place(x);
                let node = self.recorder.copy(product, place);
                self.wrote(x, node, x.flat());
            }
            Op::Mixture { x, experts, out } => self.mixture(x, experts, out)?,
            Op::Add { x, y } => {
                let (from, y, place) = (self.operand(x), self.operand(y), self.place(x));
                let node = self.recorder.add(from, y, Some(place))?;
                self.wrote(x, node, x.flat());
            }
            Op::Keep { x, indices, rows } => {
                let from = self.operand(x);
                let indices = self.list(indices, *rows, size_of::<i32>());
                let kept = self.recorder.get_rows(from, indices, None)?;
                let out = Operand { rows: *rows, ..x.clone() };
                let place = self.place(&out);
                let node = self.recorder.copy(kept, place);
                self.wrote(&out, node, out.flat());
            }
        }
        Ok(())
    }

    pub(super) fn array(&mut self, array: &Ref) -> Node {
        self.recorder.array(&array.0)
    }

    /// The current content of an operand, `[width, rows]`.
    pub(super) fn operand(&mut self, x: &Operand) -> Node {
        self.shaped(x, x.flat())
    }

    /// The first `count` elements of an array, each of `bytes` bytes. All readers share one node,
    /// since devices fuse some operations only if nothing is in between.
    fn list(&mut self, array: &Ref, count: usize, bytes: usize) -> Node {
        let at = (Arc::as_ptr(&array.0), count);
        if let Some(node) = self.lists.get(&at) {
            return *node;
        }
        let mut node = self.array(array);
        if array.0.bytes() != count * bytes {
            node = self.recorder.view(node, [count, 1, 1, 1], [bytes * count; 3], 0);
        }
        self.lists.insert(at, node);
        node
    }

    /// The same in another shape.
    fn shaped(&mut self, x: &Operand, shape: Shape) -> Node {
        let at: *const Array = Arc::as_ptr(&x.array.0);
        match self.written.get(&at) {
            Some((node, found)) if *found == shape => *node,
            Some((node, _)) => self.flat(*node, shape),
            None => {
                let node = self.array(&x.array);
                self.flat(node, shape)
            }
        }
    }

    fn flat(&mut self, node: Node, [a, b, c]: Shape) -> Node {
        let strides = [a * F32, a * b * F32, a * b * c * F32];
        self.recorder.view(node, [a, b, c, 1], strides, 0)
    }

    /// The place of an operand, as `[width, rows]`.
    pub(super) fn place(&mut self, x: &Operand) -> Node {
        let node = self.array(&x.array);
        self.flat(node, x.flat())
    }

    pub(super) fn wrote(&mut self, x: &Operand, node: Node, shape: Shape) {
        self.written.insert(Arc::as_ptr(&x.array.0), (node, shape));
    }

    /// Marks an operand as undefined until it is written again.
    fn lost(&mut self, x: &Operand) {
        self.written.remove(&Arc::as_ptr(&x.array.0));
    }

    /// The columns of a node of `width` columns from `first` on, as many as `like` has.
    fn columns(&mut self, of: Node, width: usize, first: usize, like: &Operand) -> Node {
        let strides = [width * F32, width * like.rows * F32, width * like.rows * F32];
        self.recorder.view(of, [like.width, like.rows, 1, 1], strides, first * F32)
    }

    pub(super) fn matrix(&mut self, matrix: &Matrix) -> Node {
        let stack = self.array(&matrix.stack);
        if matrix.count == 1 {
            return stack;
        }
        let row = self.stream.device().row_bytes(matrix.ty, matrix.cols);
        let all = row * matrix.rows;
        let shape = [matrix.cols, matrix.rows, 1, 1];
        self.recorder.view(stack, shape, [row, all, all], matrix.at * all)
    }

    fn linear_heads(&mut self, x: &Operand, stack: &Matrix, out: &Operand) -> Result<(), Error> {
        let (heads, rows) = (stack.count, x.rows);
        let matrices = self.array(&stack.stack);
        let from = self.operand(x);
        let from = self.heads(from, x, [stack.cols, rows, heads], 0);
        // Vulkan multiplies weights of 2, 4, 5 and 6 bits wrongly if heads interleave.
        let from = if rows == 1 { from } else { self.recorder.cont(from, None)? };
        let product = self.recorder.mul_mat(matrices, from, None)?;
        // The product is grouped by heads, the operand by rows.
        let (dim, width) = (stack.rows, out.width);
        let shape = [dim, heads, rows, 1];
        let strides = [dim * rows * F32, dim * F32, dim * rows * heads * F32];
        let product = self.recorder.view(product, shape, strides, 0);
        let place = self.place(out);
        let strides = [dim * F32, width * F32, width * rows * F32];
        let place = self.recorder.view(place, shape, strides, 0);
        let node = self.recorder.copy(product, place);
        self.wrote(out, node, SCATTERED);
        Ok(())
    }

    /// Heads of `x`, stored in `of`, from `first` on, as `[dim, rows, heads]`.
    fn heads(
        &mut self,
        of: Node,
        x: &Operand,
        [dim, rows, heads]: [usize; 3],
        first: usize,
    ) -> Node {
        let (head, row) = (dim * F32, x.width * F32);
        // A single row has no gaps; Vulkan computes wrongly if the strides suggest any.
        let strides = if rows == 1 { [head, head, head * heads] } else { [row, head, row * rows] };
        self.recorder.view(of, [dim, rows, heads, 1], strides, first * head)
    }

    fn store(&mut self, kv: &Kv, k: &Operand, v: &Operand, indices: &Ref) {
        let indices = self.list(indices, k.rows, size_of::<i64>());
        for (cache, x) in [(&kv.k, k), (&kv.v, v)] {
            let (from, to) = (self.operand(x), self.array(cache));
            self.recorder.set_rows(to, from, indices);
            self.lost(x);
        }
    }

    fn attend(
        &mut self,
        kv: &Kv,
        shape: &Attention,
        q: &Operand,
        (mask, n_kv): (&Ref, usize),
        out: &Operand,
    ) -> Result<(), Error> {
        let rows = q.rows;
        let mask = self.array(mask);
        let line = n_kv * 2;
        let strides = [line, line * rows, line * rows];
        let mask = self.recorder.view(mask, [n_kv, rows, 1, 1], strides, 0);
        let queries = self.operand(q);
        let place = self.place(out);
        let runs = runs(&shape.kv_of_head);
        let mut node = place;
        for run in &runs {
            let ((first, heads), _) = *run;
            let part = self.heads(queries, q, [kv.k_dim, rows, heads], first);
            node = self.attend_run(kv, shape, run, [part, mask, place], (n_kv, rows, out.width))?;
        }
        match runs.len() {
            1 => self.wrote(out, node, SCATTERED),
            // Several nodes wrote it.
            _ => self.lost(out),
        }
        Ok(())
    }

    /// `[q, mask, place]`: this run's queries `[k_dim, rows, heads]`, and the place of all heads'
    /// sums.
    fn attend_run(
        &mut self,
        kv: &Kv,
        shape: &Attention,
        run: &Run,
        [q, mask, place]: [Node; 3],
        (n_kv, rows, width): (usize, usize, usize),
    ) -> Result<Node, Error> {
        let ((first, heads), of_kv) = *run;
        let k = self.cached(kv, (&kv.k, kv.k_dim), of_kv, n_kv);
        let v = self.cached(kv, (&kv.v, kv.v_dim), of_kv, n_kv);
        let sinks = self.sinks(shape, first, heads)?;
        let (scale, cap) = (shape.scale.0, shape.soft_cap.map(|cap| cap.0));
        let dim = kv.v_dim;
        let strides = [dim * F32, width * F32, width * rows * F32];
        let to = self.recorder.view(place, [dim, heads, rows, 1], strides, first * dim * F32);
        let whole = heads * dim == width;
        let named = whole.then_some(to);
        if self.stream.device().flashes(kv.k_dim)
            && let Some(node) = self.recorder.flash([q, k, v, mask], (scale, cap), sinks, named)?
        {
            return Ok(if whole { node } else { self.recorder.copy(node, to) });
        }
        let mut scores = self.recorder.mul_mat_f32(k, q, None)?;
        let mut rest = scale;
        if let Some(cap) = cap {
            let part = self.recorder.scale(scores, scale / cap, None)?;
            (scores, rest) = (self.recorder.unary(Unary::Tanh, part, None)?, cap);
        }
        let weights = self.recorder.soft_max(scores, Some(mask), rest, sinks)?;
        let v = self.recorder.transpose(v);
        let v = self.recorder.cont(v, None)?;
        let sums = self.recorder.mul_mat(v, weights, None)?;
        let strides = [dim * rows * F32, dim * F32, dim * rows * heads * F32];
        let sums = self.recorder.view(sums, [dim, heads, rows, 1], strides, 0);
        Ok(self.recorder.copy(sums, to))
    }

    /// The sinks of some heads. Vulkan accepts none between its alignments.
    fn sinks(
        &mut self,
        shape: &Attention,
        first: usize,
        heads: usize,
    ) -> Result<Option<Node>, Error> {
        let Some(sinks) = &shape.sinks else { return Ok(None) };
        let sinks = self.array(sinks);
        let own = self.recorder.view(sinks, [heads, 1, 1, 1], [heads * F32; 3], first * F32);
        Ok(Some(if first == 0 { own } else { self.recorder.cont(own, None)? }))
    }

    /// Keys or values of some heads of the cache, `[dim, n_kv, heads]`.
    fn cached(
        &mut self,
        kv: &Kv,
        (array, dim): (&Ref, usize),
        (first, heads): (usize, usize),
        n_kv: usize,
    ) -> Node {
        let device = self.stream.device();
        let (head, all) = (device.row_bytes(kv.ty, dim), device.row_bytes(kv.ty, dim * kv.heads));
        let node = self.array(array);
        self.recorder.view(node, [dim, n_kv, heads, 1], [all, head, all * n_kv], first * head)
    }
}

/// The groups of heads that attend together: all, if as many of them read each of some neighbouring
/// heads of the cache; else those of each head of the cache, since ggml requires equal groups.
pub(super) fn runs(kv_of_head: &[u32]) -> Vec<Run> {
    let mut first = 0;
    let runs = kv_of_head.chunk_by(|a, b| a == b).map(|run| {
        let run = ((first, run.len()), (run[0] as usize, 1));
        first += run.0.1;
        run
    });
    let runs: Vec<Run> = runs.collect();
    let Some(((_, group), (kv, _))) = runs.first().copied() else { return runs };
    let is_next = |(at, run): (usize, &Run)| *run == ((at * group, group), (kv + at, 1));
    match runs.iter().enumerate().all(is_next) {
        true => vec![((0, kv_of_head.len()), (kv, runs.len()))],
        false => runs,
    }
}

/// Whether values of this type can be transposed for attention in several operations.
pub(super) fn is_float(ty: Type) -> bool {
    ty == Type::F32 || ty == Type::F16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ragged_groups_attend_one_by_one() {
        assert_eq!(runs(&[0, 0, 1, 1]), [((0, 4), (0, 2))]);
        assert_eq!(runs(&[2, 2, 3, 3]), [((0, 4), (2, 2))]);
        assert_eq!(runs(&[0, 0, 2, 2]), [((0, 2), (0, 1)), ((2, 2), (2, 1))]);
        assert_eq!(runs(&[0, 0, 0]), [((0, 3), (0, 1))]);
        assert_eq!(runs(&[0, 1, 1]), [((0, 1), (0, 1)), ((1, 2), (1, 1))]);
        assert_eq!(runs(&[0, 0, 0, 1]), [((0, 3), (0, 1)), ((3, 1), (1, 1))]);
    }
}
