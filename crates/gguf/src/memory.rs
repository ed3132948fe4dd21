use std::sync::Arc;

use crate::{Directory, Error, ReadError, Source, Strided};

/// A model file in memory.
#[derive(Debug)]
pub struct Memory {
    bytes: Vec<u8>,
    directory: Arc<Directory>,
}

impl Memory {
    /// # Errors
    /// `bytes` are not a complete, consistent GGUF file.
    pub fn new(bytes: Vec<u8>) -> Result<Self, Error> {
        let directory = Arc::new(Directory::parse(&bytes, bytes.len() as u64)?);
        Ok(Self { bytes, directory })
    }

    /// The bytes, for changes of tensors: the directory stays as it was read.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Source for Memory {
    fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        let (end, len) = (pieces.end().unwrap_or(u64::MAX), self.bytes.len() as u64);
        if end > len {
            return Err(ReadError::OutOfFile { end, len });
        }
        for (at, out) in out.chunks_exact_mut((pieces.piece as usize).max(1)).enumerate() {
            let start = (pieces.start + at as u64 * pieces.stride) as usize;
            out.copy_from_slice(&self.bytes[start..start + out.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TensorType, Writer};

    #[test]
    fn pieces_are_read_and_none_beyond_the_end() {
        let mut writer = Writer::new();
        writer.declare("t", &[4], TensorType::F32);
        let mut bytes = Vec::new();
        let fill = |_: &str, _, _, out: &mut Vec<u8>| {
            (0..16).for_each(|byte| out.push(byte));
            Ok(())
        };
        writer.write(&mut bytes, fill).unwrap();
        let file = Memory::new(bytes).unwrap();
        let start = file.directory().tensor("t").unwrap().range.start;
        let mut out = [0; 6];
        file.read(Strided { start, piece: 2, stride: 6, count: 3 }, &mut out).unwrap();
        assert_eq!(out, [0, 1, 6, 7, 12, 13]);
        let beyond = file.read(Strided { start, piece: 2, stride: 1000, count: 3 }, &mut out);
        assert!(matches!(beyond, Err(ReadError::OutOfFile { .. })), "{beyond:?}");
    }
}
