//! `plan(model, nodes, options) -> Plan`: who holds which share of a model, and why.
//!
//! Pure: no I/O, no clock, no randomness. The same inputs give the same plan, and a plan is data.
//!
//! This first version knows one strategy, tensor parallelism, and one cost, memory: every rank
//! holds its share of every layer, and nobody is given more than it has. What it does not know
//! yet is speed: links and devices are not measured, so shares follow the threads a node offers.

mod model;
mod plan;

pub use model::Model;
pub use plan::{Error, Node, Options, Plan, PlannedRank, plan};
