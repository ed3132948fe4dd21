//! A draft must have its model's vocabulary.

use gguf::Directory;

use crate::Error;

/// The metadata keys of a file's vocabulary.
const KEYS: [&str; 2] = ["tokenizer.ggml.model", "tokenizer.ggml.tokens"];

/// Refuses a draft with another vocabulary than its model's.
///
/// # Errors
/// The tokens differ.
pub fn check_vocabulary(draft: &Directory, model: &Directory) -> Result<(), Error> {
    match KEYS.iter().all(|key| draft.get(key) == model.get(key)) {
        true => Ok(()),
        false => Err(Error::OtherVocabulary),
    }
}
