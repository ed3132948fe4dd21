use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::{Directory, Error, ReadError, Source, Strided, TensorInfo};

/// A GGUF file of this machine, memory-mapped: nothing is read before it is used.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    map: Mmap,
    directory: Arc<Directory>,
}

impl File {
    /// Maps and checks a file.
    ///
    /// # Errors
    /// It cannot be opened, or is not a complete GGUF file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_path_buf();
        let io = |source| Error::Io { path: path.clone(), source };
        let file = std::fs::File::open(&path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("it is not a regular file")));
        }
        // SAFETY: the map is read-only and private. A model file is not expected to change while
        // it is in use; if another process truncates it, reads past the new end fault (the
        // worker process dies and is restarted by its daemon), they never read foreign memory.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let directory = Arc::new(Directory::parse(&map, map.len() as u64)?);
        Ok(Self { path, map, directory })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// One tensor's bytes; `tensor` must come from this file's directory.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.map[tensor.range.start as usize..tensor.range.end as usize]
    }
}

impl Source for File {
    fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        let len = self.map.len() as u64;
        let end = pieces.end().unwrap_or(u64::MAX);
        if end > len || pieces.total() != Some(out.len() as u64) {
            return Err(ReadError::OutOfFile { end, len });
        }
        let piece = pieces.piece as usize;
        if piece == 0 {
            return Ok(());
        }
        for (at, out) in out.chunks_exact_mut(piece).enumerate() {
            let start = (pieces.start + at as u64 * pieces.stride) as usize;
            out.copy_from_slice(&self.map[start..start + piece]);
        }
        Ok(())
    }

    fn view(&self, start: u64, len: u64) -> Option<&[u8]> {
        let end = start.checked_add(len)?;
        self.map.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}
