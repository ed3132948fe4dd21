//! Reads a model with its MTP block.

use gguf::Directory;

use super::{BlockFile, MtpBlock};
use crate::config::Config;
use crate::file::Error;
use crate::outline::Outline;

impl Outline {
    /// # Errors
    /// The file is not a complete model of a supported kind.
    pub fn read(directory: &Directory) -> Result<Self, Error> {
        Self::read_for(directory, false)
    }

    /// The same. If an assistant reads the model's cache, rank 0 keeps all that it reads.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_for(directory: &Directory, has_assistant: bool) -> Result<Self, Error> {
        if BlockFile::is_one(directory) {
            return Err(Error::Block);
        }
        let mut config = Config::read(directory)?;
        if has_assistant {
            config.keep_for_assistant();
        }
        // A model runs without a block that cannot.
        let block = MtpBlock::read(directory).ok().flatten();
        Self::read_as(directory, config, (false, block.map(|block| block.outline)))
    }
}
