//! The file of a served model. Placement hashes its content, and every rank must read that content,
//! even a rank that restarts days later.
//!
//! A replaced or deleted file stays readable, because `ServedFile` holds it open. Overwriting in
//! place does change it; `ServedFile::intact` detects that.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use gguf::{Directory, File, Source};

/// Error text for a file whose content has changed since placement.
pub(crate) const OVERWRITTEN: &str =
    "the model file was overwritten since it was placed. Stop the model and serve it again";

#[derive(Debug)]
pub(crate) struct ServedFile {
    file: Arc<File>,
    /// The files of the model, with their state at opening.
    stamps: Vec<(PathBuf, Option<Stamp>)>,
}

/// Identity of a file (`device`, `inode`) and of its content (`bytes`, `modified`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl ServedFile {
    /// Opens a file and checks that it is GGUF. Blocks on the disk.
    ///
    /// # Errors
    /// Those of [`File::open`].
    pub(crate) fn open(path: &Path) -> Result<Self, gguf::Error> {
        let file = Arc::new(File::open(path)?);
        let stamped = |part: PathBuf| (part.clone(), Stamp::of(&part));
        Ok(Self { file, stamps: gguf::parts_of(path).into_iter().map(stamped).collect() })
    }

    pub(crate) fn directory(&self) -> &Arc<Directory> {
        self.file.directory()
    }

    /// The original content, or `None` if it has been overwritten. Blocks on the disk.
    pub(crate) fn intact(&self) -> Option<Arc<File>> {
        let is_same_file = |a: &Stamp, b: &Stamp| (a.device, a.inode) == (b.device, b.inode);
        let is_overwritten = |(part, was): &(PathBuf, Option<Stamp>)| match (was, Stamp::of(part)) {
            (Some(was), Some(is)) => is_same_file(was, &is) && *was != is,
            _ => false,
        };
        (!self.stamps.iter().any(is_overwritten)).then(|| self.file.clone())
    }
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata: Metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }
}

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
