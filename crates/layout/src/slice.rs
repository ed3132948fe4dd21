//! Each rank's part of a tensor.

use std::ops::Range;

use crate::Device;
use crate::shard::Shard;
use crate::tensors::{Part, Tensor};

impl Part {
    /// The part of `shard`, as runs in its order.
    fn held_by(&self, shard: &Shard) -> Vec<Range<usize>> {
        let one = |range: Range<usize>| if range.is_empty() { Vec::new() } else { vec![range] };
        let scaled = |heads: &Range<usize>, first: &usize, dim: &usize| {
            one(first + heads.start * dim..first + heads.end * dim)
        };
        let after = |first: &usize, own: Range<usize>| one(first + own.start..first + own.end);
        match self {
            Self::Of(range) => one(range.clone()),
            Self::Queries { kind, first, dim } => {
                scaled(&shard.attention[*kind].queries, first, dim)
            }
            Self::Keys { kind, first, dim } => scaled(&shard.attention[*kind].keys, first, dim),
            Self::OutputGroups { kind } => one(shard.attention[*kind].groups.clone()),
            Self::Attention { kind } => one(shard.attention[*kind].leaves.columns(shard.rank)),
            Self::RecurrentKeys { first, dim, stride } => {
                let start = |head: usize| first + head * stride;
                joined(shard.recurrent_heads.keys.clone().map(|k| start(k)..start(k) + dim))
            }
            Self::RecurrentValues { first, dim, group, stride } => {
                let start = |head: usize| first + head / group * stride + head % group * dim;
                let heads = shard.recurrent_heads.values.iter().cloned().flatten();
                joined(heads.map(|head| start(head)..start(head) + dim))
            }
            Self::FeedForward { kind, first } => {
                after(first, shard.feed_forward[*kind].columns(shard.rank))
            }
            Self::Experts { count } => one(shard.experts(*count)),
            Self::BiasedExperts { count } if shard.has_first_leaf() => one(shard.experts(*count)),
            Self::BiasedExperts { .. } => Vec::new(),
            Self::Expert { first, hidden } => after(first, shard.expert_columns(*hidden)),
            Self::SharedExpert => match &shard.shared_expert {
                Some(leaves) => one(leaves.columns(shard.rank)),
                None => Vec::new(),
            },
            Self::Vocab => one(shard.vocab.clone()),
        }
    }
}

/// The same elements in as few runs as possible.
fn joined(runs: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for run in runs {
        match found.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => found.push(run),
        }
    }
    found
}

fn count(runs: &[Range<usize>]) -> usize {
    runs.iter().map(ExactSizeIterator::len).sum()
}

/// One rank's part of one tensor: runs of its matrices, of their rows and of their columns.
#[derive(Debug, Clone)]
pub struct Slice<'a> {
    pub tensor: &'a Tensor,
    matrices: Vec<Range<usize>>,
    rows: Vec<Range<usize>>,
    /// The columns of each row, in the rank's order.
    pub cols: Vec<Range<usize>>,
}

impl<'a> Slice<'a> {
    pub(crate) fn new(tensor: &'a Tensor, shard: &Shard) -> Self {
        let held = |part: &Part| part.held_by(shard);
        let (matrices, rows) = (held(&tensor.matrices), held(&tensor.rows));
        Self { tensor, matrices, rows, cols: held(&tensor.cols) }
    }

    /// The number of equal matrices in the slice, and their rows and columns.
    pub fn shape(&self) -> [usize; 3] {
        let [matrices, rows, cols] = [&self.matrices, &self.rows, &self.cols].map(|run| count(run));
        if self.tensor.apart { [matrices, rows, cols] } else { [1, matrices * rows, cols] }
    }

    /// The same of its `at`-th matrix alone.
    ///
    /// # Panics
    /// It has fewer.
    pub fn matrix(&self, at: usize) -> Self {
        let number = self.matrices.iter().cloned().flatten().nth(at);
        let number = number.unwrap_or_else(|| panic!("{} has no matrix {at}", self.tensor.name));
        Self { matrices: std::iter::once(number..number + 1).collect(), ..self.clone() }
    }

    /// The factors of its matrices, if their tensor has any ([`crate::factors_of`]).
    pub fn factors(&self, all: &[f32]) -> Vec<f32> {
        let [count, _, _] = self.shape();
        match all {
            [one] => vec![*one; count],
            _ => self.matrices.iter().cloned().flatten().map(|at| all[at]).collect(),
        }
    }

    /// Its runs of the tensor's rows, in order.
    pub fn runs(&self) -> Vec<Range<usize>> {
        let [_, rows_all, _] = self.tensor.shape;
        if matches!(self.rows.as_slice(), [rows] if *rows == (0..rows_all)) {
            let all = |run: &Range<usize>| run.start * rows_all..run.end * rows_all;
            return self.matrices.iter().map(all).collect();
        }
        let run =
            |at: usize, rows: &Range<usize>| at * rows_all + rows.start..at * rows_all + rows.end;
        let of_matrix = |at| self.rows.iter().map(move |rows| run(at, rows));
        self.matrices.iter().cloned().flatten().flat_map(of_matrix).collect()
    }

    /// Its bytes in the file.
    pub fn file_bytes(&self) -> u64 {
        let rows = count(&self.matrices) * count(&self.rows);
        rows as u64 * self.tensor.ty.row_bytes(count(&self.cols)) as u64
    }

    /// Its bytes in memory on `device`.
    pub fn memory_bytes(&self, device: Device) -> u64 {
        let [count, rows, cols] = self.shape();
        if self.tensor.is_vector {
            return (count * rows * cols * size_of::<f32>()) as u64;
        }
        count as u64 * device.matrix_bytes(self.tensor.ty, rows, cols)
    }
}

/// One rank's slices of a layer or of the head.
#[derive(Debug, Clone, Copy)]
pub struct Slices<'a> {
    pub(crate) tensors: &'a [Tensor],
    pub(crate) shard: &'a Shard,
}

impl<'a> Slices<'a> {
    pub fn iter(self) -> impl Iterator<Item = Slice<'a>> {
        self.tensors.iter().map(move |tensor| Slice::new(tensor, self.shard))
    }

    /// The slice with the role `role`, if this model has it.
    pub fn find(&self, role: &str) -> Option<Slice<'a>> {
        let tensor = self.tensors.iter().find(|tensor| tensor.role == role)?;
        Some(Slice::new(tensor, self.shard))
    }

    /// The slice with the role `role`.
    ///
    /// # Panics
    /// If no model of its architecture has it.
    pub fn get(&self, role: &str) -> Slice<'a> {
        self.find(role).unwrap_or_else(|| panic!("no tensor of this model is its {role}"))
    }
}
