//! The folders in which this node's workers keep prompts over restarts, one for each model.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use protocol::{Heads, PromptCache, Secret, heads_of_line};
use records::{Pool, Reader};
use store::Digest;

use crate::io::on_thread::on_thread;
use crate::{PromptsConfig, PromptsLimit};

/// The default limit: a tenth of what the disk has free (and of what is kept there), within these.
const AUTO_PART: u64 = 10;
const AUTO_MIN_BYTES: u64 = 1 << 30;
const AUTO_MAX_BYTES: u64 = 20 << 30;
/// Nothing is written while the disk has less room.
const RESERVE_BYTES: u64 = 1 << 30;
/// Threads that read for one member.
const READ_DEPTH: usize = 4;
/// A worker that writes a segment to a slow disk answers after it.
const FORGET_PATIENCE: Duration = Duration::from_secs(60);
/// Digits of a digest that name a folder.
const NAME_DIGITS: usize = 32;

/// The folder for a model with this digest; `None` if nothing is kept. Other models' folders, those
/// used longest ago first, give way until this one has half of the limit.
pub(super) fn folder(config: &PromptsConfig, key: [u8; 32], digest: &str) -> Option<PromptCache> {
    if config.limit == PromptsLimit::Off {
        return None;
    }
    let name = digest.get(..NAME_DIGITS)?;
    let mut others = folders(&config.folder);
    let own = others.iter().position(|other| other.path.ends_with(name));
    let own = own.map_or(0, |at| others.swap_remove(at).bytes);
    let mut of_others: u64 = others.iter().map(|other| other.bytes).sum();
    let limit = match config.limit {
        PromptsLimit::Bytes(bytes) => bytes,
        _ => {
            let _ = fs::create_dir_all(&config.folder);
            let room = hub::free_bytes(&config.folder)?.saturating_add(own + of_others);
            let part = room / AUTO_PART;
            (part >= AUTO_MIN_BYTES).then_some(part.min(AUTO_MAX_BYTES))?
        }
    };
    others.sort_by_key(|other| other.used);
    for other in others {
        if of_others <= limit / 2 {
            break;
        }
        if remove_unused(&other.path) {
            of_others -= other.bytes;
        }
    }
    Some(PromptCache {
        folder: config.folder.join(name),
        sealing_key: Secret(key),
        model: digest.to_owned(),
        budget_bytes: limit.saturating_sub(of_others),
        reserve_bytes: RESERVE_BYTES,
        members: None,
    })
}

/// What this node's workers keep, for other members.
#[derive(Debug, Clone)]
pub(crate) struct KeptPrompts {
    folder: PathBuf,
    key: Secret,
}

impl KeptPrompts {
    pub fn new(config: &PromptsConfig, key: [u8; 32]) -> Self {
        Self { folder: config.folder.clone(), key: Secret(key) }
    }

    /// Records of the model with this digest, and their heads. Waits for the disk.
    pub fn reader(&self, model: &Digest) -> Option<(Vec<Heads>, Reader)> {
        let folder = self.folder.join(model.to_string().get(..NAME_DIGITS)?);
        let pool = Arc::new(Pool::with_depth(READ_DEPTH).ok()?);
        let reader = Reader::open(&folder, &self.key.0, pool).ok()?;
        let lines = records::notes(&folder);
        Some((lines.iter().filter_map(|line| heads_of_line(line)).collect(), reader))
    }

    /// [`forget`] on a thread for blocking work.
    pub async fn forget(&self) -> Result<u64, String> {
        let folder = self.folder.clone();
        let forgotten = on_thread(move || forget(&folder)).await;
        forgotten.unwrap_or_else(|_| Err("the node shuts down".to_owned()))
    }
}

/// Removes all that was kept.
///
/// # Errors
/// Something stays.
pub(super) fn remove(config: &PromptsConfig) -> std::io::Result<()> {
    for folder in folders(&config.folder) {
        match fs::remove_dir_all(&folder.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes all prompts, also those of models that are served; returns the bytes freed. Waits for
/// the disk.
///
/// # Errors
/// Some stay; the text says which.
pub(crate) fn forget(base: &Path) -> Result<u64, String> {
    let mut freed = 0;
    for folder in folders(base) {
        if !remove_unused(&folder.path) {
            let kept = |why| format!("{}: {why}", folder.path.display());
            records::forget(&folder.path, FORGET_PATIENCE).map_err(kept)?;
        }
        freed += folder.bytes;
    }
    Ok(freed)
}

struct Folder {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// The folders of all models. Anything else there is another's.
fn folders(base: &Path) -> Vec<Folder> {
    let is_own = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.len() == NAME_DIGITS && name.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let paths = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_folder = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    paths.filter(is_own).filter(is_folder).map(measure).collect()
}

fn measure(path: PathBuf) -> Folder {
    let files = fs::read_dir(&path).into_iter().flatten().flatten();
    let found: Vec<fs::Metadata> = files.filter_map(|file| file.metadata().ok()).collect();
    let used = found.iter().filter_map(|file| file.modified().ok()).max();
    let bytes = found.iter().map(fs::Metadata::len).sum();
    Folder { path, bytes, used: used.unwrap_or(SystemTime::UNIX_EPOCH) }
}

/// Removes a folder that no worker has open.
fn remove_unused(folder: &Path) -> bool {
    let lock = fs::File::open(folder.join("lock"));
    let is_used = lock.is_ok_and(|lock| lock.try_lock().is_err());
    !is_used && fs::remove_dir_all(folder).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [3; 32];

    fn digest(of: char) -> String {
        std::iter::repeat_n(of, 64).collect()
    }

    fn config(base: &Path, limit: PromptsLimit) -> PromptsConfig {
        PromptsConfig { folder: base.to_owned(), limit }
    }

    fn fill(base: &Path, of: char, bytes: usize) -> PathBuf {
        let folder = base.join(&digest(of)[..NAME_DIGITS]);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("lock"), []).unwrap();
        fs::write(folder.join("1"), vec![0; bytes]).unwrap();
        folder
    }

    #[test]
    fn the_models_used_longest_ago_give_way_and_none_that_is_in_use() {
        let base = tempfile::tempdir().unwrap();
        let (base, limit) = (base.path(), PromptsLimit::Bytes(1000));
        let old = fill(base, 'a', 400);
        let used = fill(base, 'b', 300);
        let new = fill(base, 'c', 300);
        let time = |folder: &Path, secs| {
            let file = fs::File::options().write(true).open(folder.join("1")).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs);
            file.set_modified(time).unwrap();
            fs::File::options().write(true).open(folder.join("lock")).unwrap().set_modified(time)
        };
        time(&old, 10).unwrap();
        time(&used, 5).unwrap();
        time(&new, 20).unwrap();
        let lock = fs::File::options().write(true).open(used.join("lock")).unwrap();
        lock.try_lock().unwrap();
        fs::create_dir(base.join("somebody's")).unwrap();
        let own = folder(&config(base, limit), KEY, &digest('d')).unwrap();
        assert_eq!(own.budget_bytes, 700);
        assert!(!old.exists() && used.exists() && !new.exists());
        assert!(base.join("somebody's").exists());
        // Its own folder counts as room.
        fill(base, 'd', 600);
        assert_eq!(folder(&config(base, limit), KEY, &digest('d')).unwrap().budget_bytes, 700);
    }

    #[test]
    fn off_keeps_nothing_and_removes_what_was_kept() {
        let base = tempfile::tempdir().unwrap();
        let (kept, off) = (fill(base.path(), 'a', 10), config(base.path(), PromptsLimit::Off));
        assert_eq!(folder(&off, KEY, &digest('a')), None);
        remove(&off).unwrap();
        assert!(!kept.exists());
        remove(&off).unwrap();
    }

    #[test]
    fn all_is_forgotten_by_one_call() {
        let base = tempfile::tempdir().unwrap();
        let kept = [('a', 10), ('b', 30)].map(|(of, bytes)| fill(base.path(), of, bytes));
        fs::create_dir(base.path().join("somebody's")).unwrap();
        assert_eq!(forget(base.path()), Ok(40));
        assert!(kept.iter().all(|folder| !folder.exists()));
        assert!(base.path().join("somebody's").exists());
        assert_eq!(forget(base.path()), Ok(0));
    }
}
