//! Joining by a number that this machine shows and a person types at a member.
//! [`crate::secrets::pake`] is the key exchange that proves the number.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{caller, listed_by, tell, welcome};
use crate::admission::waiting::REQUEST_MAX;
use crate::admission::{Decision, PairEvent};
use crate::context::Attempt;
use crate::core::Event;
use crate::io::frames;
use crate::io::kept::Saver;
use crate::io::net::{Connection, DialError, Net};
use crate::io::tls::Pin;
use crate::members::Members;
use crate::secrets::pake::{Asker, Ends, Number, Teller};
use crate::wire::{
    HANDSHAKE_BYTES_MAX, JOIN_BYTES_MAX, JoinAnswer, PairAsk, PairNews, PairProof, Purpose,
};
use crate::{Error, NodeId, Result};

/// Both ends answer from memory, and one writes to its disk.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The member's end. A caller learns only this node's version and name until it has proved the
/// number that a person typed here.
pub(crate) async fn answer(
    net: &Net,
    saver: &Arc<Saver<Members>>,
    inputs: &mpsc::Sender<Event>,
    mut connection: Connection,
) -> std::result::Result<(), DialError> {
    welcome(net, &mut connection).await?;
    let asked = frames::read::<PairAsk>(&mut connection.stream, HANDSHAKE_BYTES_MAX);
    let PairAsk { half } = within(ANSWER_MAX, async { Ok(asked.await?) }).await?;
    let session = connection.session()?;
    let ends = Ends { asker: connection.peer, member: net.id(), session };
    let (member, address) = (caller(&connection), connection.remote.ip());
    let stream = &mut connection.stream;

    let ((decide, decided), (reply, noted)) = (oneshot::channel(), oneshot::channel());
    tell(inputs, Event::Pair(PairEvent::Asked { member: member.clone(), address, decide, reply }))
        .await?;
    let ticket = match noted.await.map_err(io::Error::other)? {
        Ok(ticket) => ticket,
        Err(error) => {
            let reason = error.to_string();
            return Ok(frames::write(stream, &PairNews::Refused { reason }).await?);
        }
    };
    frames::write(stream, &PairNews::Waiting).await?;
    let decision = tokio::select! {
        decision = decided => decision.ok(),
        // The caller sends nothing while it waits, so a read means that it hung up.
        _ = stream.read_u8() => return tell(inputs, Event::Pair(PairEvent::Gone { ticket })).await,
    };
    let (number, decider) = match decision {
        Some(Decision::Number { number, decider }) => (number, decider),
        Some(Decision::Refused) => {
            let reason = "a person there refused it".to_owned();
            return Ok(frames::write(stream, &PairNews::Refused { reason }).await?);
        }
        None => {
            let reason = "the number was not typed there in time. Try again".to_owned();
            return Ok(frames::write(stream, &PairNews::Refused { reason }).await?);
        }
    };
    // A node that cannot save the new member must not let it in.
    if let Err(error) = saver.clone().check_room().await {
        let reason = format!("node {} cannot save a new member. {error}", net.about().name);
        tell(inputs, Event::Pair(PairEvent::Unsaved { error, decider })).await?;
        return Ok(frames::write(stream, &PairNews::Refused { reason }).await?);
    }
    let exchange = async {
        let Some((teller, answer)) = Teller::answer(&number, &ends, &half) else {
            return Ok(false);
        };
        frames::write(stream, &PairNews::Answer(answer)).await?;
        let PairProof { proof } = frames::read(stream, HANDSHAKE_BYTES_MAX).await?;
        Ok(teller.accepts(&proof))
    };
    // A caller that hangs up now may have found its guess wrong, so this counts as a guess.
    if !matches!(within(ANSWER_MAX, exchange).await, Ok(true)) {
        return tell(inputs, Event::Pair(PairEvent::Unproved { name: member.name, decider })).await;
    }
    let (answer, admitted) = oneshot::channel();
    tell(inputs, Event::Pair(PairEvent::Proved { member, decider, answer })).await?;
    let admitted = admitted.await.map_err(io::Error::other)?;
    // The new member may rely only on state that survives a crash of this node.
    saver.clone().save().await;
    Ok(frames::write(stream, &admitted).await?)
}

/// Requests admission by a node, and waits until a person there has typed the number.
pub(crate) async fn ask(
    net: Arc<Net>,
    saver: Arc<Saver<Members>>,
    inputs: mpsc::Sender<Event>,
    attempt: Attempt,
) -> Option<Event> {
    let Attempt { attempt, peer, addresses, number, cancelled } = attempt;
    let asking = call(&net, &saver, &inputs, attempt, (peer, addresses), &number);
    let outcome = tokio::select! {
        outcome = asking => outcome,
        _ = cancelled => return None,
    };
    Some(Event::Pair(PairEvent::Ended { attempt, outcome }))
}

async fn call(
    net: &Arc<Net>,
    saver: &Arc<Saver<Members>>,
    inputs: &mpsc::Sender<Event>,
    attempt: u64,
    (peer, addresses): (Option<NodeId>, Vec<SocketAddr>),
    number: &Number,
) -> Result<(NodeId, Members)> {
    // A node that cannot save its membership must not join.
    saver.clone().check_room().await?;
    let listed = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    let unreachable = |why: &dyn std::fmt::Display| {
        let (addresses, why) = (listed.clone(), why.to_string());
        Error::Unreachable { addresses, why }
    };
    let pin = peer.map_or(Pin::Any, Pin::Node);
    let mut connection = match net.dial(addresses, pin, Purpose::Pair).await {
        Ok(connection) => connection,
        Err(DialError::Refused { reason, .. } | DialError::Version(reason)) => {
            return Err(Error::JoinRefused(reason));
        }
        Err(error) => return Err(unreachable(&error)),
    };
    let by = connection.peer;
    if by == net.id() && connection.about.boot != net.boot() {
        return Err(Error::Twin { address: connection.remote, data_dir: saver.folder() });
    }
    if by == net.id() {
        return Err(Error::JoinRefused("this is this node's own address".to_owned()));
    }
    let name = crate::members::clean_name(&connection.about.name);
    let session = connection.session().map_err(|error| unreachable(&error))?;
    let ends = Ends { asker: net.id(), member: by, session };
    let begun = Asker::begin(number, &ends);
    let (asker, half) = begun.ok_or_else(|| unreachable(&"no random bytes"))?;
    let stream = &mut connection.stream;
    let told = within(ANSWER_MAX, async {
        frames::write(stream, &PairAsk { half }).await?;
        Ok(frames::read::<PairNews>(stream, HANDSHAKE_BYTES_MAX).await?)
    });
    match told.await.map_err(|error| unreachable(&error))? {
        PairNews::Waiting => {}
        PairNews::Refused { reason } => return Err(Error::JoinRefused(reason)),
        PairNews::Answer(_) => return Err(unreachable(&"it answered before it was asked")),
    }
    // Sending fails only if the whole node has ended.
    let _ = tell(inputs, Event::Pair(PairEvent::Waits { attempt, by, name: name.clone() })).await;
    let wait = async { Ok(frames::read::<PairNews>(stream, HANDSHAKE_BYTES_MAX).await?) };
    let answer = match within(REQUEST_MAX + ANSWER_MAX, wait).await {
        Ok(PairNews::Answer(answer)) => answer,
        Ok(PairNews::Refused { reason }) => return Err(Error::JoinRefused(reason)),
        Ok(PairNews::Waiting) => return Err(unreachable(&"it said twice that it waits")),
        Err(error) => return Err(unreachable(&error)),
    };
    let Some(proof) = asker.finish(&answer) else { return Err(Error::OtherNumber { name }) };
    let end = within(ANSWER_MAX, async {
        frames::write(stream, &PairProof { proof }).await?;
        Ok(frames::read::<JoinAnswer>(stream, JOIN_BYTES_MAX).await?)
    });
    match end.await.map_err(|error| unreachable(&error))? {
        JoinAnswer::Refused { reason } => Err(Error::JoinRefused(reason)),
        JoinAnswer::Accepted(members) => Ok((by, listed_by(&connection, members))),
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = std::result::Result<T, DialError>>,
) -> std::result::Result<T, DialError> {
    timeout(limit, work).await.map_err(|_| DialError::Timeout(limit))?
}
