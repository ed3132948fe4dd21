//! What only encoders have: the tables and the norm that make a row of a token.

use crate::arch::{Arch, NormKind, Rotation};
use crate::file::limits::CONTEXT_MAX;
use crate::file::{Error, Metadata, in_range, names};

/// Token types that a model may have: published ones have one or two.
const TOKEN_TYPES_MAX: u64 = 16;

/// What only an encoder has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoder {
    /// Learned positions, if it has some: added to the embeddings.
    pub positions: Option<usize>,
    /// Token types, if it has some: which text of a pair a token is of.
    pub token_types: Option<usize>,
    /// Whether embeddings pass a layer norm.
    pub has_norm: bool,
}

impl Encoder {
    /// What a file has; `None` for a decoder.
    pub(crate) fn read(metadata: &Metadata<'_>) -> Result<Option<Self>, Error> {
        if !metadata.arch.is_encoder {
            return Ok(None);
        }
        if metadata.find_bool("attention.causal")? == Some(true) {
            let what = format!("a {} whose rows see earlier rows only", metadata.arch.name);
            return Err(Error::Unsupported { what });
        }
        // Without rotations rows have learned positions; and embeddings pass a layer norm where all
        // norms are. Without them the model would compute something else.
        let Arch { rotation, norm_kind, .. } = *metadata.arch;
        for (name, is_needed) in [
            (names::POSITIONS, rotation == Rotation::Never),
            (names::EMBEDDING_NORM, norm_kind == NormKind::Layer),
        ] {
            if is_needed {
                metadata.directory.tensor(name)?;
            }
        }
        let rows = |name: &str, max| {
            let found = metadata.directory.find_tensor(name);
            found.map(|found| in_range(name, found.rows() as u64, max)).transpose()
        };
        Ok(Some(Self {
            positions: rows(names::POSITIONS, CONTEXT_MAX)?,
            token_types: rows(names::TOKEN_TYPES, TOKEN_TYPES_MAX)?,
            has_norm: metadata.directory.find_tensor(names::EMBEDDING_NORM).is_some(),
        }))
    }
}

/// The longest text: that of the file, or fewer tokens if an encoder has no more positions.
pub(crate) fn context_max(metadata: &Metadata<'_>) -> Result<usize, Error> {
    let context = metadata.size("context_length", CONTEXT_MAX)?;
    let encoder = Encoder::read(metadata)?;
    Ok(encoder.and_then(|own| own.positions).map_or(context, |rows| rows.min(context)))
}
