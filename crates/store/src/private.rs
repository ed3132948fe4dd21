//! Files and folders that only this user may read.
//!
//! On Windows nothing is set: what is made below a user's folder inherits that only this user, the
//! system and administrators may read it.

use std::fs::{Metadata, OpenOptions};
use std::io;
use std::path::Path;

pub use platform::{file, is_open_to_others, restrict_file, restrict_folder};

/// Makes a folder, and those above it that are missing.
///
/// # Errors
/// It cannot be made.
pub fn folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    platform::folder(builder.recursive(true)).create(path)
}

#[cfg(unix)]
mod platform {
    use std::fs::{DirBuilder, Permissions};
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};

    use super::*;

    const FILE_MODE: u32 = 0o600;
    const FOLDER_MODE: u32 = 0o700;

    /// What is made with these options is private.
    pub fn file(options: &mut OpenOptions) -> &mut OpenOptions {
        options.mode(FILE_MODE)
    }

    pub(super) fn folder(builder: &mut DirBuilder) -> &mut DirBuilder {
        builder.mode(FOLDER_MODE)
    }

    /// Makes a file private that may not be so.
    ///
    /// # Errors
    /// It is gone, or of another user.
    pub fn restrict_file(path: &Path) -> io::Result<()> {
        std::fs::set_permissions(path, Permissions::from_mode(FILE_MODE))
    }

    /// Makes a folder private that may not be so.
    ///
    /// # Errors
    /// It is gone, or of another user.
    pub fn restrict_folder(path: &Path) -> io::Result<()> {
        std::fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))
    }

    /// Whether other users may read or change a file.
    pub fn is_open_to_others(file: &Metadata) -> bool {
        file.permissions().mode() & 0o077 != 0
    }
}

#[cfg(windows)]
mod platform {
    use std::fs::DirBuilder;

    use super::*;

    /// What is made with these options is as private as its folder.
    pub fn file(options: &mut OpenOptions) -> &mut OpenOptions {
        options
    }

    pub(super) fn folder(builder: &mut DirBuilder) -> &mut DirBuilder {
        builder
    }

    /// # Errors
    /// None: a file is as private as its folder.
    pub fn restrict_file(_: &Path) -> io::Result<()> {
        Ok(())
    }

    /// # Errors
    /// None: a folder is as private as the one above it.
    pub fn restrict_folder(_: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Not known without the access control list, which safe Rust does not read.
    pub fn is_open_to_others(_: &Metadata) -> bool {
        false
    }
}
