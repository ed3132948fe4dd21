//! The words of the greeting: up to eight messages of one fixed size, each authenticated.
//!
//! ```text
//! dialer                     listener
//!   Hello  (terms, nonce)  ->             proves the secret, but could be a recording
//!                          <-  Reply  (terms, nonce)
//!   Confirm                ->             proves that the dialer is live: it covers both nonces
//!                          <-  Offer  (shared memory or not; its end of an RDMA connection)
//!   Answer (mapped or not; its end)  ->   only after an offer
//!                          <-  Ready     this and what follows only with RDMA: both ends
//!   Proof                  ->            connect, each sends a message over RDMA, and each
//!                          <-  Verdict   says whether the other's has come
//! ```
//!
//! Every message ends with a MAC under a key derived from the session secret, over all messages so
//! far, so nothing can be altered, replayed or mixed. There is no length field to lie about: a
//! reader takes [`WORD_BYTES`] and no more.

use crate::agreement::Terms;
use crate::rdma::{Address, Addresses, Endpoint, PORTS_MAX};
use crate::{Encryption, HostId, Preference, Secret};

const MAGIC: [u8; 8] = *b"sinewlnk";

/// Changes with any change of the greeting or of the frames behind it.
pub(crate) const VERSION: u32 = 7;

const BODY_BYTES: usize = 192;
const MAC_BYTES: usize = 32;

/// Bytes of every message of the greeting.
pub(crate) const WORD_BYTES: usize = BODY_BYTES + MAC_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello,
    Reply,
    Confirm,
    Offer,
    Answer,
    Ready,
    Proof,
    Verdict,
}

const KINDS: [Kind; 8] = [
    Kind::Hello,
    Kind::Reply,
    Kind::Confirm,
    Kind::Offer,
    Kind::Answer,
    Kind::Ready,
    Kind::Proof,
    Kind::Verdict,
];

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Messages, or the way to a faster transport for them.
    Link,
    /// Signs of life beside a link over TCP.
    Beats,
}

const PURPOSES: [Purpose; 2] = [Purpose::Link, Purpose::Beats];

/// One message of the greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    pub kind: Kind,
    pub purpose: Purpose,
    pub from: u32,
    pub to: u32,
    pub instance: [u8; 16],
    pub epoch: u64,
    pub nonce: [u8; 32],
    pub terms: Terms,
    /// From an offer on: yes, it works here.
    pub yes: bool,
    /// In an offer of RDMA and its answer: the speaker's end.
    pub endpoint: Option<Endpoint>,
}

/// Why bytes are not a word of this greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Not our protocol, or not well-formed.
    Garbage,
    /// Our protocol in another version.
    Version(u32),
    /// Not made with our secret, or altered, or not for this conversation.
    Forged,
}

/// Whether the first bytes can still become a word; to close on garbage at once.
pub(crate) fn may_be_word(bytes: &[u8]) -> bool {
    let len = bytes.len().min(MAGIC.len());
    bytes[..len] == MAGIC[..len]
}

/// The running MAC over a conversation.
#[derive(Clone)]
pub(crate) struct Transcript(blake3::Hasher);

impl Transcript {
    pub fn new(secret: &Secret) -> Self {
        Transcript(blake3::Hasher::new_keyed(&secret.derive("sinew link 2026 greeting", &[])))
    }

    /// The bytes of `word` as the next message of the conversation.
    pub fn say(&mut self, word: &Word) -> [u8; WORD_BYTES] {
        let mut bytes = [0; WORD_BYTES];
        bytes[..BODY_BYTES].copy_from_slice(&encode(word));
        self.0.update(&bytes[..BODY_BYTES]);
        bytes[BODY_BYTES..].copy_from_slice(self.0.finalize().as_bytes());
        bytes
    }

    /// Reads the next message of the conversation, which must be of `kind`.
    pub fn hear(&mut self, kind: Kind, bytes: &[u8; WORD_BYTES]) -> Result<Word, Unreadable> {
        let (body, mac) = bytes.split_at(BODY_BYTES);
        if !may_be_word(body) {
            return Err(Unreadable::Garbage);
        }
        let version = u32::from_le_bytes(body[8..12].try_into().expect("4 bytes"));
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        self.0.update(body);
        let mac: [u8; MAC_BYTES] = mac.try_into().expect("the rest of the word");
        // `blake3::Hash` compares in constant time.
        if self.0.finalize() != blake3::Hash::from_bytes(mac) {
            return Err(Unreadable::Forged);
        }
        let word = decode(body.try_into().expect("the body's length"));
        word.filter(|word| word.kind == kind).ok_or(Unreadable::Garbage)
    }
}

fn encode(word: &Word) -> [u8; BODY_BYTES] {
    let terms = &word.terms;
    let mut bytes = [0; BODY_BYTES];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12] =
        KINDS.iter().position(|&kind| kind == word.kind).expect("all kinds are listed") as u8;
    bytes[13] = terms.preference as u8;
    bytes[14] = terms.encryption as u8;
    bytes[15] = u8::from(terms.aes_is_fast) | u8::from(word.yes) << 1;
    bytes[16..20].copy_from_slice(&word.from.to_le_bytes());
    bytes[20..24].copy_from_slice(&word.to.to_le_bytes());
    bytes[24..28].copy_from_slice(&terms.ranks.to_le_bytes());
    bytes[28..32].copy_from_slice(&terms.latency_us.to_le_bytes());
    bytes[32..40].copy_from_slice(&word.epoch.to_le_bytes());
    bytes[40..56].copy_from_slice(&word.instance);
    bytes[56..72].copy_from_slice(&terms.host.0);
    bytes[72..104].copy_from_slice(&word.nonce);
    bytes[104] = word.purpose as u8;
    bytes[105] = terms.rdma.count as u8;
    let (ports, _) = bytes[PORTS_AT..].as_chunks_mut::<PORT_BYTES>();
    for (bytes, port) in ports.iter_mut().zip(&terms.rdma.all) {
        let [a, b, c, d] = port.ip;
        *bytes = [a, b, c, d, port.prefix, u8::from(port.cable)];
    }
    if let Some(endpoint) = &word.endpoint {
        bytes[106] = 1;
        let bytes = &mut bytes[ENDPOINT_AT..];
        bytes[0..16].copy_from_slice(&endpoint.gid);
        bytes[16..20].copy_from_slice(&endpoint.qpn.to_le_bytes());
        bytes[20..24].copy_from_slice(&endpoint.psn.to_le_bytes());
        bytes[24..26].copy_from_slice(&endpoint.lid.to_le_bytes());
        bytes[26] = endpoint.mtu;
        bytes[27] = endpoint.slot_frames;
    }
    bytes
}

/// The RDMA addresses, after a byte each for the purpose, the count, and whether there is an end.
const PORTS_AT: usize = 108;
const PORT_BYTES: usize = 6;
const ENDPOINT_AT: usize = PORTS_AT + PORTS_MAX * PORT_BYTES;

fn decode_ports(bytes: &[u8; BODY_BYTES]) -> Option<Addresses> {
    let (ports, _) = bytes[PORTS_AT..].as_chunks::<PORT_BYTES>();
    let port = |at: usize| {
        let [a, b, c, d, prefix, cable] = ports[at];
        Address { ip: [a, b, c, d], prefix, cable: cable != 0 }
    };
    let (all, count) = (std::array::from_fn(port), usize::from(bytes[105]));
    (count <= PORTS_MAX).then_some(Addresses { all, count })
}

fn decode_endpoint(bytes: &[u8; BODY_BYTES]) -> Option<Endpoint> {
    let said = bytes[106] != 0;
    let bytes = &bytes[ENDPOINT_AT..];
    said.then(|| Endpoint {
        gid: bytes[0..16].try_into().expect("a slice of 16 bytes"),
        qpn: u32::from_le_bytes(bytes[16..20].try_into().expect("a slice of 4 bytes")),
        psn: u32::from_le_bytes(bytes[20..24].try_into().expect("a slice of 4 bytes")),
        lid: u16::from_le_bytes(bytes[24..26].try_into().expect("a slice of 2 bytes")),
        mtu: bytes[26],
        slot_frames: bytes[27],
    })
}

fn decode(bytes: &[u8; BODY_BYTES]) -> Option<Word> {
    let u32_at =
        |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of 4 bytes"));
    let preferences = [Preference::Auto, Preference::Shm, Preference::Tcp, Preference::Rdma];
    let encryptions = [Encryption::Sealed, Encryption::Plain];
    Some(Word {
        kind: *KINDS.get(bytes[12] as usize)?,
        purpose: *PURPOSES.get(bytes[104] as usize)?,
        from: u32_at(16),
        to: u32_at(20),
        instance: bytes[40..56].try_into().expect("a slice of 16 bytes"),
        epoch: u64::from_le_bytes(bytes[32..40].try_into().expect("a slice of 8 bytes")),
        nonce: bytes[72..104].try_into().expect("a slice of 32 bytes"),
        terms: Terms {
            ranks: u32_at(24),
            preference: *preferences.get(bytes[13] as usize)?,
            encryption: *encryptions.get(bytes[14] as usize)?,
            latency_us: u32_at(28),
            host: HostId(bytes[56..72].try_into().expect("a slice of 16 bytes")),
            aes_is_fast: bytes[15] & 1 != 0,
            rdma: decode_ports(bytes)?,
        },
        yes: bytes[15] & 2 != 0,
        endpoint: decode_endpoint(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(kind: Kind) -> Word {
        Word {
            kind,
            purpose: Purpose::Beats,
            from: 1,
            to: 0,
            instance: *b"0123456789abcdef",
            epoch: 77,
            nonce: [9; 32],
            terms: Terms {
                ranks: 2,
                preference: Preference::Tcp,
                encryption: Encryption::Plain,
                latency_us: 250,
                host: HostId([3; 16]),
                aes_is_fast: true,
                rdma: Addresses {
                    all: std::array::from_fn(|at| Address {
                        ip: [10, 0, 0, at as u8],
                        prefix: 24,
                        cable: at % 2 == 1,
                    }),
                    count: 3,
                },
            },
            yes: true,
            endpoint: (kind == Kind::Offer).then_some(Endpoint {
                gid: [8; 16],
                qpn: 0x123456,
                psn: 0x654321,
                lid: 77,
                mtu: 5,
                slot_frames: 3,
            }),
        }
    }

    #[test]
    fn a_conversation_is_heard_as_it_was_said() {
        let secret = Secret::new([5; 32]);
        let (mut ours, mut theirs) = (Transcript::new(&secret), Transcript::new(&secret));
        for kind in KINDS {
            assert_eq!(theirs.hear(kind, &ours.say(&word(kind))), Ok(word(kind)));
        }
    }

    #[test]
    fn no_bit_can_be_changed_and_no_word_replayed() {
        let secret = Secret::new([5; 32]);
        let bytes = Transcript::new(&secret).say(&word(Kind::Hello));
        for bit in 0..8 * WORD_BYTES {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Transcript::new(&secret).hear(Kind::Hello, &bytes).is_err(), "bit {bit}");
        }
        let mut theirs = Transcript::new(&secret);
        theirs.hear(Kind::Hello, &bytes).unwrap();
        assert_eq!(theirs.hear(Kind::Hello, &bytes), Err(Unreadable::Forged));
        let stranger = Transcript::new(&Secret::new([6; 32])).hear(Kind::Hello, &bytes);
        assert_eq!(stranger, Err(Unreadable::Forged));
        let other_kind = Transcript::new(&secret).hear(Kind::Reply, &bytes);
        assert_eq!(other_kind, Err(Unreadable::Garbage));
    }

    proptest! {
        /// Even with the right magic, version and MAC, no bytes make the reader panic.
        #[test]
        fn no_word_makes_the_reader_panic(
            bytes in prop::collection::vec(any::<u8>(), WORD_BYTES),
            ours: bool,
        ) {
            let secret = Secret::new([5; 32]);
            let mut word: [u8; WORD_BYTES] = bytes.try_into().unwrap();
            if ours {
                word[..8].copy_from_slice(&MAGIC);
                word[8..12].copy_from_slice(&VERSION.to_le_bytes());
                let mut mac = Transcript::new(&secret).0;
                mac.update(&word[..BODY_BYTES]);
                word[BODY_BYTES..].copy_from_slice(mac.finalize().as_bytes());
            }
            for kind in KINDS {
                match Transcript::new(&secret).hear(kind, &word) {
                    Ok(heard) => prop_assert!(ours && heard.kind == kind),
                    Err(error) => prop_assert!(!ours || error == Unreadable::Garbage),
                }
            }
        }
    }
}
