//! Beats over a TCP connection of their own, each authenticated: `number | MAC`.
//!
//! Numbers only grow, so a recorded beat keeps nobody alive. A connection that carries anything
//! else, or ends, is silence: whether the peer is lost is for its messages' connection to say, or
//! for time.

use std::net::TcpStream;

use crate::pulse::{Channel, Heard};
use crate::socket::{close_gently, read_some, write_some};

const NUMBER_BYTES: usize = 8;

const MAC_BYTES: usize = 32;
const BEAT_BYTES: usize = NUMBER_BYTES + MAC_BYTES;

/// The number of a goodbye, after which none is greater.
const GOODBYE: u64 = u64::MAX;

/// Beats taken in at one look: a minute's worth, after which the rest waits for the next look.
const BEATS_PER_LOOK: usize = 256;

/// The keys of the two directions.
pub(crate) struct BeatKeys {
    pub send: [u8; 32],
    pub recv: [u8; 32],
}

pub(crate) struct TcpBeats {
    stream: TcpStream,
    keys: BeatKeys,
    /// The beat on its way, and how much of it has gone.
    outgoing: [u8; BEAT_BYTES],
    sent: usize,
    incoming: [u8; BEAT_BYTES],
    received: usize,
    /// The last numbers sent and heard.
    said: u64,
    heard: u64,
    /// The connection has ended, or carried something else.
    is_broken: bool,
}

impl TcpBeats {
    pub fn new(stream: TcpStream, keys: BeatKeys) -> Self {
        TcpBeats {
            stream,
            keys,
            outgoing: [0; BEAT_BYTES],
            sent: BEAT_BYTES,
            incoming: [0; BEAT_BYTES],
            received: 0,
            said: 0,
            heard: 0,
            is_broken: false,
        }
    }

    /// Sends the next beat, unless the last is still on its way: that one will do.
    fn say(&mut self, number: u64) {
        if self.sent == BEAT_BYTES {
            self.outgoing = encode(&self.keys.send, number);
            self.sent = 0;
            self.said = number;
        }
        while self.sent < BEAT_BYTES && !self.is_broken {
            match write_some(&self.stream, &self.outgoing[self.sent..], 0) {
                Ok(0) => return,
                Ok(written) => self.sent += written,
                Err(_) => self.is_broken = true,
            }
        }
    }

    /// The next beat's number, if it is all here.
    fn hear(&mut self) -> Option<u64> {
        while self.received < BEAT_BYTES && !self.is_broken {
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
        let number = decode(&self.keys.recv, &self.incoming).filter(|number| *number > self.heard);
        self.is_broken = number.is_none();
        self.heard = number.unwrap_or(self.heard);
        number
    }
}

impl Channel for TcpBeats {
    fn beat(&mut self) {
        self.say(self.said + 1);
    }

    fn leave(&mut self) {
        self.say(GOODBYE);
    }

    fn listen(&mut self) -> Heard {
        let mut heard = Heard::Nothing;
        for _ in 0..BEATS_PER_LOOK {
            match self.hear() {
                None => break,
                Some(GOODBYE) => return Heard::Goodbye,
                Some(_) => heard = Heard::Beat,
            }
        }
        heard
    }
}

impl Drop for TcpBeats {
    fn drop(&mut self) {
        close_gently(&self.stream);
    }
}

fn encode(key: &[u8; 32], number: u64) -> [u8; BEAT_BYTES] {
    let mut beat = [0; BEAT_BYTES];
    beat[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    let mac = blake3::keyed_hash(key, &beat[..NUMBER_BYTES]);
    beat[NUMBER_BYTES..].copy_from_slice(mac.as_bytes());
    beat
}

fn decode(key: &[u8; 32], beat: &[u8; BEAT_BYTES]) -> Option<u64> {
    let (number, mac) = beat.split_first_chunk::<NUMBER_BYTES>()?;
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

    fn pair() -> (TcpBeats, TcpBeats) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let right = listener.accept().unwrap().0;
        for stream in [&left, &right] {
            crate::socket::prepare(stream).unwrap();
        }
        let keys = |send, recv| BeatKeys { send: [send; 32], recv: [recv; 32] };
        (TcpBeats::new(left, keys(1, 2)), TcpBeats::new(right, keys(2, 1)))
    }

    /// Looks until something is heard: loopback is fast, not instantaneous.
    fn listen(beats: &mut TcpBeats) -> Heard {
        loop {
            match beats.listen() {
                Heard::Nothing if !beats.is_broken => std::thread::yield_now(),
                heard => return heard,
            }
        }
    }

    #[test]
    fn beats_are_heard_both_ways_and_so_is_a_goodbye() {
        let (mut left, mut right) = pair();
        assert_eq!(left.listen(), Heard::Nothing);
        for _ in 0..3 {
            left.beat();
            right.beat();
            assert_eq!([listen(&mut left), listen(&mut right)], [Heard::Beat; 2]);
        }
        left.leave();
        assert_eq!(listen(&mut right), Heard::Goodbye);
    }

    #[test]
    fn a_forged_a_repeated_and_an_ended_beat_are_silence() {
        for end in
            [Some(encode(&[9; 32], 1)), Some(encode(&[1; 32], 0)), Some([0; BEAT_BYTES]), None]
        {
            let (left, mut right) = pair();
            match end {
                Some(bytes) => (&left.stream).write_all(&bytes).unwrap(),
                None => left.stream.shutdown(std::net::Shutdown::Both).unwrap(),
            }
            assert_eq!(listen(&mut right), Heard::Nothing);
            assert!(right.is_broken);
        }
        let (mut left, mut right) = pair();
        left.beat();
        assert_eq!(listen(&mut right), Heard::Beat);
        (&left.stream).write_all(&encode(&[1; 32], 1)).unwrap();
        assert_eq!(listen(&mut right), Heard::Nothing, "a recorded beat");
    }
}
