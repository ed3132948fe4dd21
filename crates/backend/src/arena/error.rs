/// Why experts on disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    #[error(
        "experts get {budget_bytes} bytes of memory, and one of them takes {least_bytes}: give \
         them at least that (--expert-memory)"
    )]
    Budget { budget_bytes: u64, least_bytes: u64 },
    #[error("{what}")]
    Unreadable { what: String },
}
