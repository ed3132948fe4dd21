//! The tensors of an MTP block or an EAGLE-3 head, which are parts of files.

use std::sync::Arc;

use gguf::{Directory, ReadError, Source, Strided, TensorInfo};
use layout::BlockFile;
use model::ModelError;
use protocol::Token;

use crate::EngineError;

/// Two files under the header of a block: its own, and its model's.
pub(crate) struct BlockSource {
    directory: Arc<Directory>,
    file: Arc<dyn Source>,
    model: Arc<dyn Source>,
}

impl BlockSource {
    pub fn new(directory: Directory, file: &Arc<dyn Source>, model: &Arc<dyn Source>) -> Self {
        Self { directory: Arc::new(directory), file: file.clone(), model: model.clone() }
    }

    /// The file with these pieces, and where they are in it.
    fn place(&self, pieces: Strided) -> (&dyn Source, Strided) {
        match pieces.start.checked_sub(BlockFile::BORROWED) {
            Some(start) => (self.model.as_ref(), Strided { start, ..pieces }),
            None => (self.file.as_ref(), pieces),
        }
    }
}

impl Source for BlockSource {
    fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    fn is_local(&self) -> bool {
        self.file.is_local()
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        let (file, pieces) = self.place(pieces);
        file.read(pieces, out)
    }

    fn read_again(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        let (file, pieces) = self.place(pieces);
        file.read_again(pieces, out)
    }
}

/// Reads a tensor of tokens, i64, for a model with `vocab` tokens.
///
/// # Errors
/// It cannot be read, or there is no such token.
pub(crate) fn integers(
    file: &dyn Source,
    tensor: &TensorInfo,
    vocab: usize,
) -> Result<Vec<Token>, EngineError> {
    let piece = tensor.range.end - tensor.range.start;
    let mut bytes = vec![0; piece as usize];
    let pieces = Strided { start: tensor.range.start, piece, stride: piece, count: 1 };
    let name = || tensor.name.clone();
    file.read(pieces, &mut bytes).map_err(|source| ModelError::Read { name: name(), source })?;
    let found = bytes.chunks_exact(size_of::<i64>()).map(|bytes| {
        let found = i64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let token = Token::try_from(found).ok().filter(|token| (*token as usize) < vocab);
        token.ok_or_else(|| {
            let what = format!("tensor \"{}\" names token {found} of {vocab}", tensor.name);
            ModelError::Impossible { what }.into()
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use gguf::File;

    use super::*;

    #[test]
    fn tokens_that_the_model_lacks_are_refused() {
        let file = File::open(fixtures::path("heads/qwen3-eagle3.gguf")).unwrap();
        let tensor = file.directory().find_tensor("d2t").unwrap();
        let found = integers(&file, tensor, 512).unwrap();
        assert_eq!(found.len(), 300);
        let most = *found.iter().max().unwrap();
        let error = integers(&file, tensor, most as usize).unwrap_err().to_string();
        assert!(error.contains(&format!("token {most} of {most}")), "{error}");
    }
}
