//! Headers of models that see: that of an mmproj file beside the model's own, as a node gives them.

use gguf::Directory;

/// A file of the fixtures for models that see.
pub fn file(name: &str) -> Vec<u8> {
    let is_model = name.ends_with("-sees.gguf");
    let dir = if is_model { "sees" } else { "vision" };
    let path = fixtures::path(&format!("{dir}/{name}"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn header(name: &str) -> Directory {
    let bytes = file(name);
    Directory::parse(&bytes, bytes.len() as u64).unwrap()
}

/// A model with the tower of `mmproj`.
pub fn with_tower(model: &Directory, mmproj: &Directory) -> Directory {
    let of_tower = mmproj.metadata().filter(|(key, _)| !key.starts_with("general."));
    let entries = model.metadata().chain(of_tower);
    let entries = entries.map(|(key, value)| (key.to_owned(), value.clone())).collect();
    model.with(entries, [model.tensors(), mmproj.tensors()].concat())
}
