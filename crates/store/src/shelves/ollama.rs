//! Ollama's store: `manifests/HOST/NAMESPACE/MODEL/TAG` lists a model's layers, and
//! `blobs/sha256-HEX` are their bytes.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::{DEPTH_MAX, FILES_MAX, Shelf, Shelved, shelved};

const REGISTRY: &str = "registry.ollama.ai";
const MODEL: &str = "model";
const ADAPTER: &str = "adapter";
/// What the types of all layers begin with.
const LAYER: &str = "application/vnd.ollama.image.";
/// Settings have some hundred bytes.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
/// A real manifest has some hundred bytes.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    digest: String,
}

impl Layer {
    fn is(&self, kind: &str) -> bool {
        self.media_type.strip_prefix(LAYER) == Some(kind)
    }

    /// Its file. The digest comes from an untrusted file.
    fn blob(&self, dir: &Path) -> Option<PathBuf> {
        let hex = self.digest.strip_prefix("sha256:")?;
        let is_hex = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| dir.join("blobs").join(format!("sha256-{hex}")))
    }
}

pub(super) fn scan(dir: &Path) -> Vec<Shelved> {
    let root = dir.join("manifests");
    let mut manifests = Vec::new();
    descend(&root, 0, &mut manifests);
    manifests.sort();
    let model = |path: &PathBuf| {
        let name = name(path.strip_prefix(&root).ok()?)?;
        let manifest = read(path)?;
        let has_adapter = manifest.layers.iter().any(|layer| layer.is(ADAPTER));
        let model = shelved(manifest.model(dir)?, name, &Shelf::Ollama)?;
        Some(Shelved { has_adapter, ..model })
    };
    manifests.iter().filter_map(model).collect()
}

/// A sentence on what Ollama keeps with the model of this name, whose file is at `path`, and what
/// is not used here: a system prompt, parameters, example messages. `None` if there is nothing.
pub fn unused_layers(path: &Path, asked: &str) -> Option<String> {
    let dir = path.parent()?.parent()?;
    let root = dir.join("manifests");
    let mut manifests = Vec::new();
    descend(&root, 0, &mut manifests);
    let manifest = manifests.iter().find_map(|at| {
        let name = name(at.strip_prefix(&root).ok()?)?;
        let is_it = name == asked || name.strip_suffix(":latest") == Some(asked);
        let manifest = is_it.then(|| read(at))??;
        (manifest.model(dir)?.file_name() == path.file_name()).then_some(manifest)
    })?;
    let text = |layer: &Layer| small(&layer.blob(dir)?, SETTINGS_BYTES_MAX);
    let of = |kind: &'static str| manifest.layers.iter().filter(move |layer| layer.is(kind));
    let mut unused = Vec::new();
    if of("system").next().is_some() {
        unused.push("a system prompt".to_owned());
    }
    let names: Vec<String> = of("params").filter_map(text).flat_map(|it| parameters(&it)).collect();
    if !names.is_empty() {
        unused.push(format!("parameters ({})", names.join(", ")));
    }
    if of("messages").next().is_some() {
        unused.push("example messages".to_owned());
    }
    (!unused.is_empty()).then(|| {
        format!(
            "Ollama keeps {} with {asked}, which are not used here. A preset has such settings: \
             sinew preset create NAME --from {asked}",
            unused.join(" and ")
        )
    })
}

/// The names of the parameters that change answers. Stop strings that are marks of the chat
/// template end answers without them.
fn parameters(text: &[u8]) -> Vec<String> {
    let parameters: serde_json::Map<String, Value> =
        serde_json::from_slice(text).unwrap_or_default();
    let is_mark = |stop: &Value| {
        let bounds = [('<', '>'), ('[', ']')];
        let stop = stop.as_str().unwrap_or("");
        bounds.iter().any(|(open, close)| stop.starts_with(*open) && stop.ends_with(*close))
    };
    let is_usual = |(name, value): &(String, Value)| {
        name == "stop" && value.as_array().is_some_and(|stops| stops.iter().all(is_mark))
    };
    let others = parameters.into_iter().filter(|parameter| !is_usual(parameter));
    others.map(|(name, _)| crate::naming::clean(&name)).collect()
}

fn descend(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if found.len() >= FILES_MAX {
            return;
        }
        if path.is_file() {
            found.push(path);
        } else if path.is_dir() && depth < DEPTH_MAX {
            descend(&path, depth + 1, found);
        }
    }
}

/// `MODEL:TAG`, with an unusual host or namespace in front.
fn name(path: &Path) -> Option<String> {
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let [host, middle @ .., model, tag] = &parts[..] else { return None };
    let folder = match (host.as_str(), middle.join("/")) {
        (REGISTRY, space) if space == "library" || space.is_empty() => String::new(),
        (REGISTRY, space) => format!("{space}/"),
        (host, space) if space.is_empty() => format!("{host}/"),
        (host, space) => format!("{host}/{space}/"),
    };
    Some(format!("{folder}{model}:{tag}"))
}

fn read(manifest: &Path) -> Option<Manifest> {
    serde_json::from_slice(&small(manifest, MANIFEST_BYTES_MAX)?).ok()
}

fn small(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let size = std::fs::metadata(path).ok()?.len();
    (size <= bytes_max).then(|| std::fs::read(path).ok())?
}

impl Manifest {
    fn model(&self, dir: &Path) -> Option<PathBuf> {
        self.layers.iter().find(|layer| layer.is(MODEL))?.blob(dir)
    }
}
