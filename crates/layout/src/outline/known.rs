//! The tensors of a file that a model reads, or may leave.

use std::collections::HashSet;

use gguf::Directory;

use crate::config::Config;
use crate::factors;
use crate::file::{Error, names, unread};
use crate::parts::eagle3;

/// An unused tensor would have changed the results: this version does not support such a file.
/// Towers and MTP blocks are exceptions: the model runs without them.
pub(super) fn check_all_known(
    directory: &Directory,
    config: &Config,
    read: &HashSet<&str>,
) -> Result<(), Error> {
    let names = || directory.tensors().iter().map(|tensor| tensor.name.as_str());
    let of_mtp = names().filter(|name| name.contains(names::MTP)).filter_map(names::layer_of);
    let of_mtp: HashSet<usize> = of_mtp.collect();
    let may_be_left = |name: &str| match names::layer_of(name) {
        Some(at) if at >= config.layers => of_mtp.contains(&at),
        Some(_) => {
            // Layers that follow another's choice may still have an indexer.
            let follows = config.arch.indexer.is_some() && name.contains(".indexer.");
            follows || names::REDUNDANT.iter().any(|redundant| name.ends_with(redundant))
        }
        None => {
            let is_pooled = names::is_of_pooled(name);
            let is_entry = config.encoder.is_some() && names::is_of_entry(name);
            let is_apart = names::APART.contains(&name) || unread::is_apart(name);
            let is_apart = is_apart || is_pooled || is_entry;
            is_apart || (config.eagle3.is_some() && name == eagle3::TOKENS)
        }
    };
    let is_factor = |name: &str| factors::is_one(directory, name, read);
    match names().find(|name| !read.contains(name) && !may_be_left(name) && !is_factor(name)) {
        None => Ok(()),
        Some(name) => {
            let (name, arch) = (name.to_owned(), config.arch.name.to_owned());
            Err(Error::UnknownTensor { probably: unread::probably(&name), name, arch })
        }
    }
}

/// The names in `read`, and those of the MTP block at layer `block`.
pub(super) fn known<'a>(
    directory: &'a Directory,
    read: &HashSet<&'a str>,
    block: Option<usize>,
) -> HashSet<&'a str> {
    let names = directory.tensors().iter().map(|tensor| tensor.name.as_str());
    let of_block = names.filter(|name| block.is_some() && names::layer_of(name) == block);
    read.iter().copied().chain(of_block).collect()
}
