pub use platform::StopSignals;

/// The status with which a shell reports the end by a signal.
pub type Status = u8;

/// Of Ctrl-C.
pub const INTERRUPTED: Status = 130;

#[cfg(unix)]
mod platform {
    use std::io::{self, IsTerminal};

    use tokio::signal::unix::{Signal, SignalKind, signal};

    use super::{INTERRUPTED, Status};

    const TERMINATED: Status = 143;
    const HUNG_UP: Status = 129;

    /// Ctrl-C, requests to terminate and the end of the terminal. None is lost between two calls of
    /// `recv`.
    pub struct StopSignals {
        interrupt: Signal,
        terminate: Signal,
        /// `None` if the parent process has it ignored, as `nohup` does.
        hangup: Option<Signal>,
    }

    impl StopSignals {
        /// # Errors
        /// The system has no room for the handlers.
        pub fn new() -> io::Result<Self> {
            let interrupt = signal(SignalKind::interrupt())?;
            let terminate = signal(SignalKind::terminate())?;
            let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
            Ok(Self { interrupt, terminate, hangup })
        }

        /// Completes at the next signal.
        pub async fn recv(&mut self) -> Status {
            tokio::select! {
                _ = self.interrupt.recv() => INTERRUPTED,
                _ = self.terminate.recv() => TERMINATED,
                () = next(&mut self.hangup) => HUNG_UP,
            }
        }
    }

    async fn next(signal: &mut Option<Signal>) {
        match signal {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }

    /// If the system does not report it, a program without a terminal was most likely started to
    /// outlive one.
    fn ignores_hangup() -> bool {
        match std::fs::read_to_string("/proc/self/status") {
            Ok(status) => is_hangup_ignored(&status),
            Err(_) => !io::stdin().is_terminal() && !io::stdout().is_terminal(),
        }
    }

    /// Reads the mask of ignored signals, in which SIGHUP has the first bit.
    pub(super) fn is_hangup_ignored(status: &str) -> bool {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & 1 == 1)
    }
}

#[cfg(windows)]
mod platform {
    use std::io;

    use tokio::signal::windows::{CtrlBreak, CtrlC, CtrlClose, CtrlShutdown};
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};

    use super::{INTERRUPTED, Status};

    /// Ctrl-C, the end of the console and of the system. None is lost between two calls of `recv`.
    pub struct StopSignals {
        interrupt: CtrlC,
        terminate: CtrlBreak,
        close: CtrlClose,
        shutdown: CtrlShutdown,
    }

    impl StopSignals {
        /// # Errors
        /// The system has no room for the handlers.
        pub fn new() -> io::Result<Self> {
            let (interrupt, terminate) = (ctrl_c()?, ctrl_break()?);
            let (close, shutdown) = (ctrl_close()?, ctrl_shutdown()?);
            Ok(Self { interrupt, terminate, close, shutdown })
        }

        /// Completes at the next signal.
        pub async fn recv(&mut self) -> Status {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = self.close.recv() => {}
                _ = self.shutdown.recv() => {}
            }
            INTERRUPTED
        }
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::platform::is_hangup_ignored;

    #[test]
    fn an_ignored_hangup_stays_so() {
        assert!(is_hangup_ignored("Name:\tsinew\nSigIgn:\t0000000000001001\n"));
        assert!(!is_hangup_ignored("SigIgn:\t0000000000001000\n"));
        assert!(!is_hangup_ignored("SigCgt:\t0000000000000001\n"));
    }
}
