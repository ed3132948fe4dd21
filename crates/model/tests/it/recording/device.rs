//! A backend that defers all work, like a GPU: it records the operations, and runs them on the CPU
//! at the next `host` or `synchronise`.

#[path = "late.rs"]
mod late;
#[path = "mixture.rs"]
mod mixture;
#[path = "record.rs"]
mod record;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use backend::{
    Activation, AttentionShape, Backend, BackendError, CacheKind, Compression, Cpu, EntryShape,
    Expert, ExpertBias, GroupNorm, IndexKeys, Indexer, KvShape, Mixture, MixtureParts, Parts,
    RecurrentInputs, RecurrentShape, RecurrentWeights, RopeStyle, RopeTable, RoutingRule,
    RoutingVectors, Seen, Segment, SegmentKey, SharedExpert, StateRoom, StateSegment, StreamMix,
    Temperature,
};
use gguf::TensorType;
use record::{Of, OfKeys, Operands, of};
pub use record::{Recording, Rows};

type Matrix = <Cpu as Backend>::Matrix;

impl Backend for Recording {
    type Matrix = Matrix;
    type Loader = <Cpu as Backend>::Loader;
    type Vector = Arc<Vec<f32>>;
    type Rows = Rows;
    type Kv = Of<<Cpu as Backend>::Kv>;
    type Entries = Of<<Cpu as Backend>::Entries>;
    type Attention = Arc<<Cpu as Backend>::Attention>;
    type Chosen = Of<<Cpu as Backend>::Chosen>;
    type Routes = Of<<Cpu as Backend>::Routes>;
    type States = Of<<Cpu as Backend>::States>;
    type Recurrent = Arc<<Cpu as Backend>::Recurrent>;

    fn start_matrices(
        &mut self,
        ty: TensorType,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Self::Loader, BackendError> {
        self.cpu.start_matrices(ty, count, rows, cols)
    }

    fn push_rows(&mut self, loader: &mut Self::Loader, bytes: &[u8]) -> Result<(), BackendError> {
        self.cpu.push_rows(loader, bytes)
    }

    fn finish_matrices(&mut self, loader: Self::Loader) -> Result<Vec<Matrix>, BackendError> {
        self.cpu.finish_matrices(loader)
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        self.cpu.matrix_bytes(matrix)
    }

    fn vector(&mut self, values: &[f32]) -> Self::Vector {
        Arc::new(self.cpu.vector(values))
    }

    fn rows(&mut self, rows_max: usize, width: usize) -> Rows {
        Rows { memory: of(self.cpu.rows(rows_max, width)), mirror: Vec::new(), width }
    }

    fn rows_bytes(&self, x: &Rows) -> usize {
        self.cpu.rows_bytes(&x.memory.lock().unwrap())
    }

    fn cache_kind(&self, of_cpu: CacheKind) -> CacheKind {
        self.cpu.cache_kind(of_cpu)
    }

    fn kv(&mut self, shape: KvShape) -> Result<Self::Kv, BackendError> {
        Ok(of(self.cpu.kv(shape)?))
    }

    fn kv_bytes(&self, shape: &KvShape) -> usize {
        self.cpu.kv_bytes(shape)
    }

    fn entries(&mut self, shape: EntryShape) -> Result<Self::Entries, BackendError> {
        Ok(of(self.cpu.entries(shape)?))
    }

    fn entries_bytes(&self, shape: &EntryShape) -> usize {
        self.cpu.entries_bytes(shape)
    }

    fn attention(&mut self, shape: &AttentionShape) -> Self::Attention {
        Arc::new(self.cpu.attention(shape))
    }

    fn chosen(&mut self, rows_max: usize, groups: usize, pages: usize) -> Self::Chosen {
        of(self.cpu.chosen(rows_max, groups, pages))
    }

    fn chosen_bytes(&self, rows_max: usize, groups: usize, pages: usize) -> usize {
        self.cpu.chosen_bytes(rows_max, groups, pages)
    }

    fn routes(&mut self) -> Self::Routes {
        of(self.cpu.routes())
    }

    fn states(
        &mut self,
        shape: &RecurrentShape,
        room: StateRoom,
    ) -> Result<Self::States, BackendError> {
        Ok(of(self.cpu.states(shape, room)?))
    }

    fn states_bytes(&self, shape: &RecurrentShape, room: StateRoom) -> usize {
        self.cpu.states_bytes(shape, room)
    }

    fn recurrent(&mut self, shape: RecurrentShape, weights: RecurrentWeights) -> Self::Recurrent {
        Arc::new(self.cpu.recurrent(shape, weights))
    }

    fn dequantize(
        &mut self,
        ty: TensorType,
        cols: usize,
        bytes: &[u8],
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        self.cpu.dequantize(ty, cols, bytes, out)
    }

    fn write<E>(
        &mut self,
        out: &mut Rows,
        rows: usize,
        fill: impl FnOnce(&mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut values = vec![f32::NAN; rows * out.width];
        fill(&mut values)?;
        self.change("write", out, move |cpu, out| {
            let Ok(()) = cpu.write(out, rows, |out| {
                out.copy_from_slice(&values);
                Ok::<_, std::convert::Infallible>(())
            });
        });
        Ok(())
    }

    fn host<'a>(&mut self, x: &'a mut Rows) -> Result<&'a [f32], BackendError> {
        self.synchronise()?;
        x.mirror.clear();
        x.mirror.extend_from_slice(self.cpu.host(&mut x.memory.lock().unwrap())?);
        Ok(&x.mirror)
    }

    fn synchronise(&mut self) -> Result<(), BackendError> {
        self.trace.clear();
        if let Some(what) = self.fault {
            self.commands.clear();
            return Err(BackendError::Device { what: what.to_owned() });
        }
        self.commands.drain(..).for_each(|command| command(&mut self.cpu));
        self.cpu.synchronise()
    }

    fn end_segment(&mut self, segment: SegmentKey) {
        let trace = std::mem::take(&mut self.trace);
        let first = self.segments.entry(segment).or_insert_with(|| trace.clone());
        assert_eq!(*first, trace, "{segment:?} cannot be replayed");
        self.commands.push(Box::new(move |cpu| cpu.end_segment(segment)));
    }

    fn set_positions(&mut self, tables: &[RopeTable], positions: &[u32]) {
        self.trace.clear();
        let (tables, positions) = (tables.to_vec(), positions.to_vec());
        self.record("set_positions", &[], move |cpu| cpu.set_positions(&tables, &positions));
    }

    fn keep(&mut self, x: &mut Rows, kept: &[usize]) {
        let kept = kept.to_vec();
        self.change("keep", x, move |cpu, x| cpu.keep(x, &kept));
    }

    fn keep_positions(&mut self, kept: &[usize]) {
        let kept = kept.to_vec();
        self.record("keep_positions", &[], move |cpu| cpu.keep_positions(&kept));
    }

    fn rms_norm(&mut self, x: &Rows, gain: &Self::Vector, eps: f32, out: &mut Rows) {
        let gain = gain.clone();
        self.make("rms_norm", x, out, move |cpu, x, out| cpu.rms_norm(x, &gain, eps, out));
    }

    fn layer_norm(&mut self, x: &Rows, gain: &Self::Vector, eps: f32, out: &mut Rows) {
        let gain = gain.clone();
        self.make("layer_norm", x, out, move |cpu, x, out| cpu.layer_norm(x, &gain, eps, out));
    }

    fn rms_norm_in_place(&mut self, x: &mut Rows, gain: &Self::Vector, eps: f32) {
        let gain = gain.clone();
        self.change("rms_norm_in_place", x, move |cpu, x| cpu.rms_norm_in_place(x, &gain, eps));
    }

    fn columns(&mut self, x: &Rows, cols: Range<usize>, out: &mut Rows) {
        self.make("columns", x, out, move |cpu, x, out| cpu.columns(x, cols, out));
    }

    fn join_heads(&mut self, (a, a_dim): (&Rows, usize), b: (&Rows, usize), out: &mut Rows) {
        let (b_memory, b_dim) = (b.0.memory.clone(), b.1);
        self.make("join_heads", a, out, move |cpu, a, out| {
            cpu.join_heads((a, a_dim), (&b_memory.lock().unwrap(), b_dim), out);
        });
    }

    fn add_bias(&mut self, x: &mut Rows, bias: &Self::Vector) {
        let bias = bias.clone();
        self.change("add_bias", x, move |cpu, x| cpu.add_bias(x, &bias));
    }

    fn scale(&mut self, x: &mut Rows, factor: f32) {
        self.change("scale", x, move |cpu, x| cpu.scale(x, factor));
    }

    fn soft_cap(&mut self, x: &mut Rows, cap: f32) {
        self.change("soft_cap", x, move |cpu, x| cpu.soft_cap(x, cap));
    }

    fn linear(&mut self, x: &Rows, outs: &mut [(&Matrix, &mut Rows)]) {
        for (matrix, out) in outs {
            let matrix = Matrix::clone(matrix);
            self.make("linear", x, out, move |cpu, x, out| cpu.linear(x, &mut [(&matrix, out)]));
        }
    }

    fn linear_int16(&mut self, x: &Rows, matrix: &Matrix, out: &mut Rows) {
        let matrix = matrix.clone();
        self.make("linear_int16", x, out, move |cpu, x, out| cpu.linear_int16(x, &matrix, out));
    }

    fn linear_heads(&mut self, x: &Rows, matrices: &[Matrix], out: &mut Rows) {
        let matrices = matrices.to_vec();
        self.make("linear_heads", x, out, move |cpu, x, out| cpu.linear_heads(x, &matrices, out));
    }

    fn linear_parts(&mut self, x: &Rows, matrix: &Matrix, parts: Option<&Parts>, out: &mut Rows) {
        let (matrix, parts) = (matrix.clone(), parts.cloned());
        self.make("linear_parts", x, out, move |cpu, x, out| {
            cpu.linear_parts(x, &matrix, parts.as_ref(), out);
        });
    }

    fn rope(&mut self, x: &mut Rows, head_dim: usize, style: RopeStyle, table: usize) {
        self.change("rope", x, move |cpu, x| cpu.rope(x, head_dim, style, table));
    }

    fn rope_last(&mut self, x: &mut Rows, head_dim: usize, style: RopeStyle, table: usize) {
        self.change("rope_last", x, move |cpu, x| cpu.rope_last(x, head_dim, style, table));
    }

    fn scale_by_temperature(&mut self, x: &mut Rows, temperature: &Temperature) {
        let temperature = *temperature;
        self.change("scale_by_temperature", x, move |cpu, x| {
            cpu.scale_by_temperature(x, &temperature)
        });
    }

    fn store(&mut self, kv: &mut Self::Kv, batch: &[Segment], k: &Rows, v: &Rows) {
        let (kv, batch) = (kv.clone(), batch.to_vec());
        // Values may be the keys.
        let operands = Operands::of([k, v]);
        self.record("store", &[k, v], move |cpu| {
            operands.read(|[k, v]| cpu.store(&mut kv.lock().unwrap(), &batch, k, v));
        });
    }

    fn copy_page(&mut self, kv: &mut Self::Kv, from: u32, to: u32) {
        let kv = kv.clone();
        self.record("copy_page", &[], move |cpu| cpu.copy_page(&mut kv.lock().unwrap(), from, to));
    }

    fn choose(
        &mut self,
        keys: IndexKeys<'_, Self>,
        indexer: &Indexer,
        batch: &[Segment],
        q: &Rows,
        weights: &Rows,
        out: &mut Self::Chosen,
    ) {
        let keys = OfKeys::of(keys);
        let (indexer, batch, out) = (*indexer, batch.to_vec(), out.clone());
        let operands = Operands::of([q, weights]);
        self.record("choose", &[q, weights], move |cpu| {
            let mut out = out.lock().unwrap();
            operands.read(|[q, weights]| {
                keys.read(|keys| cpu.choose(keys, &indexer, &batch, q, weights, &mut out));
            });
        });
    }

    fn keep_chosen(&mut self, chosen: &mut Self::Chosen, kept: &[usize]) {
        let (chosen, kept) = (chosen.clone(), kept.to_vec());
        self.record("keep_chosen", &[], move |cpu| {
            cpu.keep_chosen(&mut chosen.lock().unwrap(), &kept);
        });
    }

    fn attend(
        &mut self,
        kv: &Self::Kv,
        shape: &Self::Attention,
        batch: &[Segment],
        seen: Seen<'_, Self>,
        q: &Rows,
        out: &mut Rows,
    ) {
        let (kv, shape, batch) = (kv.clone(), shape.clone(), batch.to_vec());
        let (chosen, entries) = (seen.chosen.cloned(), seen.entries.map(|(e, _)| e.clone()));
        let tables = seen.entries.map_or(Vec::new(), |(_, tables)| tables.to_vec());
        self.make("attend", q, out, move |cpu, q, out| {
            let chosen = chosen.as_ref().map(|chosen| chosen.lock().unwrap());
            let entries = entries.as_ref().map(|entries| entries.lock().unwrap());
            let entries = entries.as_deref().map(|entries| (entries, &*tables));
            let seen = Seen { chosen: chosen.as_deref(), entries };
            cpu.attend(&kv.lock().unwrap(), &shape, &batch, seen, q, out);
        });
    }

    fn compress(
        &mut self,
        entries: &mut Self::Entries,
        compression: &Compression,
        rows: [&Rows; 2],
        windows: &[Segment],
        batch: &[Segment],
    ) {
        let (entries, compression) = (entries.clone(), compression.clone());
        let (windows, batch) = (windows.to_vec(), batch.to_vec());
        let operands = Operands::of(rows);
        self.record("compress", &rows, move |cpu| {
            let entries = &mut entries.lock().unwrap();
            operands.read(|rows| cpu.compress(entries, &compression, rows, &windows, &batch));
        });
    }

    fn weigh_streams(&mut self, mix: &StreamMix, numbers: &mut Rows) {
        let mix = mix.clone();
        self.change("weigh_streams", numbers, move |cpu, x| cpu.weigh_streams(&mix, x));
    }

    fn read_streams(&mut self, mix: &StreamMix, x: &Rows, weights: &Rows, out: &mut Rows) {
        let (mix, weights) = (mix.clone(), weights.memory.clone());
        self.make("read_streams", x, out, move |cpu, x, out| {
            cpu.read_streams(&mix, x, &weights.lock().unwrap(), out);
        });
    }

    fn give_streams(&mut self, mix: &StreamMix, x: &mut Rows, given: &Rows, weights: &Rows) {
        let (mix, weights) = (mix.clone(), weights.memory.clone());
        self.make("give_streams", given, x, move |cpu, given, x| {
            cpu.give_streams(&mix, x, given, &weights.lock().unwrap());
        });
    }

    fn read_banks(
        &mut self,
        (banks, used): (&Rows, usize),
        x: &Rows,
        score: &Self::Vector,
        eps: f32,
        out: &mut Rows,
    ) {
        let (banks, score) = (banks.memory.clone(), score.clone());
        self.make("read_banks", x, out, move |cpu, x, out| {
            cpu.read_banks((&banks.lock().unwrap(), used), x, &score, eps, out);
        });
    }

    fn bank(&mut self, x: &mut Rows, banks: &mut Rows, at: usize) {
        let banks = banks.memory.clone();
        self.change("bank", x, move |cpu, x| cpu.bank(x, &mut banks.lock().unwrap(), at));
    }

    fn recur(
        &mut self,
        states: &mut Self::States,
        layer: &Self::Recurrent,
        batch: &[StateSegment],
        inputs: RecurrentInputs<'_, Rows>,
        out: &mut Rows,
    ) {
        let (states, layer, batch) = (states.clone(), layer.clone(), batch.to_vec());
        let RecurrentInputs { q, k, v, decay, beta } = inputs;
        let operands = Operands::of([q, k, v, decay, beta]);
        let to = out.memory.clone();
        self.record("recur", &[q, k, v, decay, beta, out], move |cpu| {
            let (mut states, mut out) = (states.lock().unwrap(), to.lock().unwrap());
            operands.read(|[q, k, v, decay, beta]| {
                let inputs = RecurrentInputs { q, k, v, decay, beta };
                cpu.recur(&mut states, &layer, &batch, inputs, &mut out);
            });
        });
    }

    fn group_squares(&mut self, x: &Rows, norm: &GroupNorm, parts: usize, out: &mut Rows) {
        let norm = *norm;
        self.make("group_squares", x, out, move |cpu, x, out| {
            cpu.group_squares(x, &norm, parts, out);
        });
    }

    fn gate_ngrams(&mut self, [keys, queries]: [&Rows; 2], value: &Rows, out: &mut Rows) {
        let (operands, to) = (Operands::of([keys, queries, value]), out.memory.clone());
        self.record("gate_ngrams", &[keys, queries, value, out], move |cpu| {
            let mut out = to.lock().unwrap();
            operands.read(|[keys, queries, value]| {
                cpu.gate_ngrams([keys, queries], value, &mut out);
            });
        });
    }

    fn group_norm(
        &mut self,
        x: &mut Rows,
        squares: &Rows,
        norm: &GroupNorm,
        gain: &Self::Vector,
        eps: f32,
    ) {
        let (norm, gain) = (*norm, gain.clone());
        self.make("group_norm", squares, x, move |cpu, squares, x| {
            cpu.group_norm(x, squares, &norm, &gain, eps);
        });
    }

    fn activate(&mut self, activation: Activation, x: &mut Rows) {
        self.change("activate", x, move |cpu, x| cpu.activate(activation, x));
    }

    fn gate_heads(&mut self, x: &mut Rows, gate: &mut Rows, head_dim: usize) {
        let (x, gates) = (x.memory.clone(), gate.memory.clone());
        self.record("gate_heads", &[gate], move |cpu| {
            cpu.gate_heads(&mut x.lock().unwrap(), &mut gates.lock().unwrap(), head_dim);
        });
    }

    fn gated(&mut self, activation: Activation, gate: &mut Rows, up: &Rows) {
        self.make("gated", up, gate, move |cpu, up, gate| cpu.gated(activation, gate, up));
    }

    fn route(
        &mut self,
        rule: &RoutingRule,
        logits: &Rows,
        vectors: RoutingVectors<'_, Self::Vector>,
        shared: SharedExpert<'_, Rows>,
        routes: &mut Self::Routes,
    ) {
        let (rule, routes) = (*rule, routes.clone());
        let (bias, scales) = (vectors.choice_bias.cloned(), vectors.scales.cloned());
        let (experts, memory) = (vectors.experts.map(<[u32]>::to_vec), logits.memory.clone());
        let (gate, is_absent) = mixture::gate(shared);
        self.record("route", &[logits], move |cpu| {
            let gate = gate.as_ref().map(|gate| gate.lock().unwrap());
            let shared = match &gate {
                _ if is_absent => SharedExpert::Absent,
                None => SharedExpert::Full,
                Some(gate) => SharedExpert::Gated(&**gate),
            };
            let (logits, mut routes) = (memory.lock().unwrap(), routes.lock().unwrap());
            let (choice_bias, scales) = (bias.as_deref(), scales.as_deref());
            let experts = experts.as_deref();
            let vectors = RoutingVectors { choice_bias, scales, experts };
            cpu.route(&rule, &logits, vectors, shared, &mut routes);
        });
    }

    fn mixture(
        &mut self,
        x: &Rows,
        routes: &Self::Routes,
        mixture: &Mixture<Self>,
        parts: Option<&MixtureParts>,
        out: &mut Rows,
    ) {
        let (routes, mixture, parts) = (routes.clone(), mixture::on_cpu(mixture), parts.cloned());
        self.make("mixture", x, out, move |cpu, x, out| {
            cpu.mixture(x, &routes.lock().unwrap(), &mixture, parts.as_ref(), out);
        });
    }

    fn add(&mut self, x: &mut Rows, y: &Rows) {
        self.make("add", y, x, move |cpu, y, x| cpu.add(x, y));
    }
}
