//! A mixture of experts on host memory.
//!
//! A step's rows are processed in *chunks* (so that the leaves' sums stay small), a chunk's routes
//! expert by expert in *waves*: either several experts with few rows each, with their products in
//! one job, as when decoding; or one expert with many rows, as in a prompt. Neither changes a bit:
//! an output depends only on its own row and weights, and a row's experts are added in their order.

use std::ops::Range;

use kernels::{Pool, Product, activate, add_bias, add_scaled, for_each_row, gated, multiply};

use super::inputs::{Inputs, SMALL_ROWS};
use super::{Cpu, Rows, held};
use crate::mixture::{Cut, fold_tree};
use crate::{Mixture, MixtureParts, Route};

/// The most bytes of one chunk's leaf sums. A prompt's experts are read again for each chunk, so it
/// is large; it adds to the weights' memory, so it is bounded.
const SUMS_BYTES_MAX: usize = 64 << 20;

/// The most routes of a wave of several experts.
const WAVE_ROUTES: usize = 64;

/// The input of one call.
pub(super) struct Job<'a> {
    pub x: &'a Rows,
    /// By expert, then by row.
    pub routes: &'a [Route],
    pub mixture: &'a Mixture<Cpu>,
    pub parts: &'a MixtureParts,
    /// The weights multiply the experts' inputs instead of their outputs.
    pub weighs_inputs: bool,
}

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

/// Groups of routes, each for one expert, that are computed together.
struct Wave<'a> {
    groups: &'a [Group],
    /// This rank's hidden elements of each of these experts.
    hidden: usize,
    cut: &'a Cut,
    /// Rows of the largest group.
    rows_most: usize,
}

/// The routes of one expert in one chunk.
struct Group {
    /// Its index among the rank's experts.
    expert: usize,
    /// The rank's leaf that its first leaf is added to.
    leaf: usize,
    routes: Range<usize>,
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
    pub fn run(&mut self, pool: &Pool, inputs: &mut Inputs, job: &Job<'_>, out: &mut Rows) {
        let row_bytes = job.parts.leaves() * job.x.width * size_of::<f32>();
        let chunk_rows = (SUMS_BYTES_MAX / row_bytes).max(SMALL_ROWS);
        self.run_chunks(pool, inputs, job, chunk_rows, out.values_mut());
    }

    fn run_chunks(
        &mut self,
        pool: &Pool,
        inputs: &mut Inputs,
        job: &Job<'_>,
        chunk_rows: usize,
        out: &mut [f32],
    ) {
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
            let mut next = 0;
            while next < routes.len() {
                let mut groups = std::mem::take(&mut self.groups);
                let wave = Wave::next(job, &routes, &mut next, &mut groups);
                self.expand(pool, inputs, job, &routes, &wave);
                self.contract(pool, inputs, job, &wave);
                self.add_to_sums(pool, job, &routes, &wave, &chunk);
                self.groups = groups;
            }
            self.routes = routes;
            self.fold(job.parts, &chunk, rows, width, out);
        }
    }

    /// `gate = activation(gate(x)) * up(x)` for each group.
    fn expand(
        &mut self,
        pool: &Pool,
        inputs: &mut Inputs,
        job: &Job<'_>,
        routes: &[Route],
        wave: &Wave<'_>,
    ) {
        let (x, len) = (job.x, wave.routes().len() * wave.hidden);
        let expert = |group: &Group| &job.mixture.experts[group.expert];
        for buffer in [&mut self.gate, &mut self.up] {
            buffer.resize(len, 0.0);
        }
        // When one row is decoded, all experts have the same input.
        let same = x.rows == 1 && !job.weighs_inputs;
        let count = if same { 1 } else { wave.groups.len() };
        let prepared = inputs.several(x.width, count, wave.rows_most, x.rows_max);
        let forms = wave.groups.iter().map(|group| {
            let gate = expert(group).gate.as_ref().map(|gate| held(gate).form());
            let up = held(&expert(group).up).form();
            gate.map_or(up, |gate| gate | up)
        });
        let forms = forms.reduce(|a, b| a | b).expect("a wave has groups");
        for (input, group) in prepared.iter_mut().zip(wave.groups) {
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

        let lens = || wave.groups.iter().map(|group| group.routes.len() * wave.hidden);
        let outs = split(&mut self.gate, lens()).zip(split(&mut self.up, lens()));
        let products = wave.groups.iter().zip(outs).enumerate();
        let products = products.flat_map(|(at, (group, (gate, up)))| {
            let input = &prepared[if same { 0 } else { at }];
            let own = expert(group);
            // Without a gate, the up product takes its buffer.
            let (first, second) = match &own.gate {
                Some(matrix) => (matrix, Some(Product::new(input, held(&own.up), up))),
                None => (&own.up, None),
            };
            std::iter::once(Product::new(input, held(first), gate)).chain(second)
        });
        multiply(pool, products);
        // A wave has only routed experts, or only the shared one.
        let first = expert(&wave.groups[0]);
        if first.gate.is_none() {
            return activate(pool, first.activation, &mut self.gate);
        }
        let outs = split(&mut self.gate, lens()).zip(split(&mut self.up, lens()));
        for (group, (gate, up)) in wave.groups.iter().zip(outs) {
            if let Some(bias) = &expert(group).bias {
                add_bias(pool, gate, &bias.gate);
                add_bias(pool, up, &bias.up);
            }
        }
        gated(pool, first.activation, &mut self.gate, &self.up);
    }

    /// `products = down(gate)` for each group, leaf by leaf.
    fn contract(&mut self, pool: &Pool, inputs: &mut Inputs, job: &Job<'_>, wave: &Wave<'_>) {
        let (leaves, width) = (wave.cut.leaves.len(), job.x.width);
        let expert = |group: &Group| &job.mixture.experts[group.expert];
        self.products.resize(wave.routes().len() * leaves * width, 0.0);
        let count = wave.groups.len();
        let prepared = inputs.several(wave.hidden, count, wave.rows_most, job.x.rows_max);
        let first = wave.routes().start;
        for (input, group) in prepared.iter_mut().zip(wave.groups) {
            let own = (group.routes.start - first) * wave.hidden;
            let hidden = &self.gate[own..][..group.routes.len() * wave.hidden];
            input.load_for(pool, hidden, group.routes.len(), held(&expert(group).down).form());
        }
        let lens = || wave.groups.iter().map(|group| group.routes.len() * leaves * width);
        let outs = split(&mut self.products, lens());
        let jobs = prepared.iter().zip(wave.groups).zip(outs);
        let products = jobs.map(|((input, group), out)| {
            Product::in_parts(input, held(&expert(group).down), &wave.cut.parts, out)
        });
        multiply(pool, products);
        for (group, out) in wave.groups.iter().zip(split(&mut self.products, lens())) {
            if let Some(bias) = expert(group).bias.as_ref().and_then(|bias| bias.down.as_ref()) {
                add_bias(pool, &mut out[..group.routes.len() * width], bias);
            }
        }
    }

    /// `sums += weight * product` for each route, a row's experts in their order.
    fn add_to_sums(
        &mut self,
        pool: &Pool,
        job: &Job<'_>,
        routes: &[Route],
        wave: &Wave<'_>,
        chunk: &Range<usize>,
    ) {
        let (leaves, width) = (wave.cut.leaves.len(), job.x.width);
        let Self { terms, places, targets, products, .. } = self;
        terms.clear();
        for group in wave.groups {
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

impl<'a> Wave<'a> {
    /// The wave that starts at route `next`, which advances past it. `groups`: a buffer for its
    /// groups.
    fn next(job: &Job<'a>, routes: &[Route], next: &mut usize, groups: &'a mut Vec<Group>) -> Self {
        let experts = &job.mixture.experts;
        groups.clear();
        let start = *next;
        let index = routes[start].expert as usize;
        let hidden = held(&experts[index].down).cols();
        let (cut, _) = job.parts.of(index, experts.len());
        let mut rows_most = 0;
        for group in routes[start..].chunk_by(|a, b| a.expert == b.expert) {
            let expert = group[0].expert as usize;
            let (own_cut, leaf) = job.parts.of(expert, experts.len());
            let same_kind = std::ptr::eq(own_cut, cut);
            let few = rows_most.max(group.len()) <= SMALL_ROWS
                && *next - start + group.len() <= WAVE_ROUTES;
            let joins = groups.is_empty() || (same_kind && few);
            if !joins {
                break;
            }
            groups.push(Group { expert, leaf, routes: *next..*next + group.len() });
            rows_most = rows_most.max(group.len());
            *next += group.len();
        }
        Self { groups, hidden, cut, rows_most }
    }

    fn routes(&self) -> Range<usize> {
        let (first, last) = (&self.groups[0], &self.groups[self.groups.len() - 1]);
        first.routes.start..last.routes.end
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
    use crate::{Activation, Backend, BackendError, Expert, Gating, Routes, RoutingRule};

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
        Mixture { experts: experts.collect() }
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
            mixture.run_chunks(pool, inputs, &job(weighs_inputs), chunk_rows, &mut out);
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
