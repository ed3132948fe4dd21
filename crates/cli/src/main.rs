//! The binary `sinew`: reads the command line, runs one command, maps its result to an exit code.
//!
//! 0: done. 1: it failed, and standard error says why. 2: the command line makes no sense.

/// Prints a line for a person or a program.
macro_rules! say {
    () => { crate::output::line(format_args!("")) };
    ($($text:tt)*) => { crate::output::line(format_args!($($text)*)) };
}

/// Prints a line beside the answer, to standard error.
macro_rules! tell {
    ($($text:tt)*) => { crate::output::aside(format_args!($($text)*)) };
}

mod api_keys;
mod args;
mod cgroup;
mod client;
mod commands;
mod conversation;
mod data_dir;
mod error;
mod interrupt;
mod local_cluster;
mod machine;
mod models;
mod output;
mod patient;
mod progress;
mod settings;
mod signals;
mod speed;
mod stream;
mod table;

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use crate::args::{BenchCommand, Cli, Command, DevCommand, DoctorCommand};
use crate::commands::{
    bench, bench_serve, demo, dev, doctor, keys, members, net, nodes, plan, query, run, serve,
    splits, synth, up,
};
use crate::error::CliError;

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            output::note(error.print());
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return ended(output::finish(), ExitCode::from(code));
        }
    };
    log_to_stderr();
    ended(execute(cli.command).and_then(|()| output::finish()), ExitCode::SUCCESS)
}

fn ended(result: Result<(), CliError>, well: ExitCode) -> ExitCode {
    match result {
        Ok(()) => well,
        Err(error) => {
            tell!("error: {}", table::tame(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> Result<(), CliError> {
    match command {
        Command::Demo(args) => demo::demo(&args),
        Command::Up(args) => up::up(args),
        Command::Invite(args) => query::invite(&args),
        Command::Join(args) => query::join(&args),
        Command::Remove(args) => members::remove(&args),
        Command::Leave(args) => members::leave(&args),
        Command::Nodes(args) => nodes::nodes(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Ps(args) => query::ps(&args),
        Command::Stop(args) => query::stop(&args),
        Command::Pull(args) => commands::models::pull(&args),
        Command::List(args) => commands::models::list(&args),
        Command::Show(args) => commands::models::show(&args),
        Command::Rm(args) => commands::models::remove(&args),
        Command::Run(args) => run::run(&args),
        Command::Trace(args) => query::trace(&args),
        Command::Keys(command) => keys::run(&command),
        Command::Bench(BenchCommand::Model(args)) => bench::model(&args),
        Command::Bench(BenchCommand::Net(args)) => net::run(&args),
        Command::Bench(BenchCommand::Splits(args)) => splits::run(&args),
        Command::Bench(BenchCommand::Serve(args)) => bench_serve::run(&args),
        Command::Doctor(DoctorCommand::Rdma(args)) => doctor::rdma(&args),
        Command::Dev(DevCommand::Logits(args)) => dev::logits(&args),
        Command::Dev(DevCommand::Generate(args)) => dev::generate(&args),
        Command::Dev(DevCommand::Tokenize(args)) => dev::tokenize(&args),
        Command::Dev(DevCommand::Synth(args)) => synth::synth(&args),
        Command::Worker => Ok(engine::worker::run()?),
    }
}

/// Logs go to standard error; `SINEW_LOG` says how much, as `RUST_LOG` does elsewhere: a level, or
/// levels of modules too (`warn,cluster=debug`).
fn log_to_stderr() {
    let default = || Targets::new().with_default(LevelFilter::WARN);
    let filter = match std::env::var("SINEW_LOG") {
        Ok(wanted) => wanted.parse().unwrap_or_else(|error| {
            tell!(
                "SINEW_LOG={wanted:?} is not understood ({error}), so warnings are logged. Set it to \
                 a level, or to levels of modules too, such as warn,cluster=debug"
            );
            default()
        }),
        Err(_) => default(),
    };
    let colours = std::io::stderr().is_terminal();
    let format = tracing_subscriber::fmt::layer().with_ansi(colours).with_target(false);
    let format = format.with_writer(std::io::stderr).with_filter(filter);
    tracing_subscriber::registry().with(format).init();
}
