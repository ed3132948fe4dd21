//! Length-prefixed JSON: four bytes, little-endian, then that many bytes of JSON.
//!
//! JSON because both ends may be one version apart: unknown fields are ignored and new ones have
//! defaults. The hot path (activations) does not use it.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{WorkerCommand, WorkerEvent};

/// The largest frame: a prompt of a million tokens in decimal is about 8 MB, and the pictures of a
/// request up to [`PICTURE_BYTES_MAX`](crate::PICTURE_BYTES_MAX), in Base64.
pub const FRAME_BYTES_MAX: usize = 48 << 20;

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the other end closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a frame of {len} bytes is over the limit of {FRAME_BYTES_MAX}")]
    TooLong { len: usize },
    #[error("a frame is not what was expected: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// The bytes of one frame, length included.
///
/// # Errors
/// The message is over [`FRAME_BYTES_MAX`] or cannot be written as JSON.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let len = bytes.len() - 4;
    if len > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong { len });
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(bytes)
}

/// The length announced by a frame's first four bytes, checked.
///
/// # Errors
/// It is over [`FRAME_BYTES_MAX`].
pub fn body_len(prefix: [u8; 4]) -> Result<usize, FrameError> {
    let len = u32::from_le_bytes(prefix) as usize;
    if len > FRAME_BYTES_MAX { Err(FrameError::TooLong { len }) } else { Ok(len) }
}

/// Reads a frame's body as a message.
///
/// # Errors
/// It is not JSON of the expected type.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    Ok(serde_json::from_slice(body)?)
}

/// Writes one frame and flushes.
///
/// # Errors
/// Those of [`encode`] and of the writer.
pub fn write<T: Serialize>(out: &mut impl Write, message: &T) -> Result<(), FrameError> {
    out.write_all(&encode(message)?)?;
    Ok(out.flush()?)
}

/// Reads one frame; [`FrameError::Closed`] if the input ends in front of it.
///
/// # Errors
/// Those of [`body_len`], [`decode`] and of the reader.
pub fn read<T: DeserializeOwned>(input: &mut impl Read) -> Result<T, FrameError> {
    let mut prefix = [0; 4];
    if input.read(&mut prefix[..1])? == 0 {
        return Err(FrameError::Closed);
    }
    input.read_exact(&mut prefix[1..])?;
    let len = body_len(prefix)?;
    let mut body = Vec::new();
    // `take` grows the buffer as bytes arrive: a false length allocates nothing by itself.
    if input.take(len as u64).read_to_end(&mut body)? < len {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    decode(&body)
}

/// [`read`] for a worker. It is compiled here, because its own crate is optimised for speed, which
/// takes longer to compile.
///
/// # Errors
/// Those of [`read`].
pub fn read_command(input: &mut dyn Read) -> Result<WorkerCommand, FrameError> {
    read(&mut { input })
}

/// [`encode`] for a worker, likewise.
///
/// # Errors
/// Those of [`encode`].
pub fn encode_event(event: &WorkerEvent) -> Result<Vec<u8>, FrameError> {
    encode(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_went() {
        let mut bytes = Vec::new();
        write(&mut bytes, &("hello", 7)).unwrap();
        write(&mut bytes, &("again", 8)).unwrap();
        let mut input = bytes.as_slice();
        assert_eq!(read::<(String, i32)>(&mut input).unwrap(), ("hello".to_owned(), 7));
        assert_eq!(read::<(String, i32)>(&mut input).unwrap(), ("again".to_owned(), 8));
        assert!(matches!(read::<(String, i32)>(&mut input), Err(FrameError::Closed)));
    }

    #[test]
    fn a_lying_length_is_refused_or_ends_early() {
        let huge = u32::MAX.to_le_bytes();
        assert!(matches!(read::<u8>(&mut huge.as_slice()), Err(FrameError::TooLong { .. })));
        let mut short = [9, 0, 0, 0, b'1'].as_slice();
        assert!(matches!(read::<u8>(&mut short), Err(FrameError::Io(_))));
        let mut torn = [9, 0].as_slice();
        assert!(matches!(read::<u8>(&mut torn), Err(FrameError::Io(_))));
    }
}
