//! The file of a served model, held open. Placement hashes its content, and every rank must read
//! that content, even a rank that restarts days later.

use std::sync::Arc;

use gguf::{Directory, File, Source};

/// `crate::transfer::model_file` opens it, and tells whether it was overwritten.
#[derive(Debug)]
pub(crate) struct ServedFile(Arc<File>);

impl ServedFile {
    pub(crate) fn new(file: File) -> Self {
        Self(Arc::new(file))
    }

    pub(crate) fn directory(&self) -> &Arc<Directory> {
        self.0.directory()
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.0
    }
}
