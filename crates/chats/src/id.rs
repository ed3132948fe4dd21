//! The ids of conversations, which are parts of paths.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::error::ChatsError;

pub const NAME_CHARS_MAX: usize = 64;

/// Checks that an id leads to no other folder.
///
/// # Errors
/// It is empty, too long, hidden, or has characters that a path could mean something by.
pub fn check(id: &str) -> Result<(), ChatsError> {
    let is_known = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    let is_name = id.chars().all(is_known) && id.chars().count() <= NAME_CHARS_MAX;
    if is_name && !id.starts_with('.') && !id.is_empty() {
        return Ok(());
    }
    Err(ChatsError::Name { name: id.chars().take(NAME_CHARS_MAX).collect(), most: NAME_CHARS_MAX })
}

/// A new id. It is no secret: the caller looks whether it is taken.
pub fn fresh() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_nowhere_else() {
        for id in ["", "..", "../keys", "a/b", "a\\b", ".hidden", "a b", "a\0", "a:b"] {
            assert!(check(id).unwrap_err().to_string().contains("is no name"), "{id}");
        }
        check(&"x".repeat(65)).unwrap_err();
        for id in ["boats-2", "Überfahrt", "a.b_c", &fresh()] {
            check(id).unwrap();
        }
        assert_ne!(fresh(), fresh());
    }
}
