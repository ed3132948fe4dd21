use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gguf::{Directory, ReadError, Source, Strided};

use crate::slices::{self, ANSWER_BYTES_MAX, ANSWER_HEADER_BYTES, AnswerHeader, Request};

/// A peer that is silent for this long is lost.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Far above any real model's header; a larger one is refused before it is read.
const HEADER_BYTES_MAX: u64 = 256 << 20;

/// The relay of this machine's daemon, which reads a model from the members that have it.
#[derive(Debug, Clone)]
pub struct RelayAddress {
    pub address: SocketAddr,
    /// Authenticates the caller.
    pub token: [u8; 32],
    /// Counts the bytes that have arrived for this process.
    pub arrived: Arc<AtomicU64>,
}

/// A model file on a peer, read slice by slice.
#[derive(Debug)]
pub struct PeerFile {
    channel: Mutex<Channel>,
    directory: Arc<Directory>,
}

#[derive(Debug)]
struct Channel {
    stream: TcpStream,
    arrived: Arc<AtomicU64>,
}

impl PeerFile {
    /// Connects to the relay and reads the file's header.
    ///
    /// # Errors
    /// The relay or the peer behind it cannot be reached, or the header is not GGUF.
    pub fn connect(relay: &RelayAddress) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&relay.address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.write_all(&relay.token)?;
        Self::over(Channel { stream, arrived: relay.arrived.clone() })
    }

    /// Like [`Self::connect`], over a stream that already leads to the peer's file.
    fn over(mut channel: Channel) -> io::Result<Self> {
        let mut shape = [0; 16];
        channel.exchange(Request::Shape, &mut shape)?;
        let header_len = u64::from_le_bytes(shape[..8].try_into().expect("eight bytes"));
        let file_len = u64::from_le_bytes(shape[8..].try_into().expect("eight bytes"));
        if header_len > HEADER_BYTES_MAX.min(file_len) {
            return Err(io::Error::other(format!("a header of {header_len} bytes is too large")));
        }
        let mut header = vec![0; header_len as usize];
        let whole = Strided { start: 0, piece: header_len, stride: header_len, count: 1 };
        channel.read_pieces(whole, &mut header)?;
        let directory = Directory::parse(&header, file_len).map_err(io::Error::other)?;
        Ok(Self { channel: Mutex::new(channel), directory: Arc::new(directory) })
    }
}

impl Source for PeerFile {
    fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    fn is_local(&self) -> bool {
        false
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(channel.read_pieces(pieces, out)?)
    }
}

impl Channel {
    /// Reads pieces in several requests, each within the answer limit.
    fn read_pieces(&mut self, pieces: Strided, out: &mut [u8]) -> io::Result<()> {
        if pieces.total() != Some(out.len() as u64) {
            return Err(io::Error::other("the pieces and the buffer differ in length"));
        }
        let piece = pieces.piece as usize;
        if piece == 0 {
            return Ok(());
        }
        if piece > ANSWER_BYTES_MAX {
            for (at, out) in out.chunks_exact_mut(piece).enumerate() {
                let mut start = pieces.start + at as u64 * pieces.stride;
                for part in out.chunks_mut(ANSWER_BYTES_MAX) {
                    let len = part.len() as u64;
                    let request = Strided { start, piece: len, stride: len, count: 1 };
                    self.exchange(Request::Pieces(request), part)?;
                    start += len;
                }
            }
            return Ok(());
        }
        let pieces_max = ANSWER_BYTES_MAX / piece;
        let mut start = pieces.start;
        for batch in out.chunks_mut(pieces_max * piece) {
            let count = (batch.len() / piece) as u64;
            let request = Strided { start, piece: pieces.piece, stride: pieces.stride, count };
            self.exchange(Request::Pieces(request), batch)?;
            start += count * pieces.stride;
        }
        Ok(())
    }

    /// One request and its answer, which must fill `out` exactly.
    fn exchange(&mut self, request: Request, out: &mut [u8]) -> io::Result<()> {
        self.stream.write_all(&request.encode())?;
        loop {
            let mut header = [0; ANSWER_HEADER_BYTES];
            self.stream.read_exact(&mut header)?;
            match slices::decode_answer_header(header).map_err(io::Error::other)? {
                AnswerHeader::Working { arrived } => self.count(arrived),
                AnswerHeader::Refused { len } => {
                    const REASON_BYTES_MAX: u64 = 1024;
                    let mut reason = String::new();
                    let mut stream = (&self.stream).take(REASON_BYTES_MAX.min(len as u64));
                    stream.read_to_string(&mut reason)?;
                    return Err(io::Error::other(format!("the peer refused: {reason}")));
                }
                AnswerHeader::Bytes { len } if len == out.len() => {
                    self.stream.read_exact(out)?;
                    self.count(len as u64);
                    return Ok(());
                }
                AnswerHeader::Bytes { len } => {
                    let wanted = out.len();
                    let why = format!("{len} bytes came where {wanted} were asked for");
                    return Err(io::Error::other(why));
                }
            }
        }
    }

    fn count(&self, arrived: u64) {
        self.arrived.fetch_add(arrived, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices::{REQUEST_BYTES, Server};
    use gguf::{File, TensorType, Writer};
    use std::net::TcpListener;

    /// A file with one F32 tensor `[64, 8000]` of counting elements.
    fn write_model(path: &std::path::Path) {
        let mut writer = Writer::new();
        writer.declare("t", &[64, 40_000], TensorType::F32);
        let mut out = Vec::new();
        writer
            .write(&mut out, |_, _, bytes, out| {
                (0..bytes as u32 / 4).try_for_each(|n| out.write_all(&n.to_le_bytes()))
            })
            .unwrap();
        std::fs::write(path, out).unwrap();
    }

    /// A relay that serves `file` to one client over loopback, with a sign of work before each
    /// answer.
    fn serve(file: Arc<File>) -> Channel {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        std::thread::spawn(move || {
            let server = Server::new(file);
            let (mut request, mut answer) = ([0; REQUEST_BYTES], Vec::new());
            while stream.read_exact(&mut request).is_ok() {
                server.answer(&request, &mut answer);
                answer.splice(..0, slices::working(1000));
                if stream.write_all(&answer).is_err() {
                    break;
                }
            }
        });
        Channel { stream: client, arrived: Arc::default() }
    }

    #[test]
    fn a_peer_s_slices_are_the_file_s() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        write_model(&path);
        let file = Arc::new(File::open(&path).unwrap());
        let channel = serve(file.clone());
        let arrived = channel.arrived.clone();
        let peer = PeerFile::over(channel).unwrap();
        let header = 16 + file.directory().header_len();
        assert_eq!(arrived.load(Ordering::Relaxed), header + 2 * 1000);
        let tensor = peer.directory().tensor("t").unwrap().clone();
        assert_eq!(tensor, *file.directory().tensor("t").unwrap());

        let start = tensor.range.start;
        let whole = tensor.range.end - start;
        for pieces in [
            Strided { start, piece: whole, stride: whole, count: 1 }, // larger than one answer
            Strided { start: start + 128, piece: 128, stride: 256, count: 40_000 - 1 },
            Strided { start, piece: 4, stride: 256, count: 3 },
            Strided { start, piece: 0, stride: 256, count: 3 },
        ] {
            let mut expected = vec![0; pieces.total().unwrap() as usize];
            let mut found = expected.clone();
            file.read(pieces, &mut expected).unwrap();
            peer.read(pieces, &mut found).unwrap();
            assert_eq!(found, expected, "{pieces:?}");
        }
    }

    #[test]
    fn impossible_requests_are_refused_and_the_stream_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        write_model(&path);
        let peer = PeerFile::over(serve(Arc::new(File::open(&path).unwrap()))).unwrap();
        let mut out = vec![0; 8];
        for pieces in [
            Strided { start: u64::MAX - 3, piece: 8, stride: 8, count: 1 },
            Strided { start: 0, piece: 4, stride: u64::MAX, count: 2 },
        ] {
            let error = peer.read(pieces, &mut out).unwrap_err().to_string();
            assert!(error.contains("refused"), "{error}");
        }
        peer.read(Strided { start: 0, piece: 8, stride: 8, count: 1 }, &mut out).unwrap();
        assert_eq!(&out[..4], b"GGUF");
    }
}
