//! Sequences, scheduler, sampler and the worker's step loop. Knows no HTTP and no text.
//!
//! Every rank of an instance runs the same steps on its own slice of the model: rank 0 schedules
//! (`step = schedule -> run -> commit`), broadcasts the [`Step`] with its embeddings, and samples;
//! the others follow. [`Rank`] is one of them, wherever it runs: in a [`worker`] process that a
//! daemon drives, or as a thread of [`Local`], with which tools measure and test.

mod comm;
mod cpus;
mod error;
mod leader;
mod local;
mod logits;
mod rank;
mod results;
mod sampler;
mod scheduler;
mod step;
pub mod worker;

pub use comm::Comm;
pub use cpus::{allowed_cpus, own_cpus};
pub use error::EngineError;
pub use local::{Local, LocalOptions};
pub use logits::{Candidate, Logits, TOP_MAX, Wanted};
pub use rank::{Rank, RankOptions};
pub use sampler::{NotFinite, Sampler};
pub use scheduler::{Committed, Output, Refused, Scheduler};
pub use step::{BadStep, Limits, Step, StepSegment};
