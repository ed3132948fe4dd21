//! Messages of a handshake as bytes on a non-blocking socket.

use std::net::TcpStream;

use super::message::{MESSAGE_BYTES, Message, Transcript, Unreadable, may_be_message};
use crate::socket::{read_some, write_some};
use crate::{LinkError, Secret};

pub(super) struct Conversation {
    /// `None` once the link has taken it.
    stream: Option<TcpStream>,
    transcript: Transcript,
    incoming: [u8; MESSAGE_BYTES],
    received: usize,
    outgoing: [u8; MESSAGE_BYTES],
    /// Bytes of `outgoing` already sent; its full length when nothing is in flight.
    sent: usize,
}

impl Conversation {
    pub fn new(stream: TcpStream, secret: &Secret) -> Self {
        Conversation {
            stream: Some(stream),
            transcript: Transcript::new(secret),
            incoming: [0; MESSAGE_BYTES],
            received: 0,
            outgoing: [0; MESSAGE_BYTES],
            sent: MESSAGE_BYTES,
        }
    }

    /// Messages so far, of both sides.
    pub fn count(&self) -> u8 {
        self.transcript.count()
    }

    /// Starts to send `message`; the previous one must have been flushed.
    pub fn send(&mut self, message: &Message) {
        self.outgoing = self.transcript.write(message);
        self.sent = 0;
    }

    /// `true` once all bytes have been written.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        let stream = self.stream.as_ref().expect("the stream is taken at the end only");
        while self.sent < MESSAGE_BYTES {
            let written = write_some(stream, &self.outgoing[self.sent..], 0)?;
            if written == 0 {
                return Ok(false);
            }
            self.sent += written;
        }
        Ok(true)
    }

    /// The next message, once it is complete.
    pub fn recv(&mut self) -> Result<Option<Result<Message, Unreadable>>, LinkError> {
        let stream = self.stream.as_ref().expect("the stream is taken at the end only");
        while self.received < MESSAGE_BYTES {
            let free = &mut self.incoming[self.received..];
            let read = read_some(stream, free, 0)?;
            self.received += read;
            if !may_be_message(&self.incoming[..self.received]) {
                return Ok(Some(Err(Unreadable::Garbage)));
            }
            if read == 0 {
                return Ok(None);
            }
        }
        self.received = 0;
        Ok(Some(self.transcript.read(&self.incoming)))
    }

    pub fn take_stream(&mut self) -> TcpStream {
        self.stream.take().expect("the stream is taken once")
    }
}
