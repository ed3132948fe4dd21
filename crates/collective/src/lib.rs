//! All-reduce, gather and broadcast over links, in a fixed order, with a deadline on every wait.
//!
//! A [`Group`] is one rank's view of its epoch: a link to every other rank. All ranks call the same
//! collectives in the same order (SPMD). Each call returns once this rank has its result and all
//! messages it owes to others have left the process.
//!
//! - **The same bits everywhere.** [`Group::all_reduce`] finishes one summation tree ([`sumtree`])
//!   for any number of ranks, split and algorithm. Only [`Wire::Q8`], an option, gives that up.
//! - **Nothing hangs.** The error *names* a rank that is gone, sends no heartbeat for 3 s, or is
//!   alive but late; the other ranks get that name too. After its first error a group is finished.
//! - **No allocation in the steady state**: scratch grows to the largest message and stays.
//!
//! ```
//! # use std::sync::{Arc, atomic::AtomicBool};
//! # use collective::{CollectiveError, Group, Options, ReducePlan};
//! # fn main() -> Result<(), CollectiveError> {
//! // At load: a product of 16 leaves, all of them this rank's; links from `link::connect_mesh`.
//! let abort = Arc::new(AtomicBool::new(false));
//! let mut group = Group::new(0, Vec::new(), abort, Options::default())?;
//! let plan = ReducePlan::new(16, &[0..16])?;
//!
//! // In each layer: this rank's partial sums in, the total out.
//! let parts = vec![1.0; plan.parts(group.rank()) * 4];
//! let mut total = [0.0; 4];
//! group.all_reduce(&plan, 1, &parts, &mut total)?;
//! assert_eq!(total, [1.0; 4]);
//! # Ok(())
//! # }
//! ```
//!
//! This crate knows no transports (that is `link`), no tensors and no model.

mod all_reduce;
mod back_off;
mod error;
mod exchange;
mod goodbye;
mod group;
mod lane;
mod options;
mod payload;
mod pipe;
mod plan;
mod post;
mod quantised;
mod ring;
mod rooted;
mod scratch;
mod speed;
mod wire;

pub use error::CollectiveError;
pub use group::{Group, Traffic};
pub use options::{Algorithm, Options, SPIN, Wire};
pub use plan::ReducePlan;
pub use speed::Speed;
