//! Collectives as a rank sees them: threads as ranks, real links between them.

mod all_reduce;
mod common;
mod counts;
mod faults;
mod processes;
mod rooted;
mod stages;
