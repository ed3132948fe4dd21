//! A scripted cluster behind a real listener, and a client that records every byte.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod act;
pub mod client;
pub mod double;
mod nodes;
pub mod server;
pub mod sight;
mod vectors;
pub mod ways;

use std::time::{Duration, Instant};

/// The time limit for an expected event: far beyond the need of a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited {} s for {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a double has this many answers in work.
pub fn wait_running(double: &double::Double, want: usize) {
    let running = || double.running.load(std::sync::atomic::Ordering::SeqCst);
    wait_for(&format!("{want} answers in work"), || running() == want);
}
