//! The list of the experts that were used last, so that a start reads them before the first token
//! needs them. Wrong numbers in it cost a read, never a bit.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long an end waits for its disk. Without its last list a start is slower, and no more.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than the list of any model.
const LIST_BYTES_MAX: u64 = 8 << 20;

/// A layer of the model, and an expert of it.
pub(super) type Use = (usize, u32);

/// The list in a file, the last use first; empty if there is none.
pub(super) fn read(path: &Path) -> Vec<Use> {
    let mut text = String::new();
    let Ok(file) = fs::File::open(path) else { return Vec::new() };
    if file.take(LIST_BYTES_MAX).read_to_string(&mut text).is_err() {
        return Vec::new();
    }
    let parse = |line: &str| {
        let (layer, expert) = line.split_once(' ')?;
        Some((layer.parse().ok()?, expert.parse().ok()?))
    };
    text.lines().map_while(parse).collect()
}

/// Writes a list on a thread of its own; waits for that if asked to.
pub(super) fn write(path: &Path, uses: Vec<Use>, waits: bool) {
    let path = path.to_owned();
    let (done, is_done) = channel();
    let write = move || {
        let line = |(layer, expert): &Use| format!("{layer} {expert}\n");
        let partial = path.with_extension("partial");
        let text: String = uses.iter().map(line).collect();
        // A list that cannot be written is missed at the next start alone.
        let _ = fs::write(&partial, text).and_then(|()| fs::rename(&partial, &path));
        let _ = done.send(());
    };
    let thread = std::thread::Builder::new().name("hot-experts".to_owned());
    if thread.spawn(write).is_ok() && waits {
        let _ = is_done.recv_timeout(PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_and_a_damaged_one_is_shorter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hot");
        assert!(read(&path).is_empty());
        write(&path, vec![(3, 7), (0, 1)], true);
        assert_eq!(read(&path), [(3, 7), (0, 1)]);
        fs::write(&path, "3 7\n0 x\n1 1\n").unwrap();
        assert_eq!(read(&path), [(3, 7)]);
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(read(&path).is_empty());
    }
}
