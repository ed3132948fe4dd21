//! `sinew launch`: settings with which another program uses this cluster; printed, or written into
//! the program's own file and restored.

mod by_hand;
mod file;

use std::path::PathBuf;

use clap::ValueEnum;
use cluster::InstanceState;
use serve::clients::{Change, Program, Target, programs};
use store::HOME;

use crate::api_keys;
use crate::args::{LaunchArgs, LaunchProgram};
use crate::client::Client;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::table;
use file::{Backups, changed};

/// Sent by clients if no key is needed.
const ANY_KEY: &str = "none";

pub fn launch(args: &LaunchArgs) -> Result<(), CliError> {
    let Some(program) = args.program else {
        list();
        return Ok(());
    };
    let data_dir = DataDir::find(&args.data_dir)?;
    let backups = Backups::new(data_dir.path());
    if args.undo {
        let path = backups.undo(id(program))?;
        say!("{} is as it was before", path.display());
        return Ok(());
    }
    let client = Client::find(&data_dir)?;
    let target = target(&client, args.model.as_deref())?;
    let found = all(&target).into_iter().find(|one| one.id == id(program));
    let found = found.expect("every program of the command line has its settings");
    if args.write { write(&found, &backups) } else { print(&found) }
}

/// The programs, and where their settings go.
fn list() {
    let base = "http://127.0.0.1:8750".to_owned();
    let (model, key) = ("MODEL".to_owned(), ANY_KEY.to_owned());
    let programs = all(&Target { base, model, context_tokens: 0, key });
    let rows = LaunchProgram::value_variants().iter().filter_map(|one| {
        let program = programs.iter().find(|program| program.id == id(*one))?;
        let place = match (program.file, &program.run) {
            (Some(file), _) => format!("~/{file} (--write writes it)"),
            (None, Some(_)) => "a command with its variables".to_owned(),
            (None, None) => "what to choose in its settings".to_owned(),
        };
        Some([program.id.to_owned(), program.title.to_owned(), place])
    });
    table::print(["NAME", "PROGRAM", "PRINTS"], &rows.collect::<Vec<_>>());
    say!("\nto see what a program needs: sinew launch NAME");
}

/// The page's programs, and those of which only a person can change the settings.
fn all(target: &Target) -> Vec<Program> {
    programs(target).into_iter().chain(by_hand::programs(target)).collect()
}

fn id(program: LaunchProgram) -> &'static str {
    match program {
        LaunchProgram::Claude => "claude",
        LaunchProgram::Codex => "codex",
        LaunchProgram::Opencode => "opencode",
        LaunchProgram::OpenWebui => "open-webui",
        LaunchProgram::Xcode => "xcode",
        LaunchProgram::Continue => "continue",
        LaunchProgram::Zed => "zed",
        LaunchProgram::Cursor => "cursor",
        LaunchProgram::Cline => "cline",
        LaunchProgram::Aider => "aider",
        LaunchProgram::Goose => "goose",
    }
}

fn target(client: &Client, model: Option<&str>) -> Result<Target, CliError> {
    let mut instances = client.status()?.instances;
    instances.retain(|one| one.replica_of.is_none());
    let found = match model {
        Some(name) => instances.iter().find(|one| one.model == name),
        // Agents send long prompts.
        None => instances
            .iter()
            .max_by_key(|one| (one.state == InstanceState::Ready, one.context_tokens)),
    };
    let Some(found) = found else {
        let names = instances.iter().map(|one| one.model.as_str()).collect::<Vec<_>>().join(", ");
        return Err(CliError::Refused(match (model, names.is_empty()) {
            (Some(name), false) => {
                let served = instances.iter().map(|one| one.model.as_str());
                let near = crate::near::did_you_mean(name, served);
                format!("{name} is not served{near} Served are: {names}. See: sinew ps")
            }
            _ => "no model is served that the program could use. Serve one with: sinew serve MODEL"
                .to_owned(),
        }));
    };
    Ok(Target {
        base: client.api.clone(),
        model: found.model.clone(),
        context_tokens: found.context_tokens,
        key: key(client)?,
    })
}

/// The key that a program sends: not the owner's, which may do all.
fn key(client: &Client) -> Result<String, CliError> {
    match client.key.as_ref().filter(|_| client.is_elsewhere()) {
        None => Ok(ANY_KEY.to_owned()),
        Some(key) if key.starts_with(api_keys::PREFIX) => Ok(key.clone()),
        Some(_) => {
            let text = "SINEW_API_KEY is no key for a program: it may do all that the owner may. \
                        Make one there (sinew keys create NAME), and set SINEW_API_KEY to it";
            Err(CliError::Refused(text.to_owned()))
        }
    }
}

fn print(program: &Program) -> Result<(), CliError> {
    say!("# {}\n# {}", program.title, program.about);
    if let (Some(file), Some(change)) = (program.file, &program.change) {
        say!(
            "\n# in ~/{file}  (sinew launch {} --write does it, --undo takes it back)",
            program.id
        );
        say!("{}", change.text().trim_end());
    }
    if let Some(run) = &program.run {
        say!("\n# in a terminal");
        say!("{run}");
    }
    Ok(())
}

fn write(program: &Program, backups: &Backups) -> Result<(), CliError> {
    let (Some(file), Some(change)) = (program.file, &program.change) else {
        let text = format!(
            "{} has no file that could be written. Leave --write out to see what to type",
            program.title
        );
        return Err(CliError::Usage(text));
    };
    let path = home()?.join(file);
    backups.change(program.id, &path, |text| changed(text, change))?;
    say!("{} is set up in {}", program.title, path.display());
    say!("to take it back:  sinew launch {} --undo", program.id);
    if let (Change::Append(_), Some(run)) = (change, &program.run) {
        say!("to use it:        {run}");
    }
    Ok(())
}

fn home() -> Result<PathBuf, CliError> {
    std::env::var_os(HOME).map(PathBuf::from).ok_or_else(|| {
        let text = format!("{HOME} is not set, so the program's settings cannot be found. Set it");
        CliError::Usage(text)
    })
}
