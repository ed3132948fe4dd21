//! The file of a served model. Placement hashes its content, and every rank must read that content,
//! even a rank that restarts days later.
//!
//! A replaced or deleted file stays readable, because `ServedFile` holds it open. Overwriting in
//! place does change it; `ServedFile::intact` detects that.

use std::path::Path;
use std::sync::Arc;

use gguf::{Directory, File, Source};

/// Error text for a file whose content has changed since placement.
pub(crate) const OVERWRITTEN: &str =
    "the model file was overwritten since it was placed. Stop the model and serve it again";

#[derive(Debug)]
pub(crate) struct ServedFile(Arc<File>);

impl ServedFile {
    /// Opens a file or folder and checks that it is a model. Blocks on the disk.
    ///
    /// # Errors
    /// Those of [`checkpoint::open`].
    pub(crate) fn open(path: &Path) -> Result<Self, gguf::Error> {
        Ok(Self(Arc::new(checkpoint::open(path)?)))
    }

    pub(crate) fn directory(&self) -> &Arc<Directory> {
        self.0.directory()
    }

    /// The original content, or `None` if it has been overwritten. Blocks on the disk.
    pub(crate) fn intact(&self) -> Option<Arc<File>> {
        (!self.0.has_changed()).then(|| self.0.clone())
    }
}

/// Windows before 10 replaces no open file.
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs;

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
