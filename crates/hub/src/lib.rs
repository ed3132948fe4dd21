//! Models by name: resolves a name to a file, and downloads it from a hub to this machine's disk.
//!
//! A [`Name`] is what a user types: a short name of the [`catalogue`], `org/repo:QUANT`, a page's
//! address. A [`Hub`] lists a repository, chooses the quantisation that fits, and downloads its
//! files: by ranges, several at once where the server allows it. A download continues after any
//! cut, the header is checked before the weights, and each file's SHA-256 is verified before use.
//!
//! [`shapes`] are headers of the catalogue's models, for plans before any download.
//!
//! A [`Fetcher`] gets small files from hosts that an operator lists, such as pictures.
//!
//! All calls block: callers run them on their own threads. This crate writes only below the folder
//! it is given, and knows no cluster.

pub mod catalogue;
mod choose;
mod download;
mod error;
mod fetch;
mod header;
mod http;
mod listing;
mod name;
mod partial;
mod place;
mod plan;
mod proxy;
mod pull;
mod ranges;
mod search;
mod settings;
pub mod shapes;
mod space;
mod transfer;
mod unfinished;
mod wait;

pub use choose::{Room, Variant, choose, need_bytes, size, variants};
pub use download::Nearby;
pub use error::HubError;
pub use fetch::{FetchError, Fetcher, Host};
pub use header::Check;
pub use listing::{Listing, RemoteFile};
pub use name::{Name, RepoName, Want};
pub use partial::{Kept, Partial};
pub use plan::Plan;
pub use pull::{Hub, Progress, Pulled, Stage, Watch};
pub use search::Found;
pub use settings::{Settings, Token};
pub use space::{DiskRoom, Reserved, free_bytes, reserve};
pub use unfinished::{Unfinished, remove_unfinished, unfinished};
