//! `plan(model, nodes, options) -> Plan`: who holds which share of a model, and why.
//!
//! Pure: no I/O, no clock, no randomness. The same inputs give the same plan, and a plan is data.
//!
//! A model is cut into stages of layers, and each stage's layers over its ranks: one stage is
//! tensor parallelism, stages of one rank are a pipeline. Nobody is given more memory than it has.
//! What the plan does not know yet is speed: links and devices are not measured, so shares follow
//! the threads that a node offers, and nothing but a wish makes more than one stage.

mod cache;
mod cost;
mod model;
mod plan;
mod weights;

pub use cache::Cache;
pub use cost::{Costs, Shape};
pub use model::Model;
pub use plan::{Error, Node, Options, Plan, PlannedRank, plan};
pub use weights::Weights;
