//! Simulates a cluster of state machines on a bad network: lost and late messages, links that fail
//! in one or both directions, frozen, killed and unplugged nodes, jumping clocks. The seed
//! determines the whole run.
//!
//! After the faults, every pair must agree on one connection. Faults shorter than a failure must
//! not count as one.

mod people;
mod world;

use world::{Faults, NODES, QUIET_MS, TROUBLE_MS, World, id};

use super::*;

const SEEDS: u64 = 2000;

#[test]
fn every_cluster_becomes_whole_again() {
    let mut dials_max = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Faults::All);
        world.run(4_900);
        world.check_whole();
        world.run(TROUBLE_MS + 8_000 + QUIET_MS);
        world.check_whole();
        dials_max = world.nodes.iter().map(|node| node.dials).max().unwrap_or(0).max(dials_max);
    }
    println!("{SEEDS} seeds from 0; at most {dials_max} calls by one node");
    // Three peers, 53 s, a call each 250 ms would be 636: back-off must show.
    assert!(dials_max < 150, "{dials_max} calls");
}

#[test]
fn short_freezes_and_jumping_clocks_lose_nobody() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Faults::Harmless);
        world.run(5_000 - 1);
        world.check_whole();
        let losses = |world: &World| world.nodes.iter().map(|node| node.losses).sum::<u64>();
        let before = losses(&world);
        world.run(TROUBLE_MS + QUIET_MS);
        assert_eq!(losses(&world), before, "seed {seed}: somebody was lost");
        world.check_whole();
    }
    println!("{SEEDS} seeds from 0");
}

#[test]
fn a_dead_node_is_lost_everywhere_in_time() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Faults::None);
        world.run(4_500);
        let (dead, told) = (world.random.usize(..NODES), world.random.u64(..2) == 0);
        world.stop(dead, told);
        world.run(4_500 + if told { 400 } else { 3_700 });
        for at in (0..NODES).filter(|at| *at != dead) {
            let state = world.nodes[at].machine.state(id(dead));
            assert_eq!(state, NodeState::Lost, "seed {seed} {at}");
        }
        // The survivors call it for a minute, at growing intervals.
        let calls = |world: &World| world.nodes.iter().map(|node| node.dials).sum::<u64>();
        let before = calls(&world);
        world.run(64_500);
        let made = calls(&world) - before;
        assert!((30..60).contains(&made), "seed {seed}: {made} calls");
    }
    println!("{SEEDS} seeds from 0");
}

#[test]
fn a_cluster_that_people_change_agrees_in_the_end() {
    // SINEW_SEEDS sets the number of seeds for manual runs.
    let seeds = std::env::var("SINEW_SEEDS").ok().and_then(|text| text.parse().ok());
    let (mut removals, mut returns) = (0, 0);
    for seed in 0..seeds.unwrap_or(2 * SEEDS) {
        let mut world = World::new(seed, Faults::Changes);
        // A node that left without a message is detected after a while.
        world.run(TROUBLE_MS + 8_000 + QUIET_MS + 30_000);
        world.check_agreement();
        removals += world.removals.len();
        returns += world.admissions.len();
    }
    println!("{removals} removals, {returns} admissions");
}
