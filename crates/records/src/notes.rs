//! Short lines that a folder's user keeps beside its records.

use std::io::{self, Read, Write};
use std::path::Path;

use crate::disk::private;

const FILE: &str = "notes";
const BYTES_MAX: u64 = 16 << 10;

/// The notes of a folder; none if they cannot be read.
pub fn notes(folder: &Path) -> Vec<String> {
    let mut text = String::new();
    let file = std::fs::File::open(folder.join(FILE));
    let read = file.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
    read.map_or(Vec::new(), |_| text.lines().map(str::to_owned).collect())
}

/// Adds a line, if it is not there yet. Of more than `most` the first go.
///
/// # Errors
/// The file cannot be written; the notes then stay as they are.
pub fn add_note(folder: &Path, line: &str, most: usize) -> io::Result<()> {
    let mut lines = notes(folder);
    if lines.iter().any(|known| known == line) {
        return Ok(());
    }
    lines.push(line.to_owned());
    let first = lines.len().saturating_sub(most);
    let new = folder.join(format!("{FILE}.new"));
    let mut options = std::fs::File::options();
    let mut file = private(options.create(true).truncate(true).write(true)).open(&new)?;
    file.write_all((lines[first..].join("\n") + "\n").as_bytes())?;
    std::fs::rename(new, folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_kept_once_and_the_last_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        assert!(notes(dir.path()).is_empty());
        for line in ["one", "two", "one", "three"] {
            add_note(dir.path(), line, 2).unwrap();
        }
        assert_eq!(notes(dir.path()), ["two", "three"]);
        std::fs::write(dir.path().join(FILE), [0xff, 0xfe]).unwrap();
        assert!(notes(dir.path()).is_empty());
    }
}
