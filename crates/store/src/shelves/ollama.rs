//! Ollama's store: `manifests/HOST/NAMESPACE/MODEL/TAG` lists a model's layers, and
//! `blobs/sha256-HEX` are their bytes.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{DEPTH_MAX, FILES_MAX, Shelf, Shelved, shelved};

const REGISTRY: &str = "registry.ollama.ai";
const MODEL_LAYER: &str = "application/vnd.ollama.image.model";
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

pub(super) fn scan(dir: &Path) -> Vec<Shelved> {
    let root = dir.join("manifests");
    let mut manifests = Vec::new();
    descend(&root, 0, &mut manifests);
    manifests.sort();
    let model = |path: &PathBuf| {
        let name = name(path.strip_prefix(&root).ok()?)?;
        shelved(blob(dir, path)?, name, &Shelf::Ollama)
    };
    manifests.iter().filter_map(model).collect()
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

/// The path of a manifest's model. The digest comes from an untrusted file.
fn blob(dir: &Path, manifest: &Path) -> Option<PathBuf> {
    let size = std::fs::metadata(manifest).ok()?.len();
    let text = (size <= MANIFEST_BYTES_MAX).then(|| std::fs::read(manifest).ok())??;
    let manifest: Manifest = serde_json::from_slice(&text).ok()?;
    let layer = manifest.layers.iter().find(|layer| layer.media_type == MODEL_LAYER)?;
    let hex = layer.digest.strip_prefix("sha256:")?;
    let is_hex = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| dir.join("blobs").join(format!("sha256-{hex}")))
}
