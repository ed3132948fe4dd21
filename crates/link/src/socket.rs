//! Non-blocking TCP sockets: the few calls that all transports and the handshake share.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

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
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(segment) = segment {
        limit_segments(&socket, segment)?;
    }
    match socket.connect(&addr.into()) {
        Err(error) if !is_under_way(&error) => Err(error),
        _ => Ok(TcpStream::from(socket)),
    }
}

/// `Some(Ok)` once connected, `Some(Err)` after a failure, `None` in between.
pub(crate) fn connect_result(stream: &TcpStream) -> Option<std::io::Result<()>> {
    if let Err(error) = stream.take_error().and_then(|error| error.map_or(Ok(()), Err)) {
        return Some(Err(error));
    }
    match stream.peer_addr() {
        Ok(_) => Some(Ok(())),
        Err(error) if error.kind() == ErrorKind::NotConnected => None,
        Err(error) => Some(Err(error)),
    }
}

/// Whether a connection is being made meanwhile.
fn is_under_way(error: &std::io::Error) -> bool {
    #[cfg(unix)]
    return error.raw_os_error() == Some(libc::EINPROGRESS);
    #[cfg(windows)]
    return error.kind() == ErrorKind::WouldBlock;
}

#[cfg(unix)]
fn limit_segments(socket: &Socket, segment: u16) -> std::io::Result<()> {
    socket.set_tcp_mss(segment.into())
}

/// Windows has no such option: the system finds out the size of a path's segments by itself.
#[cfg(windows)]
fn limit_segments(_: &Socket, _: u16) -> std::io::Result<()> {
    Ok(())
}

/// Makes a connected socket fit for a link.
pub(crate) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let often = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    let socket = SockRef::from(stream);
    // Windows counts the tries only since 2017; before that there are ten.
    let counted = socket.set_tcp_keepalive(&often.clone().with_retries(KEEPALIVE_TRIES));
    if cfg!(windows) && counted.is_err() { socket.set_tcp_keepalive(&often) } else { counted }
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
    match stream.peek(&mut byte) {
        Ok(0) => Err(LinkError::lost(peer, "it closed the connection")),
        Ok(_) => Ok(()),
        Err(error) if is_transient(&error) => Ok(()),
        Err(error) => Err(LinkError::lost(peer, error.to_string())),
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
