//! Unused tensors of a file, and their probable purpose.

use std::collections::HashSet;

use gguf::Directory;

use super::names;

/// Parts of tensor names, and the purpose of such tensors.
const KINDS: &[(&str, Belongs)] = &[
    (".lora_", Belongs::ADAPTER),
    (names::MTP, Belongs::MTP),
    ("indexer", Belongs("an indexer, which picks the positions that attention sees")),
    ("ple_", Belongs("n-gram embeddings")),
    ("hc_", Belongs("hyper-connections, which are several residual streams")),
    ("ssm_", Belongs("layers that carry a state")),
    ("shortconv.", Belongs("layers that carry a state")),
];

/// Prefixes of tensor names, and the purpose of such tensors.
const PREFIXES: &[(&str, Belongs)] = &[
    ("v.", Belongs::TOWER),
    ("mm.", Belongs::TOWER),
    ("a.", Belongs("an audio tower, which reads sound")),
];

/// The purpose of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Belongs(&'static str);

impl Belongs {
    const ADAPTER: Self = Self("an adapter (LoRA), which has to be merged into its model first");
    const TOWER: Self = Self("a vision tower, which reads images");
    const MTP: Self = Self("an MTP block, which predicts further tokens");
}

fn belongs(name: &str) -> Option<Belongs> {
    let by_prefix = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
    by_prefix.or(KINDS.iter().find(|(part, _)| name.contains(part))).map(|(_, belongs)| *belongs)
}

/// Whether tensor `name` is part of a tower beside the model, which runs without it.
pub(crate) fn is_apart(name: &str) -> bool {
    PREFIXES.iter().any(|(prefix, _)| name.starts_with(prefix))
}

/// A remark for error messages on the probable purpose of tensor `name`; empty if unknown.
pub(crate) fn probably(name: &str) -> String {
    belongs(name).map_or(String::new(), |Belongs(what)| format!(" (probably part of {what})"))
}

/// Counts the tensors that are not in `read`, by purpose. Layers from `layers` on are MTP blocks.
pub(crate) fn summary(
    directory: &Directory,
    layers: usize,
    read: &HashSet<&str>,
) -> Option<String> {
    // The `vision` crate reads a tower that the header describes.
    let sees = directory.get("clip.vision.block_count").is_some();
    let mut counts: Vec<(Belongs, usize)> = Vec::new();
    for tensor in directory.tensors().iter().filter(|tensor| !read.contains(tensor.name.as_str())) {
        let of_later_layer = names::layer_of(&tensor.name).is_some_and(|at| at >= layers);
        let found = if of_later_layer { Some(Belongs::MTP) } else { belongs(&tensor.name) };
        let Some(found) = found.filter(|found| !(sees && *found == Belongs::TOWER)) else {
            continue;
        };
        match counts.iter_mut().find(|(known, _)| *known == found) {
            Some((_, count)) => *count += 1,
            None => counts.push((found, 1)),
        }
    }
    let said = counts.iter().map(|(Belongs(what), count)| match count {
        1 => format!("1 tensor of {what}"),
        _ => format!("{count} tensors of {what}"),
    });
    (!counts.is_empty()).then(|| said.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_tensors_belong_to() {
        for (name, what) in [
            ("v.blk.0.attn_q.weight", "vision tower"),
            ("mm.0.weight", "vision tower"),
            ("a.conv1d.1.weight", "audio tower"),
            ("blk.3.nextn.enorm.weight", "MTP block"),
            ("blk.0.attn_q.weight.lora_a", "adapter"),
            ("blk.0.indexer.attn_k.weight", "indexer"),
            ("blk.0.hc_attn_fn.weight", "hyper-connections"),
        ] {
            assert!(probably(name).contains(what), "{name}: {}", probably(name));
        }
        assert_eq!(probably("blk.0.attn_q_norm.weight"), "");
    }
}
