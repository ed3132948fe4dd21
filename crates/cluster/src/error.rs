use std::net::SocketAddr;
use std::path::{Display, Path, PathBuf};

/// Why a call of a node failed. The texts are for users.
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
        "{path} belongs to user {owner}, who could change it, and this is user {user}. Start sinew \
         as its owner, take it over (chown -R {user} {path}), or choose another data directory",
        path = .path.display()
    )]
    ForeignDir { path: PathBuf, owner: u32, user: u32 },
    #[error(
        "{path} is a link, and what it leads to is not used as a file of this node. Put the file \
         itself there: rm {path}, then copy it",
        path = .path.display()
    )]
    LinkedFile { path: PathBuf },
    #[error(
        "{path} is damaged: {why}. Restore it, or begin anew as a new machine: rm \
         {dir}/identity.key {dir}/members.* {dir}/desired.*, then join the cluster again",
        path = .path.display(),
        dir = directory(.path)
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{path} is gone, and {beside} beside it belongs to that key. Put the key back, or begin \
         anew as a new machine: rm {dir}/members.* {dir}/desired.*, then join the cluster again",
        path = .path.display(),
        dir = directory(.path)
    )]
    KeyGone { path: PathBuf, beside: &'static str },
    #[error(
        "cannot listen on {address}: {source}. Stop the program that has the port, or choose \
         another address"
    )]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the worker command is empty; it must name a program")]
    NoWorkerCommand,
    #[error("this is not a join code: {0}. Copy the whole code again")]
    Code(#[from] CodeError),
    #[error(
        "no node answered at {addresses}: {why}. Check that the inviting machine is on, that both \
         are on one network, that no firewall blocks the port, and that it is the one at which \
         nodes reach it (8751 as a rule, not the API's 8750)"
    )]
    Unreachable { addresses: String, why: String },
    #[error("joining was refused: {0}")]
    JoinRefused(String),
    #[error(
        "the machine at {address} has the identity of this one: one is a copy of the other. Give \
         one of the two its own, which takes it out of its cluster: sinew stop --node, then rm \
         {path}/identity.key {path}/members.* {path}/desired.*, then sinew up",
        path = .data_dir.display()
    )]
    Twin { address: SocketAddr, data_dir: PathBuf },
    #[error("the fleet key cannot be read from {}: {source}", path.display())]
    KeyFile { path: PathBuf, source: std::io::Error },
    #[error("{} is not used as a fleet key: {why}", path.display())]
    FleetKey { path: PathBuf, why: String },
    #[error("a number to join by has six digits, as the machine that is to join shows it")]
    NoNumber,
    #[error("{name} shows another number, and was not let in. To try again type there: sinew join")]
    WrongNumber { name: String },
    #[error("another number was typed at {name}. To try again with a new one type: sinew join")]
    OtherNumber { name: String },
    #[error(
        "{wrong} numbers were wrong of late, so none is taken for {minutes} minutes. A code works \
         meanwhile: sinew invite on a member, sinew join CODE on the machine that is to join"
    )]
    PairingPaused { wrong: usize, minutes: u64 },
    #[error(
        "{waiting} machines wait to be let in there already. Accept or refuse them first, or use a \
         code: sinew invite there"
    )]
    ManyRequests { waiting: usize },
    #[error(
        "no such machine asks to be let in. Waiting: {waiting}. On the machine that is to \
         join type: sinew join"
    )]
    NoRequest { waiting: String },
    #[error("node {node} does not answer: {why}")]
    MemberAway { node: String, why: String },
    #[error("several machines ask to be let in: {waiting}. Say which one: --node NAME")]
    WhichRequest { waiting: String },
    #[error(
        "no cluster announces itself nearby. Start a node on the other machine (sinew up), or say \
         here where it listens: sinew join --peer ADDRESS:8751, or use a code: sinew invite there"
    )]
    NobodyNear,
    #[error(
        "several clusters are near: {near}. Say which one, by a node of it: sinew join --with NAME"
    )]
    ManyNear { near: String },
    #[error("{name} does not announce itself nearby. Nearby: {near}")]
    NotNear { name: String, near: String },
    #[error(
        "this node already belongs to a cluster of {members} nodes. To move it to another one, type \
         here: sinew leave, then join again"
    )]
    AlreadyMember { members: usize },
    #[error("{model} is already served as {instance}. Stop that one first, or use it")]
    AlreadyServed { model: String, instance: String },
    #[error("{name} is not served here; {known}")]
    NotServed { name: String, known: String },
    #[error("{name} is this node itself. To take it out of the cluster type: sinew leave")]
    OwnName { name: String },
    #[error("this node belongs to no cluster, so there is none to leave")]
    Alone,
    #[error(transparent)]
    FindNode(#[from] crate::FindNodeError),
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

fn directory(file: &Path) -> Display<'_> {
    file.parent().unwrap_or(file).display()
}

pub type Result<T> = std::result::Result<T, Error>;

/// Why a text is not a join code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    #[error("it does not start with \"sinew-\"")]
    Prefix,
    #[error("a character is wrong, missing or too many")]
    Typo,
    #[error("it was made by a newer version of sinew")]
    Version,
}
