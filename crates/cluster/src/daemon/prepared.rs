//! What has to be read from disk before a model can be placed.

use std::sync::Arc;

use store::ModelFile;

use crate::InstanceSpec;
use crate::model_file::ServedFile;

/// A serve request with everything that had to be read from disk for it.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub spec: InstanceSpec,
    pub found: ModelFile,
    pub file: Arc<ServedFile>,
    pub model: layout::Outline,
    /// What the draft model takes on the first node.
    pub draft_bytes: u64,
    /// When it was asked for, seconds since 1970.
    pub created_unix_s: u64,
}

/// What an instance's draft model takes on the node that leads, if there is one.
///
/// # Errors
/// It cannot be read, or is no model that can run.
pub(crate) fn draft_bytes(spec: &InstanceSpec) -> std::result::Result<u64, String> {
    let Some(path) = &spec.options.draft else { return Ok(0) };
    let unusable = |error: &dyn std::fmt::Display| {
        format!("the draft model {} cannot be used: {error}", path.display())
    };
    let file = gguf::File::open(path).map_err(|error| unusable(&error))?;
    let header = gguf::Source::directory(&file);
    let outline = layout::Outline::read(header).map_err(|error| unusable(&error))?;
    let whole = layout::Layout::new(&[1], &[], outline.config.layers);
    let whole = whole.map_err(|error| unusable(&error))?;
    let context_tokens = spec.context_tokens.unwrap_or(usize::MAX);
    let capacity = layout::Capacity::of_draft(outline.config.context_max, context_tokens);
    let holding = layout::Holding::new(&outline, &whole, 0);
    Ok(holding.footprint(&capacity, layout::Device::Cpu).bytes())
}
