//! Collectives from a rank's view: threads as ranks, real links between them.

mod all_reduce;
mod common;
mod counts;
mod faults;
#[cfg(unix)]
mod processes;
mod rooted;
mod stages;
