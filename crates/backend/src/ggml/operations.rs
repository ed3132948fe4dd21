//! A decoder's operations, recorded as data for the device.

use std::ops::Range;

use ggml::Type;
use gguf::TensorType;

use super::choice::Chosen;
use super::inputs::{self, Input};
use super::mixture;
use super::ops::{GluKey, Number, Op, RopeKey};
use super::{
    Attention, FIRST_OPS, GROWTH, Ggml, KV_STEP, Kv, Loader, Matrix, Ref, Rows, Vector, build,
    loading,
};
use crate::routing::Gating;
use crate::{
    Activation, AttentionShape, Backend, BackendError, CacheKind, KvShape, Mixture, MixtureParts,
    PAGE_POSITIONS, Parts, RecurrentShape, RecurrentWeights, RopeStyle, RopeTable, RoutingRule,
    RoutingVectors, Seen, Segment, SegmentKey, SharedExpert, StateRoom, Temperature,
};

const CHOICES: &str = "layers that choose the positions they see";
const RECURRENCE: &str = "layers that carry a state";

fn glu_key(activation: Activation) -> Option<GluKey> {
    Some(match activation {
        Activation::Silu => GluKey::Silu,
        Activation::Gelu => GluKey::Gelu,
        Activation::ClampedSwiglu { alpha, limit } => {
            GluKey::Clamped { alpha: Number(alpha), limit: Number(limit) }
        }
        Activation::LimitedSilu { limit } => GluKey::LimitedSilu { limit: Number(limit) },
        _ => return None,
    })
}

impl Backend for Ggml {
    const COMPILES: bool = true;

    type Matrix = Option<Matrix>;
    type Loader = Loader;
    /// `None` if it is empty.
    type Vector = Option<Vector>;
    type Rows = Rows;
    /// `None` for a rank without heads.
    type Kv = Option<Kv>;
    type Entries = ();
    type Attention = Attention;
    type Chosen = ();
    type Routes = Chosen;
    type States = ();
    type Recurrent = ();

    fn check_matrix(&self, ty: TensorType, rows: usize, cols: usize) -> Result<(), BackendError> {
        loading::check(&self.stream, ty, rows, cols)
    }

    fn start_matrices(
        &mut self,
        ty: TensorType,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Loader, BackendError> {
        Loader::start(&self.stream, &mut self.weights, ty, [count, rows, cols])
    }

    fn push_rows(&mut self, loader: &mut Loader, bytes: &[u8]) -> Result<(), BackendError> {
        loader.push(&self.stream, bytes)
    }

    fn finish_matrices(&mut self, loader: Loader) -> Result<Vec<Option<Matrix>>, BackendError> {
        loader.finish()
    }

    fn matrix_bytes(&self, matrix: &Option<Matrix>) -> usize {
        matrix.as_ref().map_or(0, |matrix| matrix.stack.0.room() / matrix.count)
    }

    fn vector(&mut self, values: &[f32]) -> Self::Vector {
        Some(Vector { array: self.numbers(values)?, len: values.len(), values: values.into() })
    }

    fn rows(&mut self, rows_max: usize, width: usize) -> Rows {
        let array = match rows_max * width {
            0 => None,
            _ => match self.state.array(Type::F32, [width, rows_max, 1, 1]) {
                Ok(array) => Some(Ref(array)),
                Err(error) => {
                    self.fail(error);
                    None
                }
            },
        };
        Rows::new(array, width, rows_max)
    }

    fn rows_bytes(&self, x: &Rows) -> usize {
        x.array.as_ref().map_or(0, |array| array.0.room())
    }

    /// All devices have kernels for half precision, and few for other types.
    fn cache_kind(&self, _of_cpu: CacheKind) -> CacheKind {
        CacheKind::F16
    }

    fn kv(&mut self, shape: KvShape) -> Result<Option<Kv>, BackendError> {
        self.check()?;
        let KvShape { heads, k_dim, v_dim, pages, kind } = shape;
        let ty = self.cache_type(kind)?;
        if heads == 0 {
            return Ok(None);
        }
        if !build::is_float(ty) && !self.stream.device().attends(ty, k_dim, v_dim) {
            let what = format!("a cache of 8 bits with heads of {k_dim} and {v_dim} numbers");
            return Err(self.unsupported(what));
        }
        let positions = (pages * PAGE_POSITIONS).next_multiple_of(KV_STEP);
        let mut cache = |dim| self.state.array(ty, [heads * dim, positions, 1, 1]).map(Ref);
        let (k, v) = (cache(k_dim)?, cache(v_dim)?);
        Ok(Some(Kv { k, v, ty, heads, k_dim, v_dim, positions }))
    }

    fn kv_bytes(&self, shape: &KvShape) -> usize {
        let KvShape { heads, k_dim, v_dim, pages, kind } = *shape;
        let positions = (pages * PAGE_POSITIONS).next_multiple_of(KV_STEP);
        let row = |ty, dim| self.stream.device().row_bytes(ty, heads * dim);
        self.cache_type(kind).map_or(0, |ty| positions * (row(ty, k_dim) + row(ty, v_dim)))
    }

    fn attention(&mut self, shape: &AttentionShape) -> Attention {
        Attention {
            kv_of_head: shape.kv_of_head.as_slice().into(),
            scale: Number(shape.scale),
            range: shape.range,
            soft_cap: shape.soft_cap.map(Number),
            sinks: shape.sinks.as_ref().and_then(|sinks| self.numbers(sinks)),
        }
    }

    fn check_indexer(&self) -> Result<(), BackendError> {
        Err(self.unsupported(CHOICES.to_owned()))
    }

    fn check_recurrence(&self) -> Result<(), BackendError> {
        Err(self.unsupported(RECURRENCE.to_owned()))
    }

    fn check_routing(&self, rule: &RoutingRule) -> Result<(), BackendError> {
        let refused = match rule {
            RoutingRule { gating: Gating::SparseMixer, .. } => "SparseMixer's choice of experts",
            RoutingRule { gating: Gating::SqrtSoftplus, .. } => "scores that are roots of softplus",
            RoutingRule { weighs_inputs: true, used: 2.., .. } => {
                "several experts a row whose weights multiply what they read"
            }
            _ => return Ok(()),
        };
        Err(self.unsupported(refused.to_owned()))
    }

    fn states(&mut self, _: &RecurrentShape, _: StateRoom) -> Result<(), BackendError> {
        self.check_recurrence()
    }

    fn states_bytes(&self, _: &RecurrentShape, _: StateRoom) -> usize {
        0
    }

    fn recurrent(&mut self, _: RecurrentShape, _: RecurrentWeights) {}

    fn chosen(&mut self, _: usize, _: usize, _: usize) {}

    fn chosen_bytes(&self, _: usize, _: usize, _: usize) -> usize {
        0
    }

    fn routes(&mut self) -> Chosen {
        self.has_experts = true;
        Chosen::default()
    }

    fn dequantize(
        &mut self,
        ty: TensorType,
        cols: usize,
        bytes: &[u8],
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        Ok(self.dequantizer.run(ty, cols, bytes, out)?)
    }

    fn write<E>(
        &mut self,
        out: &mut Rows,
        rows: usize,
        fill: impl FnOnce(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        out.set_rows(rows);
        self.submit();
        // A submitted graph may still read it.
        self.stream.synchronise();
        let (array, len) = (out.array.clone(), rows * out.width);
        let mirror = out.mirror(&self.stream);
        fill(&mut mirror.numbers_mut()[..len])?;
        if let Some(array) = array {
            self.stream.send(&array.0, mirror, len);
        }
        Ok(())
    }

    fn host<'a>(&mut self, x: &'a mut Rows) -> Result<&'a [f32], BackendError> {
        self.submit();
        self.check()?;
        let (array, computed, len) = (x.array.clone(), x.computed * x.width, x.rows * x.width);
        let mirror = x.mirror(&self.stream);
        if !mirror.is_free() {
            self.stream.synchronise();
        }
        mirror.numbers_mut()[computed..len].fill(0.0);
        match array {
            // One wait covers the computation and the copy.
            Some(array) => self.stream.read(&array.0, &mut mirror.numbers_mut()[..computed]),
            None => self.stream.synchronise(),
        }
        Ok(&mirror[..len])
    }

    fn synchronise(&mut self) -> Result<(), BackendError> {
        self.submit();
        self.stream.synchronise();
        self.check()
    }

    fn end_segment(&mut self, _segment: SegmentKey) {
        if self.ops.len() >= self.enough {
            self.submit();
            self.enough *= GROWTH;
        }
    }

    fn set_positions(&mut self, tables: &[RopeTable], positions: &[u32]) {
        self.submit();
        // Inputs of the last step are overwritten.
        self.stream.synchronise();
        self.inputs.start_step();
        self.enough = FIRST_OPS;
        self.tables.clear();
        for table in tables {
            let known = self.periods.iter().position(|(known, _)| known == table);
            let at = known.unwrap_or_else(|| {
                let periods: Vec<f32> =
                    table.inverse_frequencies().iter().map(|turns| 1.0 / turns).collect();
                if let Some(array) = self.numbers(&periods) {
                    self.periods.push((table.clone(), array));
                }
                self.periods.len().saturating_sub(1)
            });
            self.tables.push(at);
        }
        self.positions = positions.to_vec();
    }

    fn keep(&mut self, x: &mut Rows, kept: &[usize]) {
        let operand = x.operand();
        x.set_rows(kept.len());
        let Some(x) = operand else { return };
        let kept: Vec<u32> = kept.iter().map(|row| *row as u32).collect();
        let rows = kept.len();
        let Some(indices) = self.input(Input::Kept(kept)) else { return };
        self.note(Some(Op::Keep { x, indices, rows }));
    }

    fn keep_positions(&mut self, kept: &[usize]) {
        self.positions = kept.iter().map(|row| self.positions[*row]).collect();
    }

    fn rms_norm(&mut self, x: &Rows, gain: &Self::Vector, eps: f32, out: &mut Rows) {
        out.set_rows(x.rows);
        let op = || {
            let Vector { array: gain, len, .. } = gain.clone()?;
            let (x, out) = (x.operand()?, out.operand()?);
            Some(Op::Norm { centred: false, x, gain, len, eps: Number(eps), out })
        };
        self.note(op());
    }

    fn layer_norm(&mut self, x: &Rows, gain: &Self::Vector, eps: f32, out: &mut Rows) {
        out.set_rows(x.rows);
        let op = || {
            let Vector { array: gain, len, .. } = gain.clone()?;
            let (x, out) = (x.operand()?, out.operand()?);
            Some(Op::Norm { centred: true, x, gain, len, eps: Number(eps), out })
        };
        self.note(op());
    }

    fn rms_norm_in_place(&mut self, x: &mut Rows, gain: &Self::Vector, eps: f32) {
        let op = || {
            let (Vector { array: gain, len, .. }, x) = (gain.clone()?, x.operand()?);
            Some(Op::Norm { centred: false, out: x.clone(), x, gain, len, eps: Number(eps) })
        };
        self.note(op());
    }

    fn columns(&mut self, x: &Rows, cols: Range<usize>, out: &mut Rows) {
        out.set_rows(x.rows);
        let op = || Some(Op::Columns { x: x.operand()?, first: cols.start, out: out.operand()? });
        self.note(op());
    }

    fn join_heads(&mut self, (a, a_dim): (&Rows, usize), b: (&Rows, usize), out: &mut Rows) {
        out.set_rows(a.rows);
        let op = || {
            let (b, b_dim) = (b.0.operand()?, b.1);
            Some(Op::Join { a: a.operand()?, a_dim, b, b_dim, out: out.operand()? })
        };
        self.note(op());
    }

    fn add_bias(&mut self, x: &mut Rows, bias: &Self::Vector) {
        let op = || Some(Op::AddBias { x: x.operand()?, bias: bias.clone()?.array });
        self.note(op());
    }

    fn scale(&mut self, x: &mut Rows, factor: f32) {
        let op = || Some(Op::Scale { x: x.operand()?, factor: Number(factor) });
        self.note(op());
    }

    fn soft_cap(&mut self, x: &mut Rows, cap: f32) {
        let op = || Some(Op::SoftCap { x: x.operand()?, cap: Number(cap) });
        self.note(op());
    }

    fn linear(&mut self, x: &Rows, outs: &mut [(&Option<Matrix>, &mut Rows)]) {
        for (matrix, out) in outs {
            out.set_rows(x.rows);
            let op = || {
                let matrix = Option::clone(matrix)?;
                Some(Op::Linear { x: x.operand()?, matrix, out: out.operand()? })
            };
            self.note(op());
        }
    }

    fn linear_int16(&mut self, x: &Rows, matrix: &Option<Matrix>, out: &mut Rows) {
        self.linear(x, &mut [(matrix, out)]);
    }

    fn linear_heads(&mut self, x: &Rows, matrices: &[Option<Matrix>], out: &mut Rows) {
        out.set_rows(x.rows);
        let op = || {
            let stack = matrices.first()?.clone()?;
            assert!(stack.count == matrices.len(), "the heads of one tensor");
            Some(Op::LinearHeads { x: x.operand()?, stack, out: out.operand()? })
        };
        self.note(op());
    }

    /// The first part is the whole sum; further ones, of uneven shares, are zero.
    fn linear_parts(
        &mut self,
        x: &Rows,
        matrix: &Option<Matrix>,
        parts: Option<&Parts>,
        out: &mut Rows,
    ) {
        let (Some(_), Some(parts)) = (matrix, parts) else {
            out.set_rows(0);
            return;
        };
        self.linear(x, &mut [(matrix, &mut *out)]);
        out.set_rows(parts.count() * x.rows);
        out.computed = x.rows;
    }

    fn rope(&mut self, x: &mut Rows, head_dim: usize, style: RopeStyle, table: usize) {
        let Some(x) = x.operand() else { return };
        let Some(positions) = self.input(Input::Positions(self.positions.clone())) else { return };
        let Some((table, periods)) = self.periods.get(self.tables[table]).cloned() else { return };
        let rope = RopeKey {
            dims: 2 * table.inverse_frequencies().len(),
            neox: style == RopeStyle::Neox,
            magnitude: Number(table.magnitude()),
        };
        self.note(Some(Op::Rotate { x, head_dim, rope, positions, periods }));
    }

    fn scale_by_temperature(&mut self, x: &mut Rows, temperature: &Temperature) {
        let Some(x) = x.operand() else { return };
        let positions = self.positions.clone();
        let input = Input::Factors { positions, temperature: *temperature };
        let Some(factors) = self.input(input) else { return };
        self.note(Some(Op::ScaleRows { x, factors }));
    }

    fn store(&mut self, kv: &mut Option<Kv>, batch: &[Segment], k: &Rows, v: &Rows) {
        let (Some(kv), Some(k), Some(v)) = (kv, k.operand(), v.operand()) else { return };
        let Some(indices) = self.input(Input::Places(batch.to_vec())) else { return };
        self.note(Some(Op::Store { kv: kv.clone(), k, v, indices }));
    }

    fn copy_page(&mut self, kv: &mut Option<Kv>, from: u32, to: u32) {
        kv.iter().for_each(|kv| self.copy(kv, [from, to]));
    }

    fn attend(
        &mut self,
        kv: &Option<Kv>,
        shape: &Attention,
        batch: &[Segment],
        _: Seen<'_, Self>,
        q: &Rows,
        out: &mut Rows,
    ) {
        out.set_rows(q.rows);
        let (Some(kv), Some(q), Some(out)) = (kv, q.operand(), out.operand()) else { return };
        let n_kv = inputs::reach(batch).next_multiple_of(KV_STEP).min(kv.positions);
        let input = Input::Mask { batch: batch.to_vec(), range: shape.range, n_kv };
        let Some(mask) = self.input(input) else { return };
        let shape = shape.clone();
        self.note(Some(Op::Attend { kv: kv.clone(), shape, q, mask, n_kv, out }));
    }

    fn activate(&mut self, activation: Activation, x: &mut Rows) {
        if activation != Activation::SquaredRelu {
            return self.refuse("this activation without a gate");
        }
        let op = || Some(Op::SquaredRelu { x: x.operand()? });
        self.note(op());
    }

    fn gate_heads(&mut self, x: &mut Rows, gate: &mut Rows, head_dim: usize) {
        let op = || Some(Op::GateHeads { x: x.operand()?, gate: gate.operand()?, head_dim });
        self.note(op());
    }

    fn gated(&mut self, activation: Activation, gate: &mut Rows, up: &Rows) {
        let glu = match activation {
            Activation::Sigmoid => None,
            _ => match glu_key(activation) {
                Some(glu) => Some(glu),
                None => return self.refuse("this activation"),
            },
        };
        let op = || Some(Op::Gated { glu, gate: gate.operand()?, up: up.operand()? });
        self.note(op());
    }

    fn route(
        &mut self,
        rule: &RoutingRule,
        logits: &Rows,
        vectors: RoutingVectors<'_, Self::Vector>,
        shared: SharedExpert<'_, Rows>,
        routes: &mut Chosen,
    ) {
        let RoutingVectors { choice_bias, scales, .. } = vectors;
        let vectors = RoutingVectors {
            choice_bias: choice_bias.and_then(Option::as_ref),
            scales: scales.and_then(Option::as_ref),
            experts: None,
        };
        *routes = Chosen::by(rule, logits, vectors, shared);
    }

    /// Parts as in [`Backend::linear_parts`] here.
    fn mixture(
        &mut self,
        x: &Rows,
        routes: &Chosen,
        mixture: &Mixture<Self>,
        parts: Option<&MixtureParts>,
        out: &mut Rows,
    ) {
        let Some(parts) = parts else {
            out.set_rows(0);
            return;
        };
        out.set_rows(x.rows);
        let activations = mixture.experts.first().zip(mixture.experts.last());
        let glus = activations.and_then(|(routed, shared)| {
            Some([glu_key(routed.activation)?, glu_key(shared.activation)?])
        });
        let Some(glus) = glus else {
            return self.refuse("this activation");
        };
        let experts = self.experts(routes, mixture, parts, glus);
        let op = || Some(mixture::op(x.operand()?, experts?, out.operand()?));
        self.note(op());
        out.set_rows(parts.part_ends.len() * x.rows);
        out.computed = x.rows;
    }

    fn add(&mut self, x: &mut Rows, y: &Rows) {
        let op = || Some(Op::Add { x: x.operand()?, y: y.operand()? });
        self.note(op());
    }
}
