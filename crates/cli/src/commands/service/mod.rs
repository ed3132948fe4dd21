//! `sinew service`: the node as a system service, which survives a closed terminal, a logout and a
//! restart of the machine.

#[cfg(unix)]
mod units;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as platform;
#[cfg(windows)]
use windows as platform;

use clap::Parser;

use crate::args::{self, Cli, Command, ServiceCommand};
use crate::client::Client;
use crate::data_dir::DataDir;
use crate::error::CliError;

/// What a removed service leaves.
const KEPT: &str = "models, keys and members of the node are kept in its data directory";

pub fn run(command: &ServiceCommand) -> Result<(), CliError> {
    match command {
        ServiceCommand::Install(args) => {
            data_dir_of(&args.options)?;
            platform::install(args)
        }
        ServiceCommand::Uninstall(args) => platform::uninstall(args),
        ServiceCommand::Status(args) => platform::status(args),
        #[cfg(windows)]
        ServiceCommand::Run(args) => platform::run(args),
    }
}

/// Whether a node runs with the service's data directory.
fn is_up() -> bool {
    let data_dir = DataDir::find(&args::DataDir { data_dir: None });
    data_dir.is_ok_and(|data_dir| Client::here(&data_dir).is_ok())
}

/// Checks the options of `sinew up` before they are written to the service's description, where
/// mistakes would go unnoticed; the data directory that they name.
fn data_dir_of(options: &[String]) -> Result<args::DataDir, CliError> {
    let line = ["sinew", "up"].into_iter().chain(options.iter().map(String::as_str));
    let cli = Cli::try_parse_from(line).map_err(|error| {
        let text = error.to_string();
        let text = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        CliError::Usage(format!("sinew up does not take these options: {text}"))
    })?;
    match cli.command {
        Command::Up(up) => Ok(up.data_dir),
        _ => Ok(args::DataDir { data_dir: None }),
    }
}
