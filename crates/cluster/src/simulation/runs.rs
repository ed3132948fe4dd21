//! The tests: the worlds to simulate, and the conditions on each.

use std::ops::Range;

use super::faults::Mode;
use super::*;

/// Seeds of each test in an ordinary run.
const SEEDS: u64 = 500;
/// Duration of the faults.
pub(super) const TROUBLE_MS: u64 = 25_000;
/// Back-off (20 s), the pause after giving up (30 s), orphans (30 s), and the rest.
const WHOLE_MAX_MS: u64 = 90_000;

/// The seeds of this run; each test simulates one world a seed.
pub(super) fn seeds() -> Range<u64> {
    seeds_or(SEEDS)
}

/// The same, with so many seeds in an ordinary run.
pub(super) fn seeds_or(count: u64) -> Range<u64> {
    let Ok(asked) = std::env::var("SEEDS") else { return 0..count };
    let number = |text: &str| text.parse().expect("SEEDS is a number, or two as in 5..7");
    match asked.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&asked),
    }
}

impl World {
    /// Ends the faults, and runs until all works again; returns when that was.
    pub(super) fn become_whole(&mut self) -> u64 {
        self.heal();
        let mut until_ms = TROUBLE_MS + 1000;
        self.run(until_ms);
        while let Err(why) = self.is_whole() {
            assert!(until_ms < TROUBLE_MS + WHOLE_MAX_MS, "seed {}: {why}", self.seed);
            until_ms += 1000;
            self.run(until_ms);
        }
        until_ms
    }
}

#[test]
fn nothing_wrong_happens_whatever_fails() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in seeds() {
        let mut world = World::new(seed, &model, Mode::Safety);
        world.run(TROUBLE_MS);
        total.add(&world.checks);
    }
    println!("safety, seeds {:?}: {total:?}", seeds());
    assert!(total.answered > 0 && total.resumed > 0, "there was nothing to see: {total:?}");
}

/// A lost node costs only the streams of its own clients, even if a second one is lost meanwhile,
/// as long as a node with the file remains.
#[test]
fn losing_nodes_costs_no_stream_elsewhere() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in seeds() {
        let mut world = World::new(seed, &model, Mode::Losses(2));
        world.everybody_has_all_files();
        world.run(TROUBLE_MS);
        assert_eq!(world.checks.failures(), 0, "seed {seed}: {:?}", world.checks);
        total.add(&world.checks);
    }
    println!("losses, seeds {:?}: {total:?}", seeds());
    assert!(total.answered > 0 && total.resumed > 0, "there was nothing to see: {total:?}");
}

/// A daemon that restarts at once finds its instances' other ranks still loaded.
#[test]
fn a_restarted_owner_has_only_its_own_rank_to_load() {
    let model = clients::model();
    let mut restarted = 0;
    for seed in seeds() {
        let mut world = World::new(seed, &model, Mode::Losses(0));
        world.everybody_has_all_files();
        world.run(8000);
        let node = world.random.usize(world.nodes());
        let (loads, mine) = (world.checks.loads, world.ranks_on(node));
        let owns = world.machines[node]
            .daemon
            .as_ref()
            .is_some_and(|d| d.instances.table.current().next().is_some());
        world.crash(node, true);
        world.start(node);
        world.run(20_000);
        assert_eq!(world.checks.loads - loads, mine, "seed {seed}: n{node} is restarted");
        assert_eq!(world.checks.failures(), 0, "seed {seed}: {:?}", world.checks);
        restarted += u64::from(owns);
    }
    println!("restarts, seeds {:?}: {restarted} of owners", seeds());
    assert!(restarted > 0, "there was nothing to see");
}

/// Packets from one node to another are lost for good. The two do without each other, and no
/// instance moves repeatedly. A link that comes and goes each second loses no node.
#[test]
fn one_way_loss_and_flapping_links_move_nothing_twice() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in seeds() {
        let mut world = World::new(seed, &model, Mode::Cut);
        world.everybody_has_all_files();
        world.run(3000);
        let (from, to) = (world.random.usize(world.nodes()), world.random.usize(world.nodes()));
        let is_flapping = world.random.bool();
        let claims = world.claims();
        for second in (3..31).step_by(2) {
            let end = if is_flapping { second + 1 } else { second + 2 };
            world.network.cut(from, to, second * 1000 * MS..end * 1000 * MS);
            world.run((second + 2) * 1000);
        }
        let moved = world.claims() - claims;
        let most = if is_flapping { 0 } else { 2 };
        assert!(moved <= most, "seed {seed}: {moved} takeovers");
        // A node that does not reach an owner sends its requests through another node.
        let now = world.now;
        world.network.cut(from, to, now..now + 120_000 * MS);
        world.heal_nothing();
        world.everybody_asks(33_000);
        total.add(&world.checks);
    }
    println!("one way, seeds {:?}: {total:?}", seeds());
}

/// A request for a model whose loading never ends gets an error in the end.
#[test]
fn a_load_that_never_ends_is_not_waited_for_without_end() {
    let model = clients::model();
    let mut world = World::new(0, &model, Mode::Cut);
    world.everybody_has_all_files();
    world.faults.never_loaded = true;
    let minutes = |minutes: u64| minutes * 60_000;
    let is_told = |world: &World| format!("{:?}", world.checks).contains("was not loaded within");
    world.run(minutes(30));
    assert!(!is_told(&world), "{:?}", world.checks);
    world.run(minutes(31));
    assert!(is_told(&world), "{:?}", world.checks);
}

/// One node after the other is drained, and becomes empty without a failed answer.
#[test]
fn drained_nodes_become_empty_and_cost_no_stream() {
    let model = clients::model();
    let (mut total, mut emptied) = (checks::Checks::default(), 0);
    for seed in seeds() {
        let mut world = World::new(seed, &model, Mode::Losses(0));
        world.everybody_has_all_files();
        world.run(8000);
        for turn in 1..=3 {
            let node = world.random.usize(world.nodes());
            let by = world.random.usize(world.nodes());
            let was_empty = world.is_empty(node);
            world.drain(by, node, true);
            world.run(8000 + turn * 20_000 - 5000);
            assert!(world.is_empty(node), "seed {seed}: n{node} is not empty");
            world.drain(by, node, false);
            world.run(8000 + turn * 20_000);
            emptied += u64::from(!was_empty);
        }
        assert_eq!(world.checks.failures(), 0, "seed {seed}: {:?}", world.checks);
        total.add(&world.checks);
    }
    println!("drains, seeds {:?}: {emptied} nodes, {total:?}", seeds());
    assert!(emptied > 0, "there was nothing to see: {total:?}");
}

/// A removed node gives up what it had, drained or not. The others go on without it, and only
/// streams of its own clients fail.
#[test]
fn removed_nodes_are_gone_and_the_others_go_on() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in seeds() {
        let mut world = World::new(seed, &model, Mode::Losses(0));
        world.everybody_has_all_files();
        world.run(8000);
        let node = world.random.usize(world.nodes());
        let by = (node + 1) % world.nodes().len();
        if world.random.bool() {
            world.drain(by, node, true);
            world.run(8500);
        }
        world.remove(by, node);
        world.heal_nothing();
        world.run(40_000);
        world.is_removed(node).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let failures = world.checks.failures_without(node);
        assert_eq!(failures, 0, "seed {seed}: {:?}", world.checks);
        total.add(&world.checks);
    }
    println!("removals, seeds {:?}: {total:?}", seeds());
    assert!(total.answered > 0 && total.resumed > 0, "there was nothing to see: {total:?}");
}

/// A request at any node loads an unloaded model, after a restart of any node too. That costs no
/// stream, and no two nodes load the same model. An idle model ends unloaded and stays so over a
/// restart of all nodes.
#[test]
fn resting_models_are_loaded_by_requests_and_cost_no_stream() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in seeds() {
        let mut world = World::new(seed, &model, Mode::Resting);
        world.everybody_has_all_files();
        for second in 1..=20 {
            world.run(second * 1000);
            world.count_unloads();
            if second % 5 == 0 {
                let node = world.random.usize(world.nodes());
                world.crash(node, true);
                world.start(node);
            }
        }
        world.heal_nothing();
        world.run(40_000);
        assert_eq!(world.checks.failures(), 0, "seed {seed}: {:?}", world.checks);
        for node in world.nodes() {
            world.crash(node, true);
            world.start(node);
        }
        let loads = world.checks.loads;
        world.run(45_000);
        assert_eq!(world.checks.loads, loads, "seed {seed}: loaded for nobody");
        world.is_whole().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        world.everybody_asks(45_000);
        total.add(&world.checks);
        assert!(world.checks.loads > loads, "seed {seed}: nothing was loaded for anybody");
    }
    println!("resting, seeds {:?}: {total:?}", seeds());
    assert!(total.unloads > 0 && total.answered > 0, "there was nothing to see: {total:?}");
}

#[test]
fn everything_works_again_once_faults_end() {
    let model = clients::model();
    let mut total = checks::Checks::default();
    for seed in seeds() {
        let mut world = World::new(seed, &model, Mode::Liveness);
        world.run(TROUBLE_MS);
        let until_ms = world.become_whole();
        world.checks.whole_after_ms_max = until_ms - TROUBLE_MS;
        world.everybody_asks(until_ms);
        total.add(&world.checks);
    }
    println!("liveness, seeds {:?}: {total:?}", seeds());
    assert!(total.answered > 0 && total.resumed > 0, "there was nothing to see: {total:?}");
}
