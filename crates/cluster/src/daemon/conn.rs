use std::time::Duration;

use protocol::frame::{FRAME_BYTES_MAX, FrameError};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Event;
use crate::frames;
use crate::membership::ConnId;
use crate::net::Connection;
use crate::wire::{About, Message};

const FAREWELL: Duration = Duration::from_millis(200);

/// A connection's ends in the driver: dropping `stop` closes it.
pub(super) struct Ends {
    pub outbox: mpsc::Receiver<Message>,
    pub stop: oneshot::Receiver<()>,
}

/// Carries messages both ways until the peer leaves or the driver closes; reports the former.
/// With `welcome` the handshake is still to be answered.
pub(super) async fn run(
    conn: ConnId,
    mut connection: Connection,
    welcome: Option<About>,
    ends: Ends,
    inputs: mpsc::Sender<Event>,
) {
    if let Some(about) = welcome
        && let Err(error) = connection.welcome(about).await
    {
        let reason = describe(&error);
        // The driver is gone only if the whole node is.
        let _ = inputs.send(Event::Closed { conn, reason }).await;
        return;
    }
    let (mut reader, mut writer) = tokio::io::split(connection.stream);
    let Ends { mut outbox, stop } = ends;
    let receive = async {
        loop {
            match frames::read::<Message>(&mut reader, FRAME_BYTES_MAX).await {
                Ok(message) => {
                    if inputs.send(Event::Received { conn, message }).await.is_err() {
                        return FrameError::Closed;
                    }
                }
                Err(error) => return error,
            }
        }
    };
    let send = async {
        while let Some(message) = outbox.recv().await {
            if let Err(error) = frames::write(&mut writer, &message).await {
                return error;
            }
        }
        FrameError::Closed
    };
    let error = tokio::select! {
        error = receive => error,
        error = send => error,
        _ = stop => {
            // Closing well is a courtesy, and no reason to wait for a peer that does not read.
            let _ = timeout(FAREWELL, writer.shutdown()).await;
            return;
        }
    };
    let _ = inputs.send(Event::Closed { conn, reason: describe(&error) }).await;
}

fn describe(error: &FrameError) -> String {
    match error {
        FrameError::Closed => "its daemon closed the connection".to_owned(),
        // A process that dies leaves its TLS session without the closing alert.
        FrameError::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "its daemon ended".to_owned()
        }
        FrameError::Io(error) => format!("its connection broke: {error}"),
        other => format!("it does not follow the protocol: {other}"),
    }
}
