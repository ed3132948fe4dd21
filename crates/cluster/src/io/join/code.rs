//! Joining by code. A code contains its maker's addresses, the fingerprint of its key, and a
//! secret.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::warn;

use super::{caller, listed_by, tell, welcome};
use crate::core::Event;
use crate::io::frames;
use crate::io::kept::Saver;
use crate::io::net::{Connection, DialError, Net};
use crate::io::tls::Pin;
use crate::members::Members;
use crate::secrets::code::JoinCode;
use crate::wire::{
    HANDSHAKE_BYTES_MAX, JOIN_BYTES_MAX, JoinAnswer, JoinKept, JoinRequest, Purpose,
};
use crate::{Error, NodeId, Result};

/// The answer to a code takes one round trip and one write to disk.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Presents a code's secret to its maker. Returns the maker's id, all members, and the connection,
/// on which this node later confirms that it has saved them.
pub(crate) async fn ask(net: &Arc<Net>, code: JoinCode) -> Result<(NodeId, Members, Connection)> {
    let listed: Vec<String> = code.addresses.iter().map(SocketAddr::to_string).collect();
    let unreachable = |why: String| Error::Unreachable { addresses: listed.join(", "), why };
    let pin = Pin::Fingerprint(code.fingerprint);
    let mut connection = match net.dial(code.addresses, pin, Purpose::Join).await {
        Ok(connection) => connection,
        Err(DialError::Refused { reason, .. } | DialError::Version(reason)) => {
            return Err(Error::JoinRefused(reason));
        }
        Err(error) => return Err(unreachable(error.to_string())),
    };
    let exchange = async {
        let request = JoinRequest { secret: code.secret.to_vec(), confirms: true };
        frames::write(&mut connection.stream, &request).await?;
        frames::read::<JoinAnswer>(&mut connection.stream, JOIN_BYTES_MAX).await
    };
    let answer = timeout(ASK_TIMEOUT, exchange).await;
    let answer =
        answer.map_err(|_| unreachable("it accepted the call, then fell silent".into()))?;
    match answer.map_err(|error| unreachable(error.to_string()))? {
        JoinAnswer::Refused { reason } => Err(Error::JoinRefused(reason)),
        JoinAnswer::Accepted(members) => {
            let members = listed_by(&connection, members);
            Ok((connection.peer, members, connection))
        }
    }
}

/// Confirms to the code's maker that the membership is saved; hangs up if it could not be saved.
pub(crate) async fn confirm(mut connection: Connection, kept: oneshot::Receiver<()>) {
    if kept.await.is_ok() {
        // The maker may be gone, or may speak a version without this message.
        let _ = frames::write(&mut connection.stream, &JoinKept {}).await;
    }
}

/// The maker's end. A caller learns only this node's version and name until it has presented a
/// valid secret.
pub(crate) async fn answer(
    net: &Net,
    saver: &Arc<Saver<Members>>,
    inputs: &mpsc::Sender<Event>,
    mut connection: Connection,
) -> std::result::Result<(), DialError> {
    welcome(net, &mut connection).await?;
    let request = frames::read::<JoinRequest>(&mut connection.stream, HANDSHAKE_BYTES_MAX);
    let request = timeout(JOIN_TIMEOUT, request).await;
    let request = request.map_err(|_| DialError::Timeout(JOIN_TIMEOUT))??;
    let member = caller(&connection);
    // A node that cannot save the new member must not use up the code.
    if let Err(error) = saver.clone().check_room().await {
        warn!(%error, "a node was not let in");
        let name = net.about().name;
        let reason = format!("node {name} cannot save a new member; the code stays good. {error}");
        let refused = JoinAnswer::Refused { reason };
        return Ok(frames::write(&mut connection.stream, &refused).await?);
    }
    let (reply, answer) = oneshot::channel();
    let (secret, from) = (request.secret, connection.remote.ip());
    let asked = Event::JoinAsked { member, secret: secret.clone(), from, reply };
    tell(inputs, asked).await?;
    let (answer, is_new) = answer.await.map_err(io::Error::other)?;
    let is_accepted = matches!(answer, JoinAnswer::Accepted(_));
    if is_accepted {
        // The new member may rely only on state that survives a crash of this node.
        saver.clone().save().await;
    }
    let finish = async {
        frames::write(&mut connection.stream, &answer).await?;
        if is_accepted && request.confirms {
            frames::read::<JoinKept>(&mut connection.stream, HANDSHAKE_BYTES_MAX).await?;
        }
        Ok::<(), DialError>(())
    };
    let finished = timeout(JOIN_TIMEOUT, finish).await;
    let finished = finished.unwrap_or(Err(DialError::Timeout(JOIN_TIMEOUT)));
    // A node that was a member before stays one even if its confirmation fails.
    if is_accepted && is_new && finished.is_err() {
        tell(inputs, Event::JoinLost { peer: connection.peer, secret }).await?;
    }
    finished
}
