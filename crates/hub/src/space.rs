//! Free space on a disk.

use std::path::Path;

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

/// Whether the disk of `dir` has room for `needed` more bytes twice over.
pub fn has_ample_room(dir: &Path, needed: u64) -> bool {
    free_bytes(dir).is_some_and(|free| free / 2 >= needed)
}

/// Checks that the disk of `dir` has room for `needed` more bytes, before the first is fetched.
///
/// # Errors
/// There is not enough room.
pub fn check_room(dir: &Path, file: &str, needed: u64) -> Result<(), HubError> {
    // If the file system does not report its space, writing shows it.
    let Some(free) = free_bytes(dir) else { return Ok(()) };
    match missing(needed, free) {
        None => Ok(()),
        Some(missing) => Err(full(dir, file, needed, free, missing)),
    }
}

fn missing(needed: u64, free: u64) -> Option<u64> {
    let wanted = if needed == 0 { 0 } else { needed.saturating_add(MARGIN_BYTES) };
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
        assert_eq!(missing(100, 100 + MARGIN_BYTES), None);
        assert_eq!(missing(100, 99 + MARGIN_BYTES), Some(1));
        assert_eq!(missing(0, 0), None);
        let dir = tempfile::tempdir().unwrap();
        check_room(dir.path(), "m", 1).unwrap();
        assert!(has_ample_room(dir.path(), 1) && !has_ample_room(dir.path(), u64::MAX / 2));
        let error = check_room(dir.path(), "m", u64::MAX / 2).unwrap_err().to_string();
        assert!(error.contains("it goes on where it stopped"), "{error}");
    }
}
