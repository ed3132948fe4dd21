//! The clap arguments of commands that show the cluster, and that set up this machine.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{DataDir, QueryArgs};

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Go on with what happens, until Ctrl-C or the node's end; with --json an object a line
    #[arg(short, long)]
    pub follow: bool,
    /// Problems alone
    #[arg(long)]
    pub problems: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Go on with what is written, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// How many of the last lines to print
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub lines: usize,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    /// The file to write, or - to print it
    #[arg(short, long, value_name = "FILE", default_value = "sinew-report.txt")]
    pub output: PathBuf,
}

#[derive(Debug, Args)]
pub struct LogLevelArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// off, error, warn, info, debug or trace; levels of modules too, as in warn,cluster=debug; or
    /// default, the levels with which the node began
    pub level: String,
}

#[derive(Debug, Args)]
pub struct PageArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Also open it in the browser of this machine
    #[arg(long)]
    pub open: bool,
    /// Pair somebody else's browser, which gets conversations of its own [default: one that shows
    /// yours]
    #[arg(long)]
    pub guest: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell to write them for
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for each command into this folder [default: print the first one]
    pub folder: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Start the node with this machine or login, and again whenever it ends
    Install(ServiceInstallArgs),
    /// Stop it, and start it no more
    Uninstall(ServiceArgs),
    /// Say whether it is installed, and whether it runs
    Status(ServiceArgs),
    /// Keep a node up, as the system's entry says
    #[cfg(windows)]
    #[command(hide = true)]
    Run(ServiceRunArgs),
}

#[cfg(windows)]
#[derive(Debug, Args)]
pub struct ServiceRunArgs {
    /// As the machine's service
    #[arg(long)]
    pub system: bool,
    /// In a process without a window
    #[arg(long, conflicts_with = "system")]
    pub hidden: bool,
    #[arg(last = true)]
    pub options: Vec<String>,
}

#[derive(Debug, Args)]
pub struct ServiceArgs {
    /// The machine's service instead of this user's: it starts before anybody logs in
    #[arg(long)]
    pub system: bool,
}

#[derive(Debug, Args)]
pub struct ServiceInstallArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print what would be installed, and do nothing
    #[arg(long)]
    pub print: bool,
    /// Options of `sinew up` for it, after `--`
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

#[derive(Debug, Args)]
pub struct LaunchArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    /// The program [default: list them]
    pub program: Option<LaunchProgram>,
    /// The model that it is to ask for [default: the first one that is ready]
    #[arg(long)]
    pub model: Option<String>,
    /// Write the settings into the program's own file, which is kept for --undo
    #[arg(long, conflicts_with = "undo", requires = "program")]
    pub write: bool,
    /// Put the file back as it was before --write, byte for byte
    #[arg(long, requires = "program")]
    pub undo: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LaunchProgram {
    Claude,
    Codex,
    Opencode,
    OpenWebui,
    Xcode,
    Continue,
    Zed,
    Cursor,
    Cline,
    Aider,
    Goose,
}
