//! Identity, joining, membership, instances and the supervision of their workers.
//!
//! A [`Node`] is one machine's part of the cluster. It knows the other members and keeps one
//! control connection to each, places a model over the nodes that help ([`Node::serve`]), keeps
//! the instance running through the loss of workers and nodes, and streams tokens out of it
//! ([`Node::generate`]).
//!
//! `ALGORITHM.md` beside this crate says on one page how nodes find, trust and lose each other, and
//! what happens to a model meanwhile.
//!
//! It knows tokens but no text, and carries no activations: those go from worker to worker.

mod about;
mod admission;
mod announcer;
mod api;
mod burn;
mod copies;
mod core;
mod desired;
mod desk;
mod device;
mod drain;
mod elsewhere;
mod error;
mod files;
mod fleet;
mod frames;
mod given;
mod id;
mod identity;
mod instances;
mod invite;
mod invites;
mod io;
mod journal;
mod kept;
mod leave;
mod link_local;
mod lookup;
mod machine;
mod members;
mod membership;
mod model_file;
mod nearby;
mod net;
mod node;
mod others;
mod pairing;
mod pake;
mod paths;
mod peers;
mod probe;
mod pulls;
mod relay;
mod requests;
mod segments;
mod sharing;
#[cfg(test)]
mod simulation;
mod swarm;
#[cfg(test)]
mod tests;
mod tls;
mod wire;
mod worker;
mod workers;

pub use about::{ModelAbout, can_run};
pub use api::{
    CheckText, ClusterStatus, GenerateDone, GenerateEvent, Held, Identified, InstanceState,
    InstanceStatus, Invite, Joined, LINK_ADDRESSES_MAX, NearbyNode, NodeConfig, NodeState,
    NodeStatus, PairAsking, PairRequest, PairState, PairWith, Paired, Pairing, Parted, RankStatus,
};
pub use burn::{BURN_SECS, BurnReport, BurnSpec, LinkBurn, Loaded, NodeBurn};
pub use device::{DeviceConfig, NodeDevice};
pub use error::{Error, Result};
pub use fleet::FleetKey;
pub use given::Peer;
pub use id::{NodeId, NodeIdError};
pub use identity::{check_data_dir, id_in, is_in_use};
pub use invite::CodeError;
pub use journal::{ClusterEvent, EventKind, History, Tone};
pub use leave::leave;
pub use link_local::parse_address;
pub use lookup::{Here, locate, look};
pub use machine::{Machine, Sensors};
pub use net::own_addresses;
pub use node::{GenerateStream, Node};
pub use paths::ways::Edge;
pub use placement::{ClassRates, Classes, Plan, Rates, Speed};
pub use probe::read_speed;
pub use protocol::{
    FinishReason, GenerateRequest, InstanceSpec, Sampling, Token, Transport, WorkerDevice,
};
pub use pulls::{PullStage, PullStatus};
pub use store::Listed;
pub use wire::Versions;
