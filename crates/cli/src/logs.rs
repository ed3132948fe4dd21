//! The node's log in its data directory: files that rotate when they are full.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use store::private;

/// Below the data directory.
pub const FOLDER: &str = "logs";
/// The current file; older ones have a number.
pub const FILE: &str = "sinew.log";

/// Days of a calm node, at about 100 bytes a line.
const BYTES_MAX: u64 = 4 << 20;
/// Number of older files.
const OLDER_MAX: usize = 4;

/// A log file that rotates when it is full. Clones write to the same file.
#[derive(Debug, Clone)]
pub struct Rotating(Arc<Mutex<Written>>);

#[derive(Debug)]
struct Written {
    folder: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl Rotating {
    /// Appends to the folder's log; creates both if they are missing.
    ///
    /// # Errors
    /// They cannot be created or written.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Self::with(folder, BYTES_MAX)
    }

    fn with(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        private::folder(folder)?;
        let file = open(folder)?;
        let bytes = file.metadata()?.len();
        let written = Written { folder: folder.to_path_buf(), file, bytes, bytes_max };
        Ok(Self(Arc::new(Mutex::new(written))))
    }
}

impl Write for Rotating {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // After a panic of another thread the file is still writable.
        let mut written = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if written.bytes > 0 && written.bytes + text.len() as u64 > written.bytes_max {
            written.rotate()?;
        }
        // Written whole, so that a rotation splits no line.
        written.file.write_all(text)?;
        written.bytes += text.len() as u64;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..=OLDER_MAX).rev() {
            let older = match number {
                1 => self.folder.join(FILE),
                _ => numbered(&self.folder, number - 1),
            };
            if older.exists() {
                store::rename(older, numbered(&self.folder, number))?;
            }
        }
        self.file = open(&self.folder)?;
        self.bytes = 0;
        Ok(())
    }
}

/// Readable only for this user, because it names machines and models. A link in its place is not
/// followed: its maker would choose which file grows.
fn open(folder: &Path) -> io::Result<File> {
    let path = folder.join(FILE);
    if path.is_symlink() {
        return Err(io::Error::other("it is a link"));
    }
    private::file(OpenOptions::new().create(true).append(true)).open(path)
}

fn numbered(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{FILE}.{number}"))
}

/// The existing files, the oldest first.
pub fn parts(folder: &Path) -> Vec<PathBuf> {
    let older = (1..=OLDER_MAX).rev().map(|number| numbered(folder, number));
    let all = older.chain([folder.join(FILE)]);
    all.filter(|path| path.exists() && !path.is_symlink()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_full_log_gives_way_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Rotating::with(dir.path(), 20).unwrap();
        for number in 0..40 {
            writeln!(log, "line {number:02}").unwrap();
        }
        let parts = parts(dir.path());
        assert_eq!(parts.len(), 1 + OLDER_MAX);
        let text: String = parts.iter().map(|part| fs::read_to_string(part).unwrap()).collect();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.first(), lines.last()), (Some(&"line 30"), Some(&"line 39")));
        // Another start appends to the same file.
        drop(log);
        writeln!(Rotating::with(dir.path(), 20).unwrap(), "line 40").unwrap();
        assert!(fs::read_to_string(dir.path().join(FILE)).unwrap().ends_with("line 40\n"));
    }

    #[test]
    #[cfg(unix)]
    fn a_link_in_place_of_a_log_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, victim) = (dir.path().join("logs"), dir.path().join("victim"));
        fs::create_dir(&folder).unwrap();
        fs::write(&victim, "mine").unwrap();
        let link = |name: &str| std::os::unix::fs::symlink(&victim, folder.join(name)).unwrap();
        link(FILE);
        assert!(Rotating::open(&folder).is_err());
        assert!(parts(&folder).is_empty());
        fs::remove_file(folder.join(FILE)).unwrap();
        // One in place of an older file goes like that file.
        link("sinew.log.1");
        let mut log = Rotating::with(&folder, 20).unwrap();
        (0..9).for_each(|number| writeln!(log, "line number {number}").unwrap());
        // One that comes while the node runs moves away with the older files.
        fs::remove_file(folder.join(FILE)).unwrap();
        link(FILE);
        (0..9).for_each(|_| drop(writeln!(log, "line")));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    }

    #[test]
    fn a_line_longer_than_a_file_is_written_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Rotating::with(dir.path(), 4).unwrap();
        log.write_all(b"longer than four\n").unwrap();
        assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), b"longer than four\n");
    }
}
