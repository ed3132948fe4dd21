//! Models by name: which file a name means, and its way from a hub to this machine's disk.
//!
//! A [`Name`] is what a person types: a short name of the [`catalogue`], `org/repo:QUANT`, a page's
//! address. A [`Hub`] lists what a repository has, chooses the quantisation that fits, and
//! fetches its files: by ranges, several at once where the server allows it, going on after any
//! cut, with a look at the header before the weights, and with each file's SHA-256 verified before
//! anybody may use it.
//!
//! Everything blocks: callers run it on threads of their own. This crate writes below the folder
//! that it is given and nowhere else, and knows no cluster.

pub mod catalogue;
mod choose;
mod download;
mod error;
mod header;
mod http;
mod listing;
mod name;
mod partial;
mod place;
mod plan;
mod pull;
mod ranges;
mod settings;
mod space;
mod transfer;
mod unfinished;
mod wait;

pub use choose::{Room, Variant, choose, need_bytes, size, variants};
pub use download::Nearby;
pub use error::HubError;
pub use header::Check;
pub use listing::{Listing, RemoteFile};
pub use name::{Name, RepoName, Want};
pub use plan::Plan;
pub use pull::{Hub, Progress, Pulled, Stage, Watch};
pub use settings::{Settings, Token};
pub use space::check_room;
pub use unfinished::{Unfinished, unfinished};
