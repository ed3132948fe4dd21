//! `sinew keys`: the keys for other machines' access to this node's API.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::api_keys::KeyFile;
use crate::args::{KeyArgs, KeysCommand, QueryArgs};
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::table;

pub fn run(command: &KeysCommand) -> Result<(), CliError> {
    match command {
        KeysCommand::Create(args) => create(args),
        KeysCommand::List(args) => list(args),
        KeysCommand::Revoke(args) => revoke(args),
    }
}

fn key_file(args: &QueryArgs) -> Result<KeyFile, CliError> {
    let data_dir = DataDir::find(&args.data_dir)?;
    data_dir.create()?;
    Ok(KeyFile::new(data_dir.path()))
}

fn create(args: &KeyArgs) -> Result<(), CliError> {
    let key = key_file(&args.query)?.create(&args.name)?;
    if args.query.json {
        return print_json(&serde_json::json!({ "name": args.name, "key": key }));
    }
    say!("{key}");
    tell!("This is the only time that it is shown. It counts from now on, also for a node");
    tell!("that runs; take it back with: sinew keys revoke {}", args.name);
    Ok(())
}

fn list(args: &QueryArgs) -> Result<(), CliError> {
    let keys = key_file(args)?.list()?;
    if args.json {
        return print_json(&keys);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let rows = keys.iter().map(|key| {
        let days = now.saturating_sub(key.created_unix_secs) / 86_400;
        let age = if days == 0 { "today".to_owned() } else { format!("{days} days ago") };
        [key.name.clone(), key.hash.chars().take(12).collect(), age]
    });
    table::print(["NAME", "ID", "CREATED"], &rows.collect::<Vec<_>>());
    Ok(())
}

fn revoke(args: &KeyArgs) -> Result<(), CliError> {
    key_file(&args.query)?.revoke(&args.name)?;
    if args.query.json {
        return print_json(&serde_json::json!({ "revoked": args.name }));
    }
    say!("revoked {}: it is refused from now on", args.name);
    Ok(())
}
