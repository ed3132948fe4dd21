//! Small files of the data directory that are replaced as a whole: what they hold, and how a power
//! cut leaves either the old content or the new one.

use std::io::ErrorKind;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::error;

use crate::identity::write_atomic;
use crate::{Error, Result};

/// One such file, which holds a `T` as JSON.
#[derive(Debug, Clone)]
pub(crate) struct KeptFile<T> {
    path: PathBuf,
    content: PhantomData<fn() -> T>,
}

impl<T: Default + Serialize + DeserializeOwned> KeptFile<T> {
    pub(crate) fn new(data_dir: &Path, name: &str) -> Self {
        Self { path: data_dir.join(name), content: PhantomData }
    }

    /// What is kept; the default if there is no file yet.
    pub(crate) fn load(&self) -> Result<T> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(T::default()),
            Err(source) => return Err(Error::DataDir { path: self.path.clone(), source }),
        };
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Damaged { path: self.path.clone(), why: error.to_string() })
    }

    /// The same; a file that cannot be read is put aside, with what to tell a person about it.
    pub(crate) fn load_or_put_aside(&self) -> Result<(T, Option<String>)> {
        let why = match self.load() {
            Err(Error::Damaged { why, .. }) => why,
            loaded => return Ok((loaded?, None)),
        };
        let aside = self.path.with_extension("damaged");
        std::fs::rename(&self.path, &aside)
            .map_err(|source| Error::DataDir { path: self.path.clone(), source })?;
        let (path, aside) = (self.path.display(), aside.display());
        let told = format!("{path} could not be read ({why}); it is kept as {aside}");
        Ok((T::default(), Some(told)))
    }

    pub(crate) fn save(&self, content: &T) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(content).expect("it is JSON");
        write_atomic(&self.path, &bytes)
            .map_err(|source| Error::DataDir { path: self.path.clone(), source })
    }
}

/// Keeps a file up to date without holding up the driver.
#[derive(Debug)]
pub(crate) struct Saver<T> {
    file: KeptFile<T>,
    latest: Mutex<T>,
}

impl<T: Default + Serialize + DeserializeOwned + Send + 'static> Saver<T> {
    pub(crate) fn new(file: KeptFile<T>, content: T) -> Self {
        Self { file, latest: Mutex::new(content) }
    }

    pub(crate) fn set(&self, content: T) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = content;
    }

    /// Writes what was set last; returns when it is on disk, or could not be written.
    pub(crate) async fn save(self: Arc<Self>) {
        let write = tokio::task::spawn_blocking(move || {
            // Held while writing, so that older content never replaces newer one.
            let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            self.file.save(&latest)
        });
        match write.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => error!(%error, "state of the cluster is not saved"),
            Err(error) => error!(%error, "saving state of the cluster failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_or_foreign_file_is_put_aside_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let file: KeptFile<Vec<u32>> = KeptFile::new(dir.path(), "numbers.json");
        assert_eq!(file.load_or_put_aside().unwrap(), (vec![], None));
        file.save(&vec![1, 2]).unwrap();
        let whole = std::fs::read(dir.path().join("numbers.json")).unwrap();
        for content in [&whole[..whole.len() - 1], b"{\"of\": \"another program\"}", b""] {
            std::fs::write(dir.path().join("numbers.json"), content).unwrap();
            assert!(matches!(file.load(), Err(Error::Damaged { .. })));
            let (numbers, told) = file.load_or_put_aside().unwrap();
            let told = told.expect("a person is told");
            assert!(numbers.is_empty() && told.contains("numbers.damaged"), "{told}");
            assert_eq!(std::fs::read(dir.path().join("numbers.damaged")).unwrap(), content);
            assert_eq!(file.load_or_put_aside().unwrap(), (vec![], None));
        }
        // A power cut in mid-write leaves the old content and the beginning of the new one.
        file.save(&vec![3]).unwrap();
        std::fs::write(dir.path().join("numbers.partial"), b"[4").unwrap();
        assert_eq!(file.load().unwrap(), [3]);
        file.save(&vec![5]).unwrap();
        assert_eq!(file.load().unwrap(), [5]);
    }
}
