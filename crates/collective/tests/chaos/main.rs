//! Chaos: kills and freezes rank processes at random moments. Every other rank must end in time,
//! blame only the victim, have computed nothing wrong and leak nothing.
//!
//!     cargo test --release -p collective --test chaos -- 1000 [seed]
//!
//! Without arguments it is a short version of itself, for the test suite. Each round is one epoch
//! of two to five processes, some in a ring, which sum and check every bit until a strike ends it;
//! survivors continue in the next epoch unchanged, and their open files, mappings and threads are
//! counted in between.

#[cfg(unix)]
mod chaos;
#[cfg(unix)]
mod host;
#[cfg(unix)]
mod rank;
#[cfg(unix)]
mod round;
#[cfg(unix)]
mod schedule;

#[cfg(unix)]
fn main() {
    chaos::run();
}

/// Windows stops no processes.
#[cfg(windows)]
fn main() {
    println!("not tested on Windows");
}
