//! A member's way to this node's HTTP API, through their connection: a browser on one member's page
//! reaches what another member keeps, whether or not that one listens to the network.
//!
//! ```text
//! dialer      Ask::Visit, then an HTTP/1.1 request
//! listener    the answer, and the end
//! ```
//!
//! A visit's address grants nothing: the API treats it as a stranger's request.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, copy_bidirectional, duplex};
use tokio::sync::mpsc;

use crate::io::frames;
use crate::io::net::{Connection, DialError, Net};
use crate::io::tls::Pin;
use crate::transfer::asks::{Ask, Neighbour};
use crate::wire::Purpose;

/// Visits that the API has not begun with; the next ones are turned away.
const WAITING_MAX: usize = 64;
/// Bytes under way between the connection and the API.
const BUFFER_BYTES: usize = 64 << 10;

/// A connection to a member's API.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Hands members' visits to this node's API.
#[derive(Debug, Clone)]
pub(crate) struct Visits {
    arrive: mpsc::Sender<DuplexStream>,
    arrived: Arc<Mutex<Option<mpsc::Receiver<DuplexStream>>>>,
}

impl Visits {
    pub fn new() -> Self {
        let (arrive, arrived) = mpsc::channel(WAITING_MAX);
        Self { arrive, arrived: Arc::new(Mutex::new(Some(arrived))) }
    }

    /// The visits, for the API; `None` after the first call.
    pub fn take(&self) -> Option<mpsc::Receiver<DuplexStream>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Carries a member's visit until either side ends it.
    ///
    /// # Errors
    /// This node has no API, or the connection ends.
    pub async fn carry(&self, connection: &mut Connection) -> Result<(), DialError> {
        let (mut near, far) = duplex(BUFFER_BYTES);
        self.arrive.try_send(far).map_err(std::io::Error::other)?;
        copy_bidirectional(&mut connection.stream, &mut near).await?;
        Ok(())
    }
}

/// Opens a way to a member's API, for one request.
///
/// # Errors
/// The member is unreachable.
pub(crate) async fn visit(
    net: &Arc<Net>,
    member: &Neighbour,
) -> Result<Box<dyn ByteStream>, DialError> {
    let pin = Pin::Node(member.id);
    let mut connection = net.dial(vec![member.address], pin, Purpose::Share).await?;
    frames::write(&mut connection.stream, &Ask::Visit).await?;
    Ok(Box::new(connection.stream))
}
