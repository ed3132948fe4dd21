//! Each rank's part of every tensor.
//!
//! A rank gets a run of query heads, of feed-forward columns and of vocabulary rows, each in
//! proportion to its share. Column-parallel weights (q, k, v, gate, up) keep whole rows, so their
//! results are the same on any split. Row-parallel ones (attention output, feed-forward down) sum
//! over the cut dimension, so they are cut only at the borders of [`sumtree`]'s leaves.

use std::ops::Range;

use sumtree::LEAVES_MAX;

use crate::leaves::Leaves;
use crate::parts::{Heads, Recurrence};
use crate::split::Split;

/// Columns of a float matrix that stay together, so that kernels see only whole units.
const FLOAT_UNIT: usize = 32;

/// One rank's part of every layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    pub rank: usize,
    /// Its part of each kind of heads, numbered as in [`Config::heads`](crate::Config::heads).
    pub attention: Vec<HeadShard>,
    /// Columns of the matrix behind a layer's state, by leaf, in models with such layers, and the
    /// heads of those columns.
    pub recurrent: Option<Leaves>,
    pub recurrent_heads: RecurrentHeads,
    /// Columns of a dense layer's feed-forward down matrix, by leaf, for each width of such blocks;
    /// without such blocks, those of the experts.
    pub feed_forward: Vec<Leaves>,
    /// The same for a routed expert and for the shared one. They have as many leaves as
    /// `feed_forward`, so that one reduction serves every layer. If the shared expert is narrow,
    /// some of its leaves are empty.
    pub experts: Option<Leaves>,
    pub shared_expert: Option<Leaves>,
    /// Whether the columns of `experts` are whole experts instead of the hidden elements of each.
    pub whole_experts: bool,
    /// Rows of the output head.
    pub vocab: Range<usize>,
}

/// A rank's heads of a layer that attends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadShard {
    /// Query heads.
    pub queries: Range<usize>,
    /// Key/value heads that these query heads read, or all of them; ranks may share one.
    pub keys: Range<usize>,
    /// Groups of heads that share columns of the attention output matrix.
    pub groups: Range<usize>,
    /// These columns, by leaf. All kinds of heads have the same number of leaves, so that one
    /// reduction serves every layer.
    pub leaves: Leaves,
}

/// A rank's heads of a layer with a state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecurrentHeads {
    /// The heads of the keys (and queries) that the rank's values need; ranks may share one.
    pub keys: Range<usize>,
    /// Runs of value heads, in the order of the rank's columns.
    pub values: Vec<Range<usize>>,
}

impl RecurrentHeads {
    pub fn value_heads(&self) -> usize {
        self.values.iter().map(ExactSizeIterator::len).sum()
    }
}

impl HeadShard {
    /// One for each kind of heads.
    fn of_all(cuts: &Cuts, split: &Split, rank: usize) -> Vec<Self> {
        let unit = |heads: &Heads| lcm(heads.out_dim, cuts.attention_block);
        let units = cuts.heads.iter().map(|heads| heads.columns().div_ceil(unit(heads)));
        let count = units.min().unwrap_or(1).min(LEAVES_MAX);
        let of_kind = |heads: &Heads| {
            let leaves = Leaves::spread(heads.columns(), unit(heads), count, split);
            let columns = leaves.columns(rank);
            let groups = columns.start / heads.out_dim..columns.end / heads.out_dim;
            let queries = groups.start * heads.out_heads..groups.end * heads.out_heads;
            let group = heads.group();
            let keys = match heads.whole_on_first && rank == 0 {
                true => 0..heads.keys,
                false => queries.start / group..queries.end.div_ceil(group),
            };
            Self { keys, queries, groups, leaves }
        };
        cuts.heads.iter().map(of_kind).collect()
    }
}

impl Shard {
    /// Whether a group of `group_columns` columns of a layer's state is spread over ranks.
    pub fn splits_groups(&self, group_columns: usize) -> bool {
        let Some(leaves) = &self.recurrent else { return false };
        let ends = (0..leaves.spans().len()).map(|rank| leaves.columns(rank).end);
        ends.into_iter().any(|end| !end.is_multiple_of(group_columns))
    }
}

/// The divisibility of the heads of layers with a state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecurrentCut {
    pub sizes: Recurrence,
    /// Value heads that stay together. If heads are tiled, the same heads of each round stay
    /// together too, and the columns of such a unit count as adjacent.
    unit: usize,
}

impl RecurrentCut {
    /// `block`: the longest quantisation block of any matrix behind a state.
    pub fn new(sizes: Recurrence, block: usize) -> Self {
        let (group, v_dim) = (sizes.group(), sizes.v_dim);
        let floats = if v_dim == 1 { FLOAT_UNIT } else { 1 };
        let together = lcm(lcm(v_dim, block), floats) / v_dim;
        let unit = match sizes.is_tiled() && group > 1 {
            false => together,
            // Blocks that cross the end of a round tie all heads together.
            true if sizes.k_heads.is_multiple_of(together) => together,
            true => sizes.k_heads,
        };
        Self { sizes, unit }
    }

    /// Whether it cannot be cut.
    pub fn is_whole(&self) -> bool {
        self.columns() <= self.unit_columns()
    }

    fn is_tiled(&self) -> bool {
        self.sizes.is_tiled() && self.sizes.group() > 1
    }

    fn columns(&self) -> usize {
        self.sizes.v_heads * self.sizes.v_dim
    }

    fn unit_columns(&self) -> usize {
        let rounds = if self.is_tiled() { self.sizes.group() } else { 1 };
        self.unit * rounds * self.sizes.v_dim
    }

    fn leaves(&self, split: &Split) -> Leaves {
        Leaves::new(self.columns(), self.unit_columns(), split)
    }

    /// The heads of these columns.
    fn heads(&self, columns: &Range<usize>) -> RecurrentHeads {
        let Recurrence { k_heads, v_dim, .. } = self.sizes;
        if columns.is_empty() {
            return RecurrentHeads::default();
        }
        if !self.is_tiled() {
            let values = columns.start / v_dim..columns.end / v_dim;
            let group = self.sizes.group();
            let keys = values.start / group..values.end.div_ceil(group);
            return RecurrentHeads { keys, values: vec![values] };
        }
        let unit_columns = self.unit_columns();
        let units = columns.start / unit_columns..columns.end.div_ceil(unit_columns);
        let run = |unit: usize, round: usize| {
            let first = round * k_heads + unit * self.unit;
            first..first + self.unit
        };
        let rounds = 0..self.sizes.group();
        let of_unit = |unit| rounds.clone().map(move |round| run(unit, round));
        let keys = units.start * self.unit..units.end * self.unit;
        RecurrentHeads { keys, values: units.flat_map(of_unit).collect() }
    }
}

/// The sizes that determine the possible cuts of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Cuts {
    /// The distinct kinds of heads.
    pub heads: Vec<Heads>,
    /// The longest quantisation block of any attention output matrix.
    pub attention_block: usize,
    /// The heads of layers with a state, if there are any.
    pub recurrent: Option<RecurrentCut>,
    /// The kinds of feed-forward blocks, at least one: dense ones of each width,
    pub feed_forward: Vec<Hidden>,
    /// and experts.
    pub experts: Option<Hidden>,
    pub shared_expert: Option<Hidden>,
    /// Whether the shared expert is summed separately from the routed ones.
    pub shared_apart: bool,
    /// Whether `experts` counts whole experts.
    pub whole_experts: bool,
}

/// The hidden elements of a kind of feed-forward block, or the experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hidden {
    columns: usize,
    /// Columns that stay together.
    unit: usize,
}

impl Hidden {
    /// `block`: the longest quantisation block of these down matrices.
    pub fn columns(columns: usize, block: usize) -> Self {
        Self { columns, unit: lcm(FLOAT_UNIT, block) }
    }

    /// Experts that stay whole.
    pub fn whole(experts: usize) -> Self {
        Self { columns: experts, unit: 1 }
    }

    /// The number of parts that it can be cut into.
    pub fn units(&self) -> usize {
        self.columns.div_ceil(self.unit)
    }
}

impl Shard {
    /// `vocab` is set by the layout, because one stage does not determine it.
    pub fn new(cuts: &Cuts, split: &Split, rank: usize) -> Self {
        let dense = cuts.feed_forward.iter();
        let shared = cuts.shared_expert.iter().filter(|_| cuts.shared_apart);
        let units = dense.chain(&cuts.experts).chain(shared).map(Hidden::units);
        let count = units.min().unwrap_or(1).min(LEAVES_MAX);
        let leaves = |kind: &Hidden| Leaves::spread(kind.columns, kind.unit, count, split);
        let experts = cuts.experts.as_ref().map(leaves);
        let mut feed_forward: Vec<Leaves> = cuts.feed_forward.iter().map(leaves).collect();
        if feed_forward.is_empty() {
            let any = experts.clone().unwrap_or_else(|| Leaves::new(0, FLOAT_UNIT, split));
            feed_forward.push(any);
        }
        let shared_expert = cuts.shared_expert.as_ref().map(leaves);

        let whole_experts = cuts.whole_experts;
        let recurrent = cuts.recurrent.map(|cut| cut.leaves(split));
        let heads_behind =
            |(cut, leaves): (RecurrentCut, &Leaves)| cut.heads(&leaves.columns(rank));
        let recurrent_heads = cuts.recurrent.zip(recurrent.as_ref()).map(heads_behind);
        Self {
            rank,
            attention: HeadShard::of_all(cuts, split, rank),
            recurrent,
            recurrent_heads: recurrent_heads.unwrap_or_default(),
            feed_forward,
            experts,
            shared_expert,
            whole_experts,
            vocab: 0..0,
        }
    }

    /// The leaves of every layer's attention.
    pub fn attention_leaves(&self) -> &Leaves {
        &self.attention[0].leaves
    }

    /// The leaves of a layer's experts, in models that have any.
    pub fn expert_leaves(&self) -> &Leaves {
        self.experts.as_ref().unwrap_or(&self.feed_forward[0])
    }

    /// The experts, of `count`, that this rank has a part of.
    pub fn experts(&self, count: usize) -> Range<usize> {
        if self.whole_experts { self.expert_leaves().columns(self.rank) } else { 0..count }
    }

    /// Its hidden elements of each of them, of `hidden`.
    pub(crate) fn expert_columns(&self, hidden: usize) -> Range<usize> {
        if self.whole_experts { 0..hidden } else { self.expert_leaves().columns(self.rank) }
    }

    /// Whether it adds the terms that each expert's product gets once.
    pub(crate) fn has_first_leaf(&self) -> bool {
        self.whole_experts || self.expert_leaves().spans()[self.rank].start == 0
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads {
        queries: 4,
        keys: 4,
        k_dim: 32,
        v_dim: 32,
        out_heads: 1,
        out_dim: 32,
        whole_on_first: false,
    };

    fn cuts() -> Cuts {
        Cuts {
            heads: vec![HEADS],
            attention_block: 1,
            recurrent: None,
            feed_forward: Vec::new(),
            experts: None,
            shared_expert: None,
            shared_apart: false,
            whole_experts: false,
        }
    }

    fn split(shares: &[u32]) -> Split {
        Split::new(shares).unwrap()
    }

    #[test]
    fn ranks_inside_one_group_share_its_key_value_head() {
        let heads = vec![Heads { keys: 2, v_dim: 16, out_dim: 16, ..HEADS }];
        let cuts = Cuts { heads, feed_forward: vec![Hidden::columns(160, 1)], ..cuts() };
        let split = split(&[1, 1, 1]);
        let shards: Vec<Shard> = (0..3).map(|rank| Shard::new(&cuts, &split, rank)).collect();
        let heads: Vec<_> = shards.iter().map(|shard| shard.attention[0].queries.clone()).collect();
        assert_eq!(heads, [0..1, 1..3, 3..4]);
        let kv: Vec<_> = shards.iter().map(|shard| shard.attention[0].keys.clone()).collect();
        assert_eq!(kv, [0..1, 0..2, 1..2]);
    }

    #[test]
    fn all_kinds_of_heads_have_the_same_leaves() {
        let heads = vec![Heads { queries: 4, ..HEADS }, Heads { queries: 6, keys: 3, ..HEADS }];
        let shard = Shard::new(&Cuts { heads, ..cuts() }, &split(&[1, 1]), 1);
        let [few, many] = &shard.attention[..] else { panic!("{shard:?}") };
        assert_eq!(few.leaves.spans(), many.leaves.spans());
        assert_eq!((few.queries.clone(), few.keys.clone()), (2..4, 2..4));
        assert_eq!((many.queries.clone(), many.keys.clone()), (3..6, 1..3));
    }

    #[test]
    fn the_first_rank_keeps_what_an_assistant_reads() {
        let heads = vec![HEADS, Heads { whole_on_first: true, ..HEADS }];
        let cuts = Cuts { heads, ..cuts() };
        for (rank, own, kept) in [(0, 0..2, 0..4), (1, 2..4, 2..4)] {
            let shard = Shard::new(&cuts, &split(&[1, 1]), rank);
            let keys: Vec<_> = shard.attention.iter().map(|heads| heads.keys.clone()).collect();
            assert_eq!(keys, [own.clone(), kept], "rank {rank}");
            assert_eq!(shard.attention[1].queries, own, "rank {rank}");
        }
    }

    #[test]
    fn all_kinds_of_feed_forward_blocks_have_the_same_leaves() {
        let cuts = Cuts {
            feed_forward: vec![Hidden::columns(1024, 32), Hidden::columns(2048, 32)],
            experts: Some(Hidden::columns(768, 256)),
            shared_expert: Some(Hidden::columns(1536, 1)),
            ..cuts()
        };
        let shard = Shard::new(&cuts, &split(&[2, 1]), 1);
        let [dense, wide] = &shard.feed_forward[..] else { panic!("{shard:?}") };
        let (experts, shared) = (shard.experts.unwrap(), shard.shared_expert.unwrap());
        for leaves in [dense, wide, &experts, &shared] {
            assert_eq!(leaves.spans(), [0..2, 2..3]);
        }
        assert_eq!((experts.columns(0), experts.columns(1)), (0..512, 512..768));
        assert_eq!((shared.columns(0), shared.columns(1)), (0..1024, 1024..1536));
        assert_eq!((dense.columns(0), wide.columns(0)), (0..672, 0..1344));
    }

    #[test]
    fn a_narrow_shared_expert_limits_no_others() {
        let mut cuts = Cuts {
            experts: Some(Hidden::whole(6)),
            shared_expert: Some(Hidden::columns(512, 256)),
            whole_experts: true,
            ..cuts()
        };
        let shard = Shard::new(&cuts, &split(&[1, 1, 1]), 0);
        let (experts, shared) = (shard.experts.unwrap(), shard.shared_expert.unwrap());
        let of = |leaves: &Leaves| (0..3).map(|rank| leaves.columns(rank)).collect::<Vec<_>>();
        assert_eq!(of(&experts), [0..2, 2..4, 4..6]);
        assert_eq!(of(&shared), [0..0, 0..256, 256..512]);
        assert_eq!(shared.leaf_ends(1), [256, 256]);
        cuts.shared_apart = true;
        let shard = Shard::new(&cuts, &split(&[1, 1]), 0);
        assert_eq!(shard.experts.unwrap().spans(), [0..1, 1..2]);
    }

    #[test]
    fn whole_experts_make_leaves_where_their_columns_do_not() {
        let cuts = Cuts { experts: Some(Hidden::whole(6)), whole_experts: true, ..cuts() };
        let shard = Shard::new(&cuts, &split(&[1, 1, 1, 1]), 1);
        let experts = shard.experts.unwrap();
        let of: Vec<_> = (0..4).map(|rank| experts.columns(rank)).collect();
        assert_eq!(of, [0..2, 2..3, 3..5, 5..6]);
        assert_eq!(experts.leaf_ends(1), [1]);
    }
}
