//! Properties of any cluster: random ones with seeds, and small ones with every split tried.

use layout::Capacity;

use super::*;
use crate::group::Subject;
use crate::shares::{UNITS, scaled};
use crate::trial::{Context, Fit};

/// The number of random clusters for each property.
const CLUSTERS: usize = 150;

/// Clusters of ten nodes, and the required quality of the search: 1 is the best.
const MANY: u64 = 12;
const NEAR: f64 = 1.1;

/// Six layers of 60 MB and a head of 30, or the same with sixteen experts.
fn small(experts: bool) -> Outline {
    let dense = Dense {
        layers: 6,
        width: 2048,
        heads: 16,
        kv_heads: 4,
        hidden: if experts { 512 } else { 8192 },
        vocab: 16_000,
        experts: experts.then_some(16),
    };
    dense.outline(TensorType::Q8_0, TensorType::Q8_0)
}

/// Nodes of different memory, speed and links; the model takes about one and a half of them.
fn random(rng: &mut fastrand::Rng, count: usize, memory_mib: std::ops::Range<u64>) -> Vec<Node> {
    let us = [2.0, 10.0, 100.0, 1000.0, 10_000.0];
    (0..count)
        .map(|id| {
            let memory = rng.u64(memory_mib.clone()) * MIB;
            let mut node = node(id, memory, rng.f64() * 50.0 + 2.0, 0.0);
            node.links = (0..id).map(|_| Some(link(us[rng.usize(..us.len())]))).collect();
            node.machine = rng.bool().then(|| rng.usize(..2));
            node
        })
        .collect()
}

fn each_cluster(mut check: impl FnMut(u64, &mut fastrand::Rng)) {
    for seed in 0..CLUSTERS as u64 {
        check(seed, &mut fastrand::Rng::with_seed(seed));
    }
}

#[test]
fn no_node_is_given_more_than_it_has() {
    let mut planned = 0;
    each_cluster(|seed, rng| {
        let model = small(rng.bool());
        let count = rng.usize(1..9);
        let nodes = random(rng, count, 100..700);
        let asked = InstanceSpec {
            context_tokens: Some(rng.usize(64..8192)),
            sequences_max: rng.bool().then(|| rng.usize(1..8)),
            ..spec()
        };
        let Ok(plan) = plan(&model, &nodes, &asked) else { return };
        planned += 1;
        for rank in &plan.ranks {
            let free = nodes[rank.node].memory_free_bytes;
            assert!(rank.memory_bytes <= free, "seed {seed}: {rank:?} of {free}");
        }
        let layers: usize = plan.split.stages.iter().map(|stage| stage.layers).sum();
        assert!(plan.split.stages.is_empty() || layers == 6, "seed {seed}: {plan:?}");
        let least = asked.context_tokens.unwrap();
        assert!(plan.split.cache_tokens >= least, "seed {seed}: {plan:?}");
    });
    assert!(planned > CLUSTERS / 3, "{planned} of {CLUSTERS} clusters had a plan");
}

/// A plan with all experts in memory.
fn in_memory(model: &Outline, nodes: &[Node], spec: &InstanceSpec) -> Option<Plan> {
    plan(model, nodes, spec).ok().filter(|plan| plan.split.expert_bytes.is_empty())
}

#[test]
fn more_memory_is_never_worse() {
    let mut compared = 0;
    each_cluster(|seed, rng| {
        let model = small(rng.bool());
        let count = rng.usize(1..5);
        let mut nodes = random(rng, count, 100..500);
        let before = in_memory(&model, &nodes, &spec());
        let at = rng.usize(..count);
        nodes[at].memory_free_bytes += rng.u64(1..300) * MIB;
        let after = plan(&model, &nodes, &spec());
        let Some(before) = before else { return };
        let after = after.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        compared += 1;
        let secs = |plan: &Plan| {
            let found = plan.prediction.unwrap();
            found.first_token_secs + 256.0 / found.decode_tokens_per_sec
        };
        // A split with fewer nodes may be 2 % slower, and the search skips some shares.
        assert!(secs(&after) <= secs(&before) * 1.05, "seed {seed}: {before:#?}, then {after:#?}");
    });
    assert!(compared > CLUSTERS / 4, "{compared}");
}

#[test]
fn the_search_finds_what_trying_everything_finds() {
    let (mut compared, mut worst) = (0, 1.0_f64);
    for seed in 0..40 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let model = small(rng.bool());
        let nodes = random(rng, 3, 100..450);
        let least = everything(&model, &nodes);
        let found = in_memory(&model, &nodes, &spec());
        let Some(least) = least else {
            assert!(found.is_none(), "seed {seed}: {found:?}");
            continue;
        };
        let found = found.unwrap_or_else(|| panic!("seed {seed}: nothing, and not {least:#?}"));
        let prediction = found.prediction.unwrap();
        let secs = prediction.first_token_secs + 256.0 / prediction.decode_tokens_per_sec;
        worst = worst.max(secs / least.secs);
        assert!(secs <= least.secs * 1.05, "seed {seed}: {secs}, not {least:#?}");
        compared += 1;
    }
    assert!(compared > 10 && worst >= 1.0, "{compared} {worst}");
}

/// With more nodes than [`crate::search`] tries every subset of, it comes near the exhaustive
/// search.
#[test]
fn the_search_among_many_nodes_comes_near_trying_every_subset() {
    let (mut compared, mut worst) = (0, 1.0_f64);
    for seed in 0..MANY {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let model = small(rng.bool());
        let nodes = random(rng, 10, 60..250);
        let secs = |nodes: &[Node], count: Option<usize>| {
            let asked = InstanceSpec { nodes: count.map(Into::into), ..spec() };
            let prediction = in_memory(&model, nodes, &asked)?.prediction?;
            Some(prediction.first_token_secs + 256.0 / prediction.decode_tokens_per_sec)
        };
        let subsets = (1..1_u32 << nodes.len()).filter(|set| set & 1 == 1);
        let least = subsets.filter_map(|set| {
            let chosen: Vec<usize> = (0..nodes.len()).filter(|at| set >> at & 1 == 1).collect();
            secs(&subset(&nodes, &chosen), Some(chosen.len()))
        });
        let Some(least) = least.min_by(f64::total_cmp) else { continue };
        let ratio = secs(&nodes, None).unwrap_or(f64::INFINITY) / least;
        worst = worst.max(ratio);
        compared += 1;
    }
    assert!(compared > 5 && worst <= NEAR, "{compared} clusters, the worst {worst}");
}

/// Some of the nodes, with the links between them.
fn subset(nodes: &[Node], chosen: &[usize]) -> Vec<Node> {
    let one = |(place, at): (usize, &usize)| {
        let mut node = nodes[*at].clone();
        node.links = chosen[..place].iter().map(|other| nodes[*at].links[*other]).collect();
        node
    };
    chosen.iter().enumerate().map(one).collect()
}

/// The best of all subsets, orders, groupings, cuts of layers and of each group's shares.
fn everything(model: &Outline, nodes: &[Node]) -> Option<Fit> {
    let capacity = Capacity {
        context_tokens: 8192,
        sequences_max: 16,
        cache_tokens: 8192,
        cache_type: protocol::CacheType::Auto,
        whole_rows: 0,
        is_encoder: false,
        checkpoints: 2,
    };
    let spec = spec();
    let options = Options::new(&spec);
    let whole_experts = model.whole_experts(protocol::ExpertSplit::Auto);
    let subject = Subject { outline: model, whole_experts, capacity: &capacity, streaming: None };
    let mut best: Option<Fit> = None;
    for order in [vec![0], vec![0, 1], vec![0, 2], vec![0, 1, 2], vec![0, 2, 1]] {
        for sizes in sums(order.len()) {
            let mut rest = &order[..];
            let groups: Vec<Vec<usize>> = sizes
                .iter()
                .map(|size| {
                    let (own, others) = rest.split_at(*size);
                    rest = others;
                    own.to_vec()
                })
                .collect();
            for layers in parts(6, sizes.len(), 1) {
                for units in all_units(&sizes) {
                    let weight = |group: &Vec<usize>| {
                        let read = |at: &usize| nodes[*at].speed.unwrap().rates.read_bytes_per_sec;
                        group.iter().map(read).sum::<f64>()
                    };
                    let stages = units.into_iter().zip(groups.iter().map(weight));
                    let shares = scaled(&stages.collect::<Vec<_>>());
                    let context = Context {
                        shares: Some(&shares),
                        stage_layers: Some(&layers),
                        ..crate::plan::context_of(subject, nodes, &options)
                    };
                    let found = context.fit(&groups).ok();
                    let better = |found: &Fit| best.as_ref().is_none_or(|b| found.secs < b.secs);
                    best = found.filter(better).or(best);
                }
            }
        }
    }
    best
}

/// All ways to write `count` as a sum, in order.
fn sums(count: usize) -> Vec<Vec<usize>> {
    (1..=count).flat_map(|terms| parts(count, terms, 1)).collect()
}

/// All ways to write `sum` as `terms` terms of at least `least`.
fn parts(sum: usize, terms: usize, least: usize) -> Vec<Vec<usize>> {
    if terms == 1 {
        return vec![vec![sum]];
    }
    let first = least..=sum.saturating_sub(least * (terms - 1));
    first
        .flat_map(|first| {
            parts(sum - first, terms - 1, least)
                .into_iter()
                .map(move |rest| std::iter::once(first).chain(rest).collect())
        })
        .collect()
}

/// All combinations of units of each group.
fn all_units(sizes: &[usize]) -> Vec<Vec<Vec<u32>>> {
    let mut all: Vec<Vec<Vec<u32>>> = vec![Vec::new()];
    for size in sizes {
        let own = parts(UNITS as usize, *size, 1);
        all = all
            .into_iter()
            .flat_map(|before| {
                own.iter().map(move |units| {
                    let units = units.iter().map(|n| *n as u32).collect();
                    before.iter().cloned().chain([units]).collect()
                })
            })
            .collect();
    }
    all
}

#[test]
fn two_small_nodes_hold_what_neither_does_alone() {
    // The 730 MiB of a 1B model in Q4_0, on 800 and 330 MiB.
    let mut nodes = nodes(2, 10.0);
    (nodes[0].memory_free_bytes, nodes[1].memory_free_bytes) = (800 * MIB, 330 * MIB);
    let asked = InstanceSpec { context_tokens: Some(512), ..spec() };
    for strategy in [Strategy::Auto, Strategy::Tensor, Strategy::Pipeline] {
        let options = SplitOptions { strategy, ..SplitOptions::default() };
        let plan = plan(&llama(), &nodes, &InstanceSpec { options, ..asked.clone() });
        let plan = plan.unwrap_or_else(|error| panic!("{strategy:?}: {error}"));
        assert_eq!(plan.ranks.len(), 2, "{plan:?}");
    }
}

#[test]
fn sixteen_nodes_are_searched_and_the_best_of_them_used() {
    let mut nodes = nodes(16, 5.0);
    for slow in [3, 7, 11] {
        nodes[slow].speed = Some(speed(2.0));
    }
    let plan = plan(&large(), &nodes, &spec()).unwrap();
    assert!(plan.ranks.len() > 4, "{:#?}", plan.why);
    assert!(plan.ranks.iter().all(|rank| ![3, 7, 11].contains(&rank.node)), "{:#?}", plan.why);
}
