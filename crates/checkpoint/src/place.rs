//! Names: where a checkpoint's tensor belongs, and its name in GGUF.

use crate::Error;
use crate::config::Config;
use crate::families::{Family, To};
use crate::weight::{Tensors, Weight};

/// Parts of names of tensors that belong to other senses than text, or to nothing.
const UNREAD: [&str; 11] = [
    "visual.",
    "vision",
    "audio",
    "multi_modal_projector",
    "mm_projector",
    "patch_merg",
    "image_newline",
    "vit_large_projector",
    "masked_bias",
    "masked_embedding",
    "rotary_emb.inv_freq",
];

/// Where a tensor belongs, by its name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Blocks of multi-token prediction follow the layers.
    pub layer: Option<u64>,
    /// That of an expert, or of a part of a table.
    pub number: Option<usize>,
    /// The rest of the name, with `{}` for the number.
    pub name: String,
}

/// What a tensor becomes, with names in GGUF.
#[derive(Debug)]
pub(crate) enum Named {
    Tensors(Tensors),
    /// A part of the tensor of this name.
    Parts(String, Join, Weight),
    /// Metadata under this key.
    Integers(&'static str, Weight),
    /// Integers that become sums with their places, under this name.
    Distances(&'static str, Weight),
}

/// How several tensors become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// A further, slowest dimension.
    Stack,
    /// Rows one after the other.
    Rows,
    /// Numbers multiplied.
    Product,
}

impl Place {
    /// The place in a model of so many layers; `None` for tensors that no model of text reads.
    pub fn of(stored: &str, layers: u64) -> Option<Self> {
        let name = text_name(stored);
        if UNREAD.iter().any(|part| name.contains(part)) {
            return None;
        }
        let in_layer = |beginning| name.strip_prefix(beginning)?.split_once('.');
        let place = match (in_layer("model.layers."), in_layer("mtp.layers.")) {
            (Some((layer, inside)), _) => Some((layer.parse().ok()?, inside)),
            (_, Some((block, inside))) => Some((layers.checked_add(block.parse().ok()?)?, inside)),
            _ => name.starts_with("mtp.").then_some((layers, name.as_str())),
        };
        let Some((layer, inside)) = place else {
            return Some(Self { layer: None, number: None, name });
        };
        let (name, number) = numbered(inside);
        Some(Self { layer: Some(layer), number, name })
    }

    /// Whether the tensor belongs to what is read: the model itself, and blocks of families for
    /// which their tensors are known.
    pub fn is_read(&self, family: &Family, layers: u64) -> bool {
        let is_in_block = self.layer.is_some_and(|layer| layer >= layers);
        !is_in_block || !family.block.is_empty()
    }

    /// What a tensor becomes; `None` if the family does not know it.
    pub fn named(
        &self,
        family: &Family,
        config: &Config,
        weight: Weight,
    ) -> Result<Option<Named>, Error> {
        let (stem, suffix) = split_suffix(&self.name);
        let is_in_layer = self.layer.is_some();
        let of_stem = family.row(is_in_layer, stem).map(|row| (row, suffix));
        let row = of_stem.or_else(|| family.row(is_in_layer, &self.name).map(|row| (row, "")));
        let Some((row, suffix)) = row else { return Ok(None) };
        Ok(Some(match *row {
            To::Name(name) => self.single(name, suffix, weight),
            To::Edited(name, edit) => self.single(name, suffix, edit(config, weight)?),
            To::Cut(cut) => {
                let all = cut(config, weight)?.into_iter();
                self.several(all.map(|(name, weight)| (self.full(name, ""), weight)).collect())
            }
            To::Product(name) => Named::Parts(self.full(name, suffix), Join::Product, weight),
            To::Rows(name) => Named::Parts(format!("{name}{suffix}"), Join::Rows, weight),
            To::Integers(key) => Named::Integers(key, weight),
            To::Distances(name) => Named::Distances(name, weight),
        }))
    }

    fn single(&self, name: &str, suffix: &str, weight: Weight) -> Named {
        self.several(vec![(self.full(name, suffix), weight)])
    }

    /// Tensors, or those of one expert.
    fn several(&self, mut all: Tensors) -> Named {
        match (self.number, all.len()) {
            (Some(_), 1) => {
                let (name, weight) = all.remove(0);
                Named::Parts(name, Join::Stack, weight)
            }
            _ => Named::Tensors(all),
        }
    }

    /// The name of a tensor within its layer as one of the whole file.
    fn full(&self, name: &str, suffix: &str) -> String {
        // A row may name a weight of a tensor without `.weight`.
        let stem = if suffix.is_empty() { name } else { split_suffix(name).0 };
        match self.layer {
            Some(layer) => format!("blk.{layer}.{stem}{suffix}"),
            None => format!("{stem}{suffix}"),
        }
    }
}

/// A name as of a model of text alone, under the names that most families have.
fn text_name(stored: &str) -> String {
    // Models that also see or hear keep their text model under a name of its own.
    let name = stored.replace("language_model.", "").replacen("backbone.", "model.", 1);
    let name = name.replacen("model.model.", "model.", 1).replacen("model.mtp.", "mtp.", 1);
    // The only layer of some EAGLE-3 heads.
    let name = name.replacen("midlayer.", "layers.0.", 1);
    if name.starts_with("layers.") { format!("model.{name}") } else { name }
}

/// A name with `{}` for the first number in it, and that number.
fn numbered(inside: &str) -> (String, Option<usize>) {
    let number = |part: &str| {
        let digits = part.strip_prefix("shard_").unwrap_or(part);
        let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let found = inside.split('.').find_map(|part| Some((part, number(part)?)));
    match found {
        Some((part, number)) => (inside.replacen(&format!(".{part}."), ".{}.", 1), Some(number)),
        None => (inside.to_owned(), None),
    }
}

/// A name without `.weight` or `.bias`, and that.
fn split_suffix(name: &str) -> (&str, &str) {
    let cut = [".weight", ".bias"].iter().find_map(|suffix| name.strip_suffix(suffix));
    cut.map_or((name, ""), |stem| name.split_at(stem.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_layers_and_experts() {
        let of = |name: &str| Place::of(name, 20).map(|it| (it.layer, it.number, it.name));
        let place = |layer, number, name: &str| Some((layer, number, name.to_owned()));
        for name in
            ["model.layers.3.mlp.x", "model.language_model.layers.3.mlp.x", "layers.3.mlp.x"]
        {
            assert_eq!(of(name), place(Some(3), None, "mlp.x"));
        }
        let expert = "language_model.model.layers.12.mlp.experts.7.up.weight";
        assert_eq!(of(expert), place(Some(12), Some(7), "mlp.experts.{}.up.weight"));
        assert_eq!(of("language_model.lm_head.weight"), place(None, None, "lm_head.weight"));
        assert_eq!(of("model.visual.blocks.0.x"), None);
        for name in ["mtp.layers.0.x", "model.mtp.layers.0.x", "model.layers.20.x"] {
            assert_eq!(of(name), place(Some(20), None, "x"));
        }
        assert_eq!(of("mtp.fc.weight"), place(Some(20), None, "mtp.fc.weight"));
        let shard = "model.layers.1.a.shard_2.weight";
        assert_eq!(of(shard), place(Some(1), Some(2), "a.{}.weight"));
        assert_eq!(of("mtp.layers.18446744073709551615.x"), None);
        assert_eq!(split_suffix("a.weight"), ("a", ".weight"));
        assert_eq!(split_suffix("A_log"), ("A_log", ""));
    }
}
