//! Matrix products: `y = x Wᵀ` for one or several matrices in one pool job.
//!
//! # The order of additions
//!
//! There are three variants, for one row, a few and many, on each instruction set and any number of
//! threads. All give the same bits, because the order of additions is fixed:
//!
//! * A *leaf* is a run of columns (see the crate `sumtree`). Its partial sum for one output starts
//!   at zero and takes its tiles of 32 columns from left to right:
//!   `sum = fma(dot * weight_scale, input_scale, sum)`, where `dot` is an exact integer; for types
//!   with offsets, `sum = fma(offset, input_scale * input_sum, sum)` comes next. Types with two
//!   scales a tile take the first half's offset first, then
//!   `sum = fma(fma(dot_1, weight_scale_1, dot_0 * weight_scale_0), input_scale, sum)`, then the
//!   second half's offset.
//! * Float weights: runs of 256 columns, counted from the leaf's start, each summed by `fma` from
//!   left to right starting at zero, are added up from left to right.
//! * Leaves are added in the order of `sumtree`.
//!
//! So an output depends only on its own weights, its own input row and the leaves' borders, not on
//! the rows beside it, the shard's borders or the machine.

mod access;
mod block;
mod gemm;
mod gemm_floats;
mod gemv;
mod parts;
mod skinny;
#[cfg(test)]
mod tests;
mod tune;

pub(crate) use access::Level;
pub use parts::Parts;
pub use tune::tune;

use crate::input::{Forms, Input, SKINNY_ROWS};
use crate::isa::Isa;
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{LANES, VECTOR_BYTES};
use access::Access;
use block::{Block, Output, Sums};
use gemv::Gemv;
use parts::{Leaves, Stack};
use std::cell::RefCell;
use std::ops::Range;
use sumtree::merges_after;

/// Input rows of one task of a product with many rows: whole register tiles of six, and few enough
/// that 512 columns of them (135 KB) and their sums stay in the second-level cache.
const TILE_ROWS: usize = 132;

/// The most panels of one task of a product with many rows: each input is loaded from outer caches
/// once for all of them.
const GEMM_PANELS: usize = 8;

/// An output of many rows from this length on has left a core's own caches when it is read, and
/// writing it there costs reading it first.
const STREAMED_BYTES: usize = 1 << 20;

/// The minimum tasks for each thread, so that none waits long for the last one.
const TASKS_A_THREAD: usize = 4;

/// One product of a job: `out = input Wᵀ`.
pub struct Product<'a> {
    input: &'a Input,
    matrix: &'a Matrix,
    parts: Option<&'a Parts>,
    out: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// A product over all columns at once; `out` is `[input.rows, matrix.rows]`, row-major.
    ///
    /// # Panics
    /// If the shapes do not match.
    pub fn new(input: &'a Input, matrix: &'a Matrix, out: &'a mut [f32]) -> Self {
        Self::checked(input, matrix, None, out)
    }

    /// A row-parallel product; `out` is `[parts, input.rows, matrix.rows]`: for each part, its
    /// leaves' sums added in tree order.
    ///
    /// # Panics
    /// If the shapes do not match, or a leaf does not end at one of the weights' blocks.
    pub fn in_parts(
        input: &'a Input,
        matrix: &'a Matrix,
        parts: &'a Parts,
        out: &'a mut [f32],
    ) -> Self {
        Self::checked(input, matrix, Some(parts), out)
    }

    fn checked(
        input: &'a Input,
        matrix: &'a Matrix,
        parts: Option<&'a Parts>,
        out: &'a mut [f32],
    ) -> Self {
        assert_eq!(input.cols(), matrix.cols(), "input and matrix must have the same columns");
        if let Some(parts) = parts {
            parts.check(matrix);
        }
        let vectors = parts.map_or(1, Parts::count) * input.rows();
        assert_eq!(out.len(), vectors * matrix.rows(), "the output has the wrong size");
        Self { input, matrix, parts, out }
    }
}

/// A row-parallel product: `out` is `[parts, input.rows, matrix.rows]` f32.
///
/// # Panics
/// As [`Product::in_parts`] and [`multiply`].
pub fn matmul_parts(pool: &Pool, input: &Input, matrix: &Matrix, parts: &Parts, out: &mut [f32]) {
    multiply(pool, [Product::in_parts(input, matrix, parts, out)]);
}

/// Runs any products, over any inputs, in one pool job: all experts of a layer at once.
///
/// # Panics
/// If an input lacks the form of its matrix.
pub fn multiply<'a>(pool: &Pool, products: impl IntoIterator<Item = Product<'a>>) {
    multiply_on(Isa::chosen(), pool, products);
}

/// The cut of one product into tasks.
struct Plan<'a> {
    input: &'a Input,
    matrix: &'a Matrix,
    parts: Option<&'a Parts>,
    out: SharedMut<f32>,
    isa: Isa,
    algorithm: Algorithm,
    access: Access,
    panels_a_task: usize,
    row_tiles: usize,
    tasks: usize,
}

pub(crate) fn multiply_on<'a>(
    isa: Isa,
    pool: &Pool,
    products: impl IntoIterator<Item = Product<'a>>,
) {
    // In the token loop, a job has one to three products, or two of each expert of a token, and
    // needs no allocation.
    let mut products = products.into_iter().map(|product| Plan::new(isa, product)).fuse();
    let mut few: [Option<Plan>; 32] = [const { None }; 32];
    few.fill_with(|| products.next());
    let mut many: Vec<Plan> = products.collect();
    let work = |plan: &Plan| plan.matrix.panels() * plan.input.rows().div_ceil(TILE_ROWS);
    let panels: usize = few.iter().flatten().chain(&many).map(work).sum();
    let panels_a_task = panels_a_task(panels, pool.threads());
    let mut tasks = 0;
    for plan in few.iter_mut().flatten().chain(&mut many) {
        plan.cut(panels_a_task);
        tasks += plan.tasks;
    }
    pool.run_in_runs(tasks, |run| {
        let mut first = 0;
        for plan in few.iter().flatten().chain(&many) {
            let own = run.start.max(first)..run.end.min(first + plan.tasks);
            if !own.is_empty() {
                plan.run(own.start - first..own.end - first);
            }
            first += plan.tasks;
        }
    });
}

/// The number of panels of a task with many rows, out of all: as many as leave enough tasks for all
/// threads.
fn panels_a_task(panels: usize, threads: usize) -> usize {
    let fair = panels / (TASKS_A_THREAD * threads);
    if fair >= GEMM_PANELS { GEMM_PANELS } else { (fair / 2 * 2).max(2) }
}

/// The algorithm for a number of input rows; each has its module.
#[derive(Clone, Copy)]
enum Algorithm {
    Gemv,
    Skinny,
    Gemm,
}

impl Algorithm {
    fn of(isa: Isa, input: &Input, matrix: &Matrix) -> Self {
        let quantised = matrix.form() == Forms::INT8;
        match input.rows() {
            _ if input.is_int16() => Self::Skinny,
            1 if !quantised || isa != Isa::Scalar => Self::Gemv,
            rows if quantised && rows <= SKINNY_ROWS => Self::Skinny,
            _ => Self::Gemm,
        }
    }

    /// The most input rows of one task.
    fn rows_a_task(self) -> usize {
        match self {
            Self::Gemv => 1,
            Self::Skinny => SKINNY_ROWS,
            Self::Gemm => TILE_ROWS,
        }
    }
}

impl<'a> Plan<'a> {
    fn new(isa: Isa, product: Product<'a>) -> Self {
        let Product { input, matrix, parts, out } = product;
        let (out, access) = (SharedMut::new(out.as_mut_ptr()), Access::chosen());
        let algorithm = Algorithm::of(isa, input, matrix);
        let (panels_a_task, row_tiles, tasks) = (1, 1, 0);
        Self { input, matrix, parts, out, isa, algorithm, access, panels_a_task, row_tiles, tasks }
    }

    /// Cuts it into tasks, of `panels_a_task` panels if it has many rows.
    fn cut(&mut self, panels_a_task: usize) {
        self.panels_a_task = match self.algorithm {
            Algorithm::Gemv => self.access.streams,
            Algorithm::Skinny => skinny::ACCESS.streams,
            Algorithm::Gemm => panels_a_task,
        };
        self.row_tiles = self.input.rows().div_ceil(self.algorithm.rows_a_task());
        self.tasks = self.matrix.panels().div_ceil(self.panels_a_task) * self.row_tiles;
    }

    /// Runs consecutive tasks.
    fn run(&self, tasks: Range<usize>) {
        let cols = self.matrix.cols();
        let leaves = self.parts.map_or(Leaves::whole(&cols), Parts::leaves);
        let Self { matrix, input, access, out, isa, algorithm, .. } = *self;
        if let Algorithm::Gemv = algorithm {
            let panels = self.panels(tasks.start).start..self.panels(tasks.end - 1).end;
            // SAFETY: `Product` checked that the output is `[parts, 1, outputs]`; these panels
            // belong to these tasks only.
            unsafe { Gemv { access, matrix, input, leaves, out }.multiply(isa, panels) };
            return;
        }
        for task in tasks {
            let first_row = task % self.row_tiles * algorithm.rows_a_task();
            let rows = first_row..input.rows().min(first_row + algorithm.rows_a_task());
            self.several_rows(leaves, self.panels(task), rows);
        }
    }

    /// A task's panels. Tasks over the same panels are consecutive, so that weights are read from
    /// memory once.
    fn panels(&self, task: usize) -> Range<usize> {
        let first = task / self.row_tiles * self.panels_a_task;
        first..self.matrix.panels().min(first + self.panels_a_task)
    }

    /// Like [`Plan::run`], for several rows.
    fn several_rows(&self, leaves: Leaves, panels: Range<usize>, rows: Range<usize>) {
        let len = rows.len() * panels.len() * LANES;
        let Leaves { leaf_ends, part_ends } = leaves;
        let (matrix, input) = (self.matrix, self.input);
        let block = Block { matrix, input, panels, rows, cols: 0..matrix.cols() };
        thread_local! {
            static STACK: RefCell<Stack> = RefCell::new(Stack::new());
        }
        STACK.with_borrow_mut(|stack| {
            let mut first_leaf = 0;
            for (part, &last_leaf) in part_ends.iter().enumerate() {
                stack.clear();
                let output = self.output(part, &block);
                for leaf in first_leaf..last_leaf {
                    let start = if leaf == 0 { 0 } else { leaf_ends[leaf - 1] };
                    let block = Block { cols: start..leaf_ends[leaf], ..block.clone() };
                    let merges = merges_after(leaf - first_leaf, last_leaf - first_leaf);
                    let output = output.filter(|_| leaf + 1 == last_leaf);
                    let sums = Sums::new(&block, stack.push(len, merges), merges, output);
                    // SAFETY: this part of the output belongs to this task.
                    unsafe {
                        match self.algorithm {
                            Algorithm::Skinny => skinny::sum_leaf(self.isa, block, sums),
                            _ => gemm::sum_leaf(self.isa, block, sums),
                        }
                    }
                }
                if output.is_none() {
                    self.write(part, &block.panels, &block.rows, stack.pop(len));
                }
                first_leaf = last_leaf;
            }
        });
    }

    /// The destination of a block's sums of a part, unless its last panel is incomplete.
    fn output(&self, part: usize, block: &Block) -> Option<Output> {
        let stride = self.matrix.rows();
        let row = part * self.input.rows() + block.rows.start;
        // SAFETY: the block lies inside the output, `[parts, rows, outputs]`.
        let first = unsafe { self.out.ptr().add(row * stride + block.panels.start * LANES) };
        let bytes = self.input.rows() * stride * size_of::<f32>();
        let streams = matches!(self.algorithm, Algorithm::Gemm)
            && bytes >= STREAMED_BYTES
            && first.addr().is_multiple_of(VECTOR_BYTES)
            && stride.is_multiple_of(LANES);
        let output = Output { first: SharedMut::new(first), stride, streams };
        (block.panels.end * LANES <= stride).then_some(output)
    }

    /// Copies `[rows, panels, 16]` sums to their places in the output of `part`.
    fn write(&self, part: usize, panels: &Range<usize>, rows: &Range<usize>, sums: &[f32]) {
        let outputs = self.matrix.rows();
        let first = panels.start * LANES;
        let count = outputs.min(panels.end * LANES) - first;
        for (row, sums) in rows.clone().zip(sums.chunks_exact(panels.len() * LANES)) {
            let at = (part * self.input.rows() + row) * outputs + first;
            // SAFETY: `Product` checked that the output is `[parts, rows, outputs]`; these outputs
            // of this row belong to this task only.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.ptr().add(at), count) };
            out.copy_from_slice(&sums[..count]);
        }
    }
}
