//! Contradictory options, and options that a model does not support: refused before any search, so
//! that none is silently ignored.

use layout::{Outline, STAGE_RANKS_MAX};
use protocol::{ExpertSplit, InstanceSpec, Speculation, SplitOptions, Strategy};

use crate::error::Error;
use crate::node::Node;
use crate::plan::{Options, SEQUENCES_DEFAULT};

/// Each sequence has a row in every step, and buffers for its results.
const SEQUENCES_MAX: usize = 1024;

/// Fewer nodes are one group, or a pipeline.
pub(crate) const HYBRID_MIN: usize = 3;

/// Why a request is contradictory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WishError {
    #[error(
        "--parallel {asked}: {SEQUENCES_MAX} requests at once are the most, and 1 the least. Leave \
         it out for {SEQUENCES_DEFAULT}"
    )]
    Sequences { asked: usize },
    #[error(
        "--draft names a model that guesses next tokens, and --speculation off turns \
         guessing off. Leave one of the two out"
    )]
    DraftOff,
    #[error("--experts says how experts are split, and this model has none. Leave it out")]
    NoExperts,
    #[error(
        "a hybrid is groups of nodes one after the other, for which there must be {HYBRID_MIN} nodes \
         or more, not {nodes}. Ask for --strategy tensor or pipeline, or add nodes"
    )]
    NoHybrid { nodes: usize },
    #[error(
        "--strategy {strategy} does not go with --stages {by_ranks:?}, which is another one. Leave \
         one of the two out"
    )]
    OtherStrategy { strategy: &'static str, by_ranks: Vec<usize> },
}

/// Checks that the options are compatible with each other and with this number of nodes.
pub(crate) fn check(model: &Outline, spec: &InstanceSpec, nodes: usize) -> Result<(), WishError> {
    let wishes = &spec.options;
    if let Some(asked) = spec.sequences_max.filter(|asked| !(1..=SEQUENCES_MAX).contains(asked)) {
        return Err(WishError::Sequences { asked });
    }
    if wishes.draft.is_some() && wishes.speculation == Speculation::Off {
        return Err(WishError::DraftOff);
    }
    if wishes.experts != ExpertSplit::Auto && model.config.experts.is_none() {
        return Err(WishError::NoExperts);
    }
    match &wishes.stages {
        Some(by_ranks) => check_strategy(wishes.strategy, by_ranks),
        None if wishes.strategy == Strategy::Hybrid && nodes < HYBRID_MIN => {
            Err(WishError::NoHybrid { nodes })
        }
        None => Ok(()),
    }
}

/// Stages may refine a strategy, but not contradict it.
fn check_strategy(strategy: Strategy, by_ranks: &[usize]) -> Result<(), WishError> {
    let (is_one, is_pipeline) = (by_ranks.len() == 1, by_ranks.iter().all(|ranks| *ranks == 1));
    let strategy = match strategy {
        Strategy::Tensor if !is_one => "tensor",
        Strategy::Pipeline if !is_pipeline => "pipeline",
        Strategy::Hybrid if is_one || is_pipeline => "hybrid",
        _ => return Ok(()),
    };
    Err(WishError::OtherStrategy { strategy, by_ranks: by_ranks.to_vec() })
}

/// Checks that each of these nodes supports the model's cache: states, and the requested type.
pub(crate) fn check_devices(
    model: &Outline,
    spec: &InstanceSpec,
    nodes: &[&Node],
) -> Result<(), Error> {
    if model.config.recurrence.is_some()
        && let Some(node) = nodes.iter().find(|node| !node.device.has_states())
    {
        let (node, class) = (node.name.clone(), node.class.clone());
        return Err(Error::NoStates { node, class });
    }
    if model.config.indexer.is_some()
        && let Some(node) = nodes.iter().find(|node| !node.device.has_indexers())
    {
        let (node, class) = (node.name.clone(), node.class.clone());
        return Err(Error::NoIndexers { node, class });
    }
    if model.config.encoder.is_some()
        && let Some(node) = nodes.iter().find(|node| !node.device.has_encoders())
    {
        let (node, class) = (node.name.clone(), node.class.clone());
        return Err(Error::NoEncoders { node, class });
    }
    let (cache_type, config) = (spec.options.cache_type, &model.config);
    let has_caches = |node: &&&Node| {
        let mut dims = config.heads().iter().map(|heads| config.cached_dims(heads));
        dims.all(|dims| node.device.has_cache(cache_type, dims))
    };
    match nodes.iter().find(|node| !has_caches(node)) {
        None => Ok(()),
        Some(node) => {
            let (node, class) = (node.name.clone(), node.class.clone());
            Err(Error::CacheType { node, class, cache_type })
        }
    }
}

/// Checks that the requested shares, stages and layers add up to the model and its nodes.
pub(crate) fn check_split(
    model: &Outline,
    options: &Options<'_>,
    asked: Option<usize>,
) -> Result<(), Error> {
    let SplitOptions { shares, stages, stage_layers, strategy, .. } = &options.spec.options;
    let (layers, borders) = (model.config.layers, model.config.borders());
    let pieces = borders.len() - 1;
    let together = match (stages, strategy) {
        (Some(stages), _) => stages.iter().copied().max(),
        (None, Strategy::Tensor) => asked,
        (None, _) => None,
    };
    if let Some(ranks) = together.filter(|ranks| *ranks > STAGE_RANKS_MAX) {
        return Err(Error::TooManyTogether { ranks, max: STAGE_RANKS_MAX });
    }
    if let (Some(stages), Some(ranks)) = (stages, asked) {
        let sum: usize = stages.iter().fold(0, |sum, n| sum.saturating_add(*n));
        if stages.contains(&0) || sum != ranks {
            return Err(Error::Stages { by_ranks: stages.clone(), ranks });
        }
        if stages.len() > pieces {
            return Err(Error::TooManyStages { stages: stages.len(), layers, pieces });
        }
    }
    if let Some(shares) = shares {
        let total: u64 = shares.iter().map(|share| u64::from(*share)).sum();
        let empty = |stages: &Vec<usize>| {
            let mut rest = &shares[..];
            stages.iter().any(|ranks| {
                let (own, others) = rest.split_at((*ranks).min(rest.len()));
                rest = others;
                own.iter().all(|share| *share == 0)
            })
        };
        if total == 0 || total > i32::MAX as u64 || stages.as_ref().is_some_and(empty) {
            return Err(Error::NoShares { shares: shares.clone() });
        }
    }
    if let (Strategy::Pipeline, None, Some(stages)) = (strategy, stages, asked)
        && stages > pieces
    {
        return Err(Error::TooManyStages { stages, layers, pieces });
    }
    if let Some(given) = stage_layers {
        let sum = given.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
        let stages = match (stages, strategy, asked) {
            (Some(stages), ..) => stages.len(),
            (None, Strategy::Pipeline, Some(nodes)) => nodes,
            (None, Strategy::Tensor, _) => 1,
            _ => given.len(),
        };
        if given.contains(&0) || sum != layers || given.len() != stages {
            return Err(Error::StageLayers { given: given.clone(), layers, stages });
        }
        let mut before = 0;
        let ends = given.iter().map(|count| {
            before += count;
            before
        });
        if let Some(layer) = ends.into_iter().find(|end| !borders.contains(end)) {
            return Err(Error::Parted { layer, borders });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gguf::TensorType;
    use protocol::SplitOptions;

    use super::*;
    use crate::shapes::LLAMA;

    #[test]
    fn what_cannot_be_had_together_is_refused() {
        use Strategy::{Auto, Hybrid, Pipeline, Tensor};
        let model = LLAMA.outline(TensorType::Q8_0, TensorType::Q8_0);
        let refused = |sequences_max, options, nodes| {
            let spec = InstanceSpec { sequences_max, options, ..InstanceSpec::default() };
            check(&model, &spec, nodes).map_err(|error| error.to_string())
        };
        let says = |found: Result<(), String>, words: &str| {
            let error = found.expect_err(words);
            assert!(error.contains(words), "{error:?} should contain {words:?}");
        };
        let plain = SplitOptions::default;
        says(refused(Some(0), plain(), 1), "--parallel 0: 1024 requests");
        says(refused(Some(1025), plain(), 1), "--parallel 1025");
        assert_eq!(refused(Some(1024), plain(), 1), Ok(()));
        let experts = SplitOptions { experts: ExpertSplit::Whole, ..plain() };
        says(refused(None, experts, 1), "this model has none");
        let (draft, speculation) = (Some("d.gguf".into()), Speculation::Off);
        let draft = SplitOptions { draft, speculation, ..plain() };
        says(refused(None, draft, 1), "--speculation off turns guessing off");
        let of = |strategy, stages: &[usize]| SplitOptions {
            strategy,
            stages: (!stages.is_empty()).then(|| stages.to_vec()),
            ..plain()
        };
        says(refused(None, of(Hybrid, &[]), 2), "3 nodes or more, not 2");
        says(refused(None, of(Hybrid, &[]), 1), "3 nodes or more, not 1");
        for (strategy, stages) in
            [(Tensor, &[1, 1][..]), (Pipeline, &[2, 1]), (Hybrid, &[1, 1]), (Hybrid, &[2])]
        {
            says(refused(None, of(strategy, stages), 3), "which is another one");
        }
        for (strategy, stages) in
            [(Auto, &[2, 1][..]), (Tensor, &[3]), (Pipeline, &[1, 1, 1]), (Hybrid, &[2, 1])]
        {
            assert_eq!(refused(None, of(strategy, stages), 3), Ok(()));
        }
    }
}
