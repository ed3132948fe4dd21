//! Plans add up, follow the request, and refuse impossible requests with an explanation.

use protocol::ExpertSplit;

use super::*;
use crate::group::WORKER_BYTES;

/// Nodes with this memory and without measurements.
fn unknown(memory_gib: &[u64]) -> Vec<Node> {
    let node = |(id, gib): (usize, &u64)| Node {
        threads: 4 * (id + 1),
        speed: None,
        ..super::node(id, gib * GIB, 1.0, 0.0)
    };
    memory_gib.iter().enumerate().map(node).collect()
}

/// The model's weights without norms, and its cache of 4 contexts of 8192 tokens: heads of 128
/// elements and a scale, for keys and for values, in each layer.
fn weights_and_cache(kv_heads: u64) -> u64 {
    let (attention, hidden) = (4096 * (4096 + 2 * 128 * kv_heads + 4096), 3 * 4096 * 81_920);
    let numbers: u64 = 36 * (attention + hidden) + 4096 * 1_024_000;
    numbers / 32 * 34 + 36 * 4 * 8192 * kv_heads * 2 * (2 * 128 + 4)
}

/// Checks that the plan adds only norms, buffers and workers to that. `kv_heads`: of all ranks that
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

fn options() -> SplitOptions {
    SplitOptions::default()
}

fn shares(shares: &[u32]) -> SplitOptions {
    SplitOptions { shares: Some(shares.to_vec()), ..options() }
}

#[test]
fn shares_follow_threads_and_memory_adds_up() {
    let plan = plan(&large(), &unknown(&[64, 64]), &spec()).unwrap();
    let shares: Vec<u32> = plan.ranks.iter().map(|rank| rank.share).collect();
    assert_eq!(shares, [5, 11]);
    // 10 query heads and 22: the third of the 8 key/value heads is on both.
    assert_adds_up(&plan, 9);
}

#[test]
fn a_context_keeps_to_the_rotation_that_the_model_was_trained_with() {
    let mut model = large();
    model.config.rope.short_context = Some(4096);
    let plan = |asked| {
        let spec = InstanceSpec { context_tokens: asked, ..spec() };
        let plan = plan(&model, &unknown(&[64]), &spec).unwrap();
        (plan.split.context_tokens, plan.why.join("\n"))
    };
    let (tokens, why) = plan(None);
    assert_eq!(tokens, 4096);
    assert!(why.contains("a --ctx of over 4096, up to 131072, stretches its rotation"), "{why}");
    let (tokens, why) = plan(Some(4097));
    assert_eq!(tokens, 4097);
    assert!(why.contains("stretched for texts of over 4096 tokens; without --ctx"), "{why}");
}

#[test]
fn what_cannot_be_had_is_refused_with_numbers() {
    type Case = (Vec<u64>, InstanceSpec, &'static str);
    let cases: Vec<Case> = vec![
        (vec![8], spec(), "node n0 would need 43.13 GiB and has 8.00 GiB free for models"),
        (
            vec![64],
            InstanceSpec { nodes: Some(2.into()), ..spec() },
            "2 nodes were asked for, but 1",
        ),
        (vec![64], InstanceSpec { nodes: Some(0.into()), ..spec() }, "1 to 64 nodes, not 0"),
        (vec![64; 65], InstanceSpec { nodes: Some(65.into()), ..spec() }, "1 to 64 nodes, not 65"),
        (
            vec![64; 17],
            InstanceSpec { nodes: Some(17.into()), ..of(Strategy::Tensor) },
            "17 nodes would share the same layers, and 16 are the most",
        ),
        (
            vec![64; 2],
            InstanceSpec { nodes: Some(2.into()), options: shares(&[1]), ..spec() },
            "1 shares were given for 2 nodes",
        ),
        (vec![64; 2], split(shares(&[0, 0])), "are no split"),
        (vec![64], InstanceSpec { context_tokens: Some(200_000), ..spec() }, "trained for 131072"),
        (
            vec![64; 3],
            InstanceSpec {
                nodes: Some(3.into()),
                ..split(SplitOptions {
                    strategy: Strategy::Hybrid,
                    stages: Some(vec![2, 2]),
                    ..options()
                })
            },
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
        let error = plan(&large(), &unknown(&memory), &spec).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} should contain {expected:?}");
    }
}

#[test]
fn the_cache_is_as_large_as_memory_allows_unless_its_size_is_asked_for() {
    let cache = |gib, spec: InstanceSpec| {
        let plan = plan(&large(), &unknown(&[gib]), &spec).map_err(|error| error.to_string())?;
        assert!(plan.ranks[0].memory_bytes <= gib * GIB);
        let mut larger = spec;
        larger.cache_tokens = Some(plan.split.cache_tokens + 64);
        let fits = super::plan(&large(), &unknown(&[gib]), &larger).is_ok();
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
    assert!(plan(&large(), &unknown(&[32]), &spec()).is_err());
    let spec = split(shares(&[1, 1]));
    assert!(plan(&large(), &unknown(&[32, 32]), &spec).is_ok());
}

#[test]
fn stages_follow_the_strategy_and_the_weights() {
    use Strategy::{Auto, Hybrid, Pipeline, Tensor};
    for (strategy, count, expected) in [
        (Auto, 2, vec![]),
        (Tensor, 4, vec![]),
        (Pipeline, 1, vec![]),
        (Pipeline, 2, vec![(1, 18), (1, 18)]),
        (Hybrid, 4, vec![(2, 19), (2, 17)]),
        (Hybrid, 5, vec![(2, 14), (2, 16), (1, 6)]),
    ] {
        let shares = Some(vec![1; count]);
        let spec = split(SplitOptions { strategy, shares, ..options() });
        let plan = plan(&large(), &unknown(&vec![64; count]), &spec).unwrap();
        let found: Vec<_> = plan.split.stages.iter().map(|s| (s.ranks, s.layers)).collect();
        assert_eq!(found, expected, "{strategy:?} over {count}");
        assert_adds_up(&plan, 8);
    }
}

#[test]
fn experts_are_cut_unless_they_are_too_narrow() {
    use ExpertSplit::{Auto, Columns, Whole};
    for (experts, hidden, asked, expected) in [
        (None, 96, Auto, false),
        (Some(128), 96, Auto, true),
        (Some(128), 192, Auto, false),
        (Some(128), 96, Columns, false),
        (Some(8), 512, Whole, true),
        (Some(2), 64, Auto, false),
    ] {
        let dense = Dense { layers: 1, hidden, experts, ..LLAMA };
        let model = dense.outline(TensorType::Q8_0, TensorType::Q8_0);
        let spec = split(SplitOptions { experts: asked, ..options() });
        let plan = plan(&model, &unknown(&[64]), &spec).unwrap();
        assert_eq!(plan.split.whole_experts, expected, "{experts:?} {asked:?}");
    }
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let (context_tokens, cache_tokens) = (Some(131_072), Some(usize::MAX));
    let spec = InstanceSpec { context_tokens, cache_tokens, ..spec() };
    assert!(plan(&large(), &unknown(&[64]), &spec).is_err());
}

#[test]
fn what_one_node_can_run_is_not_refused_before_links_are_measured() {
    for memory in [&[64, 0][..], &[64, 0, 0]] {
        let plan = plan(&large(), &unknown(memory), &spec()).unwrap();
        assert_eq!(plan.ranks.iter().map(|rank| rank.node).collect::<Vec<_>>(), [0], "{memory:?}");
    }
    let plan = plan(&large(), &unknown(&[32, 0, 32]), &spec()).unwrap();
    assert_eq!(plan.ranks.iter().map(|rank| rank.node).collect::<Vec<_>>(), [0, 2]);
}
