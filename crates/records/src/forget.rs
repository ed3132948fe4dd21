//! Clearing a folder that another process has open: a file in it asks the writer there, and goes
//! when everything is cleared.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::disk::private;

const FILE: &str = "forget";
/// How often the writer looks for it, and who asks looks whether it is gone.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Asks the process that has the folder open to forget all records, and waits until it has.
///
/// # Errors
/// The file cannot be made, or is still there after `patience`: no process has the folder open, or
/// its disk does not answer.
pub fn forget(folder: &Path, patience: Duration) -> io::Result<()> {
    let (path, until) = (folder.join(FILE), Instant::now() + patience);
    private(File::options().create(true).truncate(true).write(true)).open(&path)?;
    while path.try_exists()? {
        if Instant::now() >= until {
            let _ = fs::remove_file(&path);
            let why = format!("its worker has not cleared it in {} s", patience.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, why));
        }
        std::thread::sleep(LOOK_EVERY / 10);
    }
    Ok(())
}

/// Whether somebody has asked for it.
pub(crate) fn is_asked(folder: &Path) -> bool {
    folder.join(FILE).exists()
}

/// Tells that it is done.
pub(crate) fn is_done(folder: &Path) {
    let _ = fs::remove_file(folder.join(FILE));
}
