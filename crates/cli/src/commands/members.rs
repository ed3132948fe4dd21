//! Membership: removing nodes, leaving, and keys for fleets.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::Path;

use cluster::{ClusterStatus, FleetKey, Held, InstanceStatus, NodeId, Parted};

use super::query::print_json;
use crate::args::{QueryArgs, RemoveArgs};
use crate::client::Client;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};

pub fn remove(args: &RemoveArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    if !args.yes {
        agree(&client, &args.node)?;
    }
    let parted = client.remove(&args.node)?;
    if args.query.json {
        return print_json(&parted);
    }
    let later = match parted.untold {
        0 => String::new(),
        untold => {
            format!("; {untold} that cannot be reached now will hear of it when they are back")
        }
    };
    say!("removed {}: it needs a new invitation to come back{later}", parted.name);
    Ok(())
}

/// Lists what stops without a node, and asks.
///
/// # Errors
/// The user does not agree, or cannot be asked.
fn agree(client: &Client, asked: &str) -> Result<(), CliError> {
    let status = client.status()?;
    let names = status.nodes.iter().map(|node| (node.id, node.name.as_str()));
    // The node itself says why a name means none.
    let Ok(id) = cluster::find_node(asked, names) else { return Ok(()) };
    if id == status.node {
        return Ok(());
    }
    let name = status.nodes.iter().find(|node| node.id == id).map_or(asked, |node| &node.name);
    let losses = losses(&status, &client.models()?, (id, name));
    if losses.is_empty() {
        return Ok(());
    }
    losses.iter().for_each(|line| tell!("{line}"));
    if !std::io::stdin().is_terminal() {
        let text = format!(
            "{name} was not removed, because of that, and nobody can be asked. To remove it \
             all the same: sinew remove --yes {name}"
        );
        return Err(CliError::Usage(text));
    }
    eprint!("Remove {name}? [y/N] ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).doing("cannot read the answer")?;
    match line.trim().to_lowercase().starts_with('y') {
        true => Ok(()),
        false => Err(CliError::Usage(format!("{name} was not removed"))),
    }
}

/// The served models that have their only file or their only rank on a node.
fn losses(status: &ClusterStatus, held: &[Held], (id, name): (NodeId, &str)) -> Vec<String> {
    let line = |one: &InstanceStatus| {
        let is_same = |held: &&Held| match held.listed.digest {
            Some(digest) => Some(digest) == one.digest,
            None => held.listed.model.name == one.model,
        };
        let mut holders = held.iter().filter(is_same).peekable();
        let is_known = holders.peek().is_some();
        let is_only = is_known && holders.all(|held| held.node.as_deref() == Some(name));
        let runs_there = matches!(one.ranks.as_slice(), [only] if only.node == id);
        let model = &one.model;
        match (is_only, runs_there) {
            (true, _) => Some(format!("{model} stops: its only file is on {name}")),
            (false, true) => Some(format!(
                "{model} runs on {name} alone: its answers stop until another loads it"
            )),
            (false, false) => None,
        }
    };
    status.instances.iter().filter_map(line).collect()
}

pub fn leave(args: &QueryArgs) -> Result<(), CliError> {
    let data_dir = DataDir::find(&args.data_dir)?;
    let parted = match Client::here(&data_dir) {
        Ok(client) => client.leave()?,
        Err(CliError::NoNode { .. }) => leave_alone(&data_dir)?,
        Err(error) => return Err(error),
    };
    if args.json {
        return print_json(&parted);
    }
    say!("{} has left its cluster", parted.name);
    if parted.told == 0 {
        say!("No other node could be told. On one of them type: sinew remove {}", parted.name);
    }
    Ok(())
}

/// No node runs here, so this process takes its place.
fn leave_alone(data_dir: &DataDir) -> Result<Parted, CliError> {
    if !data_dir.path().exists() {
        return Err(CliError::NoNode { data_dir: data_dir.path().to_path_buf() });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.doing("cannot start the runtime")?;
    Ok(runtime.block_on(cluster::leave(data_dir.path()))?)
}

/// An existing file is never replaced: it may be the key of machines elsewhere.
pub fn new_fleet_key(file: &Path) -> Result<(), CliError> {
    let doing = || format!("cannot write {}", file.display());
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let mut made = store::private::file(&mut options).open(file).doing(doing())?;
    made.write_all(FleetKey::generate().text().as_bytes()).doing(doing())?;
    let file = file.display();
    say!(
        "wrote {file}. Copy it to each machine, and on each type:\n    sinew up --fleet-key {file}"
    );
    say!("Whoever has this file can join: keep it as you keep a password.");
    Ok(())
}
