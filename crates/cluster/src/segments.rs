//! Ways on which large packets vanish: a tunnel or a switch that takes less than the interfaces at
//! both ends send, and a firewall that drops the messages about it. TCP sends what is lost again
//! and again in the same size, so a connection stands and carries nothing but short messages.
//!
//! Before a way is measured, a greeting of several full packets is sent and answered in kind. Where
//! only smaller segments come through, all connections to that address use these.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::net::{DialError, Net};
use crate::tls::Pin;
use crate::wire::Purpose;

/// Packets that are common where larger ones do not pass: Ethernet's beside jumbo frames, those of
/// tunnels, the least that IPv6 asks of a network, the least of IPv4.
const PACKET_BYTES: [u16; 4] = [1500, 1420, 1280, SMALLEST];
const SMALLEST: u16 = 576;
/// Of a greeting: two full packets or more, unless they are jumbo frames.
const PADDING_BYTES: usize = 4000;
/// TCP sends lost bytes three times meanwhile.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Addresses that are remembered.
const REMEMBERED_MAX: usize = 4096;

/// The largest segments that come through on the way to an address, where the system takes larger
/// ones.
#[derive(Default)]
pub(crate) struct Segments(Mutex<HashMap<IpAddr, u16>>);

impl Segments {
    pub(crate) fn of(&self, address: IpAddr) -> Option<u16> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&address).copied()
    }

    /// The same as packets.
    pub(crate) fn packet_bytes(&self, address: IpAddr) -> Option<u16> {
        self.of(address).map(|segment| segment.saturating_add(headers_bytes(address)))
    }

    fn set(&self, address: IpAddr, segment: Option<u16>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match segment {
            Some(segment) if known.len() < REMEMBERED_MAX || known.contains_key(&address) => {
                known.insert(address, segment);
            }
            Some(_) => {}
            None => drop(known.remove(&address)),
        }
    }
}

/// A connection whose segments, both ways, are no larger than that.
pub(crate) async fn connect(
    address: SocketAddr,
    segment: Option<u16>,
) -> std::io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(segment) = segment {
        SockRef::from(&socket).set_tcp_mss(segment.into())?;
    }
    socket.connect(address).await
}

fn headers_bytes(address: IpAddr) -> u16 {
    if address.is_ipv4() { 40 } else { 60 }
}

impl Net {
    /// Looks whether full packets come to an address and back, and which do if not. Later
    /// connections to it keep to that.
    ///
    /// # Errors
    /// Nobody with that key answers there, whatever the size.
    pub(crate) async fn check_size(&self, address: SocketAddr, pin: Pin) -> Result<(), DialError> {
        let ip = address.ip();
        let Err(full) = self.greet_at_length(address, pin, None).await? else {
            self.segments.set(ip, None);
            return Ok(());
        };
        let smaller = PACKET_BYTES.map(|bytes| bytes - headers_bytes(ip));
        for segment in smaller.into_iter().filter(|segment| *segment < full) {
            if self.greet_at_length(address, pin, Some(segment)).await?.is_err() {
                continue;
            }
            // A busy machine may have answered the first greeting too late.
            let is_cured = self.greet_at_length(address, pin, None).await?.is_ok();
            let segment = (!is_cured).then_some(segment);
            self.segments.set(ip, segment);
            return Ok(());
        }
        Err(DialError::Packets(SMALLEST))
    }

    /// Whether a greeting of several packets is answered; if not, the size of the connection's
    /// segments.
    ///
    /// # Errors
    /// Nobody with that key answers there.
    async fn greet_at_length(
        &self,
        address: SocketAddr,
        pin: Pin,
        segment: Option<u16>,
    ) -> Result<Result<(), u16>, DialError> {
        let stream = self.secure(address, pin, segment).await?;
        let used = used_segment(stream.get_ref().0);
        let greeting = self.greet(stream, Purpose::Probe, PADDING_BYTES);
        match timeout(ANSWER_MAX, greeting).await {
            // Who is no member yet is refused at the same length.
            Ok(Ok(_) | Err(DialError::Refused { .. })) => Ok(Ok(())),
            Ok(Err(error @ DialError::Version(_))) => Err(error),
            // The other end waits for the rest of the greeting no longer than this one does.
            Ok(Err(_)) | Err(_) => Ok(Err(used)),
        }
    }
}

/// The largest that a connection sends, options of the header included.
fn used_segment(stream: &TcpStream) -> u16 {
    /// Of the option of timestamps, which the system counts off.
    const OPTIONS_BYTES: u32 = 12;
    let bytes = SockRef::from(stream).tcp_mss().map(|bytes| u16::try_from(bytes + OPTIONS_BYTES));
    bytes.ok().and_then(Result::ok).unwrap_or(u16::MAX)
}
