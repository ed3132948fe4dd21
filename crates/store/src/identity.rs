//! Tells two files or folders apart, whatever names they have.

use std::io;
use std::path::Path;

/// Equal for two names of one file or folder, different for any other that exists beside it.
pub type Identity = (u64, u64);

/// Follows links.
///
/// # Errors
/// The file cannot be found or looked at.
#[cfg(unix)]
pub fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Follows links.
///
/// # Errors
/// The file cannot be found or looked at.
#[cfg(windows)]
pub fn identity(path: &Path) -> io::Result<Identity> {
    win32::disk::identity(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_another_and_a_longer_way_is_the_same() {
        let home = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| home.path().join(name));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&two).unwrap();
        assert_ne!(identity(&one).unwrap(), identity(&two).unwrap());
        assert_eq!(identity(&one).unwrap(), identity(&two.join("../one")).unwrap());
        identity(&home.path().join("none")).unwrap_err();
    }
}
