//! Cutting a model's layers into stages by what they weigh.

use layout::Outline;
use protocol::{StageSize, Strategy};

use crate::{Error, Options};

/// The stages of a strategy, or those that were asked for; none for one of all.
pub(crate) fn stages(
    model: &Outline,
    shares: &[u32],
    strategy: Strategy,
    options: &Options<'_>,
) -> Result<Vec<StageSize>, Error> {
    let ranks = shares.len();
    let by_ranks = match (&options.spec.options.stages, strategy) {
        (Some(stages), _) => stages.clone(),
        (None, Strategy::Pipeline) => vec![1; ranks],
        (None, Strategy::Hybrid) => (0..ranks).step_by(2).map(|at| 2.min(ranks - at)).collect(),
        (None, Strategy::Auto | Strategy::Tensor) => vec![ranks],
    };
    if by_ranks.contains(&0) || by_ranks.iter().sum::<usize>() != ranks {
        return Err(Error::Stages { by_ranks, ranks });
    }
    let (stages, layers) = (by_ranks.len(), model.config.layers);
    if stages == 1 && options.spec.options.stage_layers.is_none() {
        return Ok(Vec::new());
    }
    if stages > layers {
        return Err(Error::TooManyStages { stages, layers });
    }
    let mut rest = shares;
    let by_share: Vec<u32> = by_ranks
        .iter()
        .map(|ranks| {
            let (own, others) = rest.split_at(*ranks);
            rest = others;
            own.iter().sum()
        })
        .collect();
    if by_share.contains(&0) {
        return Err(Error::NoShares { shares: shares.to_vec() });
    }
    let counts = match &options.spec.options.stage_layers {
        Some(counts) => counts.clone(),
        None => cut(&model.layer_bytes, model.head_bytes, &by_share, shares[0]),
    };
    let sum = counts.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if counts.len() != stages || counts.contains(&0) || sum != layers {
        return Err(Error::StageLayers { given: counts, layers, stages });
    }
    Ok(by_ranks.iter().zip(counts).map(|(&ranks, layers)| StageSize { ranks, layers }).collect())
}

/// Rank 0's part of the output head of a model in stages: its share and the last stage's divide it.
fn first_head(head: u64, rank_0: u32, last_stage: u32) -> u64 {
    let all = (u128::from(rank_0) + u128::from(last_stage)).max(1);
    (u128::from(head) * u128::from(rank_0) / all) as u64
}

/// Cuts layers of so many bytes into one run for each stage, so that the weights of the stages, the
/// head with the first and the last one, come as near to `shares` as whole layers allow. Every
/// stage gets a layer as long as there are enough. `rank_0`: the part of the first stage's share
/// that is rank 0's.
fn cut(layers: &[u64], head: u64, shares: &[u32], rank_0: u32) -> Vec<usize> {
    let all: u128 = layers.iter().map(|bytes| u128::from(*bytes)).sum();
    let all = all + u128::from(head);
    let total: u128 = shares.iter().map(|share| u128::from(*share)).sum::<u128>().max(1);
    let first_head = match shares {
        [_, .., last] => first_head(head, rank_0, *last),
        _ => 0,
    };
    let (mut counts, mut done, mut layer) = (Vec::new(), u128::from(first_head), 0);
    let mut share_before = 0u128;
    for (stage, share) in shares.iter().enumerate() {
        share_before += u128::from(*share);
        let left = shares.len() - stage - 1;
        let first = layer;
        while layer + left < layers.len() {
            let bytes = u128::from(layers[layer]);
            // The layer's middle decides on which side of the border it is.
            let inside = (2 * done + bytes) * total <= 2 * all * share_before;
            if layer > first && left > 0 && !inside {
                break;
            }
            done += bytes;
            layer += 1;
        }
        counts.push(layer - first);
    }
    counts
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_follows_the_shares_and_counts_the_head() {
        for (layers, head, shares, rank_0, expected) in [
            (vec![10; 16], 0, vec![1, 1], 1, vec![8, 8]),
            (vec![10; 16], 43, vec![1, 1], 1, vec![8, 8]),
            (vec![10; 16], 80, vec![1, 1, 1], 1, vec![4, 8, 4]),
            (vec![10; 16], 60, vec![2, 2], 1, vec![9, 7]),
            (vec![10; 16], 0, vec![3, 1], 3, vec![12, 4]),
            (vec![10; 4], 1000, vec![1, 1, 1], 1, vec![1, 2, 1]),
            (vec![10; 3], 0, vec![1, 1, 1], 1, vec![1, 1, 1]),
            (vec![10; 3], 0, vec![100, 1, 1], 100, vec![1, 1, 1]),
            (vec![1, 1, 1, 30], 0, vec![1, 1], 1, vec![3, 1]),
        ] {
            let found = cut(&layers, head, &shares, rank_0);
            assert_eq!(found.iter().sum::<usize>(), layers.len());
            assert_eq!(found, expected, "{layers:?} {head} {shares:?}");
        }
    }
}
