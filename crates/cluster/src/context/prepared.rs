//! What is known of a model before it is placed. `crate::transfer::prepare` reads it from disk.

use std::sync::Arc;

use layout::BlockFile;
use placement::{Beside, DraftBytes};
use store::ModelFile;

use super::served_file::ServedFile;
use crate::{CheckText, InstanceSpec};

/// What placement must know of a model: all of it is in the header.
#[derive(Clone)]
pub(crate) struct Placeable {
    pub name: String,
    pub outline: layout::Outline,
    /// What runs beside the model on the first node.
    pub beside: Beside,
    /// Oddities of its tokenizer and chat template, a sentence each.
    pub remarks: Vec<String>,
}

impl Placeable {
    /// # Errors
    /// This version cannot run the model or read its tokenizer.
    pub fn read(
        name: String,
        header: &gguf::Directory,
        draft: DraftBytes,
        check_text: CheckText,
    ) -> std::result::Result<Self, String> {
        let outline = layout::Outline::read_for(header, draft.reads_cache);
        let outline = outline.map_err(|error| error.to_string())?;
        let mut remarks = check_text(header)?;
        let tower_bytes = tower_bytes(header).unwrap_or_else(|error| {
            remarks.push(format!("no picture can be seen: {error}"));
            0
        });
        Ok(Self { name, outline, beside: Beside { tower_bytes, draft }, remarks })
    }
}

/// A serve request with all data from disk that it needs.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub spec: InstanceSpec,
    pub found: ModelFile,
    pub file: Arc<ServedFile>,
    pub model: Placeable,
    /// Time of the request, in seconds since 1970.
    pub created_unix_s: u64,
}

/// Memory of a model's vision tower on the leading node; 0 without one.
///
/// # Errors
/// The tower is of no known kind.
pub fn tower_bytes(header: &gguf::Directory) -> std::result::Result<u64, vision::TowerError> {
    let config = vision::Config::find(header)?;
    let footprint = config.map(|config| vision::Footprint::new(&config, header));
    Ok(footprint.map_or(0, |footprint| footprint.bytes(layout::PICTURES_KEPT)))
}

/// Memory on the leading node of an instance's draft, a model or a block for that of `header`.
///
/// # Errors
/// The draft is no model that can run, or for another model.
pub(crate) fn draft_bytes(
    context_tokens: Option<usize>,
    draft: &gguf::Directory,
    header: &gguf::Directory,
) -> std::result::Result<DraftBytes, Box<dyn std::error::Error>> {
    // A header for planning needs no vocabulary.
    if header.get("tokenizer.ggml.tokens").is_some() {
        layout::check_vocabulary(draft, header)?;
    }
    let context_tokens = context_tokens.unwrap_or(usize::MAX);
    if BlockFile::is_one(draft) {
        let config = layout::Config::read(header)?;
        let block = BlockFile::read(draft, (header, &config))?;
        let bytes = |device| block.footprint(context_tokens, device).bytes();
        return Ok(DraftBytes::by(&block.outline, bytes));
    }
    let outline = layout::Outline::read(draft)?;
    let whole = layout::Layout::new(&[1], &[], outline.config.layers)?;
    let capacity = layout::Capacity::of_draft(outline.config.context_max, context_tokens);
    let holding = layout::Holding::new(&outline, &whole, 0);
    Ok(DraftBytes::by(&outline, |device| holding.footprint(&capacity, device).bytes()))
}
