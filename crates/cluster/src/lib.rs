//! Identity, joining, membership, instances and the supervision of their workers.
//!
//! A [`Node`] is one machine's part of the cluster. It knows the other members and keeps one
//! control connection to each. It places a model on suitable nodes ([`Node::serve`]), keeps the
//! instance running through the loss of workers and nodes, and streams its tokens
//! ([`Node::generate`]).
//!
//! `ALGORITHM.md` beside this crate describes on one page how nodes find, trust and lose each
//! other, and what happens to a model meanwhile.
//!
//! This crate knows tokens but no text, and carries no activations: those go from worker to worker.

mod admission;
mod api;
mod context;
mod core;
mod counts;
mod desired;
mod device;
mod edge;
mod error;
mod files;
mod find_node;
mod id;
mod instance;
mod instances;
mod io;
mod link_local;
mod members;
mod membership;
mod node;
mod paths;
mod peers;
mod requests;
mod secrets;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod transfer;
mod wire;
mod workers;

pub use api::library::{Download, Held, Interrupted, Library, Offer, Planned, Stored};
pub use api::machine::{Machine, Sensors};
pub use api::peer::Peer;
pub use api::prompts::{Forgotten, PromptsConfig, PromptsLimit};
pub use api::pull::{PullStage, PullStatus};
pub use api::{
    CheckText, ClusterStatus, GenerateDone, GenerateEvent, Identified, InstanceState,
    InstanceStatus, Invite, Joined, LINK_ADDRESSES_MAX, NearbyNode, NodeConfig, NodeState,
    NodeStatus, PairAsking, PairRequest, PairState, PairWith, Paired, Pairing, Parted, RankStatus,
};
pub use context::tower_bytes;
pub use core::journal::{ClusterEvent, EventKind, History, Tone};
pub use device::{DeviceConfig, NodeDevice};
pub use edge::Edge;
pub use error::{CodeError, Error, Result};
pub use find_node::{FindNodeError, find_node};
pub use hub::Found;
pub use id::{NodeId, NodeIdError};
pub use io::identity::{ANNOUNCEMENT, check_data_dir, id_in, is_in_use};
pub use io::net::own_addresses;
pub use io::on_thread::{GivenUp, on_thread};
pub use io::probe::read_speed;
pub use link_local::parse_address;
pub use node::leave::leave;
pub use node::{GenerateStream, Node};
pub use placement::{ClassRates, Classes, Plan, Rates, Speed};
pub use protocol::{
    FinishReason, GenerateRequest, InstanceSpec, Sampling, Token, Transport, WorkerDevice,
};
pub use secrets::fleet_key::FleetKey;
pub use store::Listed;
pub use transfer::about::{ModelAbout, can_run};
pub use transfer::burn::{BURN_SECS, BurnReport, BurnSpec, LinkBurn, Loaded, NodeBurn};
pub use transfer::lookup::{Here, locate, look};
pub use transfer::prepare::draft_bytes;
pub use transfer::preview::{Preview, Previews};
pub use transfer::visits::ByteStream;
pub use wire::Versions;
