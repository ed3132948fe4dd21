//! Free space on a disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::HubError;

/// Space to leave free: a completely full disk stops other programs.
pub(crate) const MARGIN_BYTES: u64 = 64 << 20;

/// Free space on the disk of `dir`; `None` if its file system does not report it.
#[cfg(unix)]
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Free space on the disk of `dir`; `None` if the system does not tell.
#[cfg(windows)]
pub fn free_bytes(dir: &Path) -> Option<u64> {
    win32::disk::free_bytes(dir)
}

/// Who needs room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskRoom {
    /// What was asked for may fill the disk up to a margin.
    Enough,
    /// What nobody asked for leaves as much room as it takes.
    Ample,
}

/// Space that a download or copy of this process still needs. The others leave it alone, until this
/// is dropped.
#[derive(Debug)]
pub struct Reserved {
    dir: PathBuf,
    disk: Option<u64>,
    room: DiskRoom,
    left: Arc<AtomicU64>,
}

/// All reservations of this process: the disk, and the bytes to come.
static RESERVED: Mutex<Vec<(Option<u64>, Weak<AtomicU64>)>> = Mutex::new(Vec::new());

/// Reserves `needed` bytes on the disk of `dir`, before the first is fetched.
///
/// # Errors
/// There is not enough room beside what other downloads and copies still need.
pub fn reserve(dir: &Path, file: &str, needed: u64, room: DiskRoom) -> Result<Reserved, HubError> {
    let disk = store::identity(dir).ok().map(|(disk, _)| disk);
    let mut all = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, left)| left.strong_count() > 0);
    let left = Arc::new(AtomicU64::new(needed));
    let reserved = Reserved { dir: dir.to_path_buf(), disk, room, left };
    // If the file system does not report its space, writing shows it.
    if let Some(free) = free_bytes(dir) {
        let free = free.saturating_sub(promised(&all, &reserved));
        if let Some(missing) = missing(needed, free, room) {
            return Err(full(dir, file, needed, free, missing));
        }
    }
    all.push((disk, Arc::downgrade(&reserved.left)));
    Ok(reserved)
}

/// What others still need on the same disk.
fn promised(all: &[(Option<u64>, Weak<AtomicU64>)], of: &Reserved) -> u64 {
    let others = all.iter().filter(|(disk, _)| *disk == of.disk);
    let others = others.filter_map(|(_, left)| left.upgrade());
    let others = others.filter(|left| !Arc::ptr_eq(left, &of.left));
    others.map(|left| left.load(Ordering::Relaxed)).fold(0, u64::saturating_add)
}

impl Reserved {
    /// So many of the bytes are on the disk now.
    pub fn written(&self, bytes: u64) {
        let less = |left: u64| Some(left.saturating_sub(bytes));
        // It always changes.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Whether the rest still fits beside a margin: other programs may have filled the disk.
    pub fn still_fits(&self) -> bool {
        let all = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.left.load(Ordering::Relaxed);
        let free = |free: u64| free.saturating_sub(promised(&all, self));
        let is_full = |free| missing(left, free, DiskRoom::Enough).is_some();
        self.room == DiskRoom::Enough || !free_bytes(&self.dir).map(free).is_some_and(is_full)
    }
}

fn missing(needed: u64, free: u64, room: DiskRoom) -> Option<u64> {
    let wanted = match room {
        _ if needed == 0 => 0,
        DiskRoom::Enough => needed.saturating_add(MARGIN_BYTES),
        DiskRoom::Ample => needed.saturating_add(needed.max(MARGIN_BYTES)),
    };
    wanted.checked_sub(free).filter(|missing| *missing > 0)
}

/// The error of a disk that filled up during a download.
pub(crate) fn became_full(dir: &Path, file: &str, needed: u64) -> HubError {
    full(dir, file, needed, 0, needed.saturating_add(MARGIN_BYTES))
}

fn full(dir: &Path, file: &str, needed: u64, free: u64, missing: u64) -> HubError {
    HubError::NoSpace {
        file: file.to_owned(),
        dir: dir.to_path_buf(),
        needed_bytes: needed,
        free_bytes: free,
        missing_bytes: missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_is_left() {
        let missing = |needed, free| missing(needed, free, DiskRoom::Enough);
        assert_eq!(missing(100, 100 + MARGIN_BYTES), None);
        assert_eq!(missing(100, 99 + MARGIN_BYTES), Some(1));
        assert_eq!(missing(0, 0), None);
        let dir = tempfile::tempdir().unwrap();
        reserve(dir.path(), "m", 1, DiskRoom::Enough).unwrap();
        let error =
            reserve(dir.path(), "m", u64::MAX / 2, DiskRoom::Enough).unwrap_err().to_string();
        assert!(error.contains("it goes on where it stopped"), "{error}");
    }

    #[test]
    fn what_nobody_asked_for_leaves_as_much_as_it_takes() {
        let large = 10 * MARGIN_BYTES;
        assert_eq!(missing(large, 2 * large, DiskRoom::Ample), None);
        assert_eq!(missing(large, 2 * large - 1, DiskRoom::Ample), Some(1));
        assert_eq!(missing(1, MARGIN_BYTES, DiskRoom::Ample), Some(1));
    }

    /// Several copies of two fifths of a disk each are not all begun.
    #[test]
    fn what_others_still_need_is_left_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let Some(free) = free_bytes(dir.path()).filter(|free| *free > 1 << 30) else { return };
        let needed = free / 5 * 2;
        let reserve = |room| reserve(dir.path(), "m", needed, room);
        let first = reserve(DiskRoom::Ample).unwrap();
        assert!(first.still_fits());
        assert!(reserve(DiskRoom::Ample).is_err());
        // What was written is not counted twice, and what has ended not at all.
        first.written(needed);
        drop(reserve(DiskRoom::Ample).unwrap());
        let (_first, _second) =
            (reserve(DiskRoom::Enough).unwrap(), reserve(DiskRoom::Enough).unwrap());
        assert!(reserve(DiskRoom::Enough).is_err());
    }
}
