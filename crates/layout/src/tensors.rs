//! The tensors of a model, and which part of each a rank holds.

use std::ops::Range;

use gguf::TensorType;

use crate::{Device, Shard};

/// A tensor of a layer or of the output head: some equal matrices, one below the other (experts,
/// heads, or only one). A vector is a matrix of one column.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// By what name the code that uses it asks for it.
    pub(crate) role: &'static str,
    /// Its name in the file.
    pub name: String,
    pub ty: TensorType,
    /// The matrices, their rows and their columns, of which a rank holds:
    pub(crate) shape: [usize; 3],
    pub(crate) matrices: Part,
    pub(crate) rows: Part,
    pub(crate) cols: Part,
    /// Whether each matrix is multiplied for itself; else a rank's are one, row below row.
    pub(crate) apart: bool,
    /// Whether it is numbers to add or to scale by, and not a matrix to multiply with.
    pub is_vector: bool,
}

/// Which part of a dimension a rank holds.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// This, on every rank.
    Of(Range<usize>),
    /// `dim` for each of its query heads, from `first` on.
    Heads { first: usize, dim: usize },
    /// The same of its key/value heads.
    KvHeads { first: usize, dim: usize },
    /// Columns of the attention output matrix.
    Attention,
    /// Its hidden numbers of a dense block, from `first` on.
    FeedForward { first: usize },
    /// Its experts, if they are dealt out whole, else all `count`.
    Experts { count: usize },
    /// Those of them that it adds the bias of the whole expert to: it has the first leaf.
    BiasedExperts { count: usize },
    /// Its hidden numbers of each expert of `hidden`.
    Expert { hidden: usize },
    /// Its hidden numbers of the shared expert.
    SharedExpert,
    /// Its rows of the output head.
    Vocab,
}

impl Part {
    fn held_by(&self, shard: &Shard) -> Range<usize> {
        let scaled = |heads: &Range<usize>, first: &usize, dim: &usize| {
            first + heads.start * dim..first + heads.end * dim
        };
        match self {
            Self::Of(range) => range.clone(),
            Self::Heads { first, dim } => scaled(&shard.heads, first, dim),
            Self::KvHeads { first, dim } => scaled(&shard.kv_heads, first, dim),
            Self::Attention => shard.attention.columns(shard.rank),
            Self::FeedForward { first } => {
                let own = shard.feed_forward.columns(shard.rank);
                first + own.start..first + own.end
            }
            Self::Experts { count } => shard.experts(*count),
            Self::BiasedExperts { count } if shard.has_first_leaf() => shard.experts(*count),
            Self::BiasedExperts { .. } => 0..0,
            Self::Expert { hidden } => shard.expert_columns(*hidden),
            Self::SharedExpert => match &shard.shared_expert {
                Some(leaves) => leaves.columns(shard.rank),
                None => 0..0,
            },
            Self::Vocab => shard.vocab.clone(),
        }
    }
}

/// What one rank holds of one tensor.
#[derive(Debug, Clone)]
pub struct Slice<'a> {
    pub tensor: &'a Tensor,
    matrices: Range<usize>,
    rows: Range<usize>,
    /// Columns, of each row.
    pub cols: Range<usize>,
}

impl<'a> Slice<'a> {
    pub(crate) fn new(tensor: &'a Tensor, shard: &Shard) -> Self {
        let held = |part: &Part| part.held_by(shard);
        let (matrices, rows) = (held(&tensor.matrices), held(&tensor.rows));
        Self { tensor, matrices, rows, cols: held(&tensor.cols) }
    }

    /// How many equal matrices it becomes, and their rows and columns.
    pub fn shape(&self) -> [usize; 3] {
        let (count, rows, cols) = (self.matrices.len(), self.rows.len(), self.cols.len());
        if self.tensor.apart { [count, rows, cols] } else { [1, count * rows, cols] }
    }

    /// Its runs of the tensor's rows, in order.
    pub fn runs(&self) -> Vec<Range<usize>> {
        let [_, rows_all, _] = self.tensor.shape;
        if self.rows == (0..rows_all) {
            let all = self.matrices.start * rows_all..self.matrices.end * rows_all;
            return std::iter::once(all).collect();
        }
        let run = |at: usize| at * rows_all + self.rows.start..at * rows_all + self.rows.end;
        self.matrices.clone().map(run).collect()
    }

    /// Bytes of it in the file.
    pub fn file_bytes(&self) -> u64 {
        let rows = self.matrices.len() * self.rows.len();
        rows as u64 * self.tensor.ty.row_bytes(self.cols.len()) as u64
    }

    /// Its numbers' bytes in memory on `device`.
    pub fn memory_bytes(&self, device: Device) -> u64 {
        let [count, rows, cols] = self.shape();
        if self.tensor.is_vector {
            return (count * rows * size_of::<f32>()) as u64;
        }
        count as u64 * device.matrix_bytes(self.tensor.ty, rows, cols)
    }
}

/// The tensors of a layer or of the head, as one rank holds them.
#[derive(Debug, Clone, Copy)]
pub struct Slices<'a> {
    pub(crate) tensors: &'a [Tensor],
    pub(crate) shard: &'a Shard,
}

impl<'a> Slices<'a> {
    pub fn iter(self) -> impl Iterator<Item = Slice<'a>> {
        self.tensors.iter().map(move |tensor| Slice::new(tensor, self.shard))
    }

    /// The slice that is used as `role`, if this model has it.
    pub fn find(&self, role: &str) -> Option<Slice<'a>> {
        let tensor = self.tensors.iter().find(|tensor| tensor.role == role)?;
        Some(Slice::new(tensor, self.shard))
    }

    /// The slice that is used as `role`.
    ///
    /// # Panics
    /// If no model of its architecture has it.
    pub fn get(&self, role: &str) -> Slice<'a> {
        self.find(role).unwrap_or_else(|| panic!("no tensor of this model is its {role}"))
    }
}
