//! Finds the file of a model's vision tower: an mmproj file in the model's folder, or in the folder
//! above it.
//!
//! Publishers name the file after the model (`mmproj-Qwen3-VL-8B-Instruct-F16.gguf`). Where a
//! folder holds one model, the name may lack it (`mmproj-F16.gguf`). A user's folder may hold many
//! models, so the tower's name, kind and sizes must all suit the model.

use std::path::{Path, PathBuf};

use gguf::{Directory, Source};

/// The most mmproj files of a folder that are looked at.
const CANDIDATES_MAX: usize = 64;

/// Projectors, and the architectures that take their rows.
const KINDS: &[(&str, &[&str])] = &[
    ("qwen3vl_merger", &["qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen4exp"]),
    ("gemma3", &["gemma3"]),
    ("gemma4v", &["gemma4"]),
    ("kimik25", &["deepseek2", "kimi-linear", "kimi-k3"]),
    ("pixtral", &["llama", "mistral3", "mistral4"]),
    ("llama4", &["llama4"]),
    ("glm4v", &["glm4", "glm4moe"]),
];

/// Words in the names of towers that name no model.
const FILLERS: &[&str] = &["mmproj", "model", "gguf"];
/// Formats of towers, the preferred ones first.
const FORMATS: &[&str] = &["f16", "bf16", "f32", "q8_0", "q8", "fp16", "fp32"];

/// Whether a file is that of a tower, by its name.
pub fn is_tower(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("mmproj") && name.ends_with(".gguf")
}

/// The file of the tower that belongs to the model at `path`, if there is one beside it.
pub(crate) fn tower_of(path: &Path) -> Option<PathBuf> {
    let candidates = candidates_for(path);
    let model = header_beside(path, &candidates)?;
    candidates.into_iter().find(|candidate| misfit_of(&model, candidate).is_none())
}

/// A tower beside the model at `path` that seems to be its own and cannot be used, and why; `None`
/// if another one is used.
pub fn unused_tower(path: &Path) -> Option<(PathBuf, String)> {
    let candidates = candidates_for(path);
    let model = header_beside(path, &candidates)?;
    let mut unused = None;
    for candidate in candidates {
        let misfit = misfit_of(&model, &candidate)?;
        let is_named = own_words(&stem_of(&candidate).to_ascii_lowercase()).next().is_some();
        if unused.is_none() && (is_named || !misfit.is_anothers) {
            unused = Some((candidate, misfit.why));
        }
    }
    unused
}

/// Why the file `tower` cannot be the tower of the model at `path`; `None` if it can.
///
/// # Errors
/// The model cannot be read.
pub fn why_no_tower(path: &Path, tower: &Path) -> Result<Option<String>, gguf::Error> {
    let model = gguf::read_header(path)?;
    Ok(misfit_of(&model, tower).map(|misfit| misfit.why))
}

/// The towers beside the model at `path` whose names suit it, the preferred one first.
fn candidates_for(path: &Path) -> Vec<PathBuf> {
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let (Some(folder), Some(stem)) = (folder, path.file_stem().and_then(|stem| stem.to_str()))
    else {
        return Vec::new();
    };
    let mut candidates = towers_in(folder);
    // Large models have a folder for each format.
    let above = folder.parent().filter(|_| candidates.is_empty() && !path.is_dir());
    candidates.extend(above.into_iter().flat_map(towers_in));
    candidates.retain(|candidate| path.is_dir() || suits_name(candidate, stem));
    candidates.sort_by_key(|candidate| (preference(candidate), candidate.clone()));
    candidates
}

/// The header of the model at `path`, if there are candidates for its tower.
fn header_beside(path: &Path, candidates: &[PathBuf]) -> Option<Directory> {
    match path.is_dir() {
        _ if candidates.is_empty() => None,
        true => crate::virtual_header(path),
        false => gguf::read_header(path).ok(),
    }
}

fn towers_in(folder: &Path) -> Vec<PathBuf> {
    let here = Path::new(".");
    let entries = std::fs::read_dir(if folder.as_os_str().is_empty() { here } else { folder });
    let entries = entries.into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_tower));
    named.map(|entry| folder.join(entry.file_name())).take(CANDIDATES_MAX).collect()
}

/// Of a repository's files, by their paths, the one with the tower of the model at `model`: in the
/// same folder, or in the one above, where large models have a folder for each format.
pub fn choose_tower<'a>(files: impl Iterator<Item = &'a str>, model: &str) -> Option<&'a str> {
    let model = Path::new(model);
    let stem = stem_of(model);
    let folder = model.parent();
    let above = folder.and_then(Path::parent);
    let distance = |file: &Path| match file.parent() {
        of_file if of_file == folder => Some(0),
        of_file if of_file == above => Some(1),
        _ => None,
    };
    let towers = files.map(Path::new).filter(|file| is_tower(&file.to_string_lossy()));
    let towers = towers.filter(|file| suits_name(file, stem));
    let near = towers.filter_map(|file| Some((distance(file)?, preference(file), file)));
    near.min().and_then(|(_, _, file)| file.to_str())
}

/// Names with a model first, then formats in their order.
fn preference(candidate: &Path) -> (bool, usize) {
    let name = stem_of(candidate).to_ascii_lowercase();
    let format = FORMATS.iter().position(|format| words(&name).any(|word| word == *format));
    (own_words(&name).next().is_none(), format.unwrap_or(FORMATS.len()))
}

fn stem_of(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("")
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(['-', '.', ' ']).filter(|word| !word.is_empty())
}

fn own_words(name: &str) -> impl Iterator<Item = &str> {
    words(name).filter(|word| !FILLERS.contains(word) && !FORMATS.contains(word))
}

/// Whether the words of a tower's name begin the model's name. A name without any suits all.
fn suits_name(candidate: &Path, model: &str) -> bool {
    let (tower, model) = (stem_of(candidate).to_ascii_lowercase(), model.to_ascii_lowercase());
    let mut of_model = words(&model);
    own_words(&tower).all(|word| of_model.next() == Some(word))
}

/// Why a file is not a model's tower.
struct Misfit {
    why: String,
    /// It may well be the tower of another model.
    is_anothers: bool,
}

/// Why the file is not the model's tower, by its header; `None` if it is.
fn misfit_of(model: &Directory, tower: &Path) -> Option<Misfit> {
    let unusable = |why: String| Some(Misfit { why, is_anothers: false });
    // Opening it also finds out that its end is missing.
    let file = match gguf::File::open(tower) {
        Ok(file) => file,
        Err(error) => return unusable(error.to_string()),
    };
    let tower: &Directory = file.directory();
    let text = |directory: &Directory, key: &str| {
        directory.find_str(key).ok().flatten().unwrap_or("").to_owned()
    };
    let number = |directory: &Directory, key: &str| directory.find_u64(key).ok().flatten();
    if text(tower, "general.architecture") != "clip" {
        return unusable("it is no mmproj file".to_owned());
    }
    let of_vision = text(tower, "clip.vision.projector_type");
    let any = text(tower, "clip.projector_type");
    let projector = if of_vision.is_empty() { any } else { of_vision };
    let Some((_, architectures)) = KINDS.iter().find(|(kind, _)| *kind == projector) else {
        let known: Vec<_> = KINDS.iter().map(|(kind, _)| *kind).collect();
        let known = known.join(", ");
        return unusable(format!("its projector is \"{projector}\"; these are read: {known}"));
    };
    let anothers = |why: String| Some(Misfit { why, is_anothers: true });
    let arch = text(model, "general.architecture");
    if !architectures.contains(&&*arch) {
        let wanted = architectures.join(", ");
        return anothers(format!("it is for models of {wanted}, and this one is {arch}"));
    }
    let width = number(model, &format!("{arch}.embedding_length"));
    match number(tower, "clip.vision.projection_dim") {
        Some(rows) if Some(rows) != width => {
            let width = width.unwrap_or(0);
            anothers(format!("it is for a model of width {rows}, and this one has {width}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_model_or_none() {
        let suits = |tower: &str, model: &str| suits_name(Path::new(tower), model);
        for (tower, model) in [
            ("mmproj-F16.gguf", "Qwen3-VL-8B-Instruct-Q4_K_M"),
            ("mmproj-model-f16.gguf", "gemma-3-4b-it-Q4_0"),
            ("mmproj-Qwen3-VL-8B-Instruct-F16.gguf", "Qwen3-VL-8B-Instruct-Q4_K_M"),
            ("mmproj-Qwen3-VL-8B-Instruct-F16.gguf", "Qwen3-VL-8B-Instruct-Q8_0-00001-of-00002"),
            ("Qwen3-VL-8B-Instruct.mmproj-q8_0.gguf", "qwen3-vl-8b-instruct.Q4_K_M"),
            ("qwen35-sees.mmproj.gguf", "qwen35-sees"),
        ] {
            assert!(suits(tower, model), "{tower} beside {model}");
        }
        for (tower, model) in [
            ("mmproj-Qwen3-VL-8B-Instruct-F16.gguf", "Qwen3-8B-Q4_K_M"),
            ("mmproj-Qwen3-VL-8B-Thinking-F16.gguf", "Qwen3-VL-8B-Instruct-Q4_K_M"),
        ] {
            assert!(!suits(tower, model), "{tower} beside {model}");
        }
    }

    #[test]
    fn a_name_and_a_good_format_come_first() {
        let names =
            ["mmproj-BF16.gguf", "mmproj-a-f32.gguf", "mmproj-F16.gguf", "mmproj-a-f16.gguf"];
        let mut sorted = names;
        sorted.sort_by_key(|name| preference(Path::new(name)));
        assert_eq!(sorted, [names[3], names[1], names[2], names[0]]);
        assert!(
            is_tower("Model.MMPROJ-f16.gguf") && !is_tower("mmproj.bin") && !is_tower("m.gguf")
        );
    }

    #[test]
    fn a_repositorys_tower_is_beside_the_model_or_above_it() {
        let files = ["a-Q4_K_M.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "x/mmproj-a-F16.gguf"];
        let chosen = |model: &str| choose_tower(files.into_iter(), model);
        assert_eq!(chosen("a-Q4_K_M.gguf"), Some("mmproj-F16.gguf"));
        assert_eq!(chosen("x/a-Q4_K_M.gguf"), Some("x/mmproj-a-F16.gguf"));
        assert_eq!(chosen("y/a.gguf"), Some("mmproj-F16.gguf"), "in the folder above");
        assert_eq!((chosen("y/z/a.gguf"), chosen("x/b.gguf")), (None, Some("mmproj-F16.gguf")));
    }
}
