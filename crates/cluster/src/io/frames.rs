//! The frames of `protocol::frame` over asynchronous streams.

use std::io;

use protocol::frame::{self, FrameError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads one frame of at most `limit` bytes. Not cancel-safe: one task owns the reading side.
///
/// # Errors
/// [`FrameError::Closed`] if the stream ends before the frame; other variants for I/O errors,
/// frames over the limit and bodies that do not decode.
pub(crate) async fn read<T: DeserializeOwned>(
    input: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> Result<T, FrameError> {
    frame::decode(&read_body(input, limit).await?)
}

/// Reads the body of one frame, like [`read`] but undecoded.
///
/// # Errors
/// Like [`read`], except for decoding.
pub(crate) async fn read_body(
    input: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> Result<Vec<u8>, FrameError> {
    let mut prefix = [0; 4];
    if input.read(&mut prefix[..1]).await? == 0 {
        return Err(FrameError::Closed);
    }
    input.read_exact(&mut prefix[1..]).await?;
    let len = frame::body_len(prefix)?;
    if len > limit {
        return Err(FrameError::TooLong { len });
    }
    let mut body = Vec::new();
    // `take` grows the buffer as bytes arrive, so a false length allocates nothing.
    if input.take(len as u64).read_to_end(&mut body).await? < len {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(body)
}

/// Writes one frame and flushes.
///
/// # Errors
/// Those of [`frame::encode`] and of the stream.
pub(crate) async fn write<T: Serialize>(
    output: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> Result<(), FrameError> {
    output.write_all(&frame::encode(message)?).await?;
    Ok(output.flush().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_back_as_they_went() {
        let (mut near, mut far) = tokio::io::duplex(64);
        write(&mut near, &"hello").await.unwrap();
        write(&mut near, &vec![1, 2, 3]).await.unwrap();
        drop(near);
        assert_eq!(read::<String>(&mut far, 100).await.unwrap(), "hello");
        assert_eq!(read::<Vec<u32>>(&mut far, 100).await.unwrap(), [1, 2, 3]);
        assert!(matches!(read::<String>(&mut far, 100).await, Err(FrameError::Closed)));
    }

    #[tokio::test]
    async fn hostile_frames_are_errors() {
        let cases: [(&[u8], &str); 4] = [
            (&[255, 255, 255, 255], "over the limit"),
            (&[101, 0, 0, 0], "over the limit"),
            (&[9, 0, 0, 0, b'"'], "end of file"),
            (&[1, 0, 0, 0, b'?'], "not what was expected"),
        ];
        for (bytes, expected) in cases {
            let error = read::<String>(&mut &bytes[..], 100).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} should contain {expected:?}");
        }
    }
}
