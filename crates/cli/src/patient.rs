//! Waits for a node that may take long, but not for a frozen one: during silence, the node's status
//! is queried at intervals.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::client::Client;
use crate::error::CliError;

/// A streaming node sends something every five seconds.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Pieces read ahead.
const PIECES: usize = 16;
const PIECE_BYTES: usize = 16 << 10;

/// Runs work that waits for the node, as long as the node answers.
///
/// # Errors
/// The node does not answer any more.
pub fn wait<T: Send + 'static>(
    client: &Client,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CliError> {
    let (done, result) = sync_channel(1);
    std::thread::spawn(move || {
        // The receiver is gone if the node is frozen.
        let _ = done.send(work());
    });
    loop {
        match result.recv_timeout(SILENCE_MAX) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => drop(client.status()?),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CliError::Refused("this program failed while it waited".to_owned()));
            }
        }
    }
}

/// A node's stream, as long as the node answers. Fails if the node is frozen.
pub struct Patient {
    client: Client,
    pieces: Receiver<io::Result<Vec<u8>>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Patient {
    pub fn new(client: Client, mut source: impl Read + Send + 'static) -> Self {
        let (send, pieces) = sync_channel(PIECES);
        std::thread::spawn(move || {
            loop {
                let mut piece = vec![0; PIECE_BYTES];
                let read = source.read(&mut piece).map(|len| {
                    piece.truncate(len);
                    piece
                });
                let is_last = read.as_ref().map_or(true, Vec::is_empty);
                if send.send(read).is_err() || is_last {
                    return;
                }
            }
        });
        Self { client, pieces, piece: io::Cursor::default() }
    }
}

impl Read for Patient {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let len = self.piece.read(out)?;
            if len > 0 || out.is_empty() {
                return Ok(len);
            }
            match self.pieces.recv_timeout(SILENCE_MAX) {
                Ok(Ok(piece)) if piece.is_empty() => return Ok(0),
                Ok(piece) => self.piece = io::Cursor::new(piece?),
                Err(RecvTimeoutError::Timeout) => {
                    self.client.status().map_err(io::Error::other)?;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            }
        }
    }
}
