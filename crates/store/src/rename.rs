//! One file put in the place of another.

use std::io;
use std::path::Path;

/// Renames a file; one of the new name is replaced in one step.
///
/// A system of Windows may refuse that while another program has one of the two open; Wine does.
/// Programs read such files for moments, so it is tried for a second there, and blocks meanwhile.
///
/// # Errors
/// The disk fails, a folder is missing or of another user, or on Windows a file stays open.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let once = || std::fs::rename(&from, &to);
    #[cfg(windows)]
    for _ in 0..TRIES_MAX {
        match once() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied || is_held(&error) => {}
            done => return done,
        }
        std::thread::sleep(TRY_EVERY);
    }
    once()
}

#[cfg(windows)]
const TRY_EVERY: std::time::Duration = std::time::Duration::from_millis(20);
#[cfg(windows)]
const TRIES_MAX: usize = 50;

#[cfg(windows)]
fn is_held(error: &io::Error) -> bool {
    const ERROR_SHARING_VIOLATION: i32 = 32;
    error.raw_os_error() == Some(ERROR_SHARING_VIOLATION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_read_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("old"), "old").unwrap();
        std::fs::write(at("new"), "new").unwrap();
        let reader = std::fs::File::open(at("old")).unwrap();
        let moment = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            drop(reader);
        });
        rename(at("new"), at("old")).unwrap();
        moment.join().unwrap();
        assert_eq!(std::fs::read_to_string(at("old")).unwrap(), "new");
        assert_eq!(rename(at("new"), at("old")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
