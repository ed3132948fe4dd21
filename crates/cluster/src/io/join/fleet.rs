//! Joining by fleet key: both ends prove that they have the same key.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::{tell, welcome};
use crate::NodeId;
use crate::core::Event;
use crate::io::frames;
use crate::io::kept::Saver;
use crate::io::net::{Connection, DialError, Net};
use crate::io::tls::Pin;
use crate::members::Members;
use crate::secrets::fleet_key::{End, FleetKey};
use crate::wire::{FleetProof, HANDSHAKE_BYTES_MAX, JOIN_BYTES_MAX, JoinAnswer, Purpose};

/// Both ends answer from memory, and one writes to its disk.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const PROOF_MAX: Duration = Duration::from_secs(5);

/// Exchanges proofs of the fleet key with another node.
pub(crate) async fn unite(
    net: Arc<Net>,
    key: FleetKey,
    peer: Option<NodeId>,
    addresses: Vec<SocketAddr>,
    members: Members,
) -> Option<Event> {
    let pin = peer.map_or(Pin::Any, Pin::Node);
    let exchange = async {
        let mut connection = net.dial(addresses, pin, Purpose::Fleet).await?;
        if connection.peer == net.id() {
            let reason = "it is this node itself".to_owned();
            return Err(DialError::Refused { reason, verdict: None });
        }
        let (session, (me, peer)) = (connection.session()?, (net.id(), connection.peer));
        let stream = &mut connection.stream;
        let proof = key.prove(End::Dialer, &session, me, peer).to_vec();
        frames::write(stream, &FleetProof { proof }).await?;
        let FleetProof { proof } = frames::read(stream, HANDSHAKE_BYTES_MAX).await?;
        if !key.accepts(&proof, End::Listener, &session, peer, me) {
            let reason = "it does not have the fleet key that it announces".to_owned();
            return Err(DialError::Refused { reason, verdict: None });
        }
        frames::write(stream, &members).await?;
        let answer: JoinAnswer = frames::read(stream, JOIN_BYTES_MAX).await?;
        Ok::<_, DialError>((peer, answer))
    };
    let exchanged = timeout(ANSWER_MAX, exchange).await;
    match exchanged.unwrap_or(Err(DialError::Timeout(ANSWER_MAX))) {
        Ok((peer, JoinAnswer::Accepted(members))) => Some(Event::United { peer, members }),
        Ok((peer, JoinAnswer::Refused { reason })) => {
            warn!(peer = %peer.short(), reason, "a node of the fleet does not let this one in");
            None
        }
        Err(error) => {
            debug!(%error, "a node of the fleet does not answer");
            None
        }
    }
}

/// The listener's end: a node with this node's fleet key becomes a member.
pub(crate) async fn answer(
    net: &Net,
    saver: &Arc<Saver<Members>>,
    inputs: &mpsc::Sender<Event>,
    key: Option<&FleetKey>,
    mut connection: Connection,
) -> Result<(), DialError> {
    let Some(key) = key else {
        connection.refuse("this node has no fleet key".to_owned()).await;
        return Ok(());
    };
    welcome(net, &mut connection).await?;
    let (session, (me, peer)) = (connection.session()?, (net.id(), connection.peer));
    let stream = &mut connection.stream;
    let exchange = async {
        let FleetProof { proof } = frames::read(stream, HANDSHAKE_BYTES_MAX).await?;
        if !key.accepts(&proof, End::Dialer, &session, peer, me) {
            let reason = "it does not have this node's fleet key".to_owned();
            return Err(DialError::Refused { reason, verdict: None });
        }
        let proof = key.prove(End::Listener, &session, me, peer).to_vec();
        frames::write(stream, &FleetProof { proof }).await?;
        Ok(frames::read::<Members>(stream, JOIN_BYTES_MAX).await?)
    };
    let exchanged = timeout(PROOF_MAX, exchange).await;
    let members = exchanged.map_err(|_| DialError::Timeout(PROOF_MAX))??;
    let (reply, answer) = oneshot::channel();
    tell(inputs, Event::FleetAsked { peer, members, reply }).await?;
    let answer = answer.await.map_err(io::Error::other)?;
    saver.clone().save().await;
    Ok(frames::write(stream, &answer).await?)
}
