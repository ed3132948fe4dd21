/// Why a grammar cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct GbnfError {
    /// From 1.
    pub line: usize,
    pub why: String,
}
