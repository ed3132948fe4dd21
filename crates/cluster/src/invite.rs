//! One-time join codes.

/// Why a text is not a join code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    #[error("it does not start with \"sinew-\"")]
    Prefix,
    #[error("a character is wrong, missing or too many")]
    Typo,
    #[error("it was made by a newer version of sinew")]
    Version,
}
