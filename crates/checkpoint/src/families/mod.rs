//! The readable model classes: which names and keys of a checkpoint become which of GGUF.
//!
//! A [`Family`] is a row like those of `layout::arch`. Its tables of names are lists of [`Row`]s: a
//! name in the checkpoint, within a layer or of the whole model, and the [`To`] of it in GGUF.
//! `{}` stands for the number of an expert; tensors of all experts are stacked.
//! `docs/adding-a-model.md` explains how to add one.
//!
//! Source: the names that transformers writes, and llama.cpp's converter for what becomes of them.

mod deepseek;
mod gemma;
mod llama;
mod others;
mod qwen;
mod shared;

use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::weight::{Tensors, Weight};

/// How a model class becomes an architecture.
#[derive(Debug)]
pub(crate) struct Family {
    /// Its names in `architectures` of config.json.
    pub classes: &'static [&'static str],
    /// `general.architecture`: a row of `layout::arch`.
    pub arch: &'static str,
    /// Rows for tensors of a layer, without `model.layers.N.` and `blk.N.`. Earlier tables win.
    pub layer: &'static [&'static [Row]],
    /// Rows for all other tensors.
    pub whole: &'static [&'static [Row]],
    /// Metadata beyond that of all families.
    pub keys: fn(&Config, &mut Header) -> Result<(), Error>,
    /// Tensors that no file has.
    pub computed: fn(&Config) -> Result<Tensors, Error>,
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
}

/// The whole table.
fn all() -> impl Iterator<Item = &'static Family> {
    let tables =
        [llama::FAMILIES, qwen::FAMILIES, gemma::FAMILIES, deepseek::FAMILIES, others::FAMILIES];
    tables.into_iter().flatten()
}

/// The family of a configuration.
///
/// # Errors
/// No row has one of its classes.
pub(crate) fn find(config: &Config) -> Result<&'static Family, Error> {
    let classes = config.texts("architectures")?;
    let is_one = |family: &&Family| classes.iter().any(|it| family.classes.contains(&it.as_str()));
    all().find(is_one).ok_or_else(|| Error::Class {
        found: if classes.is_empty() { "(none is named)".to_owned() } else { classes.join(", ") },
        known: all().flat_map(|family| family.classes).copied().collect::<Vec<_>>().join(", "),
    })
}

impl Family {
    /// The row of a tensor of a layer, or of the whole model.
    pub fn row(&self, is_in_layer: bool, name: &str) -> Option<&'static To> {
        let tables = if is_in_layer { self.layer } else { self.whole };
        tables.iter().find_map(|table| table.iter().find(|row| row.0 == name)).map(|row| &row.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_stands_once() {
        let mut classes: Vec<&str> = all().flat_map(|family| family.classes).copied().collect();
        let count = classes.len();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), count);
    }
}
