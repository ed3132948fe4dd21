use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::index::{Index, Stamp, model_bytes};
use crate::judge::Judge;
use crate::naming::{Located, clean, named, not_a_file, real};
use crate::shelves::{self, Incomplete, Places, Shelf, Shelved};
use crate::{Digest, HashWatch, StoreError, Tree};

/// How long a scan of the shelves stays valid: folders on a network drive are slow, and one request
/// causes several scans.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Names in an error's list.
const KNOWN_MAX: usize = 12;

/// The models of one node: its own folder, those of other programs, and every file by its path.
#[derive(Debug)]
pub struct Store {
    pub(crate) models: PathBuf,
    trees: PathBuf,
    places: Places,
    index: Mutex<Index>,
    /// One lock for each file while it is hashed, which takes as long as reading it; the index and
    /// other files stay available.
    hashing: Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>,
    look: Mutex<Option<(Instant, Arc<Vec<Shelved>>)>>,
    judge: Judge,
}

/// A model file on this machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelFile {
    /// Its name in clients' requests: the name given here, or the file's without its extension.
    pub name: String,
    pub path: PathBuf,
    pub digest: Digest,
    pub bytes: u64,
}

/// A model on this machine, known without reading it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    #[serde(flatten)]
    pub model: Shelved,
    /// Absent until it has been hashed.
    pub digest: Option<Digest>,
}

impl Store {
    /// Opens the store of a node's data directory, making its models folder if it is missing. No
    /// other folder is scanned.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(data_dir, Places::default())
    }

    /// Like [`Self::open`], with the folders of other programs.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(data_dir: &Path, places: Places) -> Result<Self, StoreError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| StoreError::Io { path, source }
        };
        // Models are identified by absolute paths.
        let data_dir = std::path::absolute(data_dir).map_err(io(data_dir))?;
        let (models, trees) = (data_dir.join("models"), data_dir.join("trees"));
        for dir in [&models, &trees] {
            fs::create_dir_all(dir).map_err(io(dir))?;
        }
        let index = Mutex::new(Index::load(data_dir.join("models.json")));
        let (hashing, look) = (Mutex::default(), Mutex::default());
        Ok(Self { models, trees, places, index, hashing, look, judge: Judge::default() })
    }

    /// Adds a check of which files of other programs can be run: names skip the others.
    #[must_use]
    pub fn judging(
        mut self,
        can_run: impl Fn(&gguf::Directory) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.judge = Judge::new(can_run);
        self
    }

    /// The folder of downloads, in which files are found by name.
    pub fn models_dir(&self) -> &Path {
        &self.models
    }

    /// Finds a model by absolute path or by name and hashes it if necessary: the first time it
    /// takes as long as reading the file.
    ///
    /// # Errors
    /// There is no such model, or the file cannot be read.
    pub fn resolve(&self, name_or_path: &str) -> Result<ModelFile, StoreError> {
        self.resolve_watched(name_or_path, &|_| {})
    }

    /// Like [`Self::resolve`], and reports the hashed bytes.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolve_watched(
        &self,
        name_or_path: &str,
        watch: &HashWatch<'_>,
    ) -> Result<ModelFile, StoreError> {
        self.read(self.locate(name_or_path)?, watch)
    }

    /// Like [`Self::resolve_watched`], for requests of others: a name, never a path.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolve_named(
        &self,
        name: &str,
        watch: &HashWatch<'_>,
    ) -> Result<ModelFile, StoreError> {
        self.read(self.locate_name(name).ok_or_else(|| self.unknown(name))?, watch)
    }

    /// A model by its name, never by a path, without reading it.
    pub fn named(&self, name: &str) -> Option<Listed> {
        let Located { path, .. } = self.locate_name(name)?;
        let shelved = self.look();
        let model = shelved.iter().find(|model| model.path == path)?.clone();
        let digest = self.known_digest(&path);
        Some(Listed { model, digest })
    }

    /// The recorded digest of a file, if it has not changed since.
    pub fn known_digest(&self, path: &Path) -> Option<Digest> {
        let stamp = Stamp::of(path).ok()?;
        Some(self.index().known(path, stamp)?.0)
    }

    fn read(&self, located: Located, watch: &HashWatch<'_>) -> Result<ModelFile, StoreError> {
        let Located { name, path } = located;
        // Of several files, the error names the missing one.
        let missing = || checkpoint::paths(&path).into_iter().find(|part| !part.is_file());
        let io = |source| {
            let path = missing().unwrap_or_else(|| path.clone());
            StoreError::Io { path, source }
        };
        let stamp = Stamp::of(&path).map_err(io)?;
        let (digest, bytes) = self.digest(&path, stamp, watch).map_err(io)?;
        Ok(ModelFile { name, path, digest, bytes })
    }

    /// The path of a model, by absolute path or by name, without reading it.
    ///
    /// # Errors
    /// There is no such model.
    pub fn path_of(&self, name_or_path: &str) -> Result<PathBuf, StoreError> {
        Ok(self.locate(name_or_path)?.path)
    }

    /// The path, and the name of the model in clients' requests.
    ///
    /// # Errors
    /// There is no such model.
    pub fn name_and_path(&self, name_or_path: &str) -> Result<(String, PathBuf), StoreError> {
        let Located { name, path } = self.locate(name_or_path)?;
        Ok((name, path))
    }

    /// A file of this machine with this content, if any. Only files of `bytes` bytes are hashed.
    pub fn find(&self, digest: &Digest, bytes: u64) -> Option<PathBuf> {
        let mut candidates = self.index().paths_of_len(bytes);
        let shelved = self.look();
        let same = shelved.iter().filter(|model| model_bytes(&model.path) == Some(bytes));
        candidates.extend(same.map(|model| model.path.clone()));
        candidates.into_iter().find(|path| {
            let stamp = Stamp::of(path).ok();
            let found = stamp.and_then(|stamp| self.digest(path, stamp, &|_| {}).ok());
            found == Some((*digest, bytes))
        })
    }

    /// Marks the files of this content as doubtful, because one did not match its hash: each must
    /// be hashed again before use.
    pub fn doubt(&self, digest: &Digest, bytes: u64) {
        let mut index = self.index();
        for path in index.paths_of_len(bytes) {
            let known = Stamp::of(&path).ok().and_then(|stamp| index.known(&path, stamp));
            if known.is_some_and(|(known, _)| known == *digest) {
                index.forget(&path);
            }
        }
    }

    /// Records a file that was written here group by group, each compared with its hash.
    ///
    /// # Errors
    /// The hashes cannot be kept, or the file is not there.
    pub fn adopt(&self, path: &Path, tree: &Tree) -> io::Result<()> {
        fs::write(self.tree_path(&tree.digest), tree.to_bytes())?;
        let stamp = Stamp::of(path)?;
        self.index().note(path, stamp, (tree.digest, tree.bytes));
        *self.look.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// The path of a model's hash file.
    pub fn tree_path(&self, digest: &Digest) -> PathBuf {
        self.trees.join(digest.to_string())
    }

    /// The hashes of a model's groups, if it was hashed here.
    pub fn tree(&self, digest: &Digest, bytes: u64) -> Option<Tree> {
        let groups = if bytes <= crate::GROUP_BYTES {
            Vec::new()
        } else {
            fs::read(self.tree_path(digest)).ok()?
        };
        Tree::from_bytes(*digest, bytes, &groups)
    }

    /// Every model on this machine, the node's own first; reads no model.
    pub fn list(&self) -> Vec<Listed> {
        let index = self.index();
        let listed = |model: &Shelved| {
            let stamp = Stamp::of(&model.path).ok();
            let known = stamp.and_then(|stamp| index.known(&model.path, stamp));
            let digest = known.map(|(digest, _)| digest);
            Listed { model: model.clone(), digest }
        };
        self.look_now().iter().map(listed).collect()
    }

    /// Deletes a model of this node's own folder, with all its parts, and returns the freed bytes.
    ///
    /// # Errors
    /// There is no such model, it belongs to another program, or it cannot be deleted.
    pub fn remove(&self, name: &str) -> Result<u64, StoreError> {
        let located = self.locate(name)?.path;
        let shelved = self.look_now();
        // A folder in the path may be a link.
        let known = shelved.iter().find(|model| real(&model.path) == real(&located));
        let shelf = known.map_or(Shelf::Folder, |model| model.shelf.clone());
        let path = known.map_or(located, |model| model.path.clone());
        if shelf != Shelf::Own {
            return Err(StoreError::NotOurs { name: clean(name), shelf, path });
        }
        let mut freed = 0;
        let is_folder = checkpoint::is_folder(&path);
        for part in checkpoint::paths(&path)
            .into_iter()
            .filter(|part| !crate::towers::is_of_another(part, &path, &shelved))
        {
            let io = |source| StoreError::Io { path: part.clone(), source };
            freed += fs::metadata(&part).map_err(io)?.len();
            fs::remove_file(&part).map_err(io)?;
        }
        // Removes folders that are now empty, up to the models folder; others refuse.
        let mut dir = if is_folder { Some(path.as_path()) } else { path.parent() };
        while let Some(empty) = dir.filter(|dir| *dir != self.models) {
            if fs::remove_dir(empty).is_err() {
                break;
            }
            dir = empty.parent();
        }
        *self.look.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(freed)
    }

    /// Scans the shelves again, after a file was added.
    pub fn refresh(&self) {
        self.look_now();
    }

    /// The models on the shelves, at most `LOOK_MAX` old.
    fn look(&self) -> Arc<Vec<Shelved>> {
        let look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        match &*look {
            Some((when, found)) if when.elapsed() < LOOK_MAX => found.clone(),
            _ => {
                drop(look);
                self.look_now()
            }
        }
    }

    fn look_now(&self) -> Arc<Vec<Shelved>> {
        let found = Arc::new(shelves::scan(&self.models, &self.places));
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        *look = Some((Instant::now(), found.clone()));
        found
    }

    pub(crate) fn locate(&self, name_or_path: &str) -> Result<Located, StoreError> {
        let path = Path::new(name_or_path);
        // A relative path would depend on the working directory, so a name never becomes one.
        let metadata = path.is_absolute().then(|| fs::metadata(path).ok()).flatten();
        let is_file = metadata.as_ref().is_some_and(fs::Metadata::is_file);
        if is_file || metadata.is_some() && checkpoint::is_folder(path) {
            // The real folder and the given name: the name of a link shows its part number, its
            // target's may not.
            let io = |source| StoreError::Io { path: path.to_path_buf(), source };
            let folder = dunce::canonicalize(path.parent().unwrap_or(path)).map_err(io)?;
            let path = folder.join(path.file_name().unwrap_or_default());
            return Ok(Located { name: crate::naming::name_of(&path), path });
        }
        match (self.locate_name(name_or_path), metadata) {
            (Some(found), _) => Ok(found),
            (None, Some(metadata)) => Err(not_a_file(path, &metadata)),
            (None, None) => Err(self.unknown(name_or_path)),
        }
    }

    fn locate_name(&self, name: &str) -> Option<Located> {
        let shelved = self.look();
        self.runnable(&shelved, name).or_else(|| self.runnable(&self.look_now(), name))
    }

    /// The model of a name, skipping models of other programs that cannot be run.
    fn runnable(&self, shelved: &[Shelved], name: &str) -> Option<Located> {
        let mut left: Vec<&Shelved> = shelved.iter().collect();
        loop {
            let (model, located) = named(&left, name)?;
            if self.judge.refusal(model).is_none() {
                return Some(located);
            }
            left.retain(|other| (&other.path, &other.name) != (&model.path, &model.name));
        }
    }

    /// The skipped file of another program that a name would mean, and why it cannot be run, in
    /// words.
    pub fn passed_by(&self, name: &str) -> Option<String> {
        let shelved = self.look();
        let (model, located) = named(&shelved.iter().collect::<Vec<_>>(), name)?;
        let why = self.judge.refusal(model)?;
        let path = located.path.display();
        Some(format!("{}'s file of that name is passed by ({path}): {why}", model.shelf))
    }

    /// Models in several files with some missing.
    pub fn incomplete(&self) -> Vec<Incomplete> {
        shelves::incomplete(&self.models, &self.places)
    }

    fn unknown(&self, name: &str) -> StoreError {
        if let Some(set) = self.incomplete().into_iter().find(|set| set.is_called(name)) {
            return StoreError::Incomplete { name: clean(name), set: Box::new(set) };
        }
        let shelved = self.look();
        let mut known: Vec<String> = shelved.iter().map(|model| model.name.clone()).collect();
        let more = known.len().saturating_sub(KNOWN_MAX);
        known.truncate(KNOWN_MAX);
        let mut text = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
        if let Some(passed) = self.passed_by(name) {
            text.push_str(&format!(". {passed}"));
        }
        StoreError::Unknown { name: clean(name), models: self.models.clone(), known: text }
    }

    /// The digest of a model and its bytes; hashes it if it is unknown or has changed.
    fn digest(
        &self,
        path: &Path,
        stamp: Stamp,
        watch: &HashWatch<'_>,
    ) -> io::Result<(Digest, u64)> {
        let known = || {
            let (digest, bytes) = self.index().known(path, stamp)?;
            (self.tree(&digest, bytes)).map(|_| (digest, bytes))
        };
        if let Some(known) = known() {
            return Ok(known);
        }
        let lock = {
            let mut hashing = self.hashing.lock().unwrap_or_else(PoisonError::into_inner);
            hashing.retain(|_, lock| Arc::strong_count(lock) > 1);
            hashing.entry(path.to_path_buf()).or_default().clone()
        };
        let _hashing = lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have hashed it meanwhile.
        if let Some(known) = known() {
            return Ok(known);
        }
        let files = checkpoint::files(path)?;
        let bytes: u64 = files.iter().map(|file| file.len()).sum();
        let tree = Tree::of_files(files, watch)?;
        if Stamp::of(path)? != stamp || tree.bytes != bytes {
            return Err(io::Error::other("it was changed while it was read. Try again"));
        }
        // If the hashes cannot be kept, the file is hashed again later.
        let _ = fs::write(self.tree_path(&tree.digest), tree.to_bytes());
        self.index().note(path, stamp, (tree.digest, bytes));
        Ok((tree.digest, bytes))
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // The index is consistent after every statement, so a panic elsewhere does not corrupt it.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_name_path_and_content() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let inside = store.models_dir().join("small.gguf");
        fs::write(&inside, b"GGUFcon").unwrap();
        let outside = dir.path().join("elsewhere.gguf");
        fs::write(&outside, b"GGUFano").unwrap();

        let small = store.resolve("small").unwrap();
        assert_eq!((small.name.as_str(), small.bytes), ("small", 7));
        assert_eq!(store.resolve("small.gguf").unwrap(), small);
        assert_eq!(store.resolve(inside.to_str().unwrap()).unwrap(), small);

        let other = store.resolve(outside.to_str().unwrap()).unwrap();
        assert_ne!(other.digest, small.digest);
        assert!(store.find(&small.digest, 7).is_some());
        assert_eq!(store.find(&other.digest, 7), Some(dunce::canonicalize(&outside).unwrap()));
        assert_eq!(store.find(&small.digest, 8), None);
    }

    #[test]
    fn what_is_known_is_found_while_another_file_is_hashed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        fs::write(store.models_dir().join("m.gguf"), b"GGUFcon").unwrap();
        let known = store.resolve("m").unwrap();
        let _hashing = store.hashing.lock().unwrap();
        assert_eq!(store.resolve("m").unwrap(), known);
        assert_eq!(store.find(&known.digest, 7), Some(known.path));
    }

    #[test]
    fn an_index_that_cannot_be_kept_costs_only_hashing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("models.json.new")).unwrap();
        fs::write(store.models_dir().join("m.gguf"), b"GGUFcon").unwrap();
        let digest = store.resolve("m").unwrap().digest;
        assert!(!dir.path().join("models.json").exists());
        assert_eq!(Store::open(dir.path()).unwrap().resolve("m").unwrap().digest, digest);
    }

    #[test]
    fn a_changed_file_is_hashed_again_even_by_a_new_store() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let path = store.models_dir().join("m.gguf");
        fs::write(&path, b"GGUF1").unwrap();
        let one = store.resolve("m").unwrap().digest;
        fs::write(&path, b"GGUF333").unwrap();
        let again = Store::open(dir.path()).unwrap();
        let three = again.resolve("m").unwrap().digest;
        assert_ne!(one, three);
        assert_eq!(again.find(&one, 5), None);
        assert_eq!(three.to_string().parse::<Digest>().unwrap(), three);
    }

    #[test]
    fn a_model_in_several_files_is_one_model() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let part = |number| store.models_dir().join(format!("big-0000{number}-of-00002.gguf"));
        fs::write(part(1), b"GGUF1").unwrap();
        assert!(store.resolve("big").is_err(), "its second part is missing");
        let error = store.resolve(part(1).to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("big-00002-of-00002.gguf"), "{error}");
        fs::write(part(2), b"GGUF2").unwrap();
        let big = store.resolve("big").unwrap();
        assert_eq!((big.name.as_str(), big.bytes, store.list().len()), ("big", 10, 1));
        fs::write(part(2), b"other").unwrap();
        assert_ne!(store.resolve("big").unwrap().digest, big.digest);
    }

    #[test]
    fn an_unknown_name_says_what_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        fs::write(store.models_dir().join("known.gguf"), b"GGUF").unwrap();
        let error = store.resolve("../../etc/hostname2").unwrap_err().to_string();
        assert!(error.contains("known"), "{error}");
    }
}
