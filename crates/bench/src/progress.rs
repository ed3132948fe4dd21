use std::any::Any;
use std::sync::Arc;

use gguf::{File, Source};

/// Shows a person how far a measurement is.
pub trait Progress: Sync {
    /// The file as a source whose reading is shown until the second value is dropped.
    fn watch(&self, file: File) -> (Arc<dyn Source>, Box<dyn Any>);

    /// Shows words in place of those before.
    fn say(&self, words: &str);

    /// Shows nothing any more.
    fn clear(&self);
}

/// Measurements load models on several threads.
pub type Shown = &'static dyn Progress;
