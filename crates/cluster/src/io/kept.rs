//! Small files of the data directory that are replaced as a whole. A power cut leaves either the
//! old content or the new one.
//!
//! Each file contains a hash of its content. The previous content is kept in a second file. Bytes
//! that a disk lost or changed are therefore detected, and cost no more than the last change.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use store::private;
use tracing::error;

use crate::io::identity::{random, write_atomic};
use crate::io::on_thread::on_thread;
use crate::{Error, Result};

/// The growth that a check of the disk leaves room for: all members of a large cluster, or a
/// thousand names.
const ROOM_BYTES: usize = 512 << 10;
/// Prefix of the extension of trial files, which check the disk for room.
const TRIAL: &str = "room-";

/// One such file, with a `T` as JSON.
#[derive(Debug, Clone)]
pub(crate) struct KeptFile<T> {
    path: PathBuf,
    content: PhantomData<fn() -> T>,
}

/// The file's JSON.
#[derive(Serialize, Deserialize)]
struct Sealed<T> {
    /// Hash of the content as JSON without spaces.
    blake3: String,
    content: T,
}

impl<T: Serialize> Sealed<T> {
    fn hash(content: &T) -> String {
        let json = serde_json::to_vec(content).expect("it is JSON");
        blake3::hash(&json).to_hex().to_string()
    }
}

impl<T: Default + Serialize + DeserializeOwned> KeptFile<T> {
    pub(crate) fn new(data_dir: &Path, name: &str) -> Self {
        Self { path: data_dir.join(name), content: PhantomData }
    }

    /// Reads the content; the default if there is no file yet. Renames a damaged file. The previous
    /// content replaces a damaged or lost file, and the returned text reports that to the user.
    ///
    /// # Errors
    /// The file cannot be read, or it is damaged or lost and the previous content is damaged too.
    pub(crate) fn load(&self) -> Result<(T, Option<String>)> {
        let why = match self.read(&self.path) {
            Err(Error::Damaged { why, .. }) => why,
            Ok(None) => return self.load_lost(),
            read => return Ok((read?.unwrap_or_default(), None)),
        };
        match self.read(&self.previous()) {
            Ok(Some(content)) => {
                let told = Self::put_aside(&self.path, &why)?;
                Ok((content, Some(format!("{told}. What it held before its last change is used"))))
            }
            _ => Err(Error::Damaged { path: self.path.clone(), why }),
        }
    }

    /// `Self::load` without the file itself.
    fn load_lost(&self) -> Result<(T, Option<String>)> {
        let Some(content) = self.read(&self.previous())? else { return Ok((T::default(), None)) };
        let (path, previous) = (self.path.display(), self.previous());
        let told = format!(
            "{path} is gone; what it held before its last change, {}, is used",
            previous.display()
        );
        Ok((content, Some(told)))
    }

    /// Like `Self::load`, but starts with the default if neither file is readable.
    pub(crate) fn load_or_begin(&self) -> Result<(T, Option<String>)> {
        match self.load() {
            Err(Error::Damaged { path, why }) => {
                Ok((T::default(), Some(Self::put_aside(&path, &why)?)))
            }
            loaded => loaded,
        }
    }

    fn put_aside(path: &Path, why: &str) -> Result<String> {
        let aside = path.with_extension("damaged");
        store::rename(path, &aside)
            .map_err(|source| Error::DataDir { path: path.to_owned(), source })?;
        let (path, aside) = (path.display(), aside.display());
        Ok(format!("{path} could not be read ({why}); it is kept as {aside}"))
    }

    fn previous(&self) -> PathBuf {
        self.path.with_extension("previous")
    }

    fn read(&self, path: &Path) -> Result<Option<T>> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::DataDir { path: path.to_owned(), source }),
        };
        let damaged = |why: String| Error::Damaged { path: path.to_owned(), why };
        let sealed: Sealed<T> =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if !is_as_written(&bytes, &sealed.blake3) && Sealed::hash(&sealed.content) != sealed.blake3
        {
            return Err(damaged("its content is not what was written".to_owned()));
        }
        Ok(Some(sealed.content))
    }

    /// Checks whether the disk has room for the file, before the caller promises to save.
    ///
    /// # Errors
    /// The disk has no room; the error names the file and the reason.
    pub(crate) fn check_room(&self) -> Result<()> {
        // A unique name, because other trials may be under way.
        let number = u64::from_ne_bytes(random());
        let trial = self.path.with_extension(format!("{TRIAL}{number:016x}"));
        let write = |mut file: File| {
            file.write_all(&vec![0; ROOM_BYTES])?;
            file.sync_all()
        };
        let mut options = File::options();
        options.write(true).create_new(true);
        let written = private::file(&mut options).open(&trial).and_then(write);
        let removed = std::fs::remove_file(&trial);
        written.and(removed).map_err(|source| Error::DataDir { path: self.path.clone(), source })
    }

    /// [`Self::check_room`] at the start of a daemon. A daemon that is `known` from earlier starts
    /// serves on a full disk too; the returned text states the consequences.
    ///
    /// # Errors
    /// The disk would not take the file, and the daemon is new or the reason is not a full disk.
    pub(crate) fn check_start(&self, known: bool) -> Result<Option<String>> {
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        match self.check_room() {
            Err(Error::DataDir { path, source }) if known && full.contains(&source.kind()) => {
                Ok(Some(format!(
                    "there was no room for {} when this node started ({source}): it serves, and \
                     what changes in the cluster is lost when it ends. Make room",
                    path.display()
                )))
            }
            checked => checked.map(|()| None),
        }
    }

    /// Removes the trial files of a daemon that was killed during a check. No daemon may run here.
    pub(crate) fn sweep(&self) {
        let (Some(dir), Some(stem)) = (self.path.parent(), self.path.file_stem()) else { return };
        let begins = format!("{}.{TRIAL}", stem.to_string_lossy());
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&begins) {
                // A trial that cannot be removed only costs its space.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Replaces the file unless its content is equal. An equal file needs no write, so a full disk
    /// is then no error.
    pub(crate) fn save(&self, content: &T) -> Result<()> {
        let sealed = Sealed { blake3: Sealed::hash(content), content };
        let bytes = serde_json::to_vec_pretty(&sealed).expect("it is JSON");
        if std::fs::read(&self.path).is_ok_and(|kept| kept == bytes) {
            return Ok(());
        }
        let io = |source| Error::DataDir { path: self.path.clone(), source };
        self.keep_previous().map_err(io)?;
        write_atomic(&self.path, &bytes).map_err(io)
    }

    /// Hard-links the present file, so that replacing it keeps the previous content.
    fn keep_previous(&self) -> std::io::Result<()> {
        let new = self.path.with_extension("previous.partial");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match std::fs::hard_link(&self.path, &new) {
            Ok(()) => store::rename(new, self.previous()),
            // There is no file yet, or this file system has no hard links.
            Err(_) => Ok(()),
        }
    }
}

/// Whether the content of such a file has this hash: as it stands there, with fields that only a
/// newer version knows.
fn is_as_written(file: &[u8], blake3: &str) -> bool {
    let compact = without_spaces(file);
    let begin = format!("{{\"blake3\":\"{blake3}\",\"content\":");
    let content = compact.strip_prefix(begin.as_bytes());
    let content = content.and_then(|rest| rest.strip_suffix(b"}"));
    content.is_some_and(|content| blake3::hash(content).to_hex().as_str() == blake3)
}

/// JSON without the spaces between its tokens.
fn without_spaces(json: &[u8]) -> Vec<u8> {
    let (mut is_text, mut is_escaped) = (false, false);
    let mut is_kept = |byte: &u8| {
        let is_kept = is_text || !byte.is_ascii_whitespace();
        let is_quote = *byte == b'"' && !is_escaped;
        is_escaped = is_text && *byte == b'\\' && !is_escaped;
        is_text ^= is_quote;
        is_kept
    };
    json.iter().copied().filter(|byte| is_kept(byte)).collect()
}

/// Keeps a file up to date without blocking the driver.
#[derive(Debug)]
pub(crate) struct Saver<T> {
    file: KeptFile<T>,
    latest: Mutex<Latest<T>>,
}

#[derive(Debug)]
struct Latest<T> {
    content: T,
    /// Set once another daemon may use the file.
    is_closed: bool,
}

impl<T: Default + Serialize + DeserializeOwned + Send + 'static> Saver<T> {
    pub(crate) fn new(file: KeptFile<T>, content: T) -> Self {
        Self { file, latest: Mutex::new(Latest { content, is_closed: false }) }
    }

    /// The data directory.
    pub(crate) fn folder(&self) -> PathBuf {
        self.file.path.parent().unwrap_or(&self.file.path).to_path_buf()
    }

    pub(crate) fn set(&self, content: T) {
        self.latest().content = content;
    }

    /// Changes the value, to be written by the next `save`.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.latest().content)
    }

    /// Reads the value of the last `set`.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.latest().content)
    }

    /// Locked during writes, so that older content never replaces newer content.
    fn latest(&self) -> MutexGuard<'_, Latest<T>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the latest value, then refuses further writes.
    pub(crate) async fn close(self: Arc<Self>) {
        self.clone().save().await;
        // A later `save` finds `is_closed` and writes nothing.
        let closed = on_thread(move || self.latest().is_closed = true);
        let _ = closed.await;
    }

    /// Writes the latest value; returns when it is on disk or the write has failed.
    pub(crate) async fn save(self: Arc<Self>) {
        // `try_save` logs the error. Callers that depend on the write call it themselves.
        let _ = self.try_save().await;
    }

    /// Like `Self::save`, for callers that have promised durability.
    ///
    /// # Errors
    /// The write failed.
    pub(crate) async fn try_save(self: Arc<Self>) -> Result<()> {
        let write = on_thread(move || {
            let latest = self.latest();
            if latest.is_closed { Ok(()) } else { self.file.save(&latest.content) }
        });
        // The task panicked, or the runtime is shutting down.
        let Ok(written) = write.await else { return Err(Error::ShutDown) };
        written.inspect_err(|error| error!(%error, "state of the cluster is not saved"))
    }

    /// [`KeptFile::check_room`] on a thread for blocking work.
    ///
    /// # Errors
    /// Those of [`KeptFile::check_room`].
    pub(crate) async fn check_room(self: Arc<Self>) -> Result<()> {
        let check = on_thread(move || {
            let _latest = self.latest();
            self.file.check_room()
        });
        check.await.unwrap_or(Err(Error::ShutDown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> (tempfile::TempDir, KeptFile<Vec<u32>>, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = KeptFile::new(dir.path(), "numbers.json");
        let path = dir.path().join("numbers.json");
        (dir, file, path)
    }

    #[test]
    fn a_torn_or_foreign_file_is_put_aside_and_told() {
        let (dir, file, path) = kept();
        assert_eq!(file.load().unwrap(), (vec![], None));
        file.save(&vec![1, 2]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for content in [&whole[..whole.len() - 1], b"{\"of\": \"another program\"}", b"[1]", b""] {
            std::fs::write(&path, content).unwrap();
            assert!(matches!(file.load(), Err(Error::Damaged { .. })), "there is none before it");
            let (numbers, told) = file.load_or_begin().unwrap();
            let told = told.expect("a person is told");
            assert!(numbers.is_empty() && told.contains("numbers.damaged"), "{told}");
            assert_eq!(std::fs::read(dir.path().join("numbers.damaged")).unwrap(), content);
            assert_eq!(file.load_or_begin().unwrap(), (vec![], None));
        }
    }

    /// As a newer version writes it.
    #[test]
    fn fields_that_are_not_known_are_no_damage() {
        #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
        struct Old {
            name: String,
        }
        #[derive(Debug, Default, Serialize, Deserialize)]
        struct New {
            colour: Vec<String>,
            name: String,
        }
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (
            KeptFile::<Old>::new(dir.path(), "member.json"),
            KeptFile::<New>::new(dir.path(), "member.json"),
        );
        let name = "a \"name\" \\ with  spaces\n".to_owned();
        new.save(&New { colour: vec!["red \\\" ".to_owned()], name: name.clone() }).unwrap();
        assert_eq!(old.load().unwrap(), (Old { name }, None));
        let path = dir.path().join("member.json");
        let changed = std::fs::read_to_string(&path).unwrap().replace("red", "rad");
        std::fs::write(&path, changed).unwrap();
        assert!(matches!(old.load(), Err(Error::Damaged { .. })));
    }

    #[test]
    fn a_lost_file_is_replaced_by_what_it_held_before_and_told() {
        let (_dir, file, path) = kept();
        file.save(&vec![1]).unwrap();
        file.save(&vec![1, 2]).unwrap();
        std::fs::remove_file(&path).unwrap();
        for load in [KeptFile::load, KeptFile::load_or_begin] {
            let (numbers, told) = load(&file).unwrap();
            let told = told.expect("a person is told");
            assert_eq!(numbers, [1]);
            assert!(told.contains("numbers.json is gone") && told.contains(".previous"), "{told}");
        }
        std::fs::write(file.previous(), b"{").unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains("numbers.previous is damaged"), "{error}");
        let (numbers, told) = file.load_or_begin().unwrap();
        assert!(numbers.is_empty() && told.unwrap().contains("numbers.previous"));
        assert_eq!(file.load().unwrap(), (vec![], None));
    }

    #[test]
    fn what_is_equal_is_not_written() {
        let (dir, file, path) = kept();
        file.save(&vec![1]).unwrap();
        file.save(&vec![2]).unwrap();
        let inode = || store::identity(&path).unwrap();
        let before = inode();
        file.save(&vec![2]).unwrap();
        assert_eq!(inode(), before);
        // The previous content is unchanged.
        std::fs::remove_file(dir.path().join("numbers.json")).unwrap();
        assert_eq!(file.load().unwrap().0, [1]);
    }

    #[test]
    fn trials_that_a_kill_left_are_swept() {
        let (dir, file, path) = kept();
        file.save(&vec![1]).unwrap();
        let left = ["numbers.room-0123456789abcdef", "numbers.room-"].map(|at| dir.path().join(at));
        let others = ["others.room-01", "numbers.roomy"].map(|at| dir.path().join(at));
        for path in left.iter().chain(&others) {
            std::fs::write(path, b"0").unwrap();
        }
        file.check_room().unwrap();
        file.sweep();
        assert!(left.iter().all(|path| !path.exists()));
        assert!(others.iter().chain([&path]).all(|path| path.exists()));
    }

    #[test]
    fn whatever_bit_flips_and_wherever_it_is_cut_the_last_good_state_is_there() {
        let (_dir, file, path) = kept();
        file.save(&vec![10, 20]).unwrap();
        file.save(&vec![10, 20, 30]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let flipped = (0..whole.len() * 8).map(|bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        });
        let cut = (0..whole.len()).map(|len| whole[..len].to_vec());
        let mut previous = 0;
        for content in flipped.chain(cut) {
            std::fs::write(&path, &content).unwrap();
            match file.load().unwrap() {
                // An additional or missing space changes nothing.
                (numbers, None) => assert_eq!(numbers, [10, 20, 30], "{content:?}"),
                (numbers, Some(told)) => {
                    previous += 1;
                    assert_eq!(numbers, [10, 20]);
                    assert!(told.contains("before its last change"), "{told}");
                }
            }
        }
        assert!(previous > whole.len() * 4, "{previous}");
    }

    #[test]
    fn a_power_cut_at_any_moment_of_a_write_leaves_old_or_new() {
        let (dir, file, path) = kept();
        let at = |name: &str| dir.path().join(name);
        file.save(&vec![1]).unwrap();
        file.save(&vec![2]).unwrap();
        let new = {
            file.save(&vec![3]).unwrap();
            std::fs::read(&path).unwrap()
        };
        file.save(&vec![2]).unwrap();
        // The states in between: the hard link exists; the new content is partly written; it is
        // complete.
        std::fs::hard_link(&path, at("numbers.previous.partial")).unwrap();
        assert_eq!(file.load().unwrap(), (vec![2], None));
        std::fs::rename(at("numbers.previous.partial"), at("numbers.previous")).unwrap();
        assert_eq!(file.load().unwrap(), (vec![2], None));
        for written in [0, new.len() / 2, new.len()] {
            std::fs::write(at("numbers.partial"), &new[..written]).unwrap();
            assert_eq!(file.load().unwrap(), (vec![2], None));
        }
        std::fs::rename(at("numbers.partial"), &path).unwrap();
        assert_eq!(file.load().unwrap(), (vec![3], None));
        // Leftover partial files do not block the next save.
        std::fs::write(at("numbers.partial"), b"[").unwrap();
        std::fs::write(at("numbers.previous.partial"), b"[").unwrap();
        file.save(&vec![5]).unwrap();
        assert_eq!(file.load().unwrap(), (vec![5], None));
    }
}
