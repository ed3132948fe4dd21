//! Lets the daemon give back what a large request took.
//!
//! glibc asks the system for large blocks one by one and gives them back, until the first one is
//! freed: from then on it keeps blocks of that size, up to 62 MB for each of its arenas. With a
//! threshold that was set it always gives them back. It reads that at a program's start, so the
//! daemon starts itself once more, in the same process. macOS and musl need nothing.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// `M_MMAP_THRESHOLD` of `mallopt(3)`. Workers do not have it (`cluster/src/worker.rs`): they use
/// the same large blocks again and again.
const THRESHOLD: &str = "MALLOC_MMAP_THRESHOLD_";
const THRESHOLD_BYTES: &str = "1048576";

/// Starts this program again with the threshold, unless it has one. Must come before any thread.
pub fn give_back() {
    if !cfg!(target_env = "gnu") || std::env::var_os(THRESHOLD).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into_os_string());
    let again =
        Command::new(program).arg0(name).args(arguments).env(THRESHOLD, THRESHOLD_BYTES).exec();
    // Only if it could not: the node runs well without.
    tracing::debug!(error = %again, "cannot start again with a threshold for memory");
}
