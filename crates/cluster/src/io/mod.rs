//! The sockets, processes and files of a running node. Implements [`crate::context::Outside`]; its
//! tasks report to the core.

mod announcer;
mod driver;
mod fleet_key;
pub(crate) mod flow;
pub(crate) mod frames;
pub(crate) mod history;
pub(crate) mod identity;
mod join;
pub(crate) mod kept;
mod listening;
mod lobby;
pub(crate) mod machine;
pub(crate) mod net;
pub(crate) mod on_thread;
pub(crate) mod peer_names;
pub(crate) mod probe;
mod process;
mod processes;
pub(crate) mod prompts;
mod segments;
mod slabs;
mod steal;
mod system;
pub(crate) mod tls;
pub(crate) mod worker;

pub(crate) use driver::{INPUTS_MAX, run};
pub(crate) use listening::{bind, listen};
pub(crate) use system::{Kept, System};
