//! RDMA: messages that the network hardware places in our memory, without the kernel.
//!
//! Linux (RoCE, Soft-RoCE) and macOS (Thunderbolt 5) share the verbs interface and differ in what
//! it does; the link uses what both have: SEND and RECV of fixed slots. Bottom up:
//!
//! - `ffi`: the library's structures and functions, loaded at run time;
//! - `verbs`: what a link needs of it, as a trait; `system`, `objects` and `queue_pair` implement
//!   it with the library, `software` without, as strict as Apple's devices are;
//! - `bank`, `device`: registered memory and open devices, shared by all links of a process;
//! - `slot`, `channel`: messages in slots over one queue pair;
//! - `wire`, `survey`: which ports are usable, and which reaches which peer;
//! - `diagnosis`: the findings of `sinew doctor rdma`;
//! - `setup`: how two ranks connect in their handshake, and prove that a message passes;
//! - `link`: the [`crate::Link`] over all this.
//!
//! See `docs/decisions/0009-rdma.md` for the reasons.

mod bank;
mod channel;
mod device;
mod diagnosis;
mod error;
mod ffi;
#[cfg(all(test, unix))]
mod layout;
mod link;
mod objects;
mod queue_pair;
mod setup;
mod sleeper;
mod slot;
mod software;
mod survey;
mod system;
mod verbs;
mod waker;
mod wire;

pub use device::Rdma;
pub use diagnosis::{Diagnosis, PortFinding, diagnose};
pub use error::RdmaError;
pub use software::Fabric;

pub(crate) use channel::{Channel, Guards};
pub(crate) use link::RdmaLink;
pub(crate) use setup::Setup;
pub(crate) use verbs::{Endpoint, Port};
pub(crate) use wire::{Address, Addresses, PORTS_MAX, choose};
