//! The rounds, and what is said of them.

use std::time::Duration;

use super::rank;
use super::round::{Arena, Tally};

const ROUNDS_DEFAULT: usize = 20;

pub fn run() {
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
