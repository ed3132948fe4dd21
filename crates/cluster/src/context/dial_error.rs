use std::io;
use std::time::Duration;

use protocol::frame::FrameError;

use crate::wire::Verdict;

/// A TCP handshake on a local network takes milliseconds; a machine that is off never answers.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a call to another node came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{reason}")]
    Refused { reason: String, verdict: Option<Verdict> },
    #[error("{0}")]
    Version(String),
    #[error(
        "another node answers there, by its key: one that has this address now, or a reinstalled \
         one"
    )]
    OtherNode,
    #[error(
        "it takes a call, but answers no longer message, not even one in packets of {0} bytes: look \
         at the MTU of the VPN, the router or the switch on the way there"
    )]
    Packets(u16),
    #[error("no address is known for it")]
    NoAddress,
}

impl DialError {
    /// Whether there is no answer at all, as behind a firewall.
    pub(crate) fn is_unreachable(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
        match self {
            Self::Timeout(after) => *after == CONNECT_TIMEOUT,
            Self::Io(error) => {
                matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
            }
            _ => false,
        }
    }
}
