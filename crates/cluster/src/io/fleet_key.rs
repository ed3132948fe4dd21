//! The files of fleet keys.

use std::path::Path;

use crate::io::identity::random;
use crate::{Error, FleetKey, Result};

/// A key file has one line of about sixty characters.
const FILE_BYTES_MAX: u64 = 1024;

impl FleetKey {
    /// Draws a new key of 256 random bits.
    pub fn generate() -> Self {
        Self::of(random())
    }

    /// Reads a key file, which only its owner may be able to read.
    ///
    /// # Errors
    /// The file cannot be read, other users can read it, or it contains no key.
    pub fn read(path: &Path) -> Result<Self> {
        let io = |source| Error::KeyFile { path: path.to_owned(), source };
        let about = std::fs::metadata(path).map_err(io)?;
        let bad = |why: &str| Error::FleetKey { path: path.to_owned(), why: why.to_owned() };
        if store::private::is_open_to_others(&about) {
            return Err(bad("other users of this machine may read or change it; type: chmod 600"));
        }
        if about.len() > FILE_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        Self::parse(&text).ok_or_else(|| bad("make one with: sinew fleet-key new FILE"))
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_read_as_it_was_written_and_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.key");
        let key = FleetKey::generate();
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        write(&key.text(), 0o600);
        assert!(FleetKey::read(&path).unwrap() == key);
        let text = key.text();
        let typo = text.replace(&text[20..21], if &text[20..21] == "x" { "y" } else { "x" });
        for (text, mode, why) in [
            (key.text(), 0o644, "chmod 600"),
            (typo, 0o600, "fleet-key new"),
            (String::new(), 0o600, "fleet-key new"),
            ("x".repeat(2000), 0o600, "too long"),
        ] {
            write(&text, mode);
            let error = FleetKey::read(&path).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("fleet.key"), "{error}");
            assert!(!error.contains(key.text().trim()), "the key is in no message");
        }
        assert!(!format!("{key:?}").contains(&key.text()[12..20]));
    }
}
