//! Paths that drop large packets: a tunnel or switch takes less than the interfaces at both ends
//! send, and a firewall drops the ICMP messages about it. TCP retransmits lost data in the same
//! size, so a connection stands and carries nothing but short messages.
//!
//! A greeting of several full packets, answered in kind, precedes each measurement of a path, and
//! the first connection to an address that will carry much. If only smaller segments pass, all
//! connections to that address use these.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use tokio::net::{TcpSocket, TcpStream};

/// Capacity of the table of addresses.
const REMEMBERED_MAX: usize = 4096;

/// The largest segments that pass on the path to each address that was checked; `None` if the
/// system's pass.
#[derive(Default)]
pub(crate) struct Segments(Mutex<HashMap<IpAddr, Option<u16>>>);

impl Segments {
    pub(crate) fn of(&self, address: IpAddr) -> Option<u16> {
        self.checked(address).flatten()
    }

    pub(super) fn are_checked(&self, address: IpAddr) -> bool {
        self.checked(address).is_some()
    }

    fn checked(&self, address: IpAddr) -> Option<Option<u16>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&address).copied()
    }

    /// The limit as a packet size.
    pub(crate) fn packet_bytes(&self, address: IpAddr) -> Option<u16> {
        self.of(address).map(|segment| segment.saturating_add(headers_bytes(address)))
    }

    pub(super) fn set(&self, address: IpAddr, segment: Option<u16>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < REMEMBERED_MAX || known.contains_key(&address) {
            known.insert(address, segment);
        }
    }
}

/// Connects with segments of at most `segment` bytes, in both directions.
pub(crate) async fn connect(
    address: SocketAddr,
    segment: Option<u16>,
) -> std::io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(segment) = segment {
        platform::limit(&socket, segment)?;
    }
    socket.connect(address).await
}

pub(super) fn headers_bytes(address: IpAddr) -> u16 {
    if address.is_ipv4() { 40 } else { 60 }
}

/// The largest segment that a connection sends, including TCP options.
pub(super) fn used_segment(stream: &TcpStream) -> u16 {
    platform::used(stream).and_then(|bytes| u16::try_from(bytes).ok()).unwrap_or(u16::MAX)
}

#[cfg(unix)]
mod platform {
    use socket2::SockRef;
    use tokio::net::{TcpSocket, TcpStream};

    /// The timestamp option, which the system subtracts.
    const OPTIONS_BYTES: u32 = 12;

    pub fn limit(socket: &TcpSocket, segment: u16) -> std::io::Result<()> {
        SockRef::from(socket).set_tcp_mss(segment.into())
    }

    pub fn used(stream: &TcpStream) -> Option<u32> {
        Some(SockRef::from(stream).tcp_mss().ok()? + OPTIONS_BYTES)
    }
}

/// Windows has no such option: it looks for the size of a path's segments itself.
#[cfg(windows)]
mod platform {
    use tokio::net::{TcpSocket, TcpStream};

    pub fn limit(_: &TcpSocket, _: u16) -> std::io::Result<()> {
        Ok(())
    }

    pub fn used(_: &TcpStream) -> Option<u32> {
        None
    }
}
