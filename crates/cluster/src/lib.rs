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
mod announcer;
mod api;
mod burn;
mod copies;
mod daemon;
mod desired;
mod desk;
mod device;
mod drain;
mod elsewhere;
mod error;
mod find_node;
mod fleet;
mod frames;
mod given;
mod growth;
mod id;
mod identity;
mod instance;
mod invite;
mod invites;
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
mod probe;
mod pulls;
mod rdma_ways;
mod relay;
mod remeasuring;
mod segments;
mod sharing;
mod swarm;
mod tls;
mod ways;
mod wire;
mod worker;

pub use about::{ModelAbout, can_run};
pub use api::{
    CheckText, ClusterStatus, GenerateDone, GenerateEvent, Held, Identified, InstanceState,
    InstanceStatus, Invite, Joined, LINK_ADDRESSES_MAX, NearbyNode, NodeConfig, NodeState,
    NodeStatus, PairAsking, PairRequest, PairState, PairWith, Paired, Pairing, Parted, RankStatus,
};
pub use burn::{BURN_SECS, BurnReport, BurnSpec, LinkBurn, Loaded, NodeBurn};
pub use device::{DeviceConfig, NodeDevice};
pub use error::{Error, Result};
pub use find_node::{FindNodeError, find_node};
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
pub use placement::{ClassRates, Classes, Plan, Rates, Speed};
pub use probe::read_speed;
pub use protocol::{
    FinishReason, GenerateRequest, InstanceSpec, Sampling, Token, Transport, WorkerDevice,
};
pub use pulls::{PullStage, PullStatus};
pub use store::Listed;
pub use ways::Edge;
pub use wire::Versions;
