//! The instance in simulated time, compared with the cost model's averages.

use protocol::{InstanceSpec, Mix, Strategy};

use super::{llama, nodes, of, plan, speed, split};
use crate::{Chance, Node, Options, Plan, Simulated, Speed, simulate};

const SPLITS: [(Strategy, usize); 7] = [
    (Strategy::Auto, 1),
    (Strategy::Tensor, 2),
    (Strategy::Tensor, 16),
    (Strategy::Pipeline, 2),
    (Strategy::Pipeline, 7),
    (Strategy::Hybrid, 4),
    (Strategy::Hybrid, 9),
];

fn of_nodes(strategy: Strategy, count: usize) -> InstanceSpec {
    InstanceSpec { nodes: Some(count.into()), ..of(strategy) }
}

fn uneven(count: usize) -> Vec<Node> {
    let mut nodes = nodes(count, 20.0);
    for node in nodes.iter_mut().skip(1).step_by(2) {
        node.speed = Some(Speed { cut_secs: 1e-5, ..speed(11.0) });
    }
    nodes
}

fn run(nodes: &[Node], spec: &InstanceSpec, jitter: f64) -> (Plan, Simulated) {
    let plan = plan(&llama(), nodes, spec).unwrap();
    let options = Options::new(spec);
    let chance = Chance { jitter, seed: 7 };
    let found = simulate(&llama(), nodes, &options, &plan, chance).unwrap();
    (plan, found)
}

#[test]
fn without_chance_one_user_gets_what_is_predicted() {
    for (strategy, count) in SPLITS {
        let (plan, found) = run(&uneven(count), &of_nodes(strategy, count), 0.0);
        let predicted = plan.prediction.unwrap().decode_tokens_per_sec;
        let ratio = found.decode_tokens_per_sec / predicted;
        assert!((ratio - 1.0).abs() < 1e-9, "{strategy:?} over {count}: {ratio}");
    }
}

#[test]
fn users_together_get_about_what_is_predicted() {
    for (strategy, count) in SPLITS {
        for users in [2, 5, 16, 64] {
            let spec = InstanceSpec {
                mix: Mix::Many,
                sequences_max: Some(users),
                ..of_nodes(strategy, count)
            };
            let (plan, found) = run(&uneven(count), &spec, 0.0);
            let predicted = plan.prediction.unwrap().total_tokens_per_sec;
            let ratio = found.total_tokens_per_sec / predicted;
            // A stage is free before its message has arrived, which the prediction ignores.
            assert!((0.9..1.02).contains(&ratio), "{strategy:?}, {count}, {users}: {ratio}");
        }
    }
}

#[test]
fn chance_costs_the_more_the_more_ranks_wait_for_each_other() {
    let slower = |strategy, count| {
        let spec = of_nodes(strategy, count);
        let [even, varied] = [0.0, 0.2].map(|jitter| run(&nodes(count, 5.0), &spec, jitter).1);
        assert!(varied.interval_p99_secs > even.interval_median_secs);
        1.0 - varied.decode_tokens_per_sec / even.decode_tokens_per_sec
    };
    let found = [1, 2, 4, 16].map(|count| slower(Strategy::Tensor, count));
    assert!(found[0].abs() < 0.01, "{found:?}");
    assert!(found[..3].is_sorted() && found[2] > 0.1 && found[3] > 0.1, "{found:?}");
    assert!(slower(Strategy::Pipeline, 4).abs() < 0.02);
}

#[test]
fn the_same_seed_gives_the_same_times() {
    let spec = of_nodes(Strategy::Hybrid, 4);
    assert_eq!(run(&nodes(4, 5.0), &spec, 0.1), run(&nodes(4, 5.0), &spec, 0.1));
}

#[test]
fn what_was_not_measured_is_not_simulated() {
    let mut nodes = nodes(2, 5.0);
    nodes[1].speed = None;
    let spec = split(Default::default());
    let plan = plan(&llama(), &nodes, &spec).unwrap();
    let options = Options::new(&spec);
    let chance = Chance { jitter: 0.0, seed: 1 };
    assert_eq!(simulate(&llama(), &nodes, &options, &plan, chance), None);
}
