//! `sinew keys`: the keys for other machines' access to this node's API.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serve::{KeyUsage, KeysUsage};

use crate::api_keys::{KeptKey, KeyFile};
use crate::args::{KeyArgs, KeysCommand, QueryArgs};
use crate::client::Client;
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

/// A key, with its usage if the node runs.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    key: &'a KeptKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<KeyUsage>,
}

fn list(args: &QueryArgs) -> Result<(), CliError> {
    let keys = key_file(args)?.list()?;
    let used = usage(args);
    if args.json {
        let usage = |key: &KeptKey| used.as_ref()?.keys.get(&key.name).copied();
        let listed = keys.iter().map(|key| Listed { key, usage: usage(key) });
        return print_json(&listed.collect::<Vec<_>>());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let about = |key: &KeptKey| {
        let days = now.saturating_sub(key.created_unix_secs) / 86_400;
        let age = if days == 0 { "today".to_owned() } else { format!("{days} days ago") };
        [key.name.clone(), key.hash.chars().take(12).collect(), age]
    };
    let Some(used) = used else {
        table::print(["NAME", "ID", "CREATED"], &keys.iter().map(about).collect::<Vec<_>>());
        tell!("What each key has used is known while the node runs: sinew up");
        return Ok(());
    };
    let rows = keys.iter().map(|key| {
        let [name, id, age] = about(key);
        let usage = used.keys.get(&key.name).copied().unwrap_or_default();
        let KeyUsage { requests, prompt_tokens, cached_tokens, generated_tokens } = usage;
        let [requests, prompt, cached, generated] =
            [requests, prompt_tokens, cached_tokens, generated_tokens].map(|one| one.to_string());
        [name, id, age, requests, prompt, cached, generated]
    });
    let head = ["NAME", "ID", "CREATED", "REQUESTS", "PROMPT", "CACHED", "GENERATED"];
    table::print(head, &rows.collect::<Vec<_>>());
    let hours = now.saturating_sub(used.since_unix_secs) / 3600;
    tell!("Requests and tokens count since this node began, {hours} hours ago.");
    Ok(())
}

/// What each key has used; `None` if the node does not run.
fn usage(args: &QueryArgs) -> Option<KeysUsage> {
    Client::find(&DataDir::find(&args.data_dir).ok()?).ok()?.keys_usage().ok()
}

fn revoke(args: &KeyArgs) -> Result<(), CliError> {
    key_file(&args.query)?.revoke(&args.name)?;
    if args.query.json {
        return print_json(&serde_json::json!({ "revoked": args.name }));
    }
    say!("revoked {}: it is refused from now on", args.name);
    Ok(())
}
