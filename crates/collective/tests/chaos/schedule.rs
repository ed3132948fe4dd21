//! The events of a round, all derived from one seed.

use std::time::Duration;

use collective::Algorithm;
use fastrand::Rng;
use link::Preference;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    Kill,
    /// A pause that must do no harm.
    Pause(Duration),
    /// Until the others notice.
    Freeze,
}

/// One round.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    pub ranks: usize,
    pub preference: Preference,
    /// Links between neighbours only; with four ranks and more some pairs have none.
    pub ring: bool,
    pub algorithm: Algorithm,
    pub victim: usize,
    pub strike: Strike,
    /// From the order to link to the strike; linking takes a few milliseconds of it.
    pub after: Duration,
    /// The seed of the sums.
    pub seed: u64,
}

impl Schedule {
    pub fn random(random: &mut Rng) -> Self {
        let ranks = 2 + random.usize(..4);
        let (shm, tcp) = (Preference::Shm, Preference::Tcp);
        let ways = [(shm, false), (tcp, false), (tcp, true)];
        let (preference, ring) = ways[random.usize(..ways.len())];
        let algorithms = [Algorithm::OneShot, Algorithm::TwoPhase];
        let algorithm = algorithms[random.usize(..algorithms.len())];
        let strike = match random.usize(..20) {
            0..14 => Strike::Kill,
            14..17 => Strike::Pause(Duration::from_millis(random.usize(..500) as u64)),
            _ => Strike::Freeze,
        };
        let after = Duration::from_micros(random.usize(..60_000) as u64);
        let victim = random.usize(..ranks);
        let seed = random.u64(..);
        Schedule { ranks, preference, ring, algorithm, victim, strike, after, seed }
    }
}
