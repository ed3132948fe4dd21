//! How fast a disk reads.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::direct::DirectFile;
use crate::pool::Pool;

/// Enough for some tenths of a second of a fast disk, and few enough for the wear of a slow one.
const FILE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 1 << 20;

/// The bytes per second at which the disk of `folder` gives 16 reads at once: of a file that is
/// written for that and removed.
///
/// # Errors
/// The file cannot be written or read.
pub fn measure_disk(folder: &Path) -> io::Result<f64> {
    let path = folder.join(format!("measured-{}", std::process::id()));
    let measured = measure(&path);
    let _ = std::fs::remove_file(&path);
    measured
}

fn measure(path: &Path) -> io::Result<f64> {
    let mut block = Buffer::zeroed(BLOCK_BYTES);
    // Zeros may be compressed, or be no bytes at all on the disk.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in block.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word.copy_from_slice(&state.to_le_bytes());
    }
    let file = DirectFile::writable(path, OpenOptions::new().create(true).truncate(true))?;
    for offset in (0..FILE_BYTES).step_by(BLOCK_BYTES) {
        file.write_at(&block, offset)?;
    }
    file.sync()?;
    drop(file);
    Pool::new()?.measure(&Arc::new(DirectFile::open(path)?), FILE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_measured_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        assert!(measure_disk(dir.path()).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(measure_disk(&dir.path().join("nowhere")).is_err());
    }
}
