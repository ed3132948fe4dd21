//! Room on a disk.

use std::path::Path;

use crate::HubError;

/// Left free: a disk that is full to the last byte stops other programs.
pub(crate) const MARGIN_BYTES: u64 = 64 << 20;

/// Checks that `needed` more bytes have room where `dir` is, before the first of them is fetched.
///
/// # Errors
/// They have not.
pub fn check_room(dir: &Path, file: &str, needed: u64) -> Result<(), HubError> {
    // A file system that does not tell is found out by writing.
    let Ok(stat) = rustix::fs::statvfs(dir) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    match missing(needed, free) {
        None => Ok(()),
        Some(missing) => Err(full(dir, file, needed, free, missing)),
    }
}

fn missing(needed: u64, free: u64) -> Option<u64> {
    let wanted = if needed == 0 { 0 } else { needed.saturating_add(MARGIN_BYTES) };
    wanted.checked_sub(free).filter(|missing| *missing > 0)
}

/// The disk became full while it was written to.
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
        let error = check_room(dir.path(), "m", u64::MAX / 2).unwrap_err().to_string();
        assert!(error.contains("it goes on where it stopped"), "{error}");
    }
}
