//! `plan(model, nodes, options) -> Plan`: decides each node's share of a model, with reasons.
//!
//! Pure: no I/O, no clock, no randomness. The same inputs give the same plan, and a plan is data.
//!
//! A model is cut into stages of layers, and each stage's layers over its ranks: one stage is
//! tensor parallelism, stages of one rank are a pipeline. [`plan()`] searches nodes, their order,
//! stages and shares, and returns the split with the shortest predicted time for the requested mix.
//! No node gets more than its free memory.

mod beside;
mod calibrate;
mod callable;
mod choice;
mod classes;
mod cost;
mod cut;
mod error;
mod group;
mod mtp;
mod node;
mod placing;
mod plan;
mod search;
#[cfg(test)]
mod shapes;
mod shares;
mod simulate;
mod streaming;
#[cfg(test)]
mod tests;
mod trial;
mod wire;
mod wishes;
mod work;

pub use beside::{Beside, DraftBytes, plan_beside};
pub use calibrate::Measured;
pub use choice::Alternative;
pub use classes::{ClassRates, Classes};
pub use cost::{Load, Prediction, TokenTime};
pub use error::Error;
pub use mtp::Guessed;
pub use node::{LinkSpeed, Node, Rates, Speed};
pub use placing::PlannedRank;
pub use plan::{Options, Plan, plan};
pub use simulate::{Chance, Simulated, simulate};
pub use wishes::WishError;
