use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::split::{Split, is_split};
use crate::{Directory, Error, ReadError, Source, Strided, TensorInfo};

/// A GGUF file of this machine, memory-mapped: nothing is read before it is used. A model in
/// several files is opened by the first and shown as one file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    data: Data,
    directory: Arc<Directory>,
}

#[derive(Debug)]
enum Data {
    One(Mmap),
    Split(Split),
}

impl Data {
    fn len(&self) -> u64 {
        match self {
            Self::One(map) => map.len() as u64,
            Self::Split(split) => split.len(),
        }
    }

    /// `None` if they are not one piece of the file.
    fn bytes(&self, start: u64, len: u64) -> Option<&[u8]> {
        match self {
            Self::One(map) => {
                let end = start.checked_add(len)?;
                map.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
            }
            Self::Split(split) => split.bytes(start, len),
        }
    }
}

impl File {
    /// Maps and checks a file.
    ///
    /// # Errors
    /// It cannot be opened, or is not a complete GGUF file, or one of its other parts is not.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_path_buf();
        let (map, directory) = open_one(&path)?;
        let (data, directory) = match is_split(&directory)? {
            true => {
                let (split, directory) = Split::open(&path, (map, directory), open_one)?;
                (Data::Split(split), directory)
            }
            false => (Data::One(map), directory),
        };
        Ok(Self { path, data, directory: Arc::new(directory) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the whole file; of one in several parts, of the file that they make.
    pub fn file_len(&self) -> u64 {
        self.data.len()
    }

    /// One tensor's bytes; `tensor` must come from this file's directory.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        let (start, end) = (tensor.range.start, tensor.range.end);
        self.data.bytes(start, end - start).expect("the directory was checked against the file")
    }
}

fn open_one(path: &Path) -> Result<(Mmap, Directory), Error> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let file = std::fs::File::open(path).map_err(io)?;
    if !file.metadata().map_err(io)?.is_file() {
        return Err(io(std::io::Error::other("it is not a regular file")));
    }
    // SAFETY: the map is read-only and private. A model file is not expected to change while
    // it is in use; if another process truncates it, reads past the new end fault (the
    // worker process dies and is restarted by its daemon), they never read foreign memory.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    let directory = Directory::parse(&map, map.len() as u64)?;
    Ok((map, directory))
}

impl Source for File {
    fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        let len = self.data.len();
        let end = pieces.end().unwrap_or(u64::MAX);
        if end > len || pieces.total() != Some(out.len() as u64) {
            return Err(ReadError::OutOfFile { end, len });
        }
        let piece = pieces.piece as usize;
        if piece == 0 {
            return Ok(());
        }
        for (at, out) in out.chunks_exact_mut(piece).enumerate() {
            let start = pieces.start + at as u64 * pieces.stride;
            let bytes = self.data.bytes(start, pieces.piece);
            out.copy_from_slice(bytes.ok_or(ReadError::OutOfFile { end, len })?);
        }
        Ok(())
    }

    fn view(&self, start: u64, len: u64) -> Option<&[u8]> {
        self.data.bytes(start, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TensorType, Value, Writer};
    use std::io::Write;

    /// Writes tensors of 8 numbers; each byte is the tensor's index in the model.
    fn write(path: &Path, tensors: &[(&str, u8)], split: Option<(u16, u16)>) {
        let mut writer = Writer::new();
        if let Some((number, count)) = split {
            writer.set("split.no", Value::U16(number)).set("split.count", Value::U16(count));
        }
        if split.is_none_or(|(number, _)| number == 0) {
            writer.set("general.architecture", Value::String("llama".to_owned()));
        }
        for (name, _) in tensors {
            writer.declare(name, &[8], TensorType::F32);
        }
        let mut out = Vec::new();
        let fill = |name: &str, _, bytes, out: &mut Vec<u8>| {
            let byte = tensors.iter().find(|tensor| tensor.0 == name).unwrap().1;
            out.write_all(&vec![byte; bytes as usize])
        };
        writer.write(&mut out, fill).unwrap();
        std::fs::write(path, out).unwrap();
    }

    #[test]
    fn a_model_in_several_files_reads_as_the_one_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let part = |number: u16| dir.path().join(format!("m-{number:05}-of-00003.gguf"));
        write(&part(1), &[], Some((0, 3)));
        write(&part(2), &[("a", 1), ("b", 2)], Some((1, 3)));
        write(&part(3), &[("c", 3)], Some((2, 3)));
        let whole = dir.path().join("whole.gguf");
        write(&whole, &[("a", 1), ("b", 2), ("c", 3)], None);

        let (split, whole) = (File::open(part(1)).unwrap(), File::open(whole).unwrap());
        assert_eq!(split.file_len(), whole.file_len());
        assert_eq!(split.directory().tensors(), whole.directory().tensors());
        assert_eq!(split.directory().str("general.architecture").unwrap(), "llama");
        assert!(split.directory().get("split.count").is_none());
        for tensor in whole.directory().tensors() {
            assert_eq!(split.tensor_bytes(tensor), whole.tensor_bytes(tensor));
        }
        // A peer reads the header as bytes, and so it must be those of the whole file.
        let len = whole.directory().header_len();
        assert_eq!(split.view(0, len), whole.view(0, len));
        let across = split.directory().tensors()[0].range.end - 4;
        assert_eq!(split.view(across, 8), None, "no bytes of two tensors at once");
    }

    #[test]
    fn parts_that_are_missing_or_strange_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let part = |number: u16| dir.path().join(format!("m-{number:05}-of-00002.gguf"));
        let error = |path: &Path| File::open(path).unwrap_err().to_string();
        write(&part(1), &[("a", 1)], Some((0, 2)));
        assert!(error(&part(1)).contains("m-00002-of-00002.gguf"), "{}", error(&part(1)));
        write(&part(2), &[("b", 1)], Some((0, 2)));
        assert!(error(&part(1)).contains("is not its part 2 of 2"), "{}", error(&part(1)));
        write(&part(2), &[("a", 1)], Some((1, 2)));
        assert!(error(&part(1)).contains("appears twice"), "{}", error(&part(1)));
        assert!(error(&part(2)).contains("open the first"), "{}", error(&part(2)));
        let renamed = dir.path().join("m.gguf");
        std::fs::rename(part(1), &renamed).unwrap();
        assert!(error(&renamed).contains("its name must end in"), "{}", error(&renamed));
    }
}
