/// A token id of the model's vocabulary.
pub type Token = u32;
