//! Models by name for commands: their places on this machine, their sources, and downloads without
//! a running node.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cluster::{Here, InstanceSpec};
use hub::{Hub, HubError, Name, Progress, Room, Settings, Stage};
use store::{Places, Store};

use crate::client::Client;
use crate::data_dir::{self, DataDir};
use crate::error::CliError;
use crate::machine;
use crate::near;
use crate::progress::ProgressLine;
use crate::table;

/// The usual places, and the user's folders.
pub fn places(folders: &[PathBuf]) -> Places {
    let mut places = Places::from_env();
    let absolute = |dir: &PathBuf| std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
    places.folders.extend(folders.iter().map(absolute));
    places
}

pub fn hub_settings(offline: bool) -> Settings {
    let mut settings = Settings::from_env();
    if offline {
        settings.offline = Some("--offline was given");
    }
    settings
}

/// Default memory for models on this machine.
pub fn memory_bytes() -> u64 {
    machine::share_for_models(machine::memory_bytes().bytes)
}

/// The models on this machine, for commands without a node.
pub fn store(data_dir: &DataDir) -> Result<Store, CliError> {
    data_dir.create()?;
    let store = Store::open_with(data_dir.path(), places(&[]))?;
    Ok(store.judging(|header| can_run(header).map(drop)))
}

/// How the note of a model without a usable chat template begins.
const NO_CHATS: &str = "the model takes no chats";

/// The state of a model that answers: some answer no chats.
pub fn ready(notes: &[String]) -> String {
    let is_bare = notes.iter().any(|note| note.starts_with(NO_CHATS));
    if is_bare { "ready, no chats" } else { "ready" }.to_owned()
}

/// Checks a model's tokenizer and chat template: returns remarks, or why the model is unusable.
pub fn check_text(header: &gguf::Directory) -> Result<Vec<String>, String> {
    let tokenizer = text::Tokenizer::from_gguf(header).map_err(|error| error.to_string())?;
    let template = text::ChatTemplate::from_gguf(header, &tokenizer);
    let template = template.fault().map(|why| format!("{NO_CHATS}: {why}"));
    Ok(tokenizer.warnings().iter().cloned().chain(template).collect())
}

/// Whether this version can run a model, by its file's header.
fn can_run(header: &gguf::Directory) -> Result<Vec<String>, String> {
    cluster::can_run(header, check_text)
}

/// The model as a node should read it: the absolute path of a file, since a node has another
/// working directory, and otherwise the given name.
pub fn for_node(model: &str) -> String {
    let path = Path::new(model);
    // A folder of the same name must not hide a model's name.
    let is_path = is_model(path) || model.contains(std::path::is_separator) && path.exists();
    let absolute = is_path.then(|| std::path::absolute(path).ok()).flatten();
    absolute.map_or_else(|| model.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// The model behind a preset or a name of `sinew ps`, as a node or this machine's store knows it;
/// any other name stays.
pub fn behind(client: &Client, name: &str) -> String {
    let preset = client.preset(name).ok().flatten();
    let name = preset.as_ref().map_or(name, |preset| preset.model.as_str());
    let found = || {
        let instances = client.status().ok()?.instances;
        let digest = instances.into_iter().find(|one| one.model == name)?.digest?;
        let held = client.models().ok()?;
        if held.iter().any(|held| held.listed.model.name == name) {
            return None;
        }
        let same = held.into_iter().find(|held| held.listed.digest == Some(digest))?;
        Some(match same.node {
            None => same.listed.model.path.to_string_lossy().into_owned(),
            Some(_) => same.listed.model.name,
        })
    };
    found().unwrap_or_else(|| for_node(name))
}

/// An error about a name, with the names like it on the nodes, or on this machine's disk.
pub fn with_near(
    error: CliError,
    name: &str,
    client: Option<&Client>,
    data_dir: &DataDir,
) -> CliError {
    if is_model(Path::new(name)) || matches!(error, CliError::Left { .. }) {
        return error;
    }
    let of_store = || store(data_dir).map(|store| store.list()).unwrap_or_default();
    let names: Vec<String> = match client {
        Some(client) => {
            let served = client.status().ok();
            let served: Vec<String> = served
                .iter()
                .flat_map(|status| status.models())
                .map(|one| one.model.clone())
                .collect();
            let held = client.models().unwrap_or_default();
            let held = held.into_iter().map(|held| held.listed.model.name);
            let presets = client.presets().unwrap_or_default();
            let presets = presets.into_iter().map(|preset| preset.name);
            served.into_iter().chain(held).chain(presets).collect()
        }
        None => of_store().into_iter().map(|listed| listed.model.name).collect(),
    };
    let near = near::nearest(name, names.iter().map(String::as_str));
    if near.is_empty() || near.contains(&name) {
        return error;
    }
    CliError::Refused(format!("{error}. Did you mean {}?", table::one_line(&near.join(" or "))))
}

/// Variables of the hub that a node reads at its start.
const HUB_VARIABLES: [&str; 4] =
    ["HF_ENDPOINT", "MODEL_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// The error of a node's download, with the variables of this command that had no effect on it.
pub fn with_variables(error: CliError) -> CliError {
    let set = HUB_VARIABLES.into_iter().filter(|name| data_dir::set(name).is_some());
    let set: Vec<&str> = set.collect();
    match error {
        CliError::Refused(text) if !set.is_empty() && text.contains("HF_") => {
            CliError::Refused(format!(
                "{text}. {} of this command had no effect: the node downloads, and reads such \
                 variables when it starts. Restart it with them",
                set.join(", ")
            ))
        }
        error => error,
    }
}

/// Refuses a download if this command may ask no hub.
///
/// # Errors
/// No node has the model.
pub fn check_offline(client: &Client, model: &str) -> Result<(), CliError> {
    let Some(why) = hub_settings(false).offline else { return Ok(()) };
    match client.identify(model)?.name {
        Some(_) => Ok(()),
        None => Err(CliError::Refused(format!("{why}, and no node has {model}"))),
    }
}

/// Whether a path is a file, or a folder with a model.
pub fn is_model(path: &Path) -> bool {
    path.is_file() || checkpoint::is_folder(path)
}

/// Fetches a model to this machine's disk if it is missing, without a node. The request then has
/// the path; its name for requests stays.
pub fn fetch_for(request: &mut InstanceSpec, data_dir: &DataDir) -> Result<(), CliError> {
    if is_model(Path::new(&request.model)) {
        request.model = for_node(&request.model);
        return Ok(());
    }
    let store = store(data_dir)?;
    let name = request.model.clone();
    let path = match find(&store, &name)? {
        Some(path) => path,
        None => fetch(&store, (&name, false), hub_settings(false), &mut show())?,
    };
    request.model = path.to_string_lossy().into_owned();
    let bare = name.strip_suffix(":latest").unwrap_or(&name).to_owned();
    request.name.get_or_insert(bare);
    Ok(())
}

/// The path of a model on this machine, by its name or by its repository's.
///
/// # Errors
/// The name refers to something that is not a model.
pub fn find(store: &Store, name: &str) -> Result<Option<PathBuf>, CliError> {
    match cluster::locate(store, &for_node(name)) {
        Ok((_, path)) => Ok(Some(path)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Like `find`, but only for a readable model: an unreadable one is useless, and is fetched again.
///
/// # Errors
/// The name refers to something that is not a model, or to a damaged file without a name on the
/// hub.
pub fn find_whole(store: &Store, name: &str) -> Result<Option<PathBuf>, CliError> {
    match cluster::look(store, &for_node(name)) {
        Here::Whole(_, path) => Ok(Some(path)),
        Here::Damaged(_) if Name::parse(name).is_ok() => Ok(None),
        Here::Damaged(why) => Err(CliError::Usage(why)),
        Here::Missing(error) if error.is_missing() => Ok(None),
        Here::Missing(error) => Err(error.into()),
    }
}

/// Fetches a model into the node's folder, with progress through `on_progress`.
pub fn fetch(
    store: &Store,
    (name, update): (&str, bool),
    settings: Settings,
    on_progress: &mut (dyn FnMut(&Progress, &str) + Send),
) -> Result<PathBuf, CliError> {
    let parsed = Name::parse(name).map_err(|error| match (store.path_of(name), error) {
        // For text that looks like a path, the error is about a path.
        (Err(missing), HubError::Name { .. }) => CliError::Store(missing),
        (_, error) => CliError::Hub(error),
    })?;
    if let Some(why) = settings.offline {
        let (name, models) = (name.to_owned(), store.models_dir().to_path_buf());
        return Err(HubError::Offline { name, why, models }.into());
    }
    let room = Room { bytes: memory_bytes(), whose: "this machine has".to_owned() };
    let hub = Hub::new(settings);
    let teller = std::sync::Mutex::new((on_progress, String::new()));
    let watch = |progress: &Progress| {
        let mut teller = teller.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (on_progress, why) = &mut *teller;
        on_progress(progress, why);
        ControlFlow::Continue(())
    };
    let mut plan = hub.plan(&parsed, Some(&room), &watch)?;
    match cluster::look(store, &plan.name) {
        Here::Whole(_, path) if !update => return Ok(path),
        Here::Whole(..) | Here::Damaged(_) => plan.is_doubted = true,
        // The files exist under their names, but no model is found: their content is checked.
        Here::Missing(_) => plan.is_doubted = plan.is_there(store.models_dir()),
    }
    tell!("{name}: {}", plan.why);
    if let Some(passed) = store.passed_by(name) {
        tell!("{}", table::one_line(&passed));
    }
    let models = store.models_dir();
    hub.check_header(&plan, models, None, &|header| can_run(header).map(drop), &watch)?;
    let pulled = hub.fetch(&plan, models, &watch)?;
    store.refresh();
    Ok(pulled.path)
}

/// Shows progress as a line on a terminal.
pub fn show() -> impl FnMut(&Progress, &str) + Send {
    let bar = ProgressLine::new();
    move |progress, _| match &progress.stage {
        Stage::Manifest => bar.say("asking the hub"),
        Stage::Waiting(why) => bar.say(why),
        Stage::Pulling => bar.show("pulling", progress.all_done, progress.all_total),
        Stage::Verifying => bar.show("verifying", progress.done, progress.total),
        Stage::Done => bar.clear(),
    }
}
