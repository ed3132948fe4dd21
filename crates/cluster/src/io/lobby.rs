//! Control connections, before and after the daemon decides to keep them.

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
/// Frequent enough to detect silence of seconds, and negligible beside the messages themselves.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// How long a finished connection may take to send its queue.
const CLOSING_MAX: Duration = Duration::from_millis(500);
/// Capacity of the queue to one peer: seconds of tokens for all its clients. A peer that falls
/// further behind is cut off.
const OUTBOX_MAX: usize = 8192;
/// Messages are batched into writes of about this size: a few TLS records.
const WRITE_BYTES: usize = 64 << 10;

/// Numbers new connections and holds them until the daemon decides.
#[derive(Default)]
pub(crate) struct Lobby {
    last: AtomicU64,
    waiting: Mutex<HashMap<ConnId, (Connection, bool)>>,
}

impl Lobby {
    fn waiting(&self) -> MutexGuard<'_, HashMap<ConnId, (Connection, bool)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a connection for the daemon's decision; returns the input of that decision.
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

    /// Takes out a connection. The flag is true if this node dialed it.
    pub(super) fn leave(&self, conn: ConnId) -> Option<(Connection, bool)> {
        self.waiting().remove(&conn)
    }
}

/// A kept connection; dropping it closes the connection.
pub(super) struct Line {
    outbox: mpsc::Sender<Message>,
    stop: oneshot::Sender<()>,
}

impl Line {
    /// Returns the line and its task. `welcome` is the answer to a handshake that is still open.
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

    /// Queues a message; false if the queue is full or closed.
    pub(super) fn send(&self, message: Message) -> bool {
        self.outbox.try_send(message).is_ok()
    }

    /// Closes the connection after `CLOSING_MAX`, in which the queue drains.
    pub(super) async fn finish(self) {
        drop(self.outbox);
        tokio::time::sleep(CLOSING_MAX).await;
        drop(self.stop);
    }
}

/// The task's ends of the channels to the driver. When the driver drops its `outbox`, the task
/// sends the rest of the queue and closes; when it drops `stop`, the task closes at once.
struct Ends {
    outbox: mpsc::Receiver<Message>,
    stop: oneshot::Receiver<()>,
}

/// Carries messages both ways until the peer leaves or the driver closes. Reports `Closed` only in
/// the first case. `welcome` answers a handshake that is still open.
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
        // Sending fails only if the whole node has ended.
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
    // The driver closes by dropping its end of the outbox, or at once by `stop`.
    let error = tokio::select! {
        error = receive => Some(error),
        error = send => error,
        _ = stop => None,
    };
    let Some(error) = error else {
        // A proper TLS close is a courtesy; it must not wait for a peer that does not read.
        let _ = timeout(FAREWELL, writer.shutdown()).await;
        return;
    };
    let _ = inputs.send(Event::Closed { conn, reason: describe(&error) }).await;
}

/// Writes a message together with those queued behind it, such as all tokens of one step, so that
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

/// A reader that reports incoming bytes to the driver during a long message. Heartbeats wait behind
/// such a message, for minutes on a slow link, but its sender is alive.
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
            // If the driver's inbox is full, the next bytes send another `Heard`.
            let _ = self.inputs.try_send(Event::Heard { conn: self.conn });
        }
        polled
    }
}

fn describe(error: &FrameError) -> String {
    use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
    match error {
        FrameError::Closed => "its daemon closed the connection".to_owned(),
        // A process that dies leaves its TLS session without the closing alert. If it had unread
        // data, its system resets the connection.
        FrameError::Io(error) if matches!(error.kind(), UnexpectedEof | ConnectionReset) => {
            "its daemon ended".to_owned()
        }
        FrameError::Io(error) => format!("its connection broke: {error}"),
        other => format!("it does not follow the protocol: {other}"),
    }
}
