//! Lets the daemon return the memory of large requests to the system.
//!
//! glibc allocates large blocks from the system one by one and returns them, until the first one is
//! freed: from then on it keeps blocks of that size, up to 62 MB for each of its arenas. With an
//! explicit threshold it always returns them. glibc reads the threshold when a program starts, so
//! the daemon executes itself once more, in the same process. Other systems'
//! libraries need nothing.

pub use platform::give_back;

#[cfg(all(unix, target_env = "gnu"))]
mod platform {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// `M_MMAP_THRESHOLD` of `mallopt(3)`. Workers do not have it (`cluster/src/io/worker.rs`):
    /// they reuse the same large blocks.
    const THRESHOLD: &str = "MALLOC_MMAP_THRESHOLD_";
    const THRESHOLD_BYTES: &str = "1048576";

    /// Executes this program again with the threshold, unless it is set. Must run before any thread
    /// starts.
    pub fn give_back() {
        if std::env::var_os(THRESHOLD).is_some() {
            return;
        }
        let Ok(program) = std::env::current_exe() else { return };
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_else(|| program.clone().into_os_string());
        let again =
            Command::new(program).arg0(name).args(arguments).env(THRESHOLD, THRESHOLD_BYTES).exec();
        // Reached only if that failed: the node runs well without.
        tracing::debug!(error = %again, "cannot start again with a threshold for memory");
    }
}

#[cfg(not(all(unix, target_env = "gnu")))]
mod platform {
    pub fn give_back() {}
}
