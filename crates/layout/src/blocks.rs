//! Blocks that guess tokens for a model: in its own file, or in another one.

mod assistant;
mod eagle3;
mod file;
mod mtp;
mod read;
mod vocabulary;

pub use file::BlockFile;
pub use mtp::MtpBlock;
pub use vocabulary::check_vocabulary;
