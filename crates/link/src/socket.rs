//! Non-blocking TCP sockets: the few calls that all transports and the handshake share.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::{Errno, FdFlags, fcntl_setfd, ioctl_fionbio};
use rustix::net::{self, AddressFamily, RecvFlags, SocketType, sockopt};

use crate::LinkError;

/// A silent peer (pulled cable, crashed kernel) is given up after about `KEEPALIVE_IDLE +
/// KEEPALIVE_TRIES * KEEPALIVE_INTERVAL`. Collectives have their own deadline; this one ends links
/// on which no collective waits.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TRIES: u32 = 3;

/// Starts to connect, with segments no larger than `segment` both ways; [`connect_result`] returns
/// the outcome.
pub(crate) fn start_connect(addr: SocketAddr, segment: Option<u16>) -> std::io::Result<TcpStream> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket(family, SocketType::STREAM, None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    ioctl_fionbio(&socket, true)?;
    if let Some(segment) = segment {
        socket2::SockRef::from(&socket).set_tcp_mss(segment.into())?;
    }
    match net::connect(&socket, &addr) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno.into()),
    }
}

/// `Some(Ok)` once connected, `Some(Err)` after a failure, `None` in between.
pub(crate) fn connect_result(stream: &TcpStream) -> Option<std::io::Result<()>> {
    match sockopt::socket_error(stream) {
        Ok(Err(errno)) => return Some(Err(errno.into())),
        Err(errno) => return Some(Err(errno.into())),
        Ok(Ok(())) => {}
    }
    match stream.peer_addr() {
        Ok(_) => Some(Ok(())),
        Err(error) if error.kind() == ErrorKind::NotConnected => None,
        Err(error) => Some(Err(error)),
    }
}

/// Makes a connected socket fit for a link.
pub(crate) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TRIES)?;
    Ok(())
}

/// Writes as many bytes as the kernel accepts now, possibly 0.
pub(crate) fn write_some(
    mut stream: &TcpStream,
    bytes: &[u8],
    peer: usize,
) -> Result<usize, LinkError> {
    match stream.write(bytes) {
        Ok(written) => Ok(written),
        Err(error) if is_transient(&error) => Ok(0),
        Err(error) => Err(LinkError::lost(peer, error.to_string())),
    }
}

/// Reads the bytes available now, possibly 0. The end of the stream is an error.
pub(crate) fn read_some(
    mut stream: &TcpStream,
    bytes: &mut [u8],
    peer: usize,
) -> Result<usize, LinkError> {
    match stream.read(bytes) {
        Ok(0) => Err(LinkError::lost(peer, "it closed the connection")),
        Ok(read) => Ok(read),
        Err(error) if is_transient(&error) => Ok(0),
        Err(error) => Err(LinkError::lost(peer, error.to_string())),
    }
}

/// Looks for the end of the stream without taking bytes off it.
pub(crate) fn peek_end(stream: &TcpStream, peer: usize) -> Result<(), LinkError> {
    let mut byte = [0u8; 1];
    match net::recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(LinkError::lost(peer, "it closed the connection")),
        Ok(_) | Err(Errno::AGAIN) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(LinkError::lost(peer, std::io::Error::from(errno).to_string())),
    }
}

/// The system's view of whether bytes arrive at the other machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Whether all sent bytes are acknowledged.
    pub is_complete: bool,
    /// The time since the last acknowledgement.
    pub acknowledged_ago: Duration,
}

/// `None` where the system has no such information.
#[cfg(target_os = "linux")]
pub(crate) fn arrival(stream: &TcpStream) -> Option<Arrival> {
    use std::os::fd::AsRawFd;
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let into = info.as_mut_ptr().cast();
    let fd = stream.as_raw_fd();
    // SAFETY: the descriptor is open, `into` has room for `len` bytes, and the kernel writes no
    // more than that.
    let got = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &mut len) };
    if got != 0 {
        return None;
    }
    // SAFETY: a plain structure of numbers, all zero before the call.
    let info = unsafe { info.assume_init() };
    Some(Arrival {
        is_complete: info.tcpi_unacked == 0,
        acknowledged_ago: Duration::from_millis(info.tcpi_last_ack_recv.into()),
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn arrival(_: &TcpStream) -> Option<Arrival> {
    None
}

/// Ends a connection so that the last message still arrives: closing a socket with unread bytes
/// would reset it, and a reset may overtake the message.
pub(crate) fn close_gently(mut stream: &TcpStream) {
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut scratch = [0u8; 4096];
    for _ in 0..DRAIN_READS_MAX {
        match stream.read(&mut scratch) {
            Ok(read) if read > 0 => {}
            _ => break,
        }
    }
}

/// Reads before closing: 4 MiB, more than socket buffers usually hold, and no more than 1 ms.
const DRAIN_READS_MAX: usize = 1024;

fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
