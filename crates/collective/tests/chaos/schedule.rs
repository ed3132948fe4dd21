//! What happens in a round: all of it from one seed.

use std::time::Duration;

use collective::Algorithm;
use link::Preference;

/// A small generator (xorshift64*), the same in all processes.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    Kill,
    /// A pause that must do no harm.
    Pause(Duration),
    /// For as long as it takes the others to notice.
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
    /// From the word to link to the strike; linking takes a few milliseconds of it.
    pub after: Duration,
    /// Of the sums.
    pub seed: u64,
}

impl Schedule {
    pub fn random(random: &mut Random) -> Self {
        let ranks = 2 + random.below(4);
        let (shm, tcp) = (Preference::Shm, Preference::Tcp);
        let ways = [(shm, false), (tcp, false), (tcp, true)];
        let (preference, ring) = ways[random.below(ways.len())];
        let algorithms = [Algorithm::OneShot, Algorithm::TwoPhase];
        let algorithm = algorithms[random.below(algorithms.len())];
        let strike = match random.below(20) {
            0..14 => Strike::Kill,
            14..17 => Strike::Pause(Duration::from_millis(random.below(500) as u64)),
            _ => Strike::Freeze,
        };
        let after = Duration::from_micros(random.below(60_000) as u64);
        let victim = random.below(ranks);
        let seed = random.next();
        Schedule { ranks, preference, ring, algorithm, victim, strike, after, seed }
    }
}
