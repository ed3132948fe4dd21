use std::any::Any;
use std::sync::Arc;

use gguf::{File, Source};

/// Shows the progress of a measurement to a user.
pub trait Progress: Sync {
    /// The file as a source. Progress of its reads is shown until the second value is dropped.
    fn watch(&self, file: File) -> (Arc<dyn Source>, Box<dyn Any>);

    /// Replaces the shown text.
    fn say(&self, words: &str);

    /// Removes the shown text.
    fn clear(&self);
}

/// Measurements load models on several threads.
pub type Shown = &'static dyn Progress;
