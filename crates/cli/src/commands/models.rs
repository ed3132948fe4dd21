//! `sinew pull`, `list`, `show`, `rm`: the models on this machine's disk.

use std::path::Path;

use cluster::{Forgotten, Held, ModelAbout, PullStage, PullStatus};
use hub::{Hub, catalogue};
use serde::Serialize;
use store::Shelf;

use crate::args::{ListArgs, PullArgs, RmArgs, SearchArgs, ShowArgs};
use crate::client::Client;
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::progress::ProgressLine;
use crate::{models, table};

/// By the running node, whose download others can join; else by this process.
pub fn pull(args: &PullArgs) -> Result<(), CliError> {
    let data_dir = DataDir::find(&args.query.data_dir)?;
    let offline = args.offline || models::hub_settings(false).offline.is_some();
    let client = if offline { Client::here(&data_dir) } else { Client::find(&data_dir) };
    match client {
        Ok(client) if offline => find_by_node(&client, &data_dir, args),
        Ok(client) => pull_by_node(&client, args),
        Err(CliError::NoNode { .. }) => pull_here(&data_dir, args),
        Err(error) => Err(error),
    }
}

/// Prints the place of a model without downloading it: the node may know further folders.
fn find_by_node(client: &Client, data_dir: &DataDir, args: &PullArgs) -> Result<(), CliError> {
    match client.describe(&models::for_node(&args.model)) {
        Err(_) => pull_here(data_dir, args),
        Ok(about) if about.path.is_empty() => pull_here(data_dir, args),
        Ok(about) if args.query.json => {
            let (node, path) = (about.node, about.path);
            say!("{}", serde_json::json!({ "stage": "done", "path": path, "node": node }));
            Ok(())
        }
        Ok(about) => {
            let node = about.node.map_or(String::new(), |node| format!(" on node {node}"));
            say!("{} is at {}{node}", table::one_line(&args.model), table::one_line(&about.path));
            Ok(())
        }
    }
}

fn pull_by_node(client: &Client, args: &PullArgs) -> Result<(), CliError> {
    let bar = ProgressLine::new();
    let mut said = String::new();
    let done = client.pull(&models::for_node(&args.model), args.update, |status| {
        if args.query.json {
            return say!("{}", serde_json::json!(status));
        }
        let is_news = matches!(status.stage, PullStage::Pulling | PullStage::Done);
        if is_news && !status.note.is_empty() && status.note != said {
            said.clone_from(&status.note);
            bar.clear();
            tell!("{}: {}", table::one_line(&args.model), table::tame(&said));
        }
        bar.show_at(word(status), status.done_bytes, status.total_bytes, status.bytes_per_sec);
    });
    bar.clear();
    let done = done.map_err(models::with_variables)?;
    if !args.query.json {
        let model = table::one_line(&args.model);
        match done.total_bytes {
            0 => say!("{model} is on this machine's disk already"),
            bytes => say!("{model} is on this machine's disk ({})", table::bytes(bytes)),
        }
    }
    Ok(())
}

fn pull_here(data_dir: &DataDir, args: &PullArgs) -> Result<(), CliError> {
    let store = models::store(data_dir)?;
    let settings = models::hub_settings(args.offline);
    let here = if args.update { None } else { models::find_whole(&store, &args.model)? };
    let path = match here {
        Some(path) => path,
        None if args.query.json => {
            let mut tell = |progress: &hub::Progress, _: &str| say!("{}", progress_json(progress));
            models::fetch(&store, (&args.model, args.update), settings, &mut tell)?
        }
        None => {
            let asked = (args.model.as_str(), args.update);
            models::fetch(&store, asked, settings, &mut models::show())?
        }
    };
    if args.query.json {
        // One line, like the lines before it.
        say!("{}", serde_json::json!({ "stage": "done", "path": path }));
        return Ok(());
    }
    let model = table::one_line(&args.model);
    say!("{model} is at {}", table::one_line(&path.to_string_lossy()));
    Ok(())
}

fn word(status: &PullStatus) -> &str {
    match status.stage {
        PullStage::Looking => "asking the hub",
        PullStage::Waiting => &status.note,
        PullStage::Verifying | PullStage::Hashing => "verifying",
        PullStage::Pulling | PullStage::Done | PullStage::Failed => "pulling",
    }
}

/// The same fields as in a node's progress.
fn progress_json(progress: &hub::Progress) -> serde_json::Value {
    let (stage, note) = match &progress.stage {
        hub::Stage::Manifest => ("looking", ""),
        hub::Stage::Waiting(why) => ("waiting", why.as_str()),
        hub::Stage::Pulling | hub::Stage::Done => ("pulling", ""),
        hub::Stage::Verifying => ("verifying", ""),
    };
    serde_json::json!({
        "stage": stage, "note": note, "file": progress.file, "sha256": progress.sha256,
        "file_done_bytes": progress.done, "file_total_bytes": progress.total,
        "done_bytes": progress.all_done, "total_bytes": progress.all_total,
    })
}

fn list_elsewhere(client: &Client, json: bool) -> Result<(), CliError> {
    let found = client.models()?;
    if json {
        return print_json(&found);
    }
    let rows: Vec<[String; 4]> = found.iter().map(row).collect();
    table::print(["NAME", "ID", "SIZE", "WHERE"], &rows);
    Ok(())
}

pub fn list(args: &ListArgs) -> Result<(), CliError> {
    if args.catalogue {
        return list_catalogue(args.query.json);
    }
    let data_dir = DataDir::find(&args.query.data_dir)?;
    let store = models::store(&data_dir)?;
    let found = match Client::find(&data_dir) {
        // It may know folders that this command was not given.
        Ok(client) if client.is_elsewhere() => return list_elsewhere(&client, args.query.json),
        Ok(client) => client.models()?,
        Err(error @ (CliError::Elsewhere { .. } | CliError::Refused(_))) => return Err(error),
        Err(_) => {
            let here = |listed| Held { listed, node: None };
            store.list().into_iter().map(here).collect()
        }
    };
    if args.query.json {
        return print_json(&found);
    }
    let unfinished = hub::unfinished(store.models_dir());
    let rows: Vec<[String; 4]> = found.iter().map(row).collect();
    if !rows.is_empty() {
        table::print(["NAME", "ID", "SIZE", "WHERE"], &rows);
    }
    let own = found.iter().filter(|held| held.node.is_none());
    let own = own.map(|held| &held.listed.model).filter(|model| model.shelf == Shelf::Own);
    let (count, bytes) = own.fold((0, 0), |sum, one| (sum.0 + 1, sum.1 + one.bytes));
    let dir = table::one_line(&store.models_dir().to_string_lossy());
    explain!("{dir} holds {} in {count} models{}", table::bytes(bytes), free(store.models_dir()));
    for part in &unfinished {
        let (done, total) = (table::bytes(part.done_bytes), table::bytes(part.total_bytes));
        let name = table::one_line(&part.name);
        explain!(
            "not whole: {name}, {done} of {total}. Go on: sinew pull {name}; or: sinew rm {name}"
        );
    }
    let is_fetched = |dir: &Path| unfinished.iter().any(|part| part.path.parent() == Some(dir));
    for set in store.incomplete().iter().filter(|set| !is_fetched(&set.dir)) {
        let (name, set) = (table::one_line(&set.name), table::one_line(&set.to_string()));
        explain!("not whole: {name}, {set}");
    }
    if found.is_empty() {
        explain!(
            "put .gguf files there, or fetch a model: sinew pull llama3.2 (sinew list --catalogue)"
        );
    }
    Ok(())
}

/// Rows of a search.
const FOUND_ROWS: usize = 20;

/// Asks the hub itself, so that no node must run.
pub fn search(args: &SearchArgs) -> Result<(), CliError> {
    let hub = Hub::new(models::hub_settings(false));
    let words = args.words.join(" ");
    let found = hub.search(&words)?;
    if args.json {
        return print_json(&found);
    }
    if found.is_empty() {
        explain!("the hub has no GGUF model with {} in its name", table::one_line(&words));
        return Ok(());
    }
    let rows = found.iter().take(FOUND_ROWS).map(|one| {
        let gated = if one.gated { "gated" } else { "" };
        let changed = one.changed.clone().unwrap_or_default();
        [one.name.clone(), one.downloads.to_string(), changed, gated.to_owned()]
    });
    table::print(["NAME", "DOWNLOADS", "CHANGED", ""], &rows.collect::<Vec<_>>());
    if found.len() > FOUND_ROWS {
        explain!("{} more: add a word, or --json for all", found.len() - FOUND_ROWS);
    }
    explain!("to see what one would do here: sinew plan NAME; to fetch it: sinew pull NAME");
    Ok(())
}

fn row(Held { listed, node }: &Held) -> [String; 4] {
    let digest = listed.digest.map_or("-".to_owned(), |digest| digest.to_string()[..12].to_owned());
    let model = &listed.model;
    let place = match model.shelf {
        Shelf::Own => String::new(),
        _ => format!("{}: ", model.shelf),
    };
    let node = node.as_ref().map_or(String::new(), |node| format!("node {node}: "));
    let place = format!("{node}{place}{}", model.path.display());
    [model.name.clone(), digest, table::bytes(model.bytes), place]
}

fn free(dir: &Path) -> String {
    hub::free_bytes(dir)
        .map_or(String::new(), |free| format!("; its disk has {} free", table::bytes(free)))
}

#[derive(Serialize)]
struct Offer<'a> {
    #[serde(flatten)]
    entry: &'a catalogue::Entry,
    /// Of the default file, computed from the number of parameters.
    about_bytes: u64,
    fits_this_machine: bool,
}

fn list_catalogue(json: bool) -> Result<(), CliError> {
    let room = models::memory_bytes();
    let offers = catalogue::entries().iter().map(|entry| {
        let about_bytes = entry.about_bytes();
        Offer { entry, about_bytes, fits_this_machine: hub::need_bytes(about_bytes) <= room }
    });
    let offers: Vec<Offer<'_>> = offers.collect();
    if json {
        return print_json(&offers);
    }
    let rows = offers.iter().map(|offer| {
        let billions = offer.entry.parameters as f64 / 1e9;
        let fits = if offer.fits_this_machine { "this machine" } else { "several machines" };
        [
            offer.entry.short_name(),
            format!("{billions:.1}B"),
            format!("about {}", table::bytes(offer.about_bytes)),
            fits.to_owned(),
            offer.entry.repo.clone(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    table::print(["NAME", "PARAMETERS", "SIZE", "FITS", "FROM"], &rows);
    explain!("a name without its size is the first of its family; other repositories: org/repo");
    Ok(())
}

pub fn remove(args: &RmArgs) -> Result<(), CliError> {
    let data_dir = DataDir::find(&args.query.data_dir)?;
    for model in &args.models {
        let freed = remove_one(&data_dir, model)?;
        if args.query.json {
            let said = serde_json::json!({ "removed": model, "freed_bytes": freed });
            print_json(&said)?;
        } else {
            say!("removed {}: {} are free again", table::one_line(model), table::bytes(freed));
        }
    }
    if args.prompts { forget_prompts(&data_dir, args.query.json) } else { Ok(()) }
}

/// Fails if a node keeps some.
fn forget_prompts(data_dir: &DataDir, as_json: bool) -> Result<(), CliError> {
    let nodes = Client::here(data_dir)?.forget_prompts()?;
    let mut kept = Vec::new();
    for Forgotten { node, freed_bytes, problem } in &nodes {
        match problem {
            Some(why) => kept.push(format!("{node}: {why}")),
            None if as_json => {}
            None => {
                let freed = table::bytes(*freed_bytes);
                say!("removed the prompts of {node}: {freed} are free again");
            }
        }
    }
    if as_json {
        print_json(&nodes)?;
    }
    match kept.is_empty() {
        true => Ok(()),
        false => Err(CliError::Refused(format!("prompts stay on {}", kept.join("; ")))),
    }
}

fn remove_one(data_dir: &DataDir, model: &str) -> Result<u64, CliError> {
    match Client::here(data_dir) {
        Ok(client) => client.remove_model(&models::for_node(model)),
        Err(CliError::NoNode { .. }) => {
            let store = models::store(data_dir)?;
            let path = models::find(&store, model)?;
            let path = path.map(|path| path.to_string_lossy().into_owned());
            store.remove(path.as_deref().unwrap_or(model)).or_else(|error| {
                let left = hub::remove_unfinished(store.models_dir(), model);
                left.doing(format!("cannot remove {model}"))?.ok_or(error.into())
            })
        }
        Err(error) => Err(error),
    }
}

pub fn show(args: &ShowArgs) -> Result<(), CliError> {
    let data_dir = DataDir::find(&args.query.data_dir)?;
    let shown = match describe(&data_dir, &args.model) {
        Ok(shown) => shown,
        Err(error) => {
            let parts = hub::unfinished(models::store(&data_dir)?.models_dir());
            let Some(part) = parts.into_iter().find(|part| part.is_called(&args.model)) else {
                return Err(error);
            };
            if args.query.json {
                return print_json(&part);
            }
            let (done, total) = (table::bytes(part.done_bytes), table::bytes(part.total_bytes));
            let name = table::one_line(&part.name);
            explain!("{name} is not whole: {done} of {total}. Go on: sinew pull {name}");
            return Ok(());
        }
    };
    if args.template {
        say!("{}", table::tame(&shown.template));
        return Ok(());
    }
    if args.query.json { print_json(&shown) } else { print_shown(&shown) }
}

fn describe(data_dir: &DataDir, model: &str) -> Result<ModelAbout, CliError> {
    // Another node may have a model of that name.
    match Client::find(data_dir) {
        Ok(client) => {
            let found = client.describe(&models::behind(&client, model));
            return found.map_err(|error| models::with_near(error, model, Some(&client), data_dir));
        }
        Err(error @ (CliError::Elsewhere { .. } | CliError::Refused(_))) => return Err(error),
        Err(_) => {}
    }
    let store = models::store(data_dir)?;
    let path = match models::find(&store, model)? {
        Some(path) => path,
        None => store
            .path_of(&models::for_node(model))
            .map_err(|error| models::with_near(error.into(), model, None, data_dir))?,
    };
    Ok(ModelAbout::read(model, &path, models::memory_bytes(), models::check_text)?)
}

fn print_shown(shown: &ModelAbout) -> Result<(), CliError> {
    let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    let parts = if shown.parts > 1 { format!(" in {} files", shown.parts) } else { String::new() };
    let heads = format!("{}, of keys and values {}", number(shown.heads), number(shown.kv_heads));
    let fits = match (shown.fits_this_machine, &shown.node) {
        (true, None) => "this machine alone",
        (true, Some(_)) => "that node alone",
        (false, _) => "several machines",
    };
    let template = if shown.template.is_empty() { "none" } else { "yes (--template prints it)" };
    let mtp = if shown.has_mtp_block { ", and a block that guesses tokens (MTP)" } else { "" };
    let mut rows = vec![
        ("name", shown.name.clone()),
        ("title", shown.title.clone()),
        ("node", shown.node.clone().unwrap_or_default()),
        ("file", if shown.path.is_empty() { "served" } else { &shown.path }.to_owned()),
        ("size", format!("{}{parts}", table::bytes(shown.bytes))),
        ("architecture", shown.architecture.clone()),
        ("parameters", format!("{:.2}B", shown.parameters as f64 / 1e9)),
        ("quantisation", shown.quantisation.clone()),
        ("layers", format!("{}{mtp}", number(shown.layers))),
        ("width", number(shown.width)),
        ("heads", heads),
        ("context", format!("{} tokens", number(shown.context_tokens))),
        ("vocabulary", number(shown.vocabulary.map(|count| count as u64))),
        ("pictures", shown.sees_by.clone().unwrap_or_else(|| "no".to_owned())),
        ("chat template", template.to_owned()),
        ("licence", shown.licence.clone()),
        ("fits", format!("{fits}, with about {}", table::bytes(shown.needs_about_bytes))),
    ];
    if let Some(experts) = shown.experts.filter(|experts| *experts > 0) {
        rows.insert(11, ("experts", experts.to_string()));
    }
    if let Some(what) = &shown.not_read {
        rows.push(("not read", what.clone()));
    }
    rows.extend(shown.remarks.iter().map(|remark| ("note", remark.clone())));
    if let Some(why) = &shown.cannot_run {
        rows.push(("cannot be run", why.clone()));
    }
    for (what, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        explain!("{what:<14} {}", table::one_line(value));
    }
    Ok(())
}
