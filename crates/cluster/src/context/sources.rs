//! The nodes to read a model's file from.

use std::net::SocketAddr;

use store::Digest;

use crate::NodeId;

/// A node that has a model's file.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub node: NodeId,
    pub name: String,
    pub addresses: Vec<SocketAddr>,
}

/// All nodes that should have a model's file.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub digest: Digest,
    /// The length of all parts.
    pub bytes: u64,
    pub sources: Vec<Source>,
}
