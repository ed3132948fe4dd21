use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::Disk;
use crate::split::{Split, is_split, parts_of};
use crate::{Bytes, Directory, Error, ReadError, Source, Strided};

/// Pieces at most this far apart are read together with the bytes between them: a disk and a page
/// cache return whole pages anyway, and a separate read costs about as much as some of them.
const STRIDE_BYTES_MAX: u64 = 32 << 10;

/// Bytes of such a read.
const SPAN_BYTES_MAX: u64 = 1 << 20;

/// A GGUF file of this machine. Tensors are read on demand. A model in several files is opened by
/// the first and appears as one file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    data: Data,
    directory: Arc<Directory>,
}

#[derive(Debug)]
enum Data {
    One(Disk),
    Split(Split),
}

impl Data {
    fn len(&self) -> u64 {
        match self {
            Self::One(disk) => disk.len(),
            Self::Split(split) => split.len(),
        }
    }

    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::One(disk) => disk.read(start, out),
            Self::Split(split) => split.read(start, out),
        }
    }

    /// Reads pieces that lie close together, several at a time with the bytes between them.
    fn read_close(&self, pieces: Strided, out: &mut [u8]) -> io::Result<()> {
        let Strided { mut start, piece, stride, .. } = pieces;
        let at_once = (SPAN_BYTES_MAX / stride).max(1) as usize;
        let mut span = Vec::new();
        for out in out.chunks_mut(at_once * piece as usize) {
            let count = out.len() as u64 / piece;
            span.resize(((count - 1) * stride + piece) as usize, 0);
            self.read(start, &mut span)?;
            let found = span.chunks(stride as usize);
            for (out, found) in out.chunks_exact_mut(piece as usize).zip(found) {
                out.copy_from_slice(&found[..piece as usize]);
            }
            start += count * stride;
        }
        Ok(())
    }
}

impl File {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// It cannot be opened, or it or one of its other parts is not a complete GGUF file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path.as_ref(), None)
    }

    /// Like [`Self::open`], together with the vision tower in another file.
    ///
    /// # Errors
    /// As [`Self::open`]; the other file has no tower.
    pub fn open_with(path: &Path, tower: Option<&Path>) -> Result<Self, Error> {
        Self::open_parts(path, tower, |_, path| Disk::open(path))
    }

    /// Like [`Self::open`], for files with bytes from elsewhere. `path` is the name of the first;
    /// it gives the names of the others and appears in errors. A file behind the last part is that
    /// of a vision tower.
    ///
    /// # Errors
    /// As [`Self::open`]; a part is missing.
    pub fn over(path: &Path, parts: &[Arc<dyn Bytes>]) -> Result<Self, Error> {
        let tower = (parts.len() > parts_of(path).len()).then_some(path);
        Self::open_parts(path, tower, |number, path| {
            let missing =
                || Error::Io { path: path.into(), source: io::ErrorKind::NotFound.into() };
            Disk::over(parts.get(number).cloned().ok_or_else(missing)?, path)
        })
    }

    fn open_parts(
        path: &Path,
        tower: Option<&Path>,
        open: impl Fn(usize, &Path) -> Result<(Disk, Directory), Error>,
    ) -> Result<Self, Error> {
        let (disk, directory) = open(0, path)?;
        let (data, directory) = match is_split(&directory)? || tower.is_some() {
            true => {
                let (split, directory) = Split::open(path, tower, (disk, directory), open)?;
                (Data::Split(split), directory)
            }
            false => (Data::One(disk), directory),
        };
        Ok(Self { path: path.to_path_buf(), data, directory: Arc::new(directory) })
    }

    /// The bytes of the files themselves, as they are on disk.
    pub fn parts(&self) -> Vec<Arc<dyn Bytes>> {
        match &self.data {
            Data::One(disk) => vec![disk.bytes()],
            Data::Split(split) => split.parts(),
        }
    }

    /// Whether any of the files was written to since it was opened.
    pub fn has_changed(&self) -> bool {
        self.parts().iter().any(|part| part.has_changed())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the whole file; for a model in several parts, of their joint file.
    pub fn file_len(&self) -> u64 {
        self.data.len()
    }
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
        let Strided { start, piece, stride, count } = pieces;
        if piece == 0 {
            return Ok(());
        }
        let read = match stride {
            _ if count == 1 || stride == piece => self.data.read(start, out),
            // Overlapping pieces are no slice of a model, but allowed.
            stride if stride > piece && stride <= STRIDE_BYTES_MAX => {
                self.data.read_close(pieces, out)
            }
            _ => (0..count)
                .zip(out.chunks_exact_mut(piece as usize))
                .try_for_each(|(at, out)| self.data.read(start + at * stride, out)),
        };
        read.map_err(ReadError::File)
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

    fn bytes(file: &File, range: std::ops::Range<u64>) -> Vec<u8> {
        let piece = range.end - range.start;
        let mut bytes = vec![0; piece as usize];
        file.read(Strided { start: range.start, piece, stride: piece, count: 1 }, &mut bytes)
            .unwrap();
        bytes
    }

    /// A file with one tensor of 40,000 numbers that count up.
    fn counting(dir: &Path) -> (PathBuf, Vec<u8>) {
        let mut writer = Writer::new();
        writer.declare("t", &[64, 40_000], TensorType::F32);
        let mut out = Vec::new();
        let fill = |_: &str, _, bytes, out: &mut Vec<u8>| {
            (0..bytes as u32 / 4).try_for_each(|n| out.write_all(&n.to_le_bytes()))
        };
        writer.write(&mut out, fill).unwrap();
        let path = dir.join("counting.gguf");
        std::fs::write(&path, &out).unwrap();
        (path, out)
    }

    #[test]
    fn pieces_near_and_far_are_those_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, whole) = counting(dir.path());
        let file = File::open(path).unwrap();
        let far = STRIDE_BYTES_MAX + 4;
        for (piece, stride, count) in [
            (4, 4, 100),
            (128, 256, 39_999),
            (100, 300, 7),
            (256, 4096, 2_000),
            (1000, far, 50),
            (1000, 100, 9), // overlapping
            (5, 0, 3),      // the same again and again
            (0, 8, 3),
            (8, 8, 0),
            (3 << 20, 3 << 20, 2),
        ] {
            let pieces = Strided { start: 129, piece, stride, count };
            let mut found = vec![0; (piece * count) as usize];
            file.read(pieces, &mut found).unwrap();
            let at = |n: u64| &whole[(129 + n * stride) as usize..][..piece as usize];
            assert!(found == (0..count).map(at).collect::<Vec<_>>().concat(), "{pieces:?}");
        }
        let outside = Strided { start: 129, piece: 8, stride: 1 << 20, count: 100 };
        assert!(file.read(outside, &mut [0; 800]).is_err());
    }

    #[test]
    fn a_long_header_is_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long.gguf");
        let words: Vec<String> = (0..200_000).map(|n| format!("word {n}")).collect();
        let mut writer = Writer::new();
        writer.set_strings("tokenizer.ggml.tokens", &words).declare("t", &[8], TensorType::F32);
        let mut out = Vec::new();
        writer.write(&mut out, |_, _, bytes, out| out.write_all(&vec![1; bytes as usize])).unwrap();
        std::fs::write(&path, &out).unwrap();
        let file = File::open(&path).unwrap();
        assert!(file.directory().header_len() > 2 << 20);
        assert_eq!(bytes(&file, file.directory().tensor("t").unwrap().range.clone()), [1; 32]);
        // The same, cut inside the header and after it.
        for len in [out.len() - 40, 3 << 20, 1 << 20, 100] {
            std::fs::write(&path, &out[..len]).unwrap();
            assert!(File::open(&path).is_err(), "{len}");
        }
    }

    #[test]
    fn a_header_alone_tells_what_it_lacks_and_can_be_planned_with() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("header.gguf");
        let mut writer = Writer::new();
        writer.declare("a", &[8], TensorType::F32).declare("b", &[8], TensorType::F32);
        std::fs::write(&path, writer.padded_header()).unwrap();
        let error = File::open(&path).unwrap_err();
        assert!(matches!(error, Error::NoWeights { .. }), "{error}");
        assert!(error.to_string().contains("has no weights"), "{error}");
        let names = |directory: &Directory| {
            directory.tensors().iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&crate::read_header(&path).unwrap()), ["a", "b"]);
        // A file truncated elsewhere is an incomplete download.
        let mut cut = writer.padded_header();
        cut.extend([0; 40]);
        std::fs::write(&path, cut).unwrap();
        assert!(matches!(File::open(&path).unwrap_err(), Error::OutOfFile { .. }));
    }

    #[test]
    fn a_file_that_was_cut_after_it_was_opened_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (path, whole) = counting(dir.path());
        let file = File::open(&path).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
        let pieces = Strided { start: whole.len() as u64 - 64, piece: 64, stride: 64, count: 1 };
        let error = file.read(pieces, &mut [0; 64]).unwrap_err();
        assert!(matches!(error, ReadError::File(_)), "{error}");
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
            assert_eq!(bytes(&split, tensor.range.clone()), bytes(&whole, tensor.range.clone()));
        }
        // A peer reads the header as bytes, so it must be that of the joint file.
        let header = 0..whole.directory().header_len();
        assert_eq!(bytes(&split, header.clone()), bytes(&whole, header));
        let across = split.directory().tensors()[0].range.end - 4;
        let pieces = Strided { start: across, piece: 8, stride: 8, count: 1 };
        assert!(split.read(pieces, &mut [0; 8]).is_err(), "no bytes of two tensors at once");
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
