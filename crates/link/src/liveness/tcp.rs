//! Heartbeats over a separate TCP connection, each authenticated: `number | MAC`.
//!
//! Numbers only grow, so a replayed heartbeat does not keep a dead peer alive. A connection that
//! ends or carries anything else counts as silence: the message connection or the silence limit
//! decides whether the peer is lost.

use std::net::TcpStream;

use super::HEARTBEAT;
use super::channel::{Channel, Received};
use crate::socket::{arrival, close_gently, read_some, write_some};

const NUMBER_BYTES: usize = 8;

const MAC_BYTES: usize = 32;
const HEARTBEAT_BYTES: usize = NUMBER_BYTES + MAC_BYTES;

/// The number of a goodbye: no number is greater.
const GOODBYE: u64 = u64::MAX;

/// The most heartbeats received in one call: a minute's worth. The rest waits for the next call.
const HEARTBEATS_PER_LOOK: usize = 256;

/// The keys of the two directions.
pub(crate) struct TcpKeys {
    pub send: [u8; 32],
    pub recv: [u8; 32],
}

pub(crate) struct TcpHeartbeats {
    stream: TcpStream,
    keys: TcpKeys,
    /// The heartbeat being sent, and its bytes already sent.
    outgoing: [u8; HEARTBEAT_BYTES],
    sent: usize,
    incoming: [u8; HEARTBEAT_BYTES],
    received: usize,
    /// The last numbers sent and received.
    last_sent: u64,
    last_received: u64,
    /// The connection has ended, or carried something else.
    is_broken: bool,
}

impl TcpHeartbeats {
    pub fn new(stream: TcpStream, keys: TcpKeys) -> Self {
        TcpHeartbeats {
            stream,
            keys,
            outgoing: [0; HEARTBEAT_BYTES],
            sent: HEARTBEAT_BYTES,
            incoming: [0; HEARTBEAT_BYTES],
            received: 0,
            last_sent: 0,
            last_received: 0,
            is_broken: false,
        }
    }

    /// Sends the next heartbeat, unless the last one is still being sent: that one is enough.
    fn push(&mut self, number: u64) {
        if self.sent == HEARTBEAT_BYTES {
            self.outgoing = encode(&self.keys.send, number);
            self.sent = 0;
            self.last_sent = number;
        }
        while self.sent < HEARTBEAT_BYTES && !self.is_broken {
            match write_some(&self.stream, &self.outgoing[self.sent..], 0) {
                Ok(0) => return,
                Ok(written) => self.sent += written,
                Err(_) => self.is_broken = true,
            }
        }
    }

    /// The number of the next heartbeat, if it is complete.
    fn take(&mut self) -> Option<u64> {
        while self.received < HEARTBEAT_BYTES && !self.is_broken {
            match read_some(&self.stream, &mut self.incoming[self.received..], 0) {
                Ok(0) => return None,
                Ok(read) => self.received += read,
                Err(_) => self.is_broken = true,
            }
        }
        if self.is_broken {
            return None;
        }
        self.received = 0;
        let number =
            decode(&self.keys.recv, &self.incoming).filter(|number| *number > self.last_received);
        self.is_broken = number.is_none();
        self.last_received = number.unwrap_or(self.last_received);
        number
    }
}

impl Channel for TcpHeartbeats {
    fn send(&mut self) {
        self.push(self.last_sent + 1);
    }

    fn say_goodbye(&mut self) {
        self.push(GOODBYE);
    }

    fn has_arrived(&self) -> bool {
        let arrival = arrival(&self.stream).filter(|_| !self.is_broken);
        arrival.is_none_or(|it| it.is_complete || it.acknowledged_ago < HEARTBEAT)
    }

    fn recv(&mut self) -> Received {
        let mut received = Received::Nothing;
        for _ in 0..HEARTBEATS_PER_LOOK {
            match self.take() {
                None => break,
                Some(GOODBYE) => return Received::Goodbye,
                Some(_) => received = Received::Heartbeat,
            }
        }
        received
    }
}

impl Drop for TcpHeartbeats {
    fn drop(&mut self) {
        close_gently(&self.stream);
    }
}

fn encode(key: &[u8; 32], number: u64) -> [u8; HEARTBEAT_BYTES] {
    let mut heartbeat = [0; HEARTBEAT_BYTES];
    heartbeat[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    let mac = blake3::keyed_hash(key, &heartbeat[..NUMBER_BYTES]);
    heartbeat[NUMBER_BYTES..].copy_from_slice(mac.as_bytes());
    heartbeat
}

fn decode(key: &[u8; 32], heartbeat: &[u8; HEARTBEAT_BYTES]) -> Option<u64> {
    let (number, mac) = heartbeat.split_first_chunk::<NUMBER_BYTES>()?;
    let mac: [u8; MAC_BYTES] = mac.try_into().ok()?;
    // `blake3::Hash` compares in constant time.
    let is_genuine = blake3::keyed_hash(key, number) == blake3::Hash::from_bytes(mac);
    is_genuine.then(|| u64::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    fn pair() -> (TcpHeartbeats, TcpHeartbeats) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let right = listener.accept().unwrap().0;
        for stream in [&left, &right] {
            crate::socket::prepare(stream).unwrap();
        }
        let keys = |send, recv| TcpKeys { send: [send; 32], recv: [recv; 32] };
        (TcpHeartbeats::new(left, keys(1, 2)), TcpHeartbeats::new(right, keys(2, 1)))
    }

    /// Polls until something arrives: loopback is fast, not instantaneous.
    fn recv(heartbeats: &mut TcpHeartbeats) -> Received {
        loop {
            match heartbeats.recv() {
                Received::Nothing if !heartbeats.is_broken => std::thread::yield_now(),
                received => return received,
            }
        }
    }

    #[test]
    fn heartbeats_and_a_goodbye_go_both_ways() {
        let (mut left, mut right) = pair();
        assert_eq!(left.recv(), Received::Nothing);
        for _ in 0..3 {
            left.send();
            right.send();
            assert_eq!([recv(&mut left), recv(&mut right)], [Received::Heartbeat; 2]);
        }
        left.say_goodbye();
        assert_eq!(recv(&mut right), Received::Goodbye);
    }

    #[test]
    fn forged_repeated_and_broken_off_heartbeats_are_silence() {
        for end in
            [Some(encode(&[9; 32], 1)), Some(encode(&[1; 32], 0)), Some([0; HEARTBEAT_BYTES]), None]
        {
            let (left, mut right) = pair();
            match end {
                Some(bytes) => (&left.stream).write_all(&bytes).unwrap(),
                None => left.stream.shutdown(std::net::Shutdown::Both).unwrap(),
            }
            assert_eq!(recv(&mut right), Received::Nothing);
            assert!(right.is_broken);
        }
        let (mut left, mut right) = pair();
        left.send();
        assert_eq!(recv(&mut right), Received::Heartbeat);
        (&left.stream).write_all(&encode(&[1; 32], 1)).unwrap();
        assert_eq!(recv(&mut right), Received::Nothing, "a recorded one");
    }
}
