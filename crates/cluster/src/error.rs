use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a node did not do what it was asked. Texts are for a person.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use {}: {source}. Check its permissions and the space left", path.display())]
    DataDir { path: PathBuf, source: std::io::Error },
    #[error(
        "{path} is in use by another sinew on this machine. Stop that one, or start this one with \
         another data directory",
        path = .path.display()
    )]
    DataDirInUse { path: PathBuf },
    #[error(
        "{path} is damaged: {why}. Restore it, or delete it and join the cluster again",
        path = .path.display()
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "cannot listen on {address}: {source}. Stop the program that has the port, or choose \
         another address"
    )]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the worker command is empty; it must name a program")]
    NoWorkerCommand,
    #[error("this is not a join code: {0}. Copy the whole code again")]
    Code(#[from] crate::invite::CodeError),
    #[error(
        "no node answered at {addresses}: {why}. Check that the inviting machine is on, that both \
         are on one network, and that no firewall blocks the port"
    )]
    Unreachable { addresses: String, why: String },
    #[error("joining was refused: {0}")]
    JoinRefused(String),
    #[error("the fleet key cannot be read from {}: {source}", path.display())]
    KeyFile { path: PathBuf, source: std::io::Error },
    #[error("{} is not used as a fleet key: {why}", path.display())]
    FleetKey { path: PathBuf, why: String },
    #[error(
        "this node already belongs to a cluster of {members} nodes. To move it to another one, type \
         here: sinew leave, then join again"
    )]
    AlreadyMember { members: usize },
    #[error("{model} is already served as {instance}. Stop that one first, or use it")]
    AlreadyServed { model: String, instance: String },
    #[error("{name} is not served here; {known}")]
    NotServed { name: String, known: String },
    #[error("{name} is no other member of the cluster. Members are: {known}")]
    NoMember { name: String, known: String },
    #[error("{name} is the name of several members. Say which by its id: {ids}")]
    ManyMembers { name: String, ids: String },
    #[error("{name} is this node itself. To take it out of the cluster type: sinew leave")]
    OwnName { name: String },
    #[error("this node belongs to no cluster, so there is none to leave")]
    Alone,
    #[error("{0}")]
    Unusable(String),
    /// There is no such model on this machine.
    #[error("{0}")]
    NotHere(String),
    #[error("{model} has {limit} requests waiting already. Try again later")]
    QueueFull { model: String, limit: usize },
    #[error("{model} cannot answer: {reason}")]
    Failed { model: String, reason: String },
    #[error(
        "the vocabulary of {model} cannot be read from {owner}, which serves it: {why}. Try again \
         in a moment"
    )]
    Header { model: String, owner: String, why: String },
    #[error("{model} cannot be asked now: {reason}. Try again in a moment")]
    Away { model: String, reason: String },
    #[error("this node has been shut down")]
    ShutDown,
}

pub type Result<T> = std::result::Result<T, Error>;
