//! Control connections: those about which the daemon has not decided yet, and those that it keeps.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use protocol::frame::{self, FRAME_BYTES_MAX, FrameError};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::context::Opened;
use crate::core::Event;
use crate::instance::Path;
use crate::io::frames;
use crate::io::net::Connection;
use crate::membership::ConnId;
use crate::wire::{About, Message};

const FAREWELL: Duration = Duration::from_millis(200);
/// Often enough for silence of seconds, and nothing beside the messages themselves.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// How long a connection that is let go of may take to send what it has.
const CLOSING_MAX: Duration = Duration::from_millis(500);
/// Messages on their way to one peer: seconds of tokens for all its clients. A peer that
/// is further behind is cut off.
const OUTBOX_MAX: usize = 8192;
/// Messages are written together up to about so many bytes: a few records of TLS.
const WRITE_BYTES: usize = 64 << 10;

/// New connections until the daemon has decided about them; numbers them.
#[derive(Default)]
pub(crate) struct Lobby {
    last: AtomicU64,
    waiting: Mutex<HashMap<ConnId, (Connection, bool)>>,
}

impl Lobby {
    fn waiting(&self) -> MutexGuard<'_, HashMap<ConnId, (Connection, bool)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a connection until it is decided about; returns what the daemon needs to decide.
    pub(super) fn enter(&self, connection: Connection, dialed: bool) -> Opened {
        let conn = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut addresses = connection.peer_addresses();
        if dialed {
            addresses.insert(0, connection.remote);
        }
        let opened = Opened {
            conn,
            dialed,
            peer: connection.peer,
            boot: connection.about.boot,
            name: connection.about.name.clone(),
            addresses,
            path: Path { ours: connection.local, theirs: connection.remote.ip() },
            protocol: connection.protocol,
        };
        self.waiting().insert(conn, (connection, dialed));
        opened
    }

    /// The connection, and whether this node dialed it.
    pub(super) fn leave(&self, conn: ConnId) -> Option<(Connection, bool)> {
        self.waiting().remove(&conn)
    }
}

/// A connection that is kept, until this is dropped.
pub(super) struct Line {
    outbox: mpsc::Sender<Message>,
    stop: oneshot::Sender<()>,
}

impl Line {
    /// With the task that carries messages; `welcome` answers a handshake that still waits.
    pub(super) fn new(
        conn: ConnId,
        connection: Connection,
        welcome: Option<About>,
        inputs: mpsc::Sender<Event>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (outbox, inbox) = mpsc::channel(OUTBOX_MAX);
        let (stop, stopped) = oneshot::channel();
        let ends = Ends { outbox: inbox, stop: stopped };
        (Self { outbox, stop }, run(conn, connection, welcome, ends, inputs))
    }

    /// Whether the peer still takes its messages.
    pub(super) fn send(&self, message: Message) -> bool {
        self.outbox.try_send(message).is_ok()
    }

    /// Closes it once what was sent is on its way.
    pub(super) async fn finish(self) {
        drop(self.outbox);
        tokio::time::sleep(CLOSING_MAX).await;
        drop(self.stop);
    }
}

/// A connection's ends in the driver. When that drops the outbox's, what is in it is sent and the
/// connection closed; when it drops `stop`'s, at once.
struct Ends {
    outbox: mpsc::Receiver<Message>,
    stop: oneshot::Receiver<()>,
}

/// Carries messages both ways until the peer leaves or the driver closes; reports the former.
/// With `welcome` the handshake is still to be answered.
async fn run(
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
    let (reader, mut writer) = tokio::io::split(connection.stream);
    let mut reader = Listening { inner: reader, conn, inputs: inputs.clone(), told: None };
    let Ends { mut outbox, stop } = ends;
    let receive = async {
        loop {
            let body = frames::read_body(&mut reader, FRAME_BYTES_MAX).await;
            match body.and_then(|body| Message::decode(&body)) {
                Ok(None) => {}
                Ok(Some(message)) => {
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
            if let Err(error) = write_all(&mut writer, message, &mut outbox).await {
                return Some(error);
            }
        }
        None
    };
    // The driver closes by its end of the outbox, or at once by `stop`.
    let error = tokio::select! {
        error = receive => Some(error),
        error = send => error,
        _ = stop => None,
    };
    let Some(error) = error else {
        // Closing well is a courtesy, and no reason to wait for a peer that does not read.
        let _ = timeout(FAREWELL, writer.shutdown()).await;
        return;
    };
    let _ = inputs.send(Event::Closed { conn, reason: describe(&error) }).await;
}

/// Writes a message and those that have come meanwhile, such as all tokens of one step, as one:
/// the peer wakes up once.
async fn write_all(
    writer: &mut (impl AsyncWrite + Unpin),
    first: Message,
    outbox: &mut mpsc::Receiver<Message>,
) -> Result<(), FrameError> {
    let mut bytes = frame::encode(&first)?;
    while bytes.len() < WRITE_BYTES
        && let Ok(message) = outbox.try_recv()
    {
        bytes.extend_from_slice(&frame::encode(&message)?);
    }
    writer.write_all(&bytes).await?;
    Ok(writer.flush().await?)
}

/// Reads, and tells the driver that something comes while a long message does. Heartbeats wait
/// behind it, for minutes on a slow link; the peer that sends it lives all the same.
struct Listening<R> {
    inner: R,
    conn: ConnId,
    inputs: mpsc::Sender<Event>,
    told: Option<Instant>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Listening<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        let came = buf.filled().len() > before;
        if came && self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            // A driver that is too busy for this will be told by the next bytes.
            let _ = self.inputs.try_send(Event::Heard { conn: self.conn });
        }
        polled
    }
}

fn describe(error: &FrameError) -> String {
    use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
    match error {
        FrameError::Closed => "its daemon closed the connection".to_owned(),
        // A process that dies leaves its TLS session without the closing alert; where it has not
        // read all that it was sent, its system resets the connection.
        FrameError::Io(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset) => {
            "its daemon ended".to_owned()
        }
        FrameError::Io(error) => format!("its connection broke: {error}"),
        other => format!("it does not follow the protocol: {other}"),
    }
}
