//! Sequences, scheduler, sampler and the worker's step loop. Knows no HTTP and no text.
//!
//! Every rank of an instance runs the same steps on its own slice of the model: rank 0 leads (`step
//! = schedule -> run -> commit`, in `leader`), the others follow. [`Rank`] is one of them: in a
//! [`worker`] process driven by a daemon, or as a thread of [`Local`], which tools use for
//! measurements and tests.

mod any_local;
mod block_source;
mod called;
mod comm;
mod cpus;
mod draft;
mod embeddings;
mod error;
#[cfg(test)]
mod footprint;
mod grammars;
mod grid;
mod history;
mod leader;
mod loading;
mod local;
mod logits;
mod meter;
mod mtp;
mod page_orders;
mod pipeline;
mod processor_time;
mod prompt_store;
mod pulse;
mod purpose;
mod rank;
mod results;
mod ring;
mod route;
mod sampler;
mod scheduler;
mod sight;
mod speculator;
mod state_step;
mod step;
mod tables;
pub mod worker;

pub use any_local::{AnyLocal, start_any};
pub use cpus::{allowed_cpus, keep_to, own_cpus};
pub use error::EngineError;
pub use local::{Local, LocalOptions, OpenDevice};
pub use rank::Rank;
