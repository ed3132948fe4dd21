//! The handshakes by which a machine becomes a member, both ends of each: by a code, by a number
//! that a person types, by the fleet key.

pub(crate) mod code;
pub(crate) mod fleet;
pub(crate) mod number;

use std::io;

use tokio::sync::mpsc;

use crate::core::Event;
use crate::io::net::{Connection, DialError, Net};
use crate::members::{Member, Members};

async fn tell(inputs: &mpsc::Sender<Event>, event: Event) -> Result<(), DialError> {
    let sent = inputs.send(event).await;
    Ok(sent.map_err(|_| io::Error::other("this node is shutting down"))?)
}

/// Welcomes a caller that is no member: it learns only this node's version and name.
async fn welcome(net: &Net, connection: &mut Connection) -> Result<(), DialError> {
    let mut about = net.about();
    about.addresses.clear();
    Ok(connection.welcome(about).await?)
}

/// The caller, as it would be listed.
fn caller(connection: &Connection) -> Member {
    let (id, name) = (connection.peer, connection.about.name.clone());
    Member { id, name, addresses: connection.peer_addresses(), admitted: 0 }.sanitized()
}

/// The members that another node lists, with the address that just reached it first.
fn listed_by(connection: &Connection, mut members: Members) -> Members {
    for member in members.members.iter_mut().filter(|member| member.id == connection.peer) {
        member.addresses.insert(0, connection.remote);
    }
    members.sanitized()
}
