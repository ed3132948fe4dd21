//! The data read from disk before a model is placed.

use std::path::Path;
use std::sync::Arc;

use placement::Beside;
use store::ModelFile;

use crate::transfer::model_file::ServedFile;
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
        draft_bytes: u64,
        check_text: CheckText,
    ) -> std::result::Result<Self, String> {
        let outline = layout::Outline::read(header).map_err(|error| error.to_string())?;
        let mut remarks = check_text(header)?;
        let tower_bytes = tower_bytes(header).unwrap_or_else(|error| {
            remarks.push(format!("no picture can be seen: {error}"));
            0
        });
        Ok(Self { name, outline, beside: Beside { tower_bytes, draft_bytes }, remarks })
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

impl Prepared {
    /// # Errors
    /// The file is unreadable, or this version cannot run its model or read its tokenizer.
    pub fn read(
        spec: InstanceSpec,
        found: ModelFile,
        draft_bytes: u64,
        created_unix_s: u64,
        check_text: CheckText,
    ) -> std::result::Result<Self, String> {
        let file = ServedFile::open(&found.path).map_err(|error| error.to_string())?;
        let name = found.name.clone();
        let mut model = Placeable::read(name, file.directory(), draft_bytes, check_text)?;
        model.remarks.extend(unused_tower(&found.path));
        Ok(Self { spec, found, file: Arc::new(file), model, created_unix_s })
    }
}

/// A sentence on a vision tower beside the model at `path` that cannot be used.
pub(crate) fn unused_tower(path: &Path) -> Option<String> {
    let (tower, why) = checkpoint::unused_tower(path)?;
    Some(format!("no picture can be seen: {} cannot be used: {why}", tower.display()))
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

/// Memory of an instance's draft model on the leading node; 0 without a draft.
///
/// # Errors
/// The draft is unreadable or no model that can run.
pub fn draft_bytes(spec: &InstanceSpec) -> std::result::Result<u64, String> {
    let Some(path) = &spec.options.draft else { return Ok(0) };
    let unusable = |error: &dyn std::fmt::Display| {
        format!("the draft model {} cannot be used: {error}", path.display())
    };
    let file = checkpoint::open(path).map_err(|error| unusable(&error))?;
    let header = gguf::Source::directory(&file);
    let outline = layout::Outline::read(header).map_err(|error| unusable(&error))?;
    let whole = layout::Layout::new(&[1], &[], outline.config.layers);
    let whole = whole.map_err(|error| unusable(&error))?;
    let context_tokens = spec.context_tokens.unwrap_or(usize::MAX);
    let capacity = layout::Capacity::of_draft(outline.config.context_max, context_tokens);
    let holding = layout::Holding::new(&outline, &whole, 0);
    Ok(holding.footprint(&capacity, layout::Device::Cpu).bytes())
}
