//! `plan(model, nodes, options) -> Plan`: who holds which share of a model, and why.
//!
//! Pure: no I/O, no clock, no randomness. The same inputs give the same plan, and a plan is data.
//!
//! A model is cut into stages of layers, and each stage's layers over its ranks: one stage is
//! tensor parallelism, stages of one rank are a pipeline. Nobody is given more memory than it has.
//! Where the caller has measured nodes and links, the number of stages is what the cost model
//! predicts to be fastest for one request. Shares follow the threads that a node offers.

mod choose;
mod cost;
mod plan;
#[cfg(test)]
mod shapes;
mod stages;
mod wire;

pub use choose::LinkSpeed;
pub use cost::{Costs, Shape};
pub use plan::{Error, Node, Options, Plan, PlannedRank, plan};
