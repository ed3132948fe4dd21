//! The clap arguments of commands about members.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cluster::Peer;

use super::{QueryArgs, values};

#[derive(Debug, Args)]
pub struct InviteArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// How long the code is good for, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub ttl: u64,
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// What `sinew invite` printed on the other machine; without it a number is shown here, to be
    /// typed there: sinew accept NUMBER
    #[arg(conflicts_with_all = ["with", "peer"])]
    pub code: Option<String>,
    /// Ask this node to let this machine in, by its name or the first digits of its id (at least 4)
    /// [default: the one cluster that is near]
    #[arg(long, value_name = "NODE", conflicts_with = "peer")]
    pub with: Option<String>,
    /// Ask the node that listens there, such as 10.0.0.5, studio.local:8751 or
    /// [fe80::5%eth0]:8751: on another network, or over a VPN
    #[arg(long, value_name = "ADDR", value_parser = values::lasting_peer)]
    pub peer: Option<Peer>,
}

#[derive(Debug, Args)]
pub struct AcceptArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// The number that the other machine shows; without it, who asks is listed
    pub number: Option<String>,
    /// Selects one of several requests: a name, or the first digits of an id (at least 4)
    #[arg(long, value_name = "NODE", requires = "number")]
    pub node: Option<String>,
}

#[derive(Debug, Args)]
pub struct RefuseArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// The machine's name, or the first digits of its id (at least 4)
    pub node: String,
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// The node's name, or the first digits of its id (at least 4), from `sinew nodes`
    pub node: String,
    /// Do not ask, also if a model stops
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Subcommand)]
pub enum FleetKeyCommand {
    /// Write a new key to a file that does not exist yet; copy it to each machine, mode 600, and
    /// start the nodes with `sinew up --fleet-key FILE`
    New {
        /// The file to write
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// The node's name, or the first digits of its id (at least 4), from `sinew nodes`
    pub node: String,
}
