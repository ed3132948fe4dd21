//! A draft must have its model's vocabulary.

use gguf::Directory;

use super::eagle3::is_head;
use crate::file::Error;

/// The metadata keys of a file's vocabulary.
const KEYS: [&str; 2] = ["tokenizer.ggml.model", "tokenizer.ggml.tokens"];

/// Refuses a draft with another vocabulary than its model's. An EAGLE-3 head may have none.
///
/// # Errors
/// The tokens differ.
pub fn check_vocabulary(draft: &Directory, model: &Directory) -> Result<(), Error> {
    let has_none = is_head(draft) && KEYS.iter().all(|key| draft.get(key).is_none());
    match has_none || KEYS.iter().all(|key| draft.get(key) == model.get(key)) {
        true => Ok(()),
        false => Err(Error::OtherVocabulary),
    }
}
