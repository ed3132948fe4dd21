//! The handshakes by which a machine becomes a member, both ends of each: by a code, by a number
//! that a person types, by the fleet key.

pub(crate) mod code;
pub(crate) mod fleet;
pub(crate) mod number;

use std::io;

use tokio::sync::mpsc;

use crate::core::Event;
use crate::io::net::DialError;

async fn tell(inputs: &mpsc::Sender<Event>, event: Event) -> Result<(), DialError> {
    let sent = inputs.send(event).await;
    Ok(sent.map_err(|_| io::Error::other("this node is shutting down"))?)
}
