//! The handshake's messages as bytes: all of one fixed size, each authenticated.
//!
//! Every message ends with a MAC under a key derived from the session secret, over all messages so
//! far. So no message can be altered, replayed or mixed with another conversation. There is no
//! length field to forge: a reader takes exactly [`MESSAGE_BYTES`].

use super::agreement::Terms;
use crate::rdma::{Address, Addresses, Endpoint, PORTS_MAX};
use crate::{Encryption, HostId, Preference, Secret};

/// A daemon finds the rank of a connection by this, `to` and `instance` (`protocol::RankCall`).
const MAGIC: [u8; 8] = *b"sinewlnk";

/// Changes whenever the handshake or the frames after it change.
pub(super) const VERSION: u32 = 7;

const BODY_BYTES: usize = 192;
const MAC_BYTES: usize = 32;

/// Bytes of every message.
pub(super) const MESSAGE_BYTES: usize = BODY_BYTES + MAC_BYTES;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Messages, or the set-up of a faster transport for them.
    Link,
    /// Heartbeats beside a link over TCP.
    Heartbeats,
}

const PURPOSES: [Purpose; 2] = [Purpose::Link, Purpose::Heartbeats];

/// One message, from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub from: u32,
    pub to: u32,
    pub instance: [u8; 16],
    pub epoch: u64,
    pub body: Body,
}

/// The content of a message, in sending order: the dialer and the listener take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Hello(Purpose, Opening),
    Reply(Opening),
    Confirm,
    /// The sender's end of the transport to try, if there is one.
    Offer(Option<End>),
    Answer(Option<End>),
    /// From here on: whether that transport works.
    Ready(bool),
    Proof(bool),
    Verdict(bool),
}

/// The opening of both ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opening {
    pub nonce: [u8; 32],
    pub terms: Terms,
}

/// One end of a transport to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Shm,
    Rdma(Endpoint),
}

/// Why bytes are not the expected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Another protocol, or not well-formed.
    Garbage,
    /// This protocol in another version.
    Version(u32),
    /// Made with another secret, altered, or from another conversation.
    Forged,
}

/// Whether these first bytes can still become a message; garbage is closed at once.
pub(super) fn may_be_message(bytes: &[u8]) -> bool {
    let len = bytes.len().min(MAGIC.len());
    bytes[..len] == MAGIC[..len]
}

/// The messages of a conversation so far: their number, which determines the next one, and the
/// running MAC over them.
#[derive(Clone)]
pub(super) struct Transcript {
    count: u8,
    mac: blake3::Hasher,
}

impl Transcript {
    pub fn new(secret: &Secret) -> Self {
        let key = secret.derive("sinew link 2026 greeting", &[]);
        Transcript { count: 0, mac: blake3::Hasher::new_keyed(&key) }
    }

    pub fn count(&self) -> u8 {
        self.count
    }

    /// Encodes `message` as the next of the conversation.
    pub fn write(&mut self, message: &Message) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..BODY_BYTES].copy_from_slice(&encode(message));
        self.mac.update(&bytes[..BODY_BYTES]);
        self.count += 1;
        bytes[BODY_BYTES..].copy_from_slice(self.mac.finalize().as_bytes());
        bytes
    }

    /// Reads the next message of the conversation.
    pub fn read(&mut self, bytes: &[u8; MESSAGE_BYTES]) -> Result<Message, Unreadable> {
        let (body, mac) = bytes.split_at(BODY_BYTES);
        if !may_be_message(body) {
            return Err(Unreadable::Garbage);
        }
        let version = u32::from_le_bytes(body[8..12].try_into().expect("4 bytes"));
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        self.mac.update(body);
        let mac: [u8; MAC_BYTES] = mac.try_into().expect("the rest of the message");
        // `blake3::Hash` compares in constant time.
        if self.mac.finalize() != blake3::Hash::from_bytes(mac) {
            return Err(Unreadable::Forged);
        }
        let message = decode(body.try_into().expect("the body's length"));
        let message = message.filter(|message| number(&message.body) == self.count);
        self.count += 1;
        message.ok_or(Unreadable::Garbage)
    }
}

/// The position of a message in the conversation.
fn number(body: &Body) -> u8 {
    match body {
        Body::Hello(..) => 0,
        Body::Reply(_) => 1,
        Body::Confirm => 2,
        Body::Offer(_) => 3,
        Body::Answer(_) => 4,
        Body::Ready(_) => 5,
        Body::Proof(_) => 6,
        Body::Verdict(_) => 7,
    }
}

const WORKS_BIT: u8 = 2;
const HAS_ENDPOINT_AT: usize = 106;
const PORTS_AT: usize = 108;
const PORT_BYTES: usize = 6;
const ENDPOINT_AT: usize = PORTS_AT + PORTS_MAX * PORT_BYTES;

fn encode(message: &Message) -> [u8; BODY_BYTES] {
    let mut bytes = [0; BODY_BYTES];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12] = number(&message.body);
    bytes[16..20].copy_from_slice(&message.from.to_le_bytes());
    bytes[20..24].copy_from_slice(&message.to.to_le_bytes());
    bytes[32..40].copy_from_slice(&message.epoch.to_le_bytes());
    bytes[40..56].copy_from_slice(&message.instance);
    match &message.body {
        Body::Hello(purpose, opening) => {
            bytes[104] = *purpose as u8;
            encode_opening(opening, &mut bytes);
        }
        Body::Reply(opening) => encode_opening(opening, &mut bytes),
        Body::Offer(Some(end)) | Body::Answer(Some(end)) => encode_end(end, &mut bytes),
        Body::Ready(true) | Body::Proof(true) | Body::Verdict(true) => bytes[15] = WORKS_BIT,
        Body::Confirm | Body::Offer(None) | Body::Answer(None) => {}
        Body::Ready(false) | Body::Proof(false) | Body::Verdict(false) => {}
    }
    bytes
}

fn encode_opening(opening: &Opening, bytes: &mut [u8; BODY_BYTES]) {
    let terms = &opening.terms;
    bytes[13] = terms.preference as u8;
    bytes[14] = terms.encryption as u8;
    bytes[15] = u8::from(terms.aes_is_fast);
    bytes[24..28].copy_from_slice(&terms.ranks.to_le_bytes());
    bytes[28..32].copy_from_slice(&terms.latency_us.to_le_bytes());
    bytes[56..72].copy_from_slice(&terms.host.0);
    bytes[72..104].copy_from_slice(&opening.nonce);
    bytes[105] = terms.rdma.count as u8;
    let (ports, _) = bytes[PORTS_AT..].as_chunks_mut::<PORT_BYTES>();
    for (bytes, port) in ports.iter_mut().zip(&terms.rdma.all) {
        let [a, b, c, d] = port.ip;
        *bytes = [a, b, c, d, port.prefix, u8::from(port.cable)];
    }
}

fn encode_end(end: &End, bytes: &mut [u8; BODY_BYTES]) {
    bytes[15] = WORKS_BIT;
    let End::Rdma(endpoint) = end else { return };
    bytes[HAS_ENDPOINT_AT] = 1;
    let bytes = &mut bytes[ENDPOINT_AT..];
    bytes[0..16].copy_from_slice(&endpoint.gid);
    bytes[16..20].copy_from_slice(&endpoint.qpn.to_le_bytes());
    bytes[20..24].copy_from_slice(&endpoint.psn.to_le_bytes());
    bytes[24..26].copy_from_slice(&endpoint.lid.to_le_bytes());
    bytes[26] = endpoint.mtu;
    bytes[27] = endpoint.slot_frames;
}

fn decode(bytes: &[u8; BODY_BYTES]) -> Option<Message> {
    let works = bytes[15] & WORKS_BIT != 0;
    let end = || works.then(|| decode_end(bytes));
    let body = match bytes[12] {
        0 => Body::Hello(*PURPOSES.get(usize::from(bytes[104]))?, decode_opening(bytes)?),
        1 => Body::Reply(decode_opening(bytes)?),
        2 => Body::Confirm,
        3 => Body::Offer(end()),
        4 => Body::Answer(end()),
        5 => Body::Ready(works),
        6 => Body::Proof(works),
        7 => Body::Verdict(works),
        _ => return None,
    };
    Some(Message {
        from: u32_at(bytes, 16),
        to: u32_at(bytes, 20),
        instance: bytes[40..56].try_into().expect("a slice of 16 bytes"),
        epoch: u64::from_le_bytes(bytes[32..40].try_into().expect("a slice of 8 bytes")),
        body,
    })
}

fn decode_opening(bytes: &[u8; BODY_BYTES]) -> Option<Opening> {
    let preferences = [Preference::Auto, Preference::Shm, Preference::Tcp, Preference::Rdma];
    let encryptions = [Encryption::Sealed, Encryption::Plain];
    let terms = Terms {
        ranks: u32_at(bytes, 24),
        preference: *preferences.get(usize::from(bytes[13]))?,
        encryption: *encryptions.get(usize::from(bytes[14]))?,
        latency_us: u32_at(bytes, 28),
        host: HostId(bytes[56..72].try_into().expect("a slice of 16 bytes")),
        aes_is_fast: bytes[15] & 1 != 0,
        rdma: decode_ports(bytes)?,
    };
    Some(Opening { nonce: bytes[72..104].try_into().expect("a slice of 32 bytes"), terms })
}

fn decode_ports(bytes: &[u8; BODY_BYTES]) -> Option<Addresses> {
    let (ports, _) = bytes[PORTS_AT..].as_chunks::<PORT_BYTES>();
    let port = |at: usize| {
        let [a, b, c, d, prefix, cable] = ports[at];
        Address { ip: [a, b, c, d], prefix, cable: cable != 0 }
    };
    let (all, count) = (std::array::from_fn(port), usize::from(bytes[105]));
    (count <= PORTS_MAX).then_some(Addresses { all, count })
}

fn decode_end(bytes: &[u8; BODY_BYTES]) -> End {
    if bytes[HAS_ENDPOINT_AT] == 0 {
        return End::Shm;
    }
    let lid = [bytes[ENDPOINT_AT + 24], bytes[ENDPOINT_AT + 25]];
    End::Rdma(Endpoint {
        gid: bytes[ENDPOINT_AT..ENDPOINT_AT + 16].try_into().expect("a slice of 16 bytes"),
        qpn: u32_at(bytes, ENDPOINT_AT + 16),
        psn: u32_at(bytes, ENDPOINT_AT + 20),
        lid: u16::from_le_bytes(lid),
        mtu: bytes[ENDPOINT_AT + 26],
        slot_frames: bytes[ENDPOINT_AT + 27],
    })
}

fn u32_at(bytes: &[u8; BODY_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of 4 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn opening() -> Opening {
        let port = |at| Address { ip: [10, 0, 0, at as u8], prefix: 24, cable: at % 2 == 1 };
        Opening {
            nonce: [9; 32],
            terms: Terms {
                ranks: 2,
                preference: Preference::Tcp,
                encryption: Encryption::Plain,
                latency_us: 250,
                host: HostId([3; 16]),
                aes_is_fast: true,
                rdma: Addresses { all: std::array::from_fn(port), count: 3 },
            },
        }
    }

    /// The messages of a conversation.
    fn conversation() -> [Message; 8] {
        let (gid, qpn, psn, lid) = ([8; 16], 0x123456, 0x654321, 77);
        let end = End::Rdma(Endpoint { gid, qpn, psn, lid, mtu: 5, slot_frames: 3 });
        [
            Body::Hello(Purpose::Heartbeats, opening()),
            Body::Reply(opening()),
            Body::Confirm,
            Body::Offer(Some(end)),
            Body::Answer(Some(End::Shm)),
            Body::Ready(true),
            Body::Proof(false),
            Body::Verdict(true),
        ]
        .map(|body| Message {
            from: 1,
            to: 0,
            instance: *b"0123456789abcdef",
            epoch: 77,
            body,
        })
    }

    #[test]
    fn a_conversation_is_read_as_it_was_written() {
        let secret = Secret::new([5; 32]);
        let (mut ours, mut theirs) = (Transcript::new(&secret), Transcript::new(&secret));
        for message in conversation() {
            assert_eq!(theirs.read(&ours.write(&message)), Ok(message));
        }
    }

    #[test]
    fn no_bit_can_be_changed_and_no_message_replayed() {
        let secret = Secret::new([5; 32]);
        let [hello, reply, ..] = conversation();
        let bytes = Transcript::new(&secret).write(&hello);
        for bit in 0..8 * MESSAGE_BYTES {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Transcript::new(&secret).read(&bytes).is_err(), "bit {bit}");
        }
        let mut theirs = Transcript::new(&secret);
        theirs.read(&bytes).unwrap();
        assert_eq!(theirs.read(&bytes), Err(Unreadable::Forged));
        let stranger = Transcript::new(&Secret::new([6; 32])).read(&bytes);
        assert_eq!(stranger, Err(Unreadable::Forged));
        let too_early = Transcript::new(&secret).write(&reply);
        assert_eq!(Transcript::new(&secret).read(&too_early), Err(Unreadable::Garbage));
    }

    proptest! {
        /// Even with the right magic, version and MAC, no bytes make the reader panic.
        #[test]
        fn no_message_makes_the_reader_panic(
            bytes in prop::collection::vec(any::<u8>(), MESSAGE_BYTES),
            ours: bool,
            count in 0u8..8,
        ) {
            let start = Transcript { count, ..Transcript::new(&Secret::new([5; 32])) };
            let mut bytes: [u8; MESSAGE_BYTES] = bytes.try_into().unwrap();
            if ours {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
                bytes[12] = count;
                let mut mac = start.mac.clone();
                mac.update(&bytes[..BODY_BYTES]);
                bytes[BODY_BYTES..].copy_from_slice(mac.finalize().as_bytes());
            }
            match start.clone().read(&bytes) {
                Ok(read) => prop_assert!(ours && number(&read.body) == count),
                Err(error) => prop_assert!(!ours || error == Unreadable::Garbage),
            }
        }
    }
}
