//! Implements [`Backend`]'s operations, each as a call of the `kernels` crate.

use std::ops::Range;
use std::sync::Arc;

use gguf::TensorType;
use kernels::{
    AttendShape, Chosen, EntryCache, Forms, Keys, KvCache, Matrix, Product, RecurrentLayer,
    RecurrentRows, States, activate, add, add_bias, attend, attend_compressed, bank, choose,
    gate_ngrams, gated, keep_rows, layer_norm, matmul_parts, multiply, read_banks, recur, rms_norm,
    rms_norm_in_place, rope, scale, scale_by_temperature, sigmoid_in_place, soft_cap,
};

use super::loading::Loading;
use super::rows::Rows;
use super::wave::Job;
use super::{Cpu, content, groups};
use crate::{
    Activation, AttentionShape, Backend, BackendError, CacheKind, Compression, EntryShape,
    GroupNorm, IndexKeys, Indexer, KvShape, Mixture, MixtureParts, Parts, Place, RecurrentInputs,
    RecurrentShape, RecurrentWeights, RopeStyle, RopeTable, Routes, RoutingRule, RoutingVectors,
    Seen, Segment, SegmentKey, SharedExpert, StateRoom, StateSegment, StreamMix, Temperature,
};

impl Backend for Cpu {
    // `None` for a rank without a part of it.
    type Matrix = Option<Arc<Matrix>>;
    type Kv = Option<KvCache>;
    type Entries = Option<EntryCache>;
    type Loader = Loading;
    type Vector = Vec<f32>;
    type Rows = Rows;
    type Attention = AttendShape;
    type Chosen = Chosen;
    type Routes = Routes;
    type States = States;
    type Recurrent = RecurrentLayer;

    fn start_matrices(
        &mut self,
        ty: TensorType,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Loading, BackendError> {
        Loading::start(ty, count, rows, cols)
    }

    fn push_rows(&mut self, loader: &mut Loading, bytes: &[u8]) -> Result<(), BackendError> {
        loader.push(&self.pool, bytes)
    }

    fn finish_matrices(
        &mut self,
        loader: Loading,
    ) -> Result<Vec<Option<Arc<Matrix>>>, BackendError> {
        let matrices = loader.finish()?;
        if let Some(Some(matrix)) = matrices.first() {
            kernels::tune(&self.pool, matrix);
        }
        Ok(matrices)
    }

    fn matrix_bytes(&self, matrix: &Option<Arc<Matrix>>) -> usize {
        matrix.as_ref().map_or(0, |matrix| matrix.bytes())
    }

    fn vector(&mut self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn rows(&mut self, rows_max: usize, width: usize) -> Rows {
        Rows::new(rows_max, width)
    }

    fn rows_bytes(&self, x: &Rows) -> usize {
        x.bytes()
    }

    fn cache_kind(&self, of_cpu: CacheKind) -> CacheKind {
        of_cpu
    }

    fn kv(&mut self, shape: KvShape) -> Result<Option<KvCache>, BackendError> {
        let KvShape { heads, k_dim, v_dim, pages, kind } = shape;
        let make = || KvCache::new(heads, k_dim, v_dim, pages, kind);
        Ok((heads > 0).then(make).transpose()?)
    }

    fn kv_bytes(&self, shape: &KvShape) -> usize {
        let KvShape { heads, k_dim, v_dim, pages, kind } = *shape;
        pages * KvCache::page_bytes(heads, k_dim, v_dim, kind)
    }

    fn entries(&mut self, shape: EntryShape) -> Result<Self::Entries, BackendError> {
        Ok(if shape.pages == 0 { None } else { Some(EntryCache::new(shape)?) })
    }

    fn entries_bytes(&self, shape: &EntryShape) -> usize {
        shape.bytes()
    }

    fn attention(&mut self, shape: &AttentionShape) -> AttendShape {
        let AttentionShape { kv_of_head, k_dim, v_dim, scale, range, soft_cap, .. } = shape;
        let AttentionShape { sinks, values_in_keys, .. } = shape;
        AttendShape::new(kv_of_head, *k_dim, *v_dim, *scale)
            .with_range(*range)
            .with_values_in_keys(*values_in_keys)
            .with_soft_cap(*soft_cap)
            .with_sinks(sinks.clone())
    }

    fn chosen(&mut self, rows_max: usize, groups: usize, pages: usize) -> Chosen {
        Chosen::with_room(rows_max, groups, pages)
    }

    fn chosen_bytes(&self, rows_max: usize, groups: usize, pages: usize) -> usize {
        Chosen::bytes(rows_max, groups, pages)
    }

    fn routes(&mut self) -> Routes {
        Routes::default()
    }

    fn states(
        &mut self,
        shape: &RecurrentShape,
        StateRoom { slots, checkpoints, kept_rows }: StateRoom,
    ) -> Result<States, BackendError> {
        Ok(States::new(shape, slots, checkpoints, kept_rows)?)
    }

    fn states_bytes(&self, shape: &RecurrentShape, room: StateRoom) -> usize {
        States::bytes(shape, room.slots, room.checkpoints, room.kept_rows)
    }

    fn recurrent(&mut self, shape: RecurrentShape, weights: RecurrentWeights) -> RecurrentLayer {
        RecurrentLayer::new(shape, weights)
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
        fill(out.values_mut())
    }

    fn host<'a>(&mut self, x: &'a mut Rows) -> Result<&'a [f32], BackendError> {
        self.failure.take().map_or(Ok(x.values()), Err)
    }

    fn synchronise(&mut self) -> Result<(), BackendError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn end_segment(&mut self, _segment: SegmentKey) {}

    fn set_positions(&mut self, tables: &[RopeTable], positions: &[u32]) {
        self.load_positions(tables, positions);
    }

    fn set_places(&mut self, tables: &[RopeTable], places: &[[u32; 3]]) {
        self.load_places(tables, places);
    }

    fn keep(&mut self, x: &mut Rows, kept: &[usize]) {
        let width = x.width;
        keep_rows(x.values_mut(), width, kept);
        x.set_rows(kept.len());
    }

    fn keep_positions(&mut self, kept: &[usize]) {
        for angles in &mut self.angles {
            angles.keep(kept);
        }
        keep_rows(&mut self.positions, 1, kept);
        self.positions.truncate(kept.len());
    }

    fn rms_norm(&mut self, x: &Rows, gain: &Vec<f32>, eps: f32, out: &mut Rows) {
        out.set_rows(x.rows);
        rms_norm(&self.pool, x.values(), gain, eps, out.values_mut());
    }

    fn layer_norm(&mut self, x: &Rows, gain: &Vec<f32>, eps: f32, out: &mut Rows) {
        out.set_rows(x.rows);
        layer_norm(&self.pool, x.values(), gain, eps, out.values_mut());
    }

    fn rms_norm_in_place(&mut self, x: &mut Rows, gain: &Vec<f32>, eps: f32) {
        rms_norm_in_place(&self.pool, x.values_mut(), gain, eps);
    }

    fn columns(&mut self, x: &Rows, cols: Range<usize>, out: &mut Rows) {
        let width = cols.len();
        out.set_rows(x.rows);
        let values = out.values_mut();
        if width > 0 {
            for (x, out) in x.values().chunks_exact(x.width).zip(values.chunks_exact_mut(width)) {
                out.copy_from_slice(&x[cols.clone()]);
            }
        }
    }

    fn join_heads(&mut self, a: (&Rows, usize), b: (&Rows, usize), out: &mut Rows) {
        out.join_heads(a, b);
    }

    fn add_bias(&mut self, x: &mut Rows, bias: &Vec<f32>) {
        if !bias.is_empty() {
            add_bias(&self.pool, x.values_mut(), bias);
        }
    }

    fn scale(&mut self, x: &mut Rows, factor: f32) {
        scale(x.values_mut(), factor);
    }

    fn soft_cap(&mut self, x: &mut Rows, cap: f32) {
        soft_cap(x.values_mut(), cap);
    }

    fn linear(&mut self, x: &Rows, outs: &mut [(&Option<Arc<Matrix>>, &mut Rows)]) {
        let matrices = outs.iter().filter_map(|(matrix, _)| matrix.as_ref());
        let forms = matrices.map(|matrix| matrix.form()).reduce(|a, b| a | b);
        for (_, out) in outs.iter_mut() {
            out.set_rows(x.rows);
        }
        let Some(forms) = forms else { return };
        let input = self.inputs.whole(&self.pool, x, forms);
        let products = outs.iter_mut().filter_map(|(matrix, out)| {
            Some(Product::new(input, matrix.as_ref()?, out.values_mut()))
        });
        multiply(&self.pool, products);
    }

    fn linear_int16(&mut self, x: &Rows, matrix: &Option<Arc<Matrix>>, out: &mut Rows) {
        match matrix {
            Some(quantised) if quantised.form() == Forms::INT8 => {
                out.set_rows(x.rows);
                self.int16.multiply(&self.pool, x, quantised, out.values_mut());
            }
            _ => self.linear(x, &mut [(matrix, out)]),
        }
    }

    fn linear_parts(
        &mut self,
        x: &Rows,
        matrix: &Option<Arc<Matrix>>,
        parts: Option<&Parts>,
        out: &mut Rows,
    ) {
        let (Some(matrix), Some(parts)) = (matrix, parts) else {
            out.set_rows(0);
            return;
        };
        let input = self.inputs.whole(&self.pool, x, matrix.form());
        out.set_rows(parts.count() * x.rows);
        matmul_parts(&self.pool, input, matrix, parts, out.values_mut());
    }

    fn linear_heads(&mut self, x: &Rows, matrices: &[Option<Arc<Matrix>>], out: &mut Rows) {
        out.set_rows(x.rows);
        if !matrices.is_empty() {
            self.heads.multiply(&self.pool, &mut self.inputs, x, matrices, out);
        }
    }

    fn rope(&mut self, x: &mut Rows, head_dim: usize, style: RopeStyle, table: usize) {
        let heads = x.width / head_dim;
        if heads > 0 {
            let heads_of = (head_dim, 0);
            rope(&self.pool, x.values_mut(), heads, heads_of, &self.angles[table], style);
        }
    }

    fn rope_last(&mut self, x: &mut Rows, head_dim: usize, style: RopeStyle, table: usize) {
        let (heads, angles) = (x.width / head_dim, &self.angles[table]);
        if heads > 0 {
            let heads_of = (head_dim, head_dim - angles.rotated());
            rope(&self.pool, x.values_mut(), heads, heads_of, angles, style);
        }
    }

    fn scale_by_temperature(&mut self, x: &mut Rows, temperature: &Temperature) {
        scale_by_temperature(x.values_mut(), temperature, &self.positions);
    }

    fn store(&mut self, kv: &mut Option<KvCache>, batch: &[Segment], k: &Rows, v: &Rows) {
        let Some(kv) = kv else { return };
        let mut row = 0;
        for segment in batch {
            let rows = row..row + segment.rows;
            let k = &k.values()[rows.start * k.width..rows.end * k.width];
            let v = &v.values()[rows.start * v.width..rows.end * v.width];
            kv.store(&self.pool, &segment.table, segment.first_pos, k, v);
            row = rows.end;
        }
    }

    fn copy_page(&mut self, kv: &mut Option<KvCache>, from: u32, to: u32) {
        kv.iter_mut().for_each(|kv| kv.copy_page(from, to));
    }

    fn content<'a>(&mut self, place: Place<'a, Self>, number: u32) -> Option<&'a mut [u8]> {
        Some(content::of(place, number))
    }

    fn choose(
        &mut self,
        keys: IndexKeys<'_, Self>,
        indexer: &Indexer,
        batch: &[Segment],
        q: &Rows,
        weights: &Rows,
        out: &mut Chosen,
    ) {
        let keys = match keys {
            IndexKeys::Positions(keys) => keys.as_ref().map(Keys::Positions),
            IndexKeys::Entries(entries) => entries.as_ref().map(Keys::Entries),
        };
        let Some(keys) = keys else { return };
        choose(&self.pool, keys, indexer, batch, q.values(), weights.values(), out);
    }

    fn keep_chosen(&mut self, chosen: &mut Chosen, kept: &[usize]) {
        chosen.keep(kept);
    }

    fn attend(
        &mut self,
        kv: &Option<KvCache>,
        shape: &AttendShape,
        batch: &[Segment],
        Seen { chosen, entries }: Seen<'_, Self>,
        q: &Rows,
        out: &mut Rows,
    ) {
        out.set_rows(q.rows);
        let (q, out) = (q.values(), out.values_mut());
        match (kv, entries) {
            (Some(kv), None) => attend(&self.pool, kv, shape, batch, chosen, q, out),
            (Some(kv), Some((Some(entries), tables))) => {
                let (kv, entries) = ((kv, batch), (entries, tables));
                attend_compressed(&self.pool, kv, entries, shape, chosen, q, out);
            }
            _ => {}
        }
    }

    fn compress(
        &mut self,
        entries: &mut Self::Entries,
        compression: &Compression,
        rows: [&Rows; 2],
        windows: &[Segment],
        batch: &[Segment],
    ) {
        let (rows, batch) = (rows.map(Rows::values), (windows, batch));
        entries.iter_mut().for_each(|own| own.compress(&self.pool, compression, rows, batch));
    }

    fn weigh_streams(&mut self, mix: &StreamMix, numbers: &mut Rows) {
        mix.weigh(numbers.values_mut());
    }

    fn read_streams(&mut self, mix: &StreamMix, x: &Rows, weights: &Rows, out: &mut Rows) {
        out.set_rows(x.rows);
        mix.read(&self.pool, x.values(), weights.values(), out.values_mut());
    }

    fn give_streams(&mut self, mix: &StreamMix, x: &mut Rows, given: &Rows, weights: &Rows) {
        mix.give(&self.pool, x.values_mut(), given.values(), weights.values());
    }

    fn read_banks(
        &mut self,
        (banks, used): (&Rows, usize),
        x: &Rows,
        score: &Vec<f32>,
        eps: f32,
        out: &mut Rows,
    ) {
        out.set_rows(x.rows);
        let banks = (banks.values(), used);
        read_banks(&self.pool, banks, x.values(), score, eps, out.values_mut());
    }

    fn bank(&mut self, x: &mut Rows, banks: &mut Rows, at: usize) {
        bank(x.width, x.values_mut(), banks.values_mut(), at);
    }

    fn recur(
        &mut self,
        states: &mut States,
        layer: &RecurrentLayer,
        batch: &[StateSegment],
        inputs: RecurrentInputs<'_, Rows>,
        out: &mut Rows,
    ) {
        let RecurrentInputs { q, k, v, decay, beta } = inputs;
        out.set_rows(v.rows);
        let [q, k, v, decay, beta] = [q, k, v, decay, beta].map(Rows::values);
        let rows = RecurrentRows { q, k, v, decay, beta };
        recur(&self.pool, layer, states, batch, &rows, &mut self.recurrent, out.values_mut());
    }

    fn group_squares(&mut self, x: &Rows, norm: &GroupNorm, parts: usize, out: &mut Rows) {
        groups::squares(x, norm, parts, out);
    }

    fn gate_ngrams(&mut self, [keys, queries]: [&Rows; 2], value: &Rows, out: &mut Rows) {
        out.set_rows(value.rows);
        let (keys, value) = ([keys.values(), queries.values()], (value.values(), value.width));
        gate_ngrams(&self.pool, keys, value, out.values_mut());
    }

    fn group_norm(
        &mut self,
        x: &mut Rows,
        squares: &Rows,
        norm: &GroupNorm,
        gain: &Vec<f32>,
        eps: f32,
    ) {
        groups::normalise(x, squares, norm, gain, eps);
    }

    fn activate(&mut self, activation: Activation, x: &mut Rows) {
        activate(&self.pool, activation, x.values_mut());
    }

    fn gate_heads(&mut self, x: &mut Rows, gate: &mut Rows, head_dim: usize) {
        sigmoid_in_place(gate.values_mut());
        let heads = x.values_mut().chunks_exact_mut(head_dim);
        for (head, gate) in heads.zip(gate.values()) {
            head.iter_mut().for_each(|number| *number *= gate);
        }
    }

    fn gated(&mut self, activation: Activation, gate: &mut Rows, up: &Rows) {
        gated(&self.pool, activation, gate.values_mut(), up.values());
    }

    fn route(
        &mut self,
        rule: &RoutingRule,
        logits: &Rows,
        vectors: RoutingVectors<'_, Vec<f32>>,
        shared: SharedExpert<'_, Rows>,
        routes: &mut Routes,
    ) {
        let RoutingVectors { choice_bias, scales, experts } = vectors;
        let (bias, scales) = (choice_bias.map(Vec::as_slice), scales.map(Vec::as_slice));
        routes.route(rule, logits.values(), bias, scales, experts);
        match shared {
            SharedExpert::Absent => {}
            SharedExpert::Full => routes.add_shared(rule.experts, logits.rows, None),
            SharedExpert::Gated(gate) => {
                routes.add_shared(rule.experts, gate.rows, Some(gate.values()));
            }
        }
    }

    fn mixture(
        &mut self,
        x: &Rows,
        routes: &Routes,
        mixture: &Mixture<Self>,
        parts: Option<&MixtureParts>,
        out: &mut Rows,
    ) {
        let Some(parts) = parts else { return out.set_rows(0) };
        out.set_rows(parts.part_ends.len() * x.rows);
        let weighs_inputs = routes.weighs_inputs();
        let job = Job { x, routes: routes.routes(), mixture, parts, weighs_inputs };
        let done = self.mixture.run(&self.pool, &mut self.inputs, &job, out);
        self.note(done, out);
    }

    fn add(&mut self, x: &mut Rows, y: &Rows) {
        add(&self.pool, x.values_mut(), y.values());
    }
}
