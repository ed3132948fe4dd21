//! The supported architectures: a table of switches over one decoder.

use backend::RopeStyle;

use crate::ModelError;

/// What distinguishes one architecture from the others.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture` in the file, and the prefix of its keys.
    pub name: &'static str,
    /// Which numbers of a head form a rotated pair.
    pub rope_style: RopeStyle,
    /// Queries and keys are normalised head by head before they are rotated.
    pub qk_norm: bool,
}

const ARCHS: &[Arch] = &[
    Arch { name: "llama", rope_style: RopeStyle::Interleaved, qk_norm: false },
    Arch { name: "qwen3", rope_style: RopeStyle::Neox, qk_norm: true },
];

/// # Errors
/// The architecture is not in the table.
pub fn find(name: &str) -> Result<&'static Arch, ModelError> {
    ARCHS.iter().find(|arch| arch.name == name).ok_or_else(|| {
        let known: Vec<&str> = ARCHS.iter().map(|arch| arch.name).collect();
        ModelError::Arch { found: name.to_owned(), known: known.join(", ") }
    })
}
