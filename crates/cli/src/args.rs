//! The command line as clap parses it. The doc comment of each flag is its documentation.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use protocol::{InstanceSpec, KeepAlive};

mod bench;
mod burn;
mod face;
mod groups;
mod members;
mod models;
mod plan;
mod preset;
mod run;
pub(crate) mod values;

pub use self::values::{Copies, NODE_PORT, bytes, resolve};

pub use self::bench::{BenchCommand, BenchDeviceArgs, BenchModelArgs, BenchQualityArgs};
pub use burn::{BenchClusterArgs, WorkerArgs, WorkerCommand};
#[cfg(windows)]
pub use face::ServiceRunArgs;
pub use face::{
    CompletionsArgs, EventsArgs, LaunchArgs, LaunchProgram, LogLevelArgs, LogsArgs, ManArgs,
    PageArgs, ReportArgs, ServiceArgs, ServiceCommand, ServiceInstallArgs, TopArgs,
};
pub use members::{
    AcceptArgs, DrainArgs, FleetKeyCommand, InviteArgs, JoinArgs, RefuseArgs, RemoveArgs,
};
pub use models::{ListArgs, PullArgs, RmArgs, SearchArgs, ShowArgs};
pub use plan::PlanArgs;
pub use preset::{PresetCommand, PresetCreateArgs, PresetNamedArgs};
pub use run::RunArgs;

/// One AI computer out of the machines you already own.
#[derive(Debug, Parser)]
#[command(name = "sinew", version, arg_required_else_help = true, infer_subcommands = false)]
pub struct Cli {
    /// Use the node of another machine, with $SINEW_API_KEY [default: $SINEW_HOST]
    #[arg(long, global = true, value_name = "HOST")]
    pub url: Option<String>,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the command line. A negative number is a value, though a wrong one, not a flag.
    ///
    /// # Errors
    /// The command line is invalid, or requests help.
    pub fn read() -> Result<Self, clap::Error> {
        let mut command = groups::grouped(with_negative_numbers(Self::command()));
        let mut matches = command.try_get_matches_from_mut(std::env::args_os())?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    }
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_positional();
    let command = command.mut_args(|arg| {
        let takes_value = takes_value(&arg);
        if takes_value { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(with_negative_numbers)
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show it: nodes on this machine, the built-in model split over them, one streamed answer
    Demo(DemoArgs),
    /// Start this machine's node
    Up(UpArgs),
    /// Print a one-time code with which one other machine can join
    Invite(InviteArgs),
    /// Join this machine's node to a cluster: by a code, or by a number that it shows
    Join(JoinArgs),
    /// Let a machine in by the number that `sinew join` shows there
    Accept(AcceptArgs),
    /// Send a machine away that asks to be let in
    Refuse(RefuseArgs),
    /// Take another node out of the cluster; its key needs a new invitation to come back
    Remove(RemoveArgs),
    /// Take this machine's node out of its cluster, whether it runs or not
    Leave(QueryArgs),
    /// Make a key by which many machines become one cluster without codes
    #[command(subcommand)]
    FleetKey(FleetKeyCommand),
    /// List the nodes of the cluster
    Nodes(NodesArgs),
    /// Say how a model would be split, how fast that would be, and why not otherwise
    Plan(PlanArgs),
    /// Say in a few lines how this node and its cluster are
    Status(QueryArgs),
    /// Show the cluster on the terminal, each second anew
    Top(TopArgs),
    /// Print what has happened in the cluster
    Events(EventsArgs),
    /// Print the end of this node's log
    Logs(LogsArgs),
    /// Set what this node logs from now on, without a restart
    LogLevel(LogLevelArgs),
    /// Print the address of the page, with which the node can also be steered
    Page(PageArgs),
    /// Empty a node, to switch it off: what it has moves to the others, without a failed request
    Drain(DrainArgs),
    /// Let a drained node have work again
    Undrain(DrainArgs),
    /// Split a model over the nodes and serve it
    Serve(ServeArgs),
    /// List the served models
    Ps(QueryArgs),
    /// Stop serving a model, or --all of them; --node stops this machine's node
    Stop(StopArgs),
    /// Download a model to this machine's disk, going on where an earlier try stopped
    Pull(PullArgs),
    /// List the models on this machine's disk, wherever they lie
    List(ListArgs),
    /// Search the hub for models
    Search(SearchArgs),
    /// Say what a model is: architecture, sizes, licence, template, where it fits
    Show(ShowArgs),
    /// Delete models from this machine's models folder, or --prompts that nodes keep on disk
    Rm(RmArgs),
    /// Ask a model, or chat with it
    Run(RunArgs),
    /// Make names for models with a system prompt and settings of their own
    #[command(subcommand)]
    Preset(PresetCommand),
    /// Make, list and revoke the keys with which other machines use this node's API
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Print the last requests of this node's API as a Chrome trace, for chrome://tracing or
    /// Perfetto
    Trace(TraceArgs),
    /// Measure
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Say what this machine is fit for, what it lacks, and what to do about it
    Doctor(DoctorArgs),
    /// Gather what a report of a fault needs in one file, without secrets and prompts
    Report(ReportArgs),
    /// Keep the node up: as a service of this user or machine
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Set another program up to use the models
    Launch(LaunchArgs),
    /// Write completions of commands for a shell
    Completions(CompletionsArgs),
    /// Write the manual
    Man(ManArgs),
    /// Tools for developers of Sinew
    #[command(subcommand)]
    Dev(DevCommand),
    /// One rank of one instance; started by a node, not by people
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// Where this machine's node keeps its identity and models.
#[derive(Debug, Clone, Args)]
pub struct DataDir {
    /// The node's data directory [default: $SINEW_DATA_DIR, or the platform's place for such data]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// End after the answer instead of staying up
    #[arg(long)]
    pub once: bool,
    /// Nodes to start on this machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    /// What people call this machine [default: its host name]
    #[arg(long, value_parser = values::name)]
    pub name: Option<String>,
    /// Address of the HTTP API and the status page
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8750")]
    pub api: SocketAddr,
    /// Let other machines use the HTTP API, with a key: the first one is made and printed, more
    /// come from `sinew keys create`. With --api 127.0.0.1 it listens on all IPv4 addresses then;
    /// with `--api [::]:8750` on those of IPv6 as well
    #[arg(long)]
    pub lan: bool,
    /// PEM file with a certificate for the HTTP API: other machines must then speak HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with that certificate's private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Share nothing that is cached of prompts between keys: where it is shared, times tell a
    /// client whether another one's prompt began like its own. Without this, keys are kept apart
    /// as soon as there are two
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub cache_per_key: Option<bool>,
    /// While one model is served, let programs on this machine call it by any name, as servers of
    /// a single model do: no model is loaded or downloaded by its name then
    #[arg(long)]
    pub any_name: bool,
    /// List served models only: without it, programs on this machine also see in `/v1/models` and
    /// `/api/tags` what lies on the nodes' disks, and a request loads it
    #[arg(long)]
    pub list_served: bool,
    /// Hosts from which pictures of requests are fetched by their addresses, at HOST:PORT or at the
    /// usual ports, also in this network: no others are asked, and without any none is fetched
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',')]
    pub picture_hosts: Vec<hub::Host>,
    /// Name by which clients may reach the API besides localhost and this machine's addresses
    #[arg(long, value_name = "NAME", value_parser = values::host_name)]
    pub host_name: Vec<String>,
    /// Web site or desktop program whose pages may use the models: its scheme and host, such as
    /// `https://chat.example`, `app://obsidian.md` or `vscode-webview://*`
    #[arg(long, value_name = "ORIGIN", value_parser = values::origin)]
    pub allow_origin: Vec<String>,
    /// Address on which other nodes reach this one, by default on all, IPv6 and IPv4; what arrives
    /// is authenticated and encrypted
    #[arg(long, value_name = "ADDR", default_value = "[::]:8751")]
    pub listen: SocketAddr,
    /// Addresses of this machine for what models exchange, such as of a faster cable: others try
    /// them in this order before the one of --listen
    #[arg(long, value_name = "IP,IP", value_delimiter = ',')]
    pub link_addresses: Vec<IpAddr>,
    /// Whether to announce this node on its networks (by multicast DNS: its name, its key, how many
    /// nodes it is with) and to look for others there: auto leaves it where --listen is loopback
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub announce: Announce,
    /// File with a key, from `sinew fleet-key new`: nodes with the same one become one cluster by
    /// themselves, where they hear each other's announcements or by --peer
    #[arg(long, value_name = "FILE")]
    pub fleet_key: Option<PathBuf>,
    /// Address or name of a member to try besides the remembered ones
    #[arg(long, value_name = "ADDR", value_parser = values::lasting_peer)]
    pub peer: Vec<cluster::Peer>,
    /// Memory for models, such as 48GiB [default: three quarters of this machine's, or nine tenths
    /// of what its GPU has free]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub memory: Option<u64>,
    /// What is kept of prompts on disk, so that they are not computed again after a restart: a size
    /// for all models together, such as 20GiB, a folder for them, or off, which removes what was
    /// kept [default: a tenth of the free disk, at most 20 GiB, in the node's folder]
    #[arg(long, value_name = "SIZE|DIR|off", value_parser = values::prompt_cache)]
    pub prompt_cache: Vec<values::PromptCache>,
    /// Threads for models [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// CPUs to pin those threads to, such as 0,1 or 0-3
    #[arg(long, value_delimiter = ',', value_parser = values::cpus)]
    pub cpus: Vec<values::Cpus>,
    /// Where models run: auto (the best GPU that ggml's libraries find, else the CPU), all (every
    /// GPU), cpu, or a name from `sinew doctor gpu`; ggml-cpu is those libraries' own engine. Given
    /// several times: each device is a node with memory and ranks of its own
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub device: Vec<String>,
    #[command(flatten)]
    pub libraries: GpuLibraries,
    /// A folder with models, read and never written, such as a network drive's [default:
    /// $SINEW_MODELS]
    #[arg(long, value_name = "DIR")]
    pub models: Vec<PathBuf>,
    /// Download no models [default: as $HF_HUB_OFFLINE says]
    #[arg(long)]
    pub offline: bool,
    /// End when standard input ends
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// When a node announces itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Announce {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Args)]
pub struct QueryArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NodesArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Also show what the machines are, and the ways between them as they were measured
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key and print it, once
    Create(KeyArgs),
    /// List the keys' names
    List(QueryArgs),
    /// Refuse a key from now on, also by the node that runs
    Revoke(KeyArgs),
}

#[derive(Debug, Args)]
pub struct KeyArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Whose key it is, or what for
    pub name: String,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(subcommand)]
    pub part: Option<DoctorCommand>,
    #[command(flatten)]
    pub query: QueryArgs,
}

#[derive(Debug, Subcommand)]
pub enum DoctorCommand {
    /// RDMA: the library, the devices, and whether links can use them. Status 0: usable
    Rdma(DoctorRdmaArgs),
    /// GPUs: ggml's libraries, and the devices that they find. Status 0: there is one
    Gpu(DoctorGpuArgs),
}

#[derive(Debug, Args)]
pub struct DoctorRdmaArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorGpuArgs {
    /// Print the shell script that fetches ggml's libraries: sinew doctor gpu --script | bash
    #[arg(long)]
    pub script: bool,
    #[command(flatten)]
    pub libraries: GpuLibraries,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Where ggml's libraries lie.
#[derive(Debug, Clone, Args)]
pub struct GpuLibraries {
    /// The folder of ggml's libraries [default: $SINEW_GPU_LIBRARIES, or gpu in the data directory]
    #[arg(long, value_name = "DIR")]
    pub gpu_libraries: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub spec: InstanceSpec,
    /// Requests that may run at once [default: 16]
    #[arg(long, value_name = "N")]
    pub parallel: Option<usize>,
    /// Nodes that shall have the whole file: with 2, the model outlives the loss of either. auto is
    /// 2 where a disk has room for the file twice over, and 1 makes no copies
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = values::copies)]
    pub copies: Copies,
    /// Only name the models: the first request loads each
    #[arg(long)]
    pub on_request: bool,
    /// Unload the models once nobody has asked for so long, as 10m: 0 at once, -1 never; the next
    /// request loads them again [default: -1]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pub keep_alive: Option<KeepAlive>,
    /// The name under which clients ask for the model [default: the file's, without .gguf]
    #[arg(long)]
    pub name: Option<String>,
    /// Names, as for `sinew pull`, or paths of .gguf files; what is missing is downloaded
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<String>,
}

#[derive(Debug, Args)]
pub struct StopArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Stop the node itself, and with it every model it serves
    #[arg(long, conflicts_with = "model")]
    pub node: bool,
    /// Stop every model of the cluster, and leave the nodes up
    #[arg(long, conflicts_with_all = ["model", "node"])]
    pub all: bool,
    /// The model's name or the instance's id, from `sinew ps` [default: the only one]
    pub model: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum DevCommand {
    /// Logits of the last position, as JSON
    Logits(DevLogitsArgs),
    /// Greedy continuation, as JSON
    Generate(DevGenerateArgs),
    /// Token ids of the text on standard input, as JSON
    Tokenize(DevTokenizeArgs),
    /// Write a file with random weights in a real model's shape
    Synth(::bench::SynthArgs),
}

#[derive(Debug, Args)]
pub struct DevLogitsArgs {
    #[command(flatten)]
    pub local: ::bench::LocalArgs,
    /// Path of a .gguf file
    #[arg(short, long)]
    pub model: PathBuf,
    /// Token ids, such as 1,2,3
    #[arg(long, value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
}

#[derive(Debug, Args)]
pub struct DevGenerateArgs {
    #[command(flatten)]
    pub logits: DevLogitsArgs,
    /// Tokens to generate
    #[arg(short, default_value_t = 24)]
    pub n: usize,
}

#[derive(Debug, Args)]
pub struct DevTokenizeArgs {
    /// Path of a .gguf file
    #[arg(short, long)]
    pub model: PathBuf,
    /// Add the tokens that the file asks for around a text
    #[arg(long)]
    pub add_special: bool,
    /// Take special tokens in the text for themselves instead of for plain text
    #[arg(long)]
    pub parse_special: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
