//! What can go wrong on a link and while a mesh is built.

use thiserror::Error;

/// Why a link ended. Cloneable, because a link repeats its first error.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LinkError {
    #[error("rank {peer} is gone: {reason}")]
    Lost { peer: usize, reason: String },

    #[error(
        "rank {peer} sent what cannot be its next message: {reason}; the link is closed, start a \
         new epoch"
    )]
    Corrupt { peer: usize, reason: String },

    #[error(
        "rank {peer} is in epoch {theirs}, this rank still in {ours}: the group has moved on; \
         join the new epoch"
    )]
    Epoch { peer: usize, ours: u64, theirs: u64 },
}

impl LinkError {
    pub(crate) fn lost(peer: usize, reason: impl Into<String>) -> Self {
        LinkError::Lost { peer, reason: reason.into() }
    }

    pub(crate) fn corrupt(peer: usize, reason: impl Into<String>) -> Self {
        LinkError::Corrupt { peer, reason: reason.into() }
    }
}

/// The first error of one direction of a link; every later call repeats it. Each direction fails
/// separately: a peer that no longer takes messages may have sent some that are still unread.
#[derive(Default)]
pub(crate) struct Sticky(Option<LinkError>);

impl Sticky {
    pub fn check(&self) -> Result<(), LinkError> {
        self.0.clone().map_or(Ok(()), Err)
    }

    pub fn keep<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        result.inspect_err(|error| self.0 = Some(error.clone()))
    }
}

/// Why a mesh did not come up.
#[derive(Debug, Error)]
pub enum MeshError {
    #[error(
        "cannot listen on {addr}: {source}; choose another port, or stop the program that uses it"
    )]
    Bind { addr: std::net::SocketAddr, source: std::io::Error },

    #[error("the listener failed: {0}")]
    Accept(std::io::Error),

    #[error("no thread for heartbeats: {0}; raise the limit on processes or end some")]
    Heartbeats(std::io::Error),

    #[error("{what}: {value} is outside {limit}")]
    Config { what: &'static str, value: u64, limit: String },

    #[error("after {waited_ms} ms these ranks are missing: {}", missing_text(missing))]
    Missing { waited_ms: u64, missing: Vec<MissingRank> },

    #[error(
        "rank {peer} is already in epoch {theirs}, this rank asked for {ours}: ask the control \
         plane for the current epoch"
    )]
    Epoch { peer: usize, ours: u64, theirs: u64 },

    #[error("rank {peer} does not agree about {what}: {theirs} there, {ours} here")]
    Mismatch { peer: usize, what: &'static str, ours: String, theirs: String },

    #[error("no shared memory with rank {peer}: {reason}; use transport auto or tcp")]
    NoSharedMemory { peer: usize, reason: String },

    #[error(
        "no RDMA with rank {peer}: {reason} (`sinew doctor rdma` on both machines says more; \
         transport auto or tcp do without)"
    )]
    NoRdma { peer: usize, reason: String },

    #[error("the mesh was given up because the instance stops")]
    Aborted,
}

/// A rank that did not arrive, and the last known reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRank {
    pub rank: usize,
    pub reason: String,
}

fn missing_text(missing: &[MissingRank]) -> String {
    let texts: Vec<String> =
        missing.iter().map(|m| format!("rank {} ({})", m.rank, m.reason)).collect();
    texts.join(", ")
}
