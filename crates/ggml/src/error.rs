use std::path::PathBuf;

/// Why ggml's libraries, or one of their devices, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no library libggml-base in {0}. To fetch it: sinew doctor gpu --script | \
         SINEW_GPU_LIBRARIES={0} bash",
        dir.display()
    )]
    Missing { dir: PathBuf },
    #[error("{} cannot be opened: {reason}", path.display())]
    Open { path: PathBuf, reason: String },
    #[error(
        "the libraries in {0} are of ggml {found}, and this program knows ggml {wanted}; \
         to fetch that one: sinew doctor gpu --script | SINEW_GPU_LIBRARIES={0} bash",
        dir.display()
    )]
    Version { dir: PathBuf, found: String, wanted: String },
    #[error(
        "{} was built for interface {found} of ggml's devices, not {wanted}: it belongs to another \
         version than the libggml-base beside it",
        path.display()
    )]
    Interface { path: PathBuf, found: i32, wanted: i32 },
    #[error("{} finds no driver, or its driver does not start{}", path.display(), said(words))]
    Driver { path: PathBuf, words: String },
    #[error("{device} does not start{}", said(words))]
    Start { device: String, words: String },
    #[error("{device} has no room for {bytes} bytes{}", said(words))]
    Memory { device: String, bytes: usize, words: String },
    #[error("{device} has no operation for {operation} in the shapes that the model needs")]
    Operation { device: String, operation: String },
    #[error("{device} failed: {what}{}", said(words))]
    Failed { device: String, what: String, words: String },
}

/// The library's last message, if there was one.
fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("; its last words: {words}") }
}
