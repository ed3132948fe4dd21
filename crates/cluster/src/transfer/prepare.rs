//! Reads from disk what must be known of a model before it is placed.

use std::path::Path;
use std::sync::Arc;

use placement::DraftBytes;
use store::ModelFile;

use crate::context::{self, Placeable, Prepared, ServedFile};
use crate::{CheckText, InstanceSpec};

/// Reads the data that a serve request needs. An instance that `resumes` may lack its draft on this
/// node; the model then runs without.
///
/// # Errors
/// The file is unreadable, or this version cannot run its model or read its tokenizer.
pub(crate) fn prepare(
    spec: InstanceSpec,
    found: ModelFile,
    created_unix_s: u64,
    check_text: CheckText,
    resumes: bool,
) -> std::result::Result<Prepared, String> {
    let file = ServedFile::open(&found.path).map_err(|error| error.to_string())?;
    let name = found.name.clone();
    let draft = match draft_bytes(&spec, file.directory()) {
        Err(_) if resumes => DraftBytes::default(),
        found => found?,
    };
    let mut model = Placeable::read(name, file.directory(), draft, check_text)?;
    model.remarks.extend(unused_tower(&found.path));
    model.remarks.extend(store::shelves::unused_layers(&found.path, &found.name));
    Ok(Prepared { spec, found, file: Arc::new(file), model, created_unix_s })
}

/// A sentence on a vision tower beside the model at `path` that cannot be used.
pub(crate) fn unused_tower(path: &Path) -> Option<String> {
    let (tower, why) = checkpoint::unused_tower(path)?;
    Some(format!("no picture can be seen: {} cannot be used: {why}", tower.display()))
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
    context::draft_bytes(spec.context_tokens, draft, header).map_err(|error| unusable(&error))
}

#[cfg(test)]
mod tests {
    use gguf::{File, Source};
    use layout::Device;

    use super::*;

    #[test]
    fn a_draft_is_looked_at_before_anything_is_loaded() {
        let path = |name: &str| fixtures::path(&format!("{name}.gguf"));
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
