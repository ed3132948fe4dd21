//! The binary `sinew`: parses the command line, runs one command, maps its result to an exit code.
//!
//! 0: done. 1: it failed, and standard error has the reason. 2: the command line is invalid.

/// Prints a line to standard output.
macro_rules! say {
    () => { crate::output::line(format_args!("")) };
    ($($text:tt)*) => { crate::output::line(format_args!($($text)*)) };
}

/// Prints prose to standard output, folded to the terminal's width.
macro_rules! explain {
    ($($text:tt)*) => { crate::output::prose(format_args!($($text)*)) };
}

/// Prints a line to standard error, beside the answer.
macro_rules! tell {
    ($($text:tt)*) => { crate::output::aside(format_args!($($text)*)) };
}

mod allocator;
mod api_keys;
mod args;
mod cgroup;
mod child;
mod client;
mod commands;
mod conversation;
mod data_dir;
mod descriptors;
mod device;
mod device_nodes;
mod error;
mod hints;
mod interrupt;
mod local_cluster;
mod logging;
mod logs;
mod mac;
mod machine;
mod models;
mod near;
mod options;
mod output;
mod own_process;
mod patient;
mod pictures;
mod progress;
mod qr;
mod remote;
mod settings;
mod signals;
mod speed;
mod stream;
mod table;
mod usage;
mod width;
mod wrap;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::args::{
    BenchCommand, Cli, Command, DevCommand, FleetKeyCommand, WorkerArgs, WorkerCommand,
};
use crate::commands::{
    bench_cluster, bench_device, bench_model, demo, dev, docs, doctor, drain, joining, keys,
    launch, looking, members, nodes, plan, preset, query, report, run, serve, service, top, up,
};
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::logging::Levels;
use crate::progress::TERMINAL;

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            output::note(usage::print(&error));
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return ended(output::finish(), ExitCode::from(code));
        }
    };
    let levels = logging::start(log_folder(&cli.command).as_deref());
    let chosen = remote::choose(cli.url, &cli.command);
    let done = chosen.and_then(|()| execute(cli.command, levels)).and_then(|()| output::finish());
    ended(done, ExitCode::SUCCESS)
}

fn ended(result: Result<(), CliError>, well: ExitCode) -> ExitCode {
    match result {
        Ok(()) => well,
        Err(CliError::Left { what, status }) => {
            tell!("{}", table::tame(&what));
            ExitCode::from(status)
        }
        Err(error) => {
            tell!("error: {}", table::tame(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command, levels: Levels) -> Result<(), CliError> {
    match command {
        Command::Demo(args) => demo::demo(&args),
        Command::Up(args) => up::up(args, levels),
        Command::Invite(args) => query::invite(&args),
        Command::Join(args) => joining::join(&args),
        Command::Accept(args) => joining::accept(&args),
        Command::Refuse(args) => joining::refuse(&args),
        Command::Remove(args) => members::remove(&args),
        Command::Leave(args) => members::leave(&args),
        Command::FleetKey(FleetKeyCommand::New { file }) => members::new_fleet_key(&file),
        Command::Nodes(args) => nodes::nodes(&args),
        Command::Status(args) => looking::status(&args),
        Command::Top(args) => top::top(&args),
        Command::Events(args) => looking::events(&args),
        Command::Logs(args) => looking::logs(&args),
        Command::LogLevel(args) => query::log_level(&args),
        Command::Page(args) => looking::page(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Drain(args) => drain::drain(&args),
        Command::Undrain(args) => drain::undrain(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Ps(args) => query::ps(&args),
        Command::Stop(args) => query::stop(&args),
        Command::Pull(args) => commands::models::pull(&args),
        Command::List(args) => commands::models::list(&args),
        Command::Search(args) => commands::models::search(&args),
        Command::Show(args) => commands::models::show(&args),
        Command::Rm(args) => commands::models::remove(&args),
        Command::Run(args) => run::run(&args),
        Command::Trace(args) => query::trace(&args),
        Command::Preset(command) => preset::run(&command),
        Command::Keys(command) => keys::run(&command),
        Command::Bench(BenchCommand::Model(args)) => bench_model::model(&args),
        Command::Bench(BenchCommand::Quality(args)) => bench_model::quality(&args),
        Command::Bench(BenchCommand::Net(args)) => {
            Ok(bench::net(&args, |figures| say!("{figures}"))?)
        }
        Command::Bench(BenchCommand::Splits(args)) => said(bench::splits(&args, &TERMINAL)),
        Command::Bench(BenchCommand::Guesses(args)) => said(bench::guesses(&args, &TERMINAL)),
        Command::Bench(BenchCommand::Device(args)) => bench_device::run(&args),
        Command::Bench(BenchCommand::Cluster(args)) => bench_cluster::run(&args),
        Command::Bench(BenchCommand::Serve(args)) => said(bench::serve(&args)),
        Command::Doctor(args) => doctor::run(&args),
        Command::Report(args) => report::report(&args),
        Command::Service(command) => service::run(&command),
        Command::Launch(args) => launch::launch(&args),
        Command::Completions(args) => docs::completions(&args),
        Command::Man(args) => docs::man(&args),
        Command::Dev(DevCommand::Logits(args)) => dev::logits(&args),
        Command::Dev(DevCommand::Generate(args)) => dev::generate(&args),
        Command::Dev(DevCommand::Tokenize(args)) => dev::tokenize(&args),
        Command::Dev(DevCommand::Synth(args)) => said(bench::synth(&args)),
        Command::Worker(WorkerArgs { command: None }) => Ok(engine::worker::run()?),
        Command::Worker(WorkerArgs { command: Some(WorkerCommand::BurnIn(args)) }) => {
            said(bench::burn_in::run(&args))
        }
    }
}

/// Prints the figures of a measurement.
fn said(figures: Result<String, bench::Error>) -> Result<(), CliError> {
    say!("{}", figures?);
    Ok(())
}

/// The log folder of a command: only a node has one, because it runs for long and often unwatched.
fn log_folder(command: &Command) -> Option<PathBuf> {
    let Command::Up(args) = command else { return None };
    // The command itself reports a missing directory.
    Some(DataDir::find(&args.data_dir).ok()?.path().join(logs::FOLDER))
}
