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

/// Follows links. Safe Rust reads no file number on Windows, so the real path stands for it, with
/// the time at which the file was made; a second hard link counts as another file.
///
/// # Errors
/// The file cannot be found or looked at.
#[cfg(windows)]
pub fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::windows::fs::MetadataExt;
    let made = std::fs::metadata(path)?.creation_time();
    let real = std::fs::canonicalize(path)?;
    let hash = blake3::hash(real.as_os_str().as_encoded_bytes());
    let [first, ..] = hash.as_bytes().as_chunks::<8>().0 else {
        unreachable!("a hash has 32 bytes")
    };
    Ok((u64::from_le_bytes(*first), made))
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
