//! The readable model classes: which names and keys of a checkpoint become which of GGUF.
//!
//! A [`Family`] is a row like those of `layout::arch`. Its tables of names are lists of [`Row`]s: a
//! name in the checkpoint, within a layer or of the whole model, and the [`To`] of it in GGUF.
//! `{}` stands for the number of an expert; tensors of all experts are stacked.
//! `docs/adding-a-model.md` explains how to add one.
//!
//! Source: the names that transformers writes, and llama.cpp's converter for what becomes of them.

mod deepseek;
mod deepseek4;
mod eagle3;
mod gemma;
mod kimi;
mod llama;
mod mamba;
mod minimax;
mod neutral;
mod others;
mod qwen;
mod qwen4;
mod shared;
pub(crate) mod unread;
mod windows;

use std::collections::BTreeSet;

use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::weight::{Tensors, Weight};

/// How a model class becomes an architecture.
#[derive(Debug)]
pub(crate) struct Family {
    /// Its names in `architectures` of config.json.
    pub classes: &'static [&'static str],
    /// Which configurations of these classes it is for. Earlier rows win.
    pub when: fn(&Config) -> Result<bool, Error>,
    /// `general.architecture`: a row of `layout::arch`.
    pub arch: &'static str,
    /// Rows for tensors of a layer, without `model.layers.N.` and `blk.N.`. Earlier tables win.
    pub layer: &'static [&'static [Row]],
    /// Rows for tensors that only blocks of multi-token prediction have. Without any, such blocks
    /// are left out.
    pub block: &'static [Row],
    /// Rows for all other tensors.
    pub whole: &'static [&'static [Row]],
    /// Metadata beyond that of all families.
    pub keys: fn(&Config, &mut Header) -> Result<(), Error>,
    /// Tensors that no file has.
    pub computed: fn(&Config) -> Result<Tensors, Error>,
    /// Parts of names of tensors that GGUF keeps in f32 whatever the checkpoint has.
    pub in_f32: &'static [&'static str],
    pub words: Words,
}

/// A name in the checkpoint, and what it becomes. A name without `.weight` or `.bias` stands for
/// both, which stay.
pub(crate) type Row = (&'static str, To);

/// What a tensor becomes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum To {
    /// The same numbers under this name.
    Name(&'static str),
    /// Changed numbers under this name.
    Edited(&'static str, Edit),
    /// Several tensors.
    Cut(Cut),
    /// A factor of the tensor of this name: its numbers are those of two, multiplied.
    Product(&'static str),
    /// Rows of a table of the whole model, after those with lower numbers.
    Rows(&'static str),
    /// No tensor, but a list of integers in the metadata, under this key.
    Integers(&'static str),
    /// Integers under this name: their sums with their places.
    Distances(&'static str),
}

pub(crate) type Edit = fn(&Config, Weight) -> Result<Weight, Error>;
pub(crate) type Cut = fn(&Config, Weight) -> Result<Pieces, Error>;
/// Tensors with their names within a layer.
pub(crate) type Pieces = Vec<(&'static str, Weight)>;

/// Which of GGUF's tokenizers the vocabulary becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// The one that `tokenizer.json` describes.
    Described,
    /// Gemma 4's: merges over characters.
    Gemma4,
    /// None: the folder is for a model with another folder.
    OfModel,
}

/// The whole table.
fn all() -> impl Iterator<Item = &'static Family> {
    let tables = [
        llama::FAMILIES,
        qwen::FAMILIES,
        qwen4::FAMILIES,
        gemma::FAMILIES,
        deepseek::FAMILIES,
        deepseek4::FAMILIES,
        eagle3::FAMILIES,
        kimi::FAMILIES,
        mamba::FAMILIES,
        minimax::FAMILIES,
        windows::FAMILIES,
        others::FAMILIES,
    ];
    tables.into_iter().flatten()
}

/// The family of a configuration.
///
/// # Errors
/// No row has one of its classes.
pub(crate) fn find(config: &Config) -> Result<&'static Family, Error> {
    let mut classes = config.texts("architectures")?;
    if classes.is_empty() {
        classes = of_type(&config.find_str(&["model_type"])?.unwrap_or_default());
    }
    for class in &classes {
        for family in all().filter(|family| family.classes.contains(&class.as_str())) {
            if (family.when)(config)? {
                return Ok(family);
            }
        }
    }
    let known: BTreeSet<&str> = all().flat_map(|family| family.classes).copied().collect();
    Err(Error::Class {
        found: if classes.is_empty() { "(none is named)".to_owned() } else { classes.join(", ") },
        known: known.into_iter().collect::<Vec<_>>().join(", "),
    })
}

/// The classes of a `model_type`, which some configurations name instead: `qwen3_moe` is that of
/// `Qwen3MoeForCausalLM`.
fn of_type(model_type: &str) -> Vec<String> {
    let plain = |text: &str| text.replace('_', "").to_lowercase();
    let wanted = plain(model_type.strip_suffix("_text").unwrap_or(model_type));
    let is_it = |class: &&&str| {
        let stem = class.split("For").next().unwrap_or(class);
        !wanted.is_empty() && plain(stem) == wanted
    };
    all().flat_map(|family| family.classes).filter(is_it).map(|class| (*class).to_owned()).collect()
}

/// The architectures of GGUF that folders become.
pub(crate) fn architectures() -> BTreeSet<&'static str> {
    all().map(|family| family.arch).collect()
}

/// Each family's architecture, with each of its classes.
pub(crate) fn classes() -> impl Iterator<Item = (&'static str, &'static str)> {
    all().flat_map(|family| family.classes.iter().map(|class| (family.arch, *class)))
}

impl Family {
    /// The row of a tensor of a layer, or of the whole model.
    pub fn row(&self, is_in_layer: bool, name: &str) -> Option<&'static To> {
        let (block, tables) =
            if is_in_layer { (self.block, self.layer) } else { (&[][..], self.whole) };
        let mut rows = block.iter().chain(tables.iter().copied().flatten());
        rows.find(|row| row.0 == name).map(|row| &row.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_stands_once_or_under_conditions() {
        let always = super::shared::always as fn(&Config) -> Result<bool, Error>;
        let is_always = |family: &Family| std::ptr::fn_addr_eq(family.when, always);
        let mut ended = BTreeSet::new();
        for family in all() {
            for class in family.classes {
                assert!(!ended.contains(class), "{class} stands after a row for all of it");
                if is_always(family) {
                    ended.insert(*class);
                }
            }
        }
    }
}
