//! All-reduce, gather and broadcast over links, in a fixed order, with a deadline on every wait.
//!
//! A [`Group`] is one rank's view of its epoch: a link to every other rank. All ranks call the same
//! collectives in the same order (SPMD); each call returns once this rank has what it came for and
//! all it owes to others has left the process.
//!
//! - **The same bits everywhere.** [`Group::all_reduce`] finishes one summation tree
//!   ([`sumtree`]) whatever the number of ranks, the split and the algorithm; only [`Wire::Q8`],
//!   which must be asked for, gives that up.
//! - **Nothing hangs.** A rank that is gone, sends no heartbeat for 3 s, or is alive and late
//!   beyond reason, is *named* in the error; the others are told who it was. After its first error
//!   a group is finished.
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
//! group.all_reduce(&plan, &parts, &mut total)?;
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
