//! Links between two ranks: shared memory, TCP and RDMA, one trait.
//!
//! A [`Link`] moves bounded messages, in order, between two ranks of one instance. It is *polled*:
//! no call blocks, so a collective progresses all its links in one loop and cannot deadlock on the
//! order in which peers happen to be ready. After set-up nothing here allocates, locks or logs.
//!
//! [`connect_mesh`] links all ranks of an epoch, or those of a ring, over a [`Listener`]. Every
//! pair meets over TCP, each proves that it holds the session secret, and then moves to the fastest
//! transport both can use. The TCP connection of a shared-memory or RDMA link stays open: its end
//! shows that the peer died, and with shared memory a byte on it wakes a sleeper.
//!
//! A rank may have several addresses. The pair links over the first one that answers, and
//! [`Met::notes`] lists the ones that do not.
//!
//! Beside its messages each pair exchanges heartbeats ([`Liveness`]): a counter in shared memory,
//! or a second TCP connection. A frozen process stops sending them; one that computes does not.
//!
//! This crate knows nothing of tensors, collectives, or how ranks get their addresses and their
//! secret (the control plane distributes both).

mod clock;
mod config;
mod delay;
mod error;
mod frame;
mod handshake;
mod host;
mod link;
mod liveness;
mod mesh;
pub mod rdma;
mod seal;
mod secret;
mod shm;
mod socket;
mod tcp;

pub use config::{Encryption, MeshConfig, Preference, RANKS_MAX};
pub use delay::Delay;
pub use error::{LinkError, MeshError, MissingRank};
pub use host::HostId;
pub use link::{Link, LinkInfo, MESSAGE_BYTES_MAX, Transport};
pub use liveness::{Cut, Liveness};
pub use mesh::{Calls, Listener, Met, connect_mesh};
pub use secret::Secret;
pub use shm::unlink_leftovers;
