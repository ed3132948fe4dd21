//! Chaos: kills and freezes rank processes at random moments. Every other rank must end in time,
//! blame only the victim, have computed nothing wrong and leak nothing.
//!
//!     cargo test --release -p collective --test chaos -- 1000 [seed]
//!
//! Without arguments it is a short version of itself, for the test suite. Each round is one epoch
//! of two to five processes, some in a ring, which sum and check every bit until a strike ends it;
//! survivors continue in the next epoch unchanged, and their open files, mappings and threads are
//! counted in between.

#![cfg(unix)]

mod host;
mod rank;
mod round;
mod schedule;

use std::time::Duration;

use round::{Arena, Tally};

const ROUNDS_DEFAULT: usize = 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == rank::ARGUMENT) {
        return rank::live();
    }
    // `cargo test` may pass options of its harness; only numbers are for this test.
    let mut numbers = arguments.iter().filter_map(|argument| argument.parse::<u64>().ok());
    let rounds = numbers.next().map_or(ROUNDS_DEFAULT, |rounds| rounds as usize);
    let seed = numbers.next().unwrap_or(20_261_120);
    println!("{rounds} rounds, seed {seed}");

    let mut arena = Arena::new(seed);
    let mut tally = Tally::default();
    for round in 0..rounds {
        arena.play(round, &mut tally);
        if (round + 1) % 100 == 0 {
            println!("after {} rounds: {tally}", round + 1);
        }
    }
    println!("{tally}");
    for (what, times) in [("kill", &mut tally.killed), ("freeze", &mut tally.frozen)] {
        times.sort_unstable();
        let at = |share: f64| times.get(((times.len().max(1) - 1) as f64 * share) as usize);
        let [median, most] = [0.5, 1.0].map(|share| at(share).copied().unwrap_or(Duration::ZERO));
        println!("all survivors ended after a {what}: median {median:.1?}, longest {most:.1?}");
    }
    assert!(tally.reduces > 0, "nothing was summed at all");
    assert!(tally.is_clean(), "see the faults above; seed {seed}");
}
