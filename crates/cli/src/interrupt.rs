//! Ctrl-C as a flag, so that it stops an answer and not the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::error::{CliError, Doing};
use crate::signals::{INTERRUPTED, Status, StopSignals};

/// Records a Ctrl-C (or a request to terminate) since the last `take`.
#[derive(Debug, Clone)]
pub struct Interrupt {
    pending: Arc<AtomicBool>,
    status: Arc<AtomicU8>,
}

impl Interrupt {
    /// Installs the handler. From then on Ctrl-C does not end the process by itself.
    ///
    /// # Errors
    /// The system has no room for the handler.
    pub fn install() -> Result<Self, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .doing("cannot handle Ctrl-C")?;
        let guard = runtime.enter();
        let mut signals = StopSignals::new().doing("cannot handle Ctrl-C")?;
        drop(guard);
        let interrupt = Self::never();
        let Self { pending, status } = interrupt.clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    status.store(signals.recv().await, Ordering::Relaxed);
                    pending.store(true, Ordering::Release);
                }
            });
        });
        Ok(interrupt)
    }

    /// An interrupt that never comes.
    pub fn never() -> Self {
        let status = Arc::new(AtomicU8::new(INTERRUPTED));
        Self { pending: Arc::new(AtomicBool::new(false)), status }
    }

    /// Ctrl-C from a terminal that sends no signal for it.
    #[cfg(unix)]
    pub fn set(&self) {
        self.pending.store(true, Ordering::Release);
    }

    /// Returns and clears the flag.
    pub fn take(&self) -> bool {
        self.pending.swap(false, Ordering::AcqRel)
    }

    /// The program's status at an end by the last signal.
    pub fn status(&self) -> Status {
        self.status.load(Ordering::Relaxed)
    }

    /// Blocks until it comes.
    pub fn wait(&self) {
        while !self.take() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
