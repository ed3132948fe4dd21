//! The instances of this node: placed, driven, replaced, ended.
//!
//! [`crate::instance`] is the state machine of one. [`table`] has a slot for each; [`place`]
//! chooses the nodes of one from the [`pool`]. [`running`] feeds the machines and runs their
//! effects. Above it: [`start`] and [`reconcile`] begin and end instances, [`moving`] finds better
//! places, [`idle`] unloads.

mod crowd;
mod drain;
mod growth;
mod host;
mod idle;
mod moving;
mod owned;
mod partition;
mod place;
mod pool;
mod reconcile;
mod replicas;
mod replicating;
mod reported;
mod running;
mod slow_links;
mod start;
pub(crate) mod status;
mod table;

pub(crate) use drain::{Models, check_drain};
pub(crate) use host::Host;
pub(crate) use idle::{load, unload_idle};
pub(crate) use moving::review;
pub(crate) use owned::Sink;
#[cfg(all(test, unix))]
pub(crate) use owned::WORKERS_BITS;
pub(crate) use reconcile::{end_superseded, inherit, opened, start_owned};
pub(crate) use replicating::{count_replicas, keep_replicas, let_rest, note_held};
pub(crate) use reported::reported;
pub(crate) use running::Instances;
pub(crate) use slow_links::{nodes_in_doubt, note_links};
pub(crate) use start::{header, plan, serve, stop};
