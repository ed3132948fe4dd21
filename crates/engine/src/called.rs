//! The worker's standard input: commands, and beside them connections from other ranks, accepted by
//! the node's daemon.

pub(crate) use platform::CommandInput;

#[cfg(unix)]
mod platform {
    use std::collections::VecDeque;
    use std::io::{self, IoSliceMut, Read};
    use std::mem::MaybeUninit;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;

    use protocol::WorkerCommand;
    use rustix::io::Errno;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    /// At most one connection comes with a byte.
    const BESIDE_MAX: usize = 1;

    /// Standard input. A pipe, as for a worker started by hand, carries only bytes.
    pub(crate) struct CommandInput {
        is_pipe: bool,
        /// Connections, in the order of their unread commands.
        beside: VecDeque<OwnedFd>,
    }

    impl CommandInput {
        pub fn new() -> Self {
            Self { is_pipe: false, beside: VecDeque::new() }
        }

        /// The connection that came with the last command.
        pub fn call(&mut self, _: &WorkerCommand) -> Option<TcpStream> {
            self.beside.pop_front().map(TcpStream::from)
        }

        fn receive(&mut self, out: &mut [u8]) -> Result<usize, Errno> {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BESIDE_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut out = [IoSliceMut::new(out)];
            let received = recvmsg(io::stdin(), &mut out, &mut control, RecvFlags::empty())?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(found) = message {
                    self.beside.extend(found);
                }
            }
            Ok(received.bytes)
        }
    }

    impl Read for CommandInput {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            if self.is_pipe {
                return io::stdin().lock().read(out);
            }
            match self.receive(out) {
                Err(Errno::NOTSOCK) => {
                    self.is_pipe = true;
                    self.read(out)
                }
                received => Ok(received?),
            }
        }
    }
}

/// Windows passes no connections beside bytes: a command describes one.
#[cfg(windows)]
mod platform {
    use std::io::{self, Read};
    use std::net::TcpStream;

    use protocol::WorkerCommand;

    /// Standard input.
    pub(crate) struct CommandInput;

    impl CommandInput {
        pub fn new() -> Self {
            Self
        }

        /// The connection that a command describes.
        pub fn call(&mut self, command: &WorkerCommand) -> Option<TcpStream> {
            let WorkerCommand::CalledBy { connection } = command else { return None };
            let opened = win32::socket::opened(connection);
            // Its caller calls again.
            opened.inspect_err(|error| eprintln!("another rank's call is lost: {error}")).ok()
        }
    }

    impl Read for CommandInput {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            io::stdin().lock().read(out)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use link::{Encryption, HostId, Listener, MeshConfig, Preference, Secret, connect_mesh};
    use protocol::RankCall;

    /// `link` writes the bytes that a daemon parses; neither crate depends on the other.
    #[test]
    fn a_rank_says_whom_it_calls() {
        let node = TcpListener::bind("127.0.0.1:0").unwrap();
        let (wanted, nowhere) = (RankCall::new("one", 2), "0.0.0.0:0".parse().unwrap());
        let config = MeshConfig {
            rank: 3,
            addrs: [nowhere, nowhere, node.local_addr().unwrap(), nowhere].map(|a| vec![a]).into(),
            segments: Vec::new(),
            peers: Some(vec![2]),
            instance: wanted.instance,
            epoch: 1,
            secret: Secret::new([7; 32]),
            preference: Preference::Tcp,
            encryption: Encryption::Sealed,
            host: HostId::current(),
            latency: Duration::ZERO,
            deadline: Duration::from_millis(500),
        };
        let caller = std::thread::spawn(move || {
            let listener = Listener::of_calls(link::Calls::default());
            connect_mesh(&listener, &config, &AtomicBool::new(false)).map(drop)
        });
        let (mut called, _) = node.accept().unwrap();
        let mut bytes = [0; RankCall::BYTES];
        called.read_exact(&mut bytes).unwrap();
        assert_eq!(RankCall::read(&bytes), Some(wanted));
        drop((called, node));
        assert!(caller.join().unwrap().is_err());
    }
}
