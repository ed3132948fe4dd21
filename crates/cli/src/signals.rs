use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C and requests to terminate, none of which is lost between two calls of `recv`.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// # Errors
    /// The system has no room for the handlers.
    pub fn new() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { interrupt, terminate })
    }

    /// Completes at the next one.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
