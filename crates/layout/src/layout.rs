//! The cut of a model: the layers of each rank, and the ranks that share them.
//!
//! A model is cut into *stages* of consecutive layers; each stage's layers are split over its
//! ranks. One stage is tensor parallelism, stages of one rank each are a pipeline, and anything
//! else is a hybrid of the two. Ranks are numbered stage by stage. Rank 0 embeds tokens. The output
//! head is cut over the ranks of the last stage and rank 0, which gets the result anyway; so both
//! ends of a pipeline work on it at once.

use std::ops::Range;

use crate::config::Config;
use crate::split::{STAGE_RANKS_MAX, Split, SplitError};

/// The cut of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    stages: Vec<Stage>,
    /// The ranks with a part of the output head, in order, and their shares.
    output_ranks: Vec<usize>,
    head_split: Split,
    whole_experts: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub layers: Range<usize>,
    pub ranks: Range<usize>,
    /// The shares of its ranks.
    pub split: Split,
}

impl Layout {
    /// `shares`: one for each rank. `stages`: ranks and layers of each, in order; empty for one
    /// stage of everything.
    ///
    /// # Errors
    /// The stages do not make up all ranks or all layers, or one is empty.
    pub fn new(
        shares: &[u32],
        stages: &[(usize, usize)],
        layers: usize,
    ) -> Result<Self, SplitError> {
        let one = [(shares.len(), layers)];
        let sizes = if stages.is_empty() { &one } else { stages };
        let (by_ranks, by_layers): (Vec<_>, Vec<_>) = sizes.iter().copied().unzip();
        let sum = |sizes: &[usize]| sizes.iter().fold(0usize, |sum, n| sum.saturating_add(*n));
        let empty = by_ranks.contains(&0) || by_layers.contains(&0);
        if (sum(&by_ranks), sum(&by_layers)) != (shares.len(), layers) || empty {
            return Err(SplitError::Stages { by_ranks, by_layers, ranks: shares.len(), layers });
        }
        if let Some(&found) = by_ranks.iter().find(|&&ranks| ranks > STAGE_RANKS_MAX) {
            return Err(SplitError::StageRanks { found });
        }
        let (mut rank, mut layer) = (0, 0);
        let stage = |&(ranks, layers): &(usize, usize)| {
            let (ranks, layers) = (rank..rank + ranks, layer..layer + layers);
            (rank, layer) = (ranks.end, layers.end);
            Ok(Stage { split: Split::new(&shares[ranks.clone()])?, layers, ranks })
        };
        let stages: Vec<Stage> = sizes.iter().map(stage).collect::<Result<_, _>>()?;
        let last = stages.last().map_or(0..0, |stage| stage.ranks.clone());
        let first = if last.start > 0 { Some(0) } else { None };
        let output_ranks: Vec<usize> = first.into_iter().chain(last).collect();
        let head_shares: Vec<u32> = output_ranks.iter().map(|rank| shares[*rank]).collect();
        let head_split = Split::new(&head_shares)?;
        Ok(Self { stages, output_ranks, head_split, whole_experts: false })
    }

    /// Gives whole experts to a stage's ranks instead of columns of each. This changes the order of
    /// sums, whatever the number of ranks: one rank gives the bits of many with the same choice,
    /// but not of the other choice.
    #[must_use]
    pub fn with_whole_experts(self, whole_experts: bool) -> Self {
        Self { whole_experts, ..self }
    }

    /// Checks that every stage begins at a possible cut of this model.
    ///
    /// # Errors
    /// One does not.
    pub fn check(&self, config: &Config) -> Result<(), SplitError> {
        let borders = config.borders();
        let mut starts = self.stages.iter().map(|stage| stage.layers.start);
        match starts.find(|start| !borders.contains(start)) {
            Some(layer) => Err(SplitError::Parted { layer }),
            None => Ok(()),
        }
    }

    pub fn whole_experts(&self) -> bool {
        self.whole_experts
    }

    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    pub fn ranks(&self) -> usize {
        self.last().ranks.end
    }

    /// The stage of `rank`.
    pub fn stage_of(&self, rank: usize) -> usize {
        let found = self.stages.iter().position(|stage| stage.ranks.contains(&rank));
        found.unwrap_or(self.stages.len() - 1)
    }

    pub fn last(&self) -> &Stage {
        self.stages.last().expect("a layout has a stage")
    }

    /// The ranks with a part of the output head, in order.
    pub fn output_ranks(&self) -> &[usize] {
        &self.output_ranks
    }

    /// The rows of the output head for each of [`output_ranks`](Self::output_ranks).
    pub fn cut_vocab(&self, vocab: usize) -> Vec<Range<usize>> {
        self.head_split.cut(vocab)
    }

    /// A rank's index in [`output_ranks`](Self::output_ranks), if it is one.
    pub fn head_of(&self, rank: usize) -> Option<usize> {
        self.output_ranks.iter().position(|head| *head == rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_take_ranks_and_layers_in_order() {
        let layout = Layout::new(&[1, 2, 3], &[(1, 4), (2, 5)], 9).unwrap();
        let [first, last] = layout.stages() else { panic!("{layout:?}") };
        assert_eq!((first.ranks.clone(), first.layers.clone()), (0..1, 0..4));
        assert_eq!((last.ranks.clone(), last.layers.clone()), (1..3, 4..9));
        assert_eq!(last.split, Split::new(&[2, 3]).unwrap());
        assert_eq!([0, 1, 2].map(|rank| layout.stage_of(rank)), [0, 1, 1]);
        let tensor = Layout::new(&[1, 1], &[], 9).unwrap();
        assert_eq!((tensor.stages().len(), tensor.ranks()), (1, 2));
    }

    #[test]
    fn both_ends_of_a_pipeline_have_a_part_of_the_head() {
        for (shares, stages, heads, vocab) in [
            (&[1, 1][..], &[][..], &[0, 1][..], vec![0..6, 6..12]),
            (&[1, 1], &[(1, 4), (1, 5)], &[0, 1], vec![0..6, 6..12]),
            (&[1, 5, 2], &[(1, 3), (1, 3), (1, 3)], &[0, 2], vec![0..4, 4..12]),
            (&[1, 1, 1, 1], &[(2, 4), (2, 5)], &[0, 2, 3], vec![0..4, 4..8, 8..12]),
        ] {
            let layout = Layout::new(shares, stages, 9).unwrap();
            assert_eq!((layout.output_ranks(), layout.cut_vocab(12)), (heads, vocab));
            let found = (0..shares.len()).filter_map(|rank| layout.head_of(rank));
            assert!(found.eq(0..heads.len()));
        }
    }

    #[test]
    fn stages_that_do_not_add_up_are_refused() {
        for stages in
            [vec![(2, 9), (2, 0)], vec![(0, 1), (3, 8)], vec![(1, 4), (1, 5)], vec![(1, 4), (2, 4)]]
        {
            let refused = Layout::new(&[1, 1, 1], &stages, 9);
            assert!(matches!(refused, Err(SplitError::Stages { .. })), "{stages:?}");
        }
        let together = Layout::new(&[1; 18], &[(1, 4), (17, 5)], 9);
        assert_eq!(together, Err(SplitError::StageRanks { found: 17 }));
        let apart = Layout::new(&[1; 18], &[(2, 4), (16, 5)], 9).unwrap();
        assert_eq!((apart.ranks(), apart.output_ranks().len()), (18, 17));
        let nobody = Layout::new(&[0, 1], &[(1, 1), (1, 1)], 2);
        assert!(matches!(nobody, Err(SplitError::AllZero { .. })));
    }
}
