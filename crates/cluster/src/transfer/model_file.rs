//! Opens the files of served models.
//!
//! A replaced or deleted file stays readable, because `ServedFile` holds it open. Overwriting in
//! place does change it; `ServedFile::intact` detects that.

use std::path::Path;
use std::sync::Arc;

use gguf::File;

use crate::context::ServedFile;

/// Error text for a file whose content has changed since placement.
pub(crate) const OVERWRITTEN: &str =
    "the model file was overwritten since it was placed. Stop the model and serve it again";

impl ServedFile {
    /// Opens a file or folder and checks that it is a model. Blocks on the disk.
    ///
    /// # Errors
    /// Those of [`checkpoint::open`].
    pub(crate) fn open(path: &Path) -> Result<Self, gguf::Error> {
        Ok(Self::new(checkpoint::open(path)?))
    }

    /// The original content, or `None` if it has been overwritten. Blocks on the disk.
    pub(crate) fn intact(&self) -> Option<Arc<File>> {
        (!self.file().has_changed()).then(|| self.file().clone())
    }
}

/// Windows before 10 replaces no open file.
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs;

    use gguf::Source;

    use super::*;

    fn model(text: &str) -> Vec<u8> {
        let mut writer = gguf::Writer::new();
        writer.set("general.name", gguf::Value::String(text.to_owned()));
        let mut bytes = Vec::new();
        writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
        bytes
    }

    #[test]
    fn what_was_placed_stays_readable_or_is_known_to_be_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        fs::write(&path, model("one")).unwrap();
        let served = ServedFile::open(&path).unwrap();
        let name = || {
            let file = served.intact()?;
            Some(file.directory().str("general.name").unwrap().to_owned())
        };
        assert_eq!(name().as_deref(), Some("one"));
        // Replaced, then deleted: the old content is still readable.
        fs::write(dir.path().join("new"), model("two")).unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert_eq!(name().as_deref(), Some("one"));
        fs::remove_file(&path).unwrap();
        assert_eq!(name().as_deref(), Some("one"));

        fs::write(&path, model("three")).unwrap();
        let served = ServedFile::open(&path).unwrap();
        fs::write(&path, model("longer")).unwrap();
        assert!(served.intact().is_none());
    }
}
