//! Connections that pass from one process to another.

use std::io;
use std::net::TcpStream;
use std::os::windows::io::{AsRawSocket, FromRawSocket};
use std::sync::OnceLock;

use windows_sys::Win32::Networking::WinSock::{
    FROM_PROTOCOL_INFO, INVALID_SOCKET, WSA_FLAG_NO_HANDLE_INHERIT, WSA_FLAG_OVERLAPPED, WSADATA,
    WSADuplicateSocketW, WSAGetLastError, WSAPROTOCOL_INFOW, WSASocketW, WSAStartup,
};

/// Of Windows's sockets: 2.2.
const VERSION: u16 = 0x0202;

/// The length of a description.
pub const DESCRIPTION_BYTES: usize = std::mem::size_of::<WSAPROTOCOL_INFOW>();

/// Describes a connection for the process `pid`, which makes its own handle of it with [`opened`].
/// The one here must stay open until then.
///
/// # Errors
/// The process has ended, or belongs to another user.
pub fn described(connection: &TcpStream, pid: u32) -> io::Result<Vec<u8>> {
    let socket = connection.as_raw_socket() as usize;
    let mut info = WSAPROTOCOL_INFOW::default();
    // SAFETY: the socket is open, and the call fills the structure.
    if unsafe { WSADuplicateSocketW(socket, pid, &mut info) } != 0 {
        return Err(last_error());
    }
    // SAFETY: the structure is plain numbers without padding that matters: all its bytes were
    // zeroed by `default` or written by the call.
    let bytes =
        unsafe { std::slice::from_raw_parts((&raw const info).cast::<u8>(), DESCRIPTION_BYTES) };
    Ok(bytes.to_vec())
}

/// The connection that another process described for this one.
///
/// # Errors
/// The description has another length, or is that of no open connection.
pub fn opened(description: &[u8]) -> io::Result<TcpStream> {
    if description.len() != DESCRIPTION_BYTES {
        let text = format!(
            "the description of a connection has {} bytes, {DESCRIPTION_BYTES} expected",
            description.len()
        );
        return Err(io::Error::other(text));
    }
    let mut info = WSAPROTOCOL_INFOW::default();
    // SAFETY: both have this length, and the structure is plain numbers, so that any bytes are one.
    unsafe {
        let to = (&raw mut info).cast::<u8>();
        to.copy_from_nonoverlapping(description.as_ptr(), DESCRIPTION_BYTES);
    }
    begin()?;
    let flags = WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT;
    let same = FROM_PROTOCOL_INFO;
    // SAFETY: the call reads the structure.
    let socket = unsafe { WSASocketW(same, same, same, &info, 0, flags) };
    if socket == INVALID_SOCKET {
        return Err(last_error());
    }
    // SAFETY: the socket was made above, and belongs to nobody else.
    Ok(unsafe { TcpStream::from_raw_socket(socket as u64) })
}

/// The standard library begins to use sockets with its own first one, which may come later.
fn begin() -> io::Result<()> {
    static BEGUN: OnceLock<i32> = OnceLock::new();
    let begun = *BEGUN.get_or_init(|| {
        let mut about = WSADATA::default();
        // SAFETY: the call fills the structure.
        unsafe { WSAStartup(VERSION, &mut about) }
    });
    if begun == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(begun)) }
}

fn last_error() -> io::Error {
    // SAFETY: reads a number of this thread.
    io::Error::from_raw_os_error(unsafe { WSAGetLastError() })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_described_connection_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (called, _) = listener.accept().unwrap();
        let description = described(&called, std::process::id()).unwrap();
        let mut mine = opened(&description).unwrap();
        drop(called);
        caller.write_all(b"x").unwrap();
        let mut byte = [0];
        mine.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        assert!(opened(&description[1..]).is_err());
    }
}
