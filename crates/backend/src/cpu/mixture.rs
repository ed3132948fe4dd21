//! A mixture of experts on host memory.
//!
//! A step's rows are processed in *chunks* (so that the leaves' sums stay small), a chunk's routes
//! expert by expert in *waves*: either several experts with few rows each, with their products in
//! one job, as when decoding; or one expert with many rows, as in a prompt. Neither changes a bit:
//! an output depends only on its own row and weights, and a row's experts are added in their order.
//!
//! Experts that are not in memory are read meanwhile: a wave's products are computed in the order
//! in which its experts arrive, and added when all are there.

use std::ops::Range;

use kernels::{
    Matrix, Pool, Product, activate, add_bias, add_scaled, for_each_row, gated, multiply,
};

use super::held::OnHost;
use super::inputs::{Inputs, SMALL_ROWS};
use super::rows::Rows;
use super::wave::{Group, Job, Wave};
use crate::mixture::fold_tree;
use crate::{BackendError, MixtureParts, Route};

/// The most bytes of one chunk's leaf sums. A prompt's experts are read again for each chunk, so it
/// is large; it adds to the weights' memory, so it is bounded.
const SUMS_BYTES_MAX: usize = 64 << 20;

/// The same when experts are read from disk for each chunk: mostly, a step is one chunk.
const STREAMED_SUMS_BYTES_MAX: usize = 512 << 20;

/// Reused by every call.
#[derive(Default)]
pub(super) struct Buffers {
    /// The chunk's routes.
    routes: Vec<Route>,
    /// One group's input, `[rows, width]`.
    gathered: Vec<f32>,
    /// A wave's hidden elements, `[routes, hidden]`; finally in the first.
    gate: Vec<f32>,
    up: Vec<f32>,
    /// A wave's products: for each group, `[leaves, rows, width]`.
    products: Vec<f32>,
    /// The chunk's sums, `[leaves, rows, width]`.
    sums: Vec<f32>,
    terms: Vec<Term>,
    /// Runs of `terms` of one sum, once for each leaf, and their target rows in `sums`.
    places: Vec<Range<usize>>,
    targets: Vec<usize>,
    groups: Vec<Group>,
}

/// One route's product, and the sum that it is added to.
struct Term {
    /// The leaf of its group, and the row of the sum.
    place: (usize, usize),
    /// Row of the first leaf's product, and the distance to the next leaf's, in rows.
    at: usize,
    rows: usize,
    weight: f32,
}

impl Buffers {
    /// Fills `out` with `[parts, rows, width]`.
    ///
    /// # Errors
    /// An expert cannot be read from disk.
    pub fn run<B: OnHost>(
        &mut self,
        pool: &Pool,
        inputs: &mut Inputs,
        job: &Job<'_, B>,
        out: &mut Rows,
    ) -> Result<(), BackendError> {
        let row_bytes = job.parts.leaves() * job.x.width * size_of::<f32>();
        let is_streamed = job.mixture.streamed.is_some();
        let sums_bytes = if is_streamed { STREAMED_SUMS_BYTES_MAX } else { SUMS_BYTES_MAX };
        let chunk_rows = (sums_bytes / row_bytes).max(SMALL_ROWS);
        self.run_chunks(pool, inputs, job, chunk_rows, out.values_mut())
    }

    fn run_chunks<B: OnHost>(
        &mut self,
        pool: &Pool,
        inputs: &mut Inputs,
        job: &Job<'_, B>,
        chunk_rows: usize,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let (rows, width, leaves) = (job.x.rows, job.x.width, job.parts.leaves());
        for first in (0..rows).step_by(chunk_rows) {
            let chunk = first..rows.min(first + chunk_rows);
            let mut routes = std::mem::take(&mut self.routes);
            routes.clear();
            let inside = job.routes.iter().filter(|route| chunk.contains(&(route.row as usize)));
            // From here on, experts have this rank's numbering.
            routes.extend(inside.filter_map(|route| {
                let place = job.parts.place(route.expert as usize)?;
                Some(Route { expert: place as u32, ..*route })
            }));
            self.sums.clear();
            self.sums.resize(leaves * chunk.len() * width, 0.0);
            let mut call = job.begin(&routes);
            let mut next = 0;
            while next < routes.len() {
                let mut groups = std::mem::take(&mut self.groups);
                let mut wave = Wave::next(job, &routes, &mut next, &mut groups);
                self.products.resize(wave.routes().len() * wave.cut.leaves.len() * width, 0.0);
                while wave.make_due(job, call.as_mut())? {
                    self.expand(pool, inputs, job, &routes, &wave);
                    self.contract(pool, inputs, job, &wave);
                    wave.end_due(call.as_mut());
                }
                self.add_to_sums(pool, job, &routes, &wave, &chunk);
                self.groups = groups;
            }
            self.routes = routes;
            self.fold(job.parts, &chunk, rows, width, out);
        }
        Ok(())
    }

    /// `gate = activation(gate(x)) * up(x)` for each group that is due.
    fn expand<B: OnHost>(
        &mut self,
        pool: &Pool,
        inputs: &mut Inputs,
        job: &Job<'_, B>,
        routes: &[Route],
        wave: &Wave<'_>,
    ) {
        let x = job.x;
        let len = wave.due().map(|group| group.routes.len()).sum::<usize>() * wave.hidden;
        for buffer in [&mut self.gate, &mut self.up] {
            buffer.resize(len, 0.0);
        }
        // When one row is decoded, all experts have the same input.
        let same = x.rows == 1 && !job.weighs_inputs;
        let count = if same { 1 } else { wave.due().count() };
        let prepared = inputs.several(x.width, count, wave.rows_most, x.rows_max);
        let forms = wave.due().map(|group| {
            let gate = job.gate(group).map(Matrix::form);
            let up = job.up(group).form();
            gate.map_or(up, |gate| gate | up)
        });
        let forms = forms.reduce(|a, b| a | b).expect("a group is due");
        for (input, group) in prepared.iter_mut().zip(wave.due()) {
            self.gathered.clear();
            for route in &routes[group.routes.clone()] {
                let row = &x.values()[route.row as usize * x.width..][..x.width];
                match job.weighs_inputs {
                    true => self.gathered.extend(row.iter().map(|x| x * route.weight)),
                    false => self.gathered.extend_from_slice(row),
                }
            }
            input.load_for(pool, &self.gathered, group.routes.len(), forms);
        }

        let lens = || wave.due().map(|group| group.routes.len() * wave.hidden);
        let outs = split(&mut self.gate, lens()).zip(split(&mut self.up, lens()));
        let products = wave.due().zip(outs).enumerate();
        let products = products.flat_map(|(at, (group, (gate, up)))| {
            let input = &prepared[if same { 0 } else { at }];
            // Without a gate, the up product takes its buffer.
            let (first, second) = match job.gate(group) {
                Some(matrix) => (matrix, Some(Product::new(input, job.up(group), up))),
                None => (job.up(group), None),
            };
            std::iter::once(Product::new(input, first, gate)).chain(second)
        });
        multiply(pool, products);
        // A wave has only routed experts, or only the shared one.
        let first = job.expert(&wave.groups[0]);
        if first.gate.is_none() {
            return activate(pool, first.activation, &mut self.gate);
        }
        let outs = split(&mut self.gate, lens()).zip(split(&mut self.up, lens()));
        for (group, (gate, up)) in wave.due().zip(outs) {
            if let Some(bias) = &job.expert(group).bias {
                add_bias(pool, gate, &bias.gate);
                add_bias(pool, up, &bias.up);
            }
        }
        gated(pool, first.activation, &mut self.gate, &self.up);
    }

    /// `products = down(gate)` for each group that is due, leaf by leaf.
    fn contract<B: OnHost>(
        &mut self,
        pool: &Pool,
        inputs: &mut Inputs,
        job: &Job<'_, B>,
        wave: &Wave<'_>,
    ) {
        let (leaves, width) = (wave.cut.leaves.len(), job.x.width);
        let prepared =
            inputs.several(wave.hidden, wave.due().count(), wave.rows_most, job.x.rows_max);
        let lens = wave.due().map(|group| group.routes.len() * wave.hidden);
        let hidden = split(&mut self.gate, lens);
        for ((input, group), hidden) in prepared.iter_mut().zip(wave.due()).zip(hidden) {
            input.load_for(pool, hidden, group.routes.len(), job.down(group).form());
        }
        let lens = || wave.groups.iter().map(|group| group.routes.len() * leaves * width);
        let outs = wave.groups.iter().zip(split(&mut self.products, lens()));
        let outs = outs.filter(|(group, _)| group.is_due());
        let products = prepared.iter().zip(outs).map(|(input, (group, out))| {
            Product::in_parts(input, job.down(group), &wave.cut.parts, out)
        });
        multiply(pool, products);
        let outs = wave.groups.iter().zip(split(&mut self.products, lens()));
        for (group, out) in outs.filter(|(group, _)| group.is_due()) {
            let bias = job.expert(group).bias.as_ref();
            if let Some(bias) = bias.and_then(|bias| bias.down.as_ref()) {
                add_bias(pool, &mut out[..group.routes.len() * width], bias);
            }
        }
    }

    /// `sums += weight * product` for each route, a row's experts in their order.
    fn add_to_sums<B: OnHost>(
        &mut self,
        pool: &Pool,
        job: &Job<'_, B>,
        routes: &[Route],
        wave: &Wave<'_>,
        chunk: &Range<usize>,
    ) {
        let (leaves, width) = (wave.cut.leaves.len(), job.x.width);
        let Self { terms, places, targets, products, .. } = self;
        terms.clear();
        for group in wave.groups.iter() {
            let (first, rows) = (group.routes.start - wave.routes().start, group.routes.len());
            for (at, route) in routes[group.routes.clone()].iter().enumerate() {
                let place = (group.leaf, route.row as usize - chunk.start);
                let weight = if job.weighs_inputs { 1.0 } else { route.weight };
                terms.push(Term { place, at: first * leaves + at, rows, weight });
            }
        }
        // A row's experts stay in the order of `at`.
        terms.sort_unstable_by_key(|term| (term.place, term.at));
        places.clear();
        targets.clear();
        for leaf in &wave.cut.leaves {
            let mut start = 0;
            for same in terms.chunk_by(|a, b| a.place == b.place) {
                let (first, row) = same[0].place;
                places.push(start..start + same.len());
                targets.push((first + leaf) * chunk.len() + row);
                start += same.len();
            }
        }
        let in_leaf = places.len() / leaves;
        for_each_row(pool, &mut self.sums, width, targets, |task, sum| {
            for term in &terms[places[task].clone()] {
                let product = term.at + task / in_leaf * term.rows;
                add_scaled(sum, &products[product * width..][..width], term.weight);
            }
        });
    }

    /// Adds the leaves of this rank's subtrees and writes the sums to `out`, `[parts, rows,
    /// width]`.
    fn fold(
        &mut self,
        parts: &MixtureParts,
        chunk: &Range<usize>,
        rows: usize,
        width: usize,
        out: &mut [f32],
    ) {
        let len = chunk.len() * width;
        let mut first = 0;
        for (part, &end) in parts.part_ends.iter().enumerate() {
            let leaves = &mut self.sums[first * len..end * len];
            fold_tree(leaves, end - first);
            out[(part * rows + chunk.start) * width..][..len].copy_from_slice(&leaves[..len]);
            first = end;
        }
    }
}

/// Consecutive slices of `all` with the lengths `lens`.
fn split(all: &mut [f32], lens: impl Iterator<Item = usize>) -> impl Iterator<Item = &mut [f32]> {
    let mut rest = all;
    lens.map(move |len| {
        let (piece, later) = std::mem::take(&mut rest).split_at_mut(len);
        rest = later;
        piece
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gguf::TensorType;

    use super::*;
    use crate::cpu::Cpu;
    use crate::{Activation, Backend, Expert, Gating, Mixture, Routes, RoutingRule};

    const WIDTH: usize = 64;
    const HIDDEN: usize = 96;
    const EXPERTS: usize = 5;
    const ROWS: usize = 21;

    /// Numbers between -1 and 1 without a near repetition.
    fn numbers(seed: usize, count: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 7919 + seed * 104_729) as f32 * 0.618).sin()).collect()
    }

    fn matrix(
        cpu: &mut Cpu,
        seed: usize,
        rows: usize,
        cols: usize,
    ) -> Option<Arc<kernels::Matrix>> {
        let bytes: Vec<u8> =
            numbers(seed, rows * cols).into_iter().flat_map(f32::to_le_bytes).collect();
        let mut loader = cpu.start_matrices(TensorType::F32, 1, rows, cols).unwrap();
        cpu.push_rows(&mut loader, &bytes).unwrap();
        cpu.finish_matrices(loader).unwrap().remove(0)
    }

    fn mixture(cpu: &mut Cpu) -> Mixture<Cpu> {
        let experts = (0..=EXPERTS).map(|expert| {
            // The last one is shared and has fewer hidden elements.
            let hidden = if expert == EXPERTS { HIDDEN - 32 } else { HIDDEN };
            Expert {
                gate: Some(matrix(cpu, 3 * expert, hidden, WIDTH)),
                up: matrix(cpu, 3 * expert + 1, hidden, WIDTH),
                down: matrix(cpu, 3 * expert + 2, WIDTH, hidden),
                bias: None,
                activation: Activation::Silu,
            }
        });
        Mixture { experts: experts.collect(), streamed: None }
    }

    #[test]
    fn chunks_and_waves_change_no_bit() {
        let mut cpu = Cpu::new(2, &[]).unwrap();
        let mixture = mixture(&mut cpu);
        let rule = RoutingRule {
            experts: EXPERTS,
            used: 2,
            gating: Gating::Softmax,
            groups: 1,
            groups_used: 1,
            normalised: true,
            scale: 1.0,
            weighs_inputs: false,
        };
        let mut routes = Routes::default();
        routes.route(&rule, &numbers(99, ROWS * EXPERTS), None, None, None);
        routes.add_shared(EXPERTS, ROWS, Some(&[0.0; ROWS]));
        let parts = MixtureParts::new(vec![32, 64, 96], Some(vec![16, 32, 64]), vec![2, 3]);
        let parts = parts.unwrap();
        let mut x = cpu.rows(ROWS, WIDTH);
        let fill = |x: &mut [f32]| {
            x.copy_from_slice(&numbers(77, ROWS * WIDTH));
            Ok::<_, BackendError>(())
        };
        cpu.write(&mut x, ROWS, fill).unwrap();
        let job = |weighs_inputs| {
            let routes = routes.routes();
            Job { x: &x, routes, mixture: &mixture, parts: &parts, weighs_inputs }
        };
        let mut of_chunks = |chunk_rows, weighs_inputs| {
            let mut out = vec![f32::NAN; 2 * ROWS * WIDTH];
            let Cpu { pool, inputs, mixture, .. } = &mut cpu;
            mixture.run_chunks(pool, inputs, &job(weighs_inputs), chunk_rows, &mut out).unwrap();
            out
        };
        for weighs_inputs in [false, true] {
            let whole = of_chunks(ROWS, weighs_inputs);
            assert!(whole.iter().all(|value| value.is_finite()));
            for chunk_rows in [1, 2, 8, 9, 20] {
                let chunked = of_chunks(chunk_rows, weighs_inputs);
                assert!(chunked.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }
}
