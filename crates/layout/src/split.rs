//! The shares of ranks, and runs of units cut by them.

use std::ops::Range;

use sumtree::LEAVES_MAX;

/// The most ranks that a model can be split over, all stages together.
pub const RANKS_MAX: usize = 64;

/// The most ranks of a stage: the most that can share one product.
pub const STAGE_RANKS_MAX: usize = LEAVES_MAX;

/// The share of each rank in every layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    shares: Vec<u32>,
}

/// Why shares make no split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error("a model can be split over 1 to {max} ranks, not {found}", max = RANKS_MAX)]
    Ranks { found: usize },
    #[error("a stage can have 1 to {max} ranks, not {found}", max = STAGE_RANKS_MAX)]
    StageRanks { found: usize },
    #[error("the shares {shares:?} are no split: at least one must be above 0")]
    AllZero { shares: Vec<u32> },
    #[error(
        "stages of {by_ranks:?} ranks and {by_layers:?} layers do not make up {ranks} ranks and {layers} layers. Give every stage at least one rank and one layer"
    )]
    Stages { by_ranks: Vec<usize>, by_layers: Vec<usize>, ranks: usize, layers: usize },
    #[error(
        "no stage can begin with layer {layer}, as layers from it on read the keys and values of layers before it"
    )]
    Parted { layer: usize },
}

impl Split {
    /// One share for each rank, in any unit; a rank with share 0 has no part but takes part.
    ///
    /// # Errors
    /// There are no ranks, too many, or all shares are 0.
    pub fn new(shares: &[u32]) -> Result<Self, SplitError> {
        if shares.is_empty() || shares.len() > RANKS_MAX {
            return Err(SplitError::Ranks { found: shares.len() });
        }
        if shares.iter().all(|share| *share == 0) {
            return Err(SplitError::AllZero { shares: shares.to_vec() });
        }
        Ok(Self { shares: shares.to_vec() })
    }

    pub fn ranks(&self) -> usize {
        self.shares.len()
    }

    /// Cuts `units` into one run for each rank, as close to the shares as whole units allow.
    pub fn cut(&self, units: usize) -> Vec<Range<usize>> {
        let total: u128 = self.shares.iter().map(|share| u128::from(*share)).sum();
        let mut before = 0u128;
        let mut start = 0;
        let cut_at = |sum: u128| ((units as u128 * sum * 2 + total) / (total * 2)) as usize;
        self.shares
            .iter()
            .map(|share| {
                before += u128::from(*share);
                let run = start..cut_at(before);
                start = run.end;
                run
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(shares: &[u32]) -> Split {
        Split::new(shares).unwrap()
    }

    #[test]
    fn runs_follow_the_shares_and_cover_everything() {
        for (shares, units, expected) in [
            (&[1, 1][..], 16, vec![0..8, 8..16]),
            (&[3, 2, 1], 16, vec![0..8, 8..13, 13..16]),
            (&[1, 1, 1], 4, vec![0..1, 1..3, 3..4]),
            (&[1, 0, 1], 4, vec![0..2, 2..2, 2..4]),
            (&[1; 5], 3, vec![0..1, 1..1, 1..2, 2..2, 2..3]),
            (&[u32::MAX, 1], 100_000, vec![0..100_000, 100_000..100_000]),
        ] {
            assert_eq!(split(shares).cut(units), expected, "{shares:?} of {units}");
        }
    }

    #[test]
    fn impossible_splits_are_refused() {
        assert_eq!(Split::new(&[]), Err(SplitError::Ranks { found: 0 }));
        assert_eq!(Split::new(&[1; 65]), Err(SplitError::Ranks { found: 65 }));
        assert!(matches!(Split::new(&[0, 0]), Err(SplitError::AllZero { .. })));
    }
}
