//! Models with two replicas, in whole clusters.

use std::collections::BTreeSet;

use protocol::Replicas;

use super::faults::Mode;
use super::runs::{TROUBLE_MS, seeds_or};
use super::*;

fn seeds() -> Range<u64> {
    seeds_or(150)
}

fn world(seed: u64, model: &Prepared, mode: Mode) -> World {
    let mut world = World::new(seed, model, mode);
    world.faults.replicas = Some(Replicas::Count(2));
    world
}

impl World {
    /// The nodes of each replica of a model that works, by its owner.
    fn replicas(&self, model: usize) -> Vec<BTreeSet<NodeId>> {
        let name = format!("m{model}");
        let mut all = Vec::new();
        for daemon in self.machines.iter().filter_map(|machine| machine.daemon.as_ref()) {
            let desired = &daemon.host.ctx.desired;
            let Some((_, first)) = desired.find(&name) else { continue };
            let ids: Vec<_> =
                desired.replicas(&first.id).iter().map(|one| one.1.id.clone()).collect();
            let owned = ids.iter().filter_map(|id| daemon.instances.table.get(id));
            let working = owned.filter(|owned| owned.machine.has_generated());
            all.extend(working.map(|owned| owned.machine.nodes().collect()));
        }
        all
    }
}

/// Where nothing fails, each model that is served has two replicas on nodes of their own, both
/// answer, and the loss of a node costs only the streams of its own clients.
#[test]
fn two_replicas_share_the_nodes_and_the_loss_of_one_costs_no_stream() {
    let model = clients::model();
    let (mut total, mut both) = (checks::Checks::default(), 0);
    for seed in seeds() {
        let mut world = world(seed, &model, Mode::Losses(1));
        world.everybody_has_all_files();
        world.run(6000);
        for model in 0..2 {
            let replicas = world.replicas(model);
            let nodes: usize = replicas.iter().map(BTreeSet::len).sum();
            let distinct: BTreeSet<_> = replicas.iter().flatten().collect();
            assert!(replicas.len() <= 2 && nodes == distinct.len(), "seed {seed}: {replicas:?}");
            both += usize::from(replicas.len() == 2);
        }
        world.run(TROUBLE_MS);
        assert_eq!(world.checks.failures(), 0, "seed {seed}: {:?}", world.checks);
        total.add(&world.checks);
    }
    println!("replicas, seeds {:?}: {both} models with two, {total:?}", seeds());
    assert!(both as u64 > (seeds().end - seeds().start) / 2, "{both} models had two replicas");
    assert!(total.answered > 0 && total.resumed > 0, "there was nothing to see: {total:?}");
}

#[test]
fn models_with_replicas_work_again_once_faults_end() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in seeds() {
        let mut world = world(seed, &model, Mode::Liveness);
        world.run(TROUBLE_MS);
        let until_ms = world.become_whole();
        world.everybody_asks(until_ms);
        total.add(&world.checks);
    }
    println!("replicas after faults, seeds {:?}: {total:?}", seeds());
    assert!(total.answered > 0 && total.resumed > 0, "there was nothing to see: {total:?}");
}

/// A drained node becomes empty, whether or not another node is free for its replica.
#[test]
fn drained_nodes_of_models_with_replicas_become_empty() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in seeds() {
        let mut world = world(seed, &model, Mode::Losses(0));
        world.everybody_has_all_files();
        world.run(8000);
        for turn in 1..=2 {
            let node = world.random.usize(world.nodes());
            world.drain(node, node, true);
            world.run(8000 + turn * 20_000 - 5000);
            assert!(world.is_empty(node), "seed {seed}: n{node} is not empty");
            world.drain(node, node, false);
            world.run(8000 + turn * 20_000);
        }
        assert_eq!(world.checks.failures(), 0, "seed {seed}: {:?}", world.checks);
        total.add(&world.checks);
    }
    println!("replicas and drains, seeds {:?}: {total:?}", seeds());
}
