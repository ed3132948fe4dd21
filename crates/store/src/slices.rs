//! Reading slices of a model file from a peer: fixed-size requests, length-prefixed answers.
//!
//! ```text
//! request  (32 bytes)   start u64 | piece u64 | stride u64 | count u64     little-endian, bytes
//! sign of work          2 u8 | arrived u64                    any number, then the answer
//! answer                status u8 | len u64 | len bytes
//! ```
//!
//! A relay sends a sign of work while bytes arrive over a slow network; `arrived` counts those
//! since its last one. The answer has `count` pieces of `piece` bytes, the first at `start`, each
//! `stride` after the previous one. A request with `count` 0 gets the file's shape instead: the
//! answer is the header's length and the file's length, two u64. Status 1 means refused; the bytes
//! are the reason. The protocol neither encrypts nor authenticates: the stream that carries it
//! does.

use std::sync::Arc;

use gguf::{File, Source, Strided};

/// Bytes of one request.
pub const REQUEST_BYTES: usize = 32;
/// Bytes in front of an answer's content.
pub const ANSWER_HEADER_BYTES: usize = 9;
/// The most content bytes of one answer: enough to hide a round trip, small enough to buffer.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

const STATUS_OK: u8 = 0;
const STATUS_REFUSED: u8 = 1;
const STATUS_WORKING: u8 = 2;

/// The first bytes of an answer, or what comes before one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerHeader {
    /// `len` bytes of content follow.
    Bytes { len: usize },
    /// `len` bytes of a reason follow.
    Refused { len: usize },
    /// So many bytes have arrived at the relay; another header follows.
    Working { arrived: u64 },
}

/// A client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// The header's and the file's length.
    Shape,
    Pieces(Strided),
}

/// Answers for one file.
#[derive(Debug, Clone)]
pub struct Server {
    file: Arc<File>,
}

impl Request {
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        let numbers = match self {
            Request::Shape => [0; 4],
            Request::Pieces(p) => [p.start, p.piece, p.stride, p.count],
        };
        let mut bytes = [0; REQUEST_BYTES];
        for (bytes, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Self {
        let number = |at: usize| {
            u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"))
        };
        match number(3) {
            0 => Request::Shape,
            count => Request::Pieces(Strided {
                start: number(0),
                piece: number(1),
                stride: number(2),
                count,
            }),
        }
    }
}

impl Server {
    pub fn new(file: Arc<File>) -> Self {
        Self { file }
    }

    /// Writes the whole answer to `request` into `out`, replacing its content. Reads the disk. An
    /// impossible request is answered with the reason, never with other bytes.
    pub fn answer(&self, request: &[u8; REQUEST_BYTES], out: &mut Vec<u8>) {
        out.clear();
        out.resize(ANSWER_HEADER_BYTES, 0);
        if let Err(reason) = self.fill(Request::decode(request), out) {
            *out = refusal(&reason);
            return;
        }
        let len = (out.len() - ANSWER_HEADER_BYTES) as u64;
        out[0] = STATUS_OK;
        out[1..ANSWER_HEADER_BYTES].copy_from_slice(&len.to_le_bytes());
    }

    fn fill(&self, request: Request, out: &mut Vec<u8>) -> Result<(), String> {
        let pieces = match request {
            Request::Shape => {
                out.extend(self.file.directory().header_len().to_le_bytes());
                out.extend(self.file.file_len().to_le_bytes());
                return Ok(());
            }
            Request::Pieces(pieces) => pieces,
        };
        let total = pieces.total().filter(|total| *total <= ANSWER_BYTES_MAX as u64);
        let Some(total) = total else {
            return Err(format!("a request may ask for {ANSWER_BYTES_MAX} bytes at most"));
        };
        out.resize(ANSWER_HEADER_BYTES + total as usize, 0);
        self.file.read(pieces, &mut out[ANSWER_HEADER_BYTES..]).map_err(|error| error.to_string())
    }
}

/// A refusal with its reason.
pub fn refusal(reason: &str) -> Vec<u8> {
    let mut answer = vec![STATUS_REFUSED];
    answer.extend((reason.len() as u64).to_le_bytes());
    answer.extend(reason.as_bytes());
    answer
}

/// A sign of work: bytes that have arrived since the last one.
pub fn working(arrived: u64) -> [u8; ANSWER_HEADER_BYTES] {
    let mut sign = [STATUS_WORKING; ANSWER_HEADER_BYTES];
    sign[1..].copy_from_slice(&arrived.to_le_bytes());
    sign
}

/// Parses an answer's first bytes.
///
/// # Errors
/// The peer does not follow the protocol.
pub fn decode_answer_header(bytes: [u8; ANSWER_HEADER_BYTES]) -> Result<AnswerHeader, String> {
    let number = u64::from_le_bytes(bytes[1..].try_into().expect("eight bytes"));
    let len = number as usize;
    match bytes[0] {
        STATUS_WORKING => Ok(AnswerHeader::Working { arrived: number }),
        STATUS_OK if number <= ANSWER_BYTES_MAX as u64 => Ok(AnswerHeader::Bytes { len }),
        STATUS_REFUSED if number <= ANSWER_BYTES_MAX as u64 => Ok(AnswerHeader::Refused { len }),
        status => Err(format!("an answer of status {status} and {number} bytes is impossible")),
    }
}
