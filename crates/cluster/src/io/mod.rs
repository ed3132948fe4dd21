//! The room with the sockets, processes and files of a running node: what [`crate::core::Outside`]
//! asks for, and the tasks that report to the core.

mod driver;
mod join;
mod listening;
mod lobby;
mod processes;
mod system;

pub(crate) use driver::{INPUTS_MAX, run};
pub(crate) use listening::listen;
pub(crate) use system::{Kept, System};
