use layout::{
    Capacity, Device, Footprint, Holding, Layout, Outline, PAGE_POSITIONS, RANKS_MAX,
    full_cache_tokens,
};
use protocol::{InstanceSpec, Nodes, Split, StageSize};

use crate::choose::{Candidate, LinkSpeed, candidates, is_free, reason};

/// Memory of a worker beside what it holds of the model: code, stacks, links, and what the device
/// works with between two operations.
const WORKER_BYTES: u64 = 64 << 20;
/// The context that is given when nobody asks for one: enough for a long chat.
const CONTEXT_TOKENS_DEFAULT: usize = 8192;
/// Sequences that may run at once when nobody says how many, and how many of them the cache is to
/// hold at their longest: most are much shorter.
const SEQUENCES_DEFAULT: usize = 16;
const LONGEST_DEFAULT: usize = 4;

/// A node that could take a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The caller's own number for it.
    pub id: usize,
    pub memory_free_bytes: u64,
    /// Threads that it offers; its share is in proportion to them.
    pub threads: usize,
    /// What these threads read from memory together, if it was measured.
    pub read_bytes_per_sec: Option<f64>,
    /// The way to the first node, if it was measured; of no matter for that node itself.
    pub link: Option<LinkSpeed>,
}

/// What was asked for, and what is known of the cluster beside its nodes.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    pub spec: &'a InstanceSpec,
    /// Whether not every two nodes can link, so that sums of four and more go round a ring.
    pub ring: bool,
}

/// Who holds which share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub ranks: Vec<PlannedRank>,
    pub split: Split,
    /// The reasons, for a person to read.
    pub why: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRank {
    /// [`Node::id`] of the node.
    pub node: usize,
    pub share: u32,
    /// What this rank holds of the model.
    pub footprint: Footprint,
    /// What it will take: that and the worker itself.
    pub memory_bytes: u64,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "{asked} nodes were asked for, but {live} are live. Start and join more, or ask for {live}"
    )]
    TooFewNodes { asked: usize, live: usize },
    #[error("a model can be split over 1 to {max} nodes, not {asked}")]
    TooManyRanks { asked: usize, max: usize },
    #[error("{shares} shares were given for {nodes} nodes. Give one number for each node")]
    Shares { shares: usize, nodes: usize },
    #[error(
        "stages of {by_ranks:?} ranks do not make up {ranks} ranks. Give one number for each stage, at least 1, such as --stages 2,2 for 4 nodes"
    )]
    Stages { by_ranks: Vec<usize>, ranks: usize },
    #[error(
        "--wire-type q8 quantises the sums of nodes that share a layer, and of {nodes} nodes in {stages} stages no two do. Leave it out, or split the model with --strategy tensor"
    )]
    NoSums { nodes: usize, stages: usize },
    #[error("{stages} stages cannot be made of {layers} layers. Ask for fewer stages")]
    TooManyStages { stages: usize, layers: usize },
    #[error(
        "{given:?} layers do not make up {layers} layers in {stages} stages. Give each stage at least one"
    )]
    StageLayers { given: Vec<usize>, layers: usize, stages: usize },
    #[error(
        "the shares {shares:?} are no split: at least one must be above 0 and their sum below 2^31"
    )]
    NoShares { shares: Vec<u32> },
    #[error(
        "a context of {asked} tokens was asked for; this model was trained for {max}. Ask for at most {max}"
    )]
    Context { asked: usize, max: usize },
    #[error(
        "a cache of {asked} tokens does not hold one conversation of {context}. Ask for at least that many with --cache-tokens, or for shorter conversations with --ctx"
    )]
    Cache { asked: usize, context: usize },
    #[error(
        "node {node} would need {} for its share of {share} in {shares} and has {} free. Try a smaller context, add a node, or free memory",
        gib(*.needed_bytes), gib(*.free_bytes)
    )]
    Memory { node: usize, share: u32, shares: u32, needed_bytes: u64, free_bytes: u64 },
}

/// Chooses nodes and shares. `nodes[0]` is the node that was asked and becomes rank 0.
///
/// Without wishes it takes every node that offers threads, and splits the model in the way that is
/// predicted to be fastest for one request, if nodes and links were measured, else by tensors. It
/// never plans more memory than a node has free.
///
/// # Errors
/// What was asked for cannot be had; the error says what is missing, in numbers.
pub fn plan(model: &Outline, nodes: &[Node], options: &Options<'_>) -> Result<Plan, Error> {
    let count = node_count(nodes, options)?;
    let chosen = &nodes[..count];
    let shares = shares(chosen, options)?;
    let context_tokens = context(model, options)?;
    let sequences_max = options.spec.sequences_max.unwrap_or(SEQUENCES_DEFAULT).max(1);

    let (cache_least, cache_most) = cache(options, context_tokens, sequences_max)?;
    let cache_type = options.spec.options.cache_type;
    let whole_experts = model.whole_experts(options.spec.options.experts);
    let mut candidates = candidates(model, chosen, &shares, options)?;
    let place = |candidate: &Candidate, cache_tokens| {
        let capacity = Capacity { context_tokens, sequences_max, cache_tokens, cache_type };
        place(model, chosen, &shares, &candidate.stages, whole_experts, &capacity)
    };
    let fits = |cache_tokens| move |one: &Candidate| place(one, cache_tokens).is_ok();
    let fit = |cache_tokens| candidates.iter().position(fits(cache_tokens));
    if let Some(at) = fit(cache_most).or_else(|| fit(cache_least)) {
        // What is predicted to be faster, but does not fit, comes after it, for the reason.
        candidates[..=at].rotate_right(1);
    }
    let cache_tokens = largest(cache_least, cache_most, |tokens| fits(tokens)(&candidates[0]));
    let ranks = place(&candidates[0], cache_tokens)?;
    let stages = candidates[0].stages.clone();
    let mut why = explain(&ranks, &stages, options, cache_tokens);
    if count > 1 {
        why.extend(reason(&candidates, chosen, !is_free(options)));
    }
    let experts = model.config.experts.map(|experts| experts.count);
    why.extend(experts.zip(model.expert_parts()).map(|(experts, parts)| match whole_experts {
        true => format!("whole experts to each node: {experts} of them, of {parts} parts each"),
        false => format!("columns of every expert to each node, which can be cut in {parts}"),
    }));
    let split =
        Split { shares, stages, whole_experts, context_tokens, sequences_max, cache_tokens };
    Ok(Plan { ranks, split, why })
}

fn node_count(nodes: &[Node], options: &Options<'_>) -> Result<usize, Error> {
    let live = nodes.len();
    let by_shares = options.spec.options.shares.as_ref().map(Vec::len);
    let asked =
        options.spec.nodes.as_ref().map(Nodes::count).or(by_shares).unwrap_or(live.min(RANKS_MAX));
    if asked == 0 || asked > RANKS_MAX {
        return Err(Error::TooManyRanks { asked, max: RANKS_MAX });
    }
    if asked > live {
        return Err(Error::TooFewNodes { asked, live });
    }
    match by_shares {
        Some(shares) if shares != asked => Err(Error::Shares { shares, nodes: asked }),
        _ => Ok(asked),
    }
}

fn shares(nodes: &[Node], options: &Options<'_>) -> Result<Vec<u32>, Error> {
    let shares =
        options.spec.options.shares.clone().unwrap_or_else(|| {
            nodes.iter().map(|node| node.threads.clamp(1, 1024) as u32).collect()
        });
    let total: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    if total == 0 || total > i32::MAX as u64 {
        return Err(Error::NoShares { shares });
    }
    Ok(shares)
}

/// What every rank takes.
fn place(
    model: &Outline,
    nodes: &[Node],
    shares: &[u32],
    stages: &[StageSize],
    whole_experts: bool,
    capacity: &Capacity,
) -> Result<Vec<PlannedRank>, Error> {
    let total: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    let sizes: Vec<_> = stages.iter().map(|stage| (stage.ranks, stage.layers)).collect();
    let layout = Layout::new(shares, &sizes, model.config.layers);
    let layout = layout.map_err(|_| Error::NoShares { shares: shares.to_vec() })?;
    let layout = layout.with_whole_experts(whole_experts);
    let rank = |(rank, (node, share)): (usize, (&Node, &u32))| {
        let footprint = Holding::new(model, &layout, rank).footprint(capacity, Device::Cpu);
        let memory_bytes = footprint.bytes().saturating_add(WORKER_BYTES);
        if memory_bytes > node.memory_free_bytes {
            return Err(Error::Memory {
                node: node.id,
                share: *share,
                shares: total as u32,
                needed_bytes: memory_bytes,
                free_bytes: node.memory_free_bytes,
            });
        }
        Ok(PlannedRank { node: node.id, share: *share, footprint, memory_bytes })
    };
    nodes.iter().zip(shares).enumerate().map(rank).collect()
}

fn context(model: &Outline, options: &Options<'_>) -> Result<usize, Error> {
    let max = model.config.context_max;
    match options.spec.context_tokens {
        Some(asked) if asked == 0 || asked > max => Err(Error::Context { asked, max }),
        Some(asked) => Ok(asked),
        None => Ok(CONTEXT_TOKENS_DEFAULT.min(max)),
    }
}

/// The least and the most tokens that the cache may have. Unless a size is asked for, it has room
/// for as many sequences at their longest as are asked for, or as much as there is memory for, at
/// least one of them.
fn cache(
    options: &Options<'_>,
    context_tokens: usize,
    sequences_max: usize,
) -> Result<(usize, usize), Error> {
    let least = full_cache_tokens(context_tokens, 1);
    match options.spec.cache_tokens {
        Some(asked) if asked < context_tokens => {
            Err(Error::Cache { asked, context: context_tokens })
        }
        Some(asked) => Ok((asked, asked)),
        None => {
            let longest = options.spec.sequences_max.map_or(LONGEST_DEFAULT, |_| sequences_max);
            Ok((least, full_cache_tokens(context_tokens, longest)))
        }
    }
}

/// The largest cache of whole pages from `least` to `most` that `fits`; `least` if none does.
fn largest(least: usize, most: usize, fits: impl Fn(usize) -> bool) -> usize {
    if fits(most) {
        return most;
    }
    let (mut good, mut bad) = (0, (most - least) / PAGE_POSITIONS);
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        if fits(least + middle * PAGE_POSITIONS) { good = middle } else { bad = middle }
    }
    least + good * PAGE_POSITIONS
}

fn explain(
    ranks: &[PlannedRank],
    stages: &[StageSize],
    options: &Options<'_>,
    cache_tokens: usize,
) -> Vec<String> {
    let sum = |bytes: fn(&Footprint) -> u64| {
        gib(ranks.iter().map(|rank| bytes(&rank.footprint)).fold(0, u64::saturating_add))
    };
    let (weights, cache) = (sum(|held| held.weight_bytes), sum(|held| held.cache_bytes));
    let by = match (&options.spec.options.shares, ranks.len()) {
        (Some(_), _) => "the shares that were asked for",
        (None, 1) => "one node, so no split",
        (None, _) => "shares in proportion to the threads that each node offers",
    };
    vec![
        format!("{weights} of weights and {cache} of cache, for {cache_tokens} tokens"),
        match stages {
            [] => format!("tensor parallel over {} nodes: {by}", ranks.len()),
            stages => {
                let list =
                    stages.iter().map(|s| format!("{} nodes x {} layers", s.ranks, s.layers));
                let list = list.collect::<Vec<_>>().join(", ");
                format!("{} stages ({list}): {by}", stages.len())
            }
        },
    ]
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::{Dense, LLAMA};
    use gguf::TensorType;
    use protocol::{ExpertSplit, SplitOptions, Strategy};

    const GIB: u64 = 1 << 30;

    /// A layer of about 1 GiB, a head of four.
    const LARGE: Dense = Dense {
        layers: 36,
        width: 4096,
        heads: 32,
        kv_heads: 8,
        hidden: 81_920,
        vocab: 1_024_000,
        experts: None,
    };

    fn model() -> Outline {
        LARGE.outline(TensorType::Q8_0, TensorType::Q8_0)
    }

    /// The weights of that model but for its norms, and its cache of 4 contexts of 8192 tokens:
    /// heads of 128 numbers and a scale, for keys and for values, in each layer.
    fn weights_and_cache(kv_heads: u64) -> u64 {
        let (attention, hidden) = (4096 * (4096 + 2 * 128 * kv_heads + 4096), 3 * 4096 * 81_920);
        let numbers: u64 = 36 * (attention + hidden) + 4096 * 1_024_000;
        numbers / 32 * 34 + 36 * 4 * 8192 * kv_heads * 2 * (2 * 128 + 4)
    }

    /// Norms, buffers and workers are what the plan adds to that. `kv_heads`: of all ranks that
    /// share a layer.
    fn assert_adds_up(plan: &Plan, kv_heads: u64) {
        let bytes: u64 = plan.ranks.iter().map(|rank| rank.memory_bytes).sum();
        let rest = bytes - weights_and_cache(kv_heads) - plan.ranks.len() as u64 * WORKER_BYTES;
        let buffers: u64 = plan.ranks.iter().map(|rank| rank.footprint.buffer_bytes).sum();
        let norms = rest - buffers;
        // Beside the norms there may be rows that fill the last panel of a part of the head.
        let padding = 15 * (4096 / 32 * 34);
        assert!(norms <= plan.ranks.len() as u64 * (73 * 4096 * 4 + padding), "{norms}");
    }

    fn spec() -> InstanceSpec {
        InstanceSpec::default()
    }

    fn options() -> SplitOptions {
        SplitOptions::default()
    }

    fn split(options: SplitOptions) -> InstanceSpec {
        InstanceSpec { options, ..spec() }
    }

    fn shares(shares: &[u32]) -> SplitOptions {
        SplitOptions { shares: Some(shares.to_vec()), ..options() }
    }

    fn plan(model: &Outline, nodes: &[Node], spec: &InstanceSpec) -> Result<Plan, Error> {
        super::plan(model, nodes, &Options { spec, ring: false })
    }

    fn nodes(memory_gib: &[u64]) -> Vec<Node> {
        let node = |(id, gib): (usize, &u64)| Node {
            id,
            memory_free_bytes: gib * GIB,
            threads: 4 * (id + 1),
            read_bytes_per_sec: None,
            link: None,
        };
        memory_gib.iter().enumerate().map(node).collect()
    }

    #[test]
    fn shares_follow_threads_and_memory_adds_up() {
        let plan = plan(&model(), &nodes(&[64, 64]), &spec()).unwrap();
        let shares: Vec<u32> = plan.ranks.iter().map(|rank| rank.share).collect();
        assert_eq!(shares, [4, 8]);
        // 10 query heads and 22: the third of the 8 key/value heads is on both.
        assert_adds_up(&plan, 9);
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_numbers() {
        type Case = (Vec<u64>, InstanceSpec, &'static str);
        let on = |count| InstanceSpec { nodes: Some(Nodes::Count(count)), ..spec() };
        let cases: Vec<Case> = vec![
            (
                vec![8],
                spec(),
                "node 0 would need 43.13 GiB for its share of 4 in 4 and has 8.00 GiB free",
            ),
            (vec![64], on(2), "2 nodes were asked for, but 1"),
            (vec![64], on(0), "1 to 16 nodes, not 0"),
            (vec![64; 17], on(17), "1 to 16 nodes, not 17"),
            (
                vec![64; 2],
                InstanceSpec { options: shares(&[1]), ..on(2) },
                "1 shares were given for 2 nodes",
            ),
            (vec![64; 2], split(shares(&[0, 0])), "are no split"),
            (
                vec![64],
                InstanceSpec { context_tokens: Some(200_000), ..spec() },
                "trained for 131072",
            ),
            (
                vec![64; 3],
                split(SplitOptions {
                    strategy: Strategy::Hybrid,
                    stages: Some(vec![2, 2]),
                    ..options()
                }),
                "[2, 2] ranks do not make up 3 ranks",
            ),
            (
                vec![64; 2],
                split(SplitOptions {
                    stages: Some(vec![1, 1]),
                    stage_layers: Some(vec![36, 0]),
                    ..options()
                }),
                "[36, 0] layers do not make up 36 layers in 2 stages",
            ),
            (vec![64], InstanceSpec { context_tokens: Some(0), ..spec() }, "context of 0 tokens"),
            (
                vec![64],
                InstanceSpec { cache_tokens: Some(8191), ..spec() },
                "a cache of 8191 tokens does not hold one conversation of 8192",
            ),
        ];
        for (memory, spec, expected) in cases {
            let error = plan(&model(), &nodes(&memory), &spec).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} should contain {expected:?}");
        }
    }

    #[test]
    fn the_cache_is_as_large_as_memory_allows_unless_its_size_is_asked_for() {
        let cache = |gib, spec: InstanceSpec| {
            let plan = plan(&model(), &nodes(&[gib]), &spec).map_err(|error| error.to_string())?;
            assert!(plan.ranks[0].memory_bytes <= gib * GIB);
            let mut larger = spec;
            larger.cache_tokens = Some(plan.split.cache_tokens + 64);
            let fits = super::tests::plan(&model(), &nodes(&[gib]), &larger).is_ok();
            Ok::<_, String>((plan.split.cache_tokens, fits))
        };
        let size = |cache_tokens| InstanceSpec { cache_tokens: Some(cache_tokens), ..spec() };
        assert_eq!(cache(64, spec()), Ok((4 * 8192, true)));
        let (less, fits) = cache(45, spec()).unwrap();
        assert!((8192..4 * 8192).contains(&less) && !fits, "{less}");
        assert_eq!(cache(64, size(8192)), Ok((8192, true)));
        assert_eq!(cache(64, size(100_000)), Ok((100_000, true)));
        assert!(cache(45, size(4 * 8192)).unwrap_err().contains("would need"));
    }

    #[test]
    fn a_split_fits_where_one_node_does_not() {
        assert!(plan(&model(), &nodes(&[32]), &spec()).is_err());
        let spec = split(shares(&[1, 1]));
        assert!(plan(&model(), &nodes(&[32, 32]), &spec).is_ok());
    }

    #[test]
    fn stages_follow_the_strategy_and_the_weights() {
        use Strategy::{Auto, Hybrid, Pipeline, Tensor};
        for (strategy, count, expected) in [
            (Auto, 2, vec![]),
            (Tensor, 4, vec![]),
            (Pipeline, 1, vec![]),
            (Pipeline, 2, vec![(1, 18), (1, 18)]),
            (Hybrid, 2, vec![]),
            (Hybrid, 4, vec![(2, 19), (2, 17)]),
            (Hybrid, 5, vec![(2, 14), (2, 16), (1, 6)]),
        ] {
            let shares = Some(vec![1; count]);
            let spec = split(SplitOptions { strategy, shares, ..options() });
            let plan = plan(&model(), &nodes(&vec![64; count]), &spec).unwrap();
            let found: Vec<_> = plan.split.stages.iter().map(|s| (s.ranks, s.layers)).collect();
            assert_eq!(found, expected, "{strategy:?} over {count}");
            assert_adds_up(&plan, 8);
        }
    }

    #[test]
    fn experts_are_cut_unless_they_are_too_narrow() {
        use ExpertSplit::{Auto, Columns, Whole};
        for (experts, hidden, asked, expected) in [
            (None, 96, Whole, false),
            (Some(128), 96, Auto, true),
            (Some(128), 192, Auto, false),
            (Some(128), 96, Columns, false),
            (Some(8), 512, Whole, true),
            (Some(2), 64, Auto, false),
        ] {
            let dense = Dense { layers: 1, hidden, experts, ..LLAMA };
            let model = dense.outline(TensorType::Q8_0, TensorType::Q8_0);
            let spec = split(SplitOptions { experts: asked, ..options() });
            let plan = plan(&model, &nodes(&[64]), &spec).unwrap();
            assert_eq!(plan.split.whole_experts, expected, "{experts:?} {asked:?}");
        }
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let (context_tokens, sequences_max) = (Some(131_072), Some(usize::MAX));
        let spec = InstanceSpec { context_tokens, sequences_max, ..spec() };
        assert!(plan(&model(), &nodes(&[64]), &spec).is_err());
    }
}
