//! The data read from disk before a model is placed.

use std::path::Path;
use std::sync::Arc;

use layout::BlockFile;
use placement::{Beside, DraftBytes};
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

impl Prepared {
    /// An instance that `resumes` may lack its draft on this node; the model then runs without.
    ///
    /// # Errors
    /// The file is unreadable, or this version cannot run its model or read its tokenizer.
    pub fn read(
        spec: InstanceSpec,
        found: ModelFile,
        created_unix_s: u64,
        check_text: CheckText,
        resumes: bool,
    ) -> std::result::Result<Self, String> {
        let file = ServedFile::open(&found.path).map_err(|error| error.to_string())?;
        let name = found.name.clone();
        let draft = match draft_bytes(&spec, file.directory()) {
            Err(_) if resumes => DraftBytes::default(),
            found => found?,
        };
        let mut model = Placeable::read(name, file.directory(), draft, check_text)?;
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

/// Memory on the leading node of an instance's draft, a model or a block for that of `header`; none
/// without a draft.
///
/// # Errors
/// The draft is unreadable, no model that can run, or for another model.
pub fn draft_bytes(
    spec: &InstanceSpec,
    header: &gguf::Directory,
) -> std::result::Result<DraftBytes, String> {
    let Some(path) = &spec.options.draft else { return Ok(DraftBytes::default()) };
    let unusable = |error: &dyn std::fmt::Display| {
        format!("the draft model {} cannot be used: {error}", path.display())
    };
    let file = checkpoint::open(path).map_err(|error| unusable(&error))?;
    let draft = gguf::Source::directory(&file);
    // A header for planning needs no vocabulary.
    if header.get("tokenizer.ggml.tokens").is_some() {
        layout::check_vocabulary(draft, header).map_err(|error| unusable(&error))?;
    }
    let context_tokens = spec.context_tokens.unwrap_or(usize::MAX);
    if BlockFile::is_one(draft) {
        let config = layout::Config::read(header).map_err(|error| unusable(&error))?;
        let block = BlockFile::read(draft, (header, &config)).map_err(|error| unusable(&error))?;
        let bytes = |device| block.footprint(context_tokens, device).bytes();
        return Ok(DraftBytes::by(&block.outline, bytes));
    }
    let outline = layout::Outline::read(draft).map_err(|error| unusable(&error))?;
    let whole = layout::Layout::new(&[1], &[], outline.config.layers);
    let whole = whole.map_err(|error| unusable(&error))?;
    let capacity = layout::Capacity::of_draft(outline.config.context_max, context_tokens);
    let holding = layout::Holding::new(&outline, &whole, 0);
    Ok(DraftBytes::by(&outline, |device| holding.footprint(&capacity, device).bytes()))
}

#[cfg(test)]
mod tests {
    use gguf::{File, Source};
    use layout::Device;

    use super::*;

    #[test]
    fn a_draft_is_looked_at_before_anything_is_loaded() {
        let path = |name: &str| {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
            root.join(format!("{name}.gguf"))
        };
        let bytes = |model: &str, draft: &str| {
            let mut spec = InstanceSpec::default();
            spec.options.draft = Some(path(draft));
            draft_bytes(&spec, File::open(path(model)).unwrap().directory())
        };
        for (model, draft) in [
            ("models/qwen3", "heads/qwen3-eagle3"),
            ("models/qwen3", "models/qwen3"),
            ("models/gemma4-e", "heads/gemma4-e-assistant"),
        ] {
            let found = bytes(model, draft).unwrap();
            assert!(found.on(Device::Ggml) > found.on(Device::Cpu), "{draft}: {found:?}");
            let error = bytes("models/llama3-tied", draft).unwrap_err();
            assert!(error.contains("vocabulary"), "{draft}: {error}");
        }
        let error = bytes("models/qwen3", "models/not-there").unwrap_err();
        assert!(error.contains("not-there"), "{error}");
    }
}
