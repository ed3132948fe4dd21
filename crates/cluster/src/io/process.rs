//! What systems do differently with a worker's process: its standard input, beside which
//! connections are passed, its children, and its end.

pub(super) use platform::{Group, Input, InputEnd, killed_by};

#[cfg(unix)]
mod platform {
    use std::io::{self, IoSlice};
    use std::mem::MaybeUninit;
    use std::net::TcpStream;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use protocol::WorkerCommand;
    use protocol::frame::{self, FrameError};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use rustix::process::{Pid, Signal, kill_process_group};
    use tokio::io::{AsyncWriteExt, Interest};
    use tokio::net::UnixStream;
    use tokio::process::{Child, Command};
    use tracing::debug;

    use crate::io::frames;

    /// The daemon's end: a Unix socket instead of a pipe, because connections are passed beside the
    /// commands.
    pub struct Input(UnixStream);

    /// Between the command and its process.
    pub struct InputEnd(UnixStream);

    impl InputEnd {
        /// Prepares a command: with an input, in a process group of its own.
        ///
        /// # Errors
        /// The system has no room for a socket.
        pub fn of(command: &mut Command) -> io::Result<Self> {
            let (here, there) = std::os::unix::net::UnixStream::pair()?;
            here.set_nonblocking(true)?;
            command.stdin(OwnedFd::from(there)).process_group(0);
            Ok(Self(UnixStream::from_std(here)?))
        }

        pub fn of_started(self, _: &mut Child) -> Input {
            Input(self.0)
        }
    }

    impl Input {
        pub async fn write(&mut self, command: &WorkerCommand) -> Result<(), FrameError> {
            frames::write(&mut self.0, command).await
        }

        /// Sends a command, with a connection attached to its first byte.
        pub async fn hand_over(
            &mut self,
            command: &WorkerCommand,
            call: &TcpStream,
        ) -> Result<(), FrameError> {
            let bytes = frame::encode(command)?;
            let (first, rest) = bytes.split_at(1);
            let send = || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let call = [call.as_fd()];
                control.push(SendAncillaryMessage::ScmRights(&call));
                let first = [IoSlice::new(first)];
                sendmsg(&self.0, &first, &mut control, SendFlags::empty()).map_err(io::Error::from)
            };
            self.0.async_io(Interest::WRITABLE, send).await?;
            Ok(self.0.write_all(rest).await?)
        }

        pub async fn close(mut self) {
            // An error means that the worker is gone; its exit status is more informative.
            let _ = self.0.shutdown().await;
        }
    }

    /// A worker and its children: a process group.
    pub struct Group;

    impl Group {
        /// A process that was just started.
        pub fn of(_: &Child) -> Self {
            Self
        }

        pub fn kill(&self, child: &mut Child) {
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
            if let Some(group) = pid
                && let Err(error) = kill_process_group(group, Signal::KILL)
            {
                debug!(pid = child.id(), %error, "killing a worker's process group failed");
            }
        }
    }

    /// The signal that ended a process.
    pub fn killed_by(status: ExitStatus) -> Option<i32> {
        status.signal()
    }
}

#[cfg(windows)]
mod platform {
    use std::io;
    use std::net::TcpStream;
    use std::process::{ExitStatus, Stdio};

    use protocol::WorkerCommand;
    use protocol::frame::FrameError;
    use tokio::io::AsyncWriteExt;
    use tokio::process::{Child, ChildStdin, Command};
    use tracing::debug;
    use win32::job::Job;
    use win32::socket;

    use crate::io::frames;

    /// Keeps Ctrl-C at a console from the worker: the daemon ends it.
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;

    /// The daemon's end of a pipe.
    pub struct Input {
        pipe: Option<ChildStdin>,
        pid: u32,
    }

    /// Between the command and its process.
    pub struct InputEnd;

    impl InputEnd {
        /// Prepares a command: with an input, out of the console's process group.
        ///
        /// # Errors
        /// None.
        pub fn of(command: &mut Command) -> io::Result<Self> {
            command.stdin(Stdio::piped()).creation_flags(CREATE_NEW_PROCESS_GROUP);
            Ok(Self)
        }

        pub fn of_started(self, child: &mut Child) -> Input {
            Input { pipe: child.stdin.take(), pid: child.id().unwrap_or(0) }
        }
    }

    impl Input {
        pub async fn write(&mut self, command: &WorkerCommand) -> Result<(), FrameError> {
            match &mut self.pipe {
                Some(pipe) => frames::write(pipe, command).await,
                None => Err(FrameError::Closed),
            }
        }

        /// Sends the connection in place of the command: a pipe carries only bytes.
        pub async fn hand_over(
            &mut self,
            _: &WorkerCommand,
            call: &TcpStream,
        ) -> Result<(), FrameError> {
            let connection = socket::described(call, self.pid)?;
            self.write(&WorkerCommand::CalledBy { connection }).await
        }

        pub async fn close(mut self) {
            if let Some(mut pipe) = self.pipe.take() {
                // An error means that the worker is gone; its exit status is more informative.
                let _ = pipe.shutdown().await;
            }
        }
    }

    /// A worker and its children, which end when this is dropped, also by the daemon's end.
    pub struct Group(Option<Job>);

    impl Group {
        /// A process that was just started.
        pub fn of(child: &Child) -> Self {
            let job = child.id().ok_or_else(|| io::Error::other("it has ended")).and_then(|pid| {
                let job = Job::new()?;
                job.add(pid).map(|()| job)
            });
            Self(job.inspect_err(|error| debug!(%error, "a worker is in no job")).ok())
        }

        pub fn kill(&self, child: &mut Child) {
            let killed = match &self.0 {
                Some(job) => job.kill(),
                None => child.start_kill(),
            };
            if let Err(error) = killed {
                debug!(%error, "killing a worker failed");
            }
        }
    }

    /// Windows knows no signals.
    pub fn killed_by(_: ExitStatus) -> Option<i32> {
        None
    }
}
