//! Whether a process runs, and whose process holds a connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::windows::io::{AsRawHandle, OwnedHandle};

use windows_sys::Win32::Foundation::{ERROR_INSUFFICIENT_BUFFER, HANDLE, WAIT_TIMEOUT};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GetExtendedTcpTable, TCP_TABLE_OWNER_PID_CONNECTIONS,
};
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6};
use windows_sys::Win32::Security::{
    EqualSid, GetTokenInformation, TOKEN_QUERY, TOKEN_USER, TokenUser,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, OpenProcess, OpenProcessToken, PROCESS_QUERY_LIMITED_INFORMATION,
    PROCESS_SYNCHRONIZE, WaitForSingleObject,
};

use crate::{checked, owned};

/// The table may grow between the question for its size and the next one.
const TRIES: usize = 4;
/// A user's structure and identity (`SECURITY_MAX_SID_SIZE` is 68 bytes), in words.
const USER_WORDS: usize = 16;

/// Whether the client's end of a connection within this machine belongs to a process of this
/// process's user. False if that is unknown.
pub fn is_own(client: SocketAddr, server: SocketAddr) -> bool {
    holder(client, server).is_some_and(|pid| is_of_this_user(pid).unwrap_or(false))
}

/// The process that has the client's end; 0 if the system does not say (Wine).
fn holder(client: SocketAddr, server: SocketAddr) -> Option<u32> {
    let ends = (canonical(client), canonical(server));
    let mut all = [AF_INET, AF_INET6].into_iter().flat_map(connections);
    all.find(|(found, _)| *found == ends).map(|(_, pid)| pid)
}

/// Whether a process with this number has not ended.
pub fn is_alive(pid: u32) -> bool {
    // SAFETY: takes numbers alone.
    let process = owned(unsafe { OpenProcess(PROCESS_SYNCHRONIZE, 0, pid) });
    // SAFETY: the handle is open; the call does not wait.
    process.is_ok_and(|it| unsafe { WaitForSingleObject(it.as_raw_handle(), 0) } == WAIT_TIMEOUT)
}

fn canonical(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

type Connection = ((SocketAddr, SocketAddr), u32);

/// The machine's connections: both ends as the process with this number sees them, its own first.
fn connections(family: u16) -> Vec<Connection> {
    let mut bytes = 0;
    for _ in 0..TRIES {
        let mut table = vec![0u32; bytes as usize / 4 + 1];
        let mut room = (table.len() * 4) as u32;
        let (kind, to) = (TCP_TABLE_OWNER_PID_CONNECTIONS, table.as_mut_ptr().cast());
        // SAFETY: the call writes at most `room` bytes, and then the number that it needs.
        match unsafe { GetExtendedTcpTable(to, &mut room, 0, family.into(), kind, 0) } {
            0 if family == AF_INET => return rows(&table, ipv4),
            0 => return rows(&table, ipv6),
            ERROR_INSUFFICIENT_BUFFER => bytes = room,
            _ => break,
        }
    }
    Vec::new()
}

/// A table is the number of its rows, and these.
fn rows<const WORDS: usize>(
    table: &[u32],
    read: fn(&[u32; WORDS]) -> Connection,
) -> Vec<Connection> {
    let Some((count, rows)) = table.split_first() else { return Vec::new() };
    let (rows, _) = rows.as_chunks::<WORDS>();
    rows.iter().take(*count as usize).map(read).collect()
}

/// `MIB_TCPROW_OWNER_PID`.
fn ipv4(row: &[u32; 6]) -> Connection {
    let [_, local, local_port, remote, remote_port, pid] = *row;
    let end = |ip: u32, at| SocketAddr::new(Ipv4Addr::from(ip.to_ne_bytes()).into(), port(at));
    ((end(local, local_port), end(remote, remote_port)), pid)
}

/// `MIB_TCP6ROW_OWNER_PID`.
fn ipv6(row: &[u32; 14]) -> Connection {
    let end = |from: usize| {
        let mut ip = [0; 16];
        for (to, word) in ip.chunks_exact_mut(4).zip(&row[from..]) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        canonical(SocketAddr::new(IpAddr::from(Ipv6Addr::from(ip)), port(row[from + 5])))
    };
    ((end(0), end(6)), row[13])
}

/// In network order, in the lower half of a word.
fn port(word: u32) -> u16 {
    u16::from_be(word as u16)
}

fn is_of_this_user(pid: u32) -> io::Result<bool> {
    // SAFETY: takes numbers alone.
    let process = owned(unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, pid) })?;
    // SAFETY: returns a constant that stands for this process.
    let (theirs, ours) = (user(process.as_raw_handle())?, user(unsafe { GetCurrentProcess() })?);
    // SAFETY: each begins with a `TOKEN_USER`, whose identity lies behind it in the same buffer.
    let sid = |of: &[u64; USER_WORDS]| unsafe { (*of.as_ptr().cast::<TOKEN_USER>()).User.Sid };
    // SAFETY: both are valid identities, as the system wrote them.
    Ok(unsafe { EqualSid(sid(&theirs), sid(&ours)) } != 0)
}

fn user(process: HANDLE) -> io::Result<[u64; USER_WORDS]> {
    let mut token = std::ptr::null_mut();
    // SAFETY: the handle is open, and the call writes one.
    checked(unsafe { OpenProcessToken(process, TOKEN_QUERY, &mut token) })?;
    let token: OwnedHandle = owned(token)?;
    let mut user = [0u64; USER_WORDS];
    let (mut len, to) = (0, user.as_mut_ptr().cast());
    let room = size_of_val(&user) as u32;
    // SAFETY: the call writes at most `room` bytes, aligned as `TOKEN_USER` is.
    let told = unsafe { GetTokenInformation(token.as_raw_handle(), TokenUser, to, room, &mut len) };
    checked(told).map(|()| user)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn an_ended_process_is_told_from_one_that_runs() {
        let mut child = std::process::Command::new("cmd").args(["/c", "exit"]).spawn().unwrap();
        child.wait().unwrap();
        assert!(is_alive(std::process::id()) && !is_alive(child.id()));
    }

    #[test]
    fn an_own_connection_is_told_from_none() {
        for (listen, call) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(listen) else { continue };
            let port = listener.local_addr().unwrap().port();
            let Ok(client) = TcpStream::connect((call, port)) else { continue };
            let (server, peer) = listener.accept().unwrap();
            let (here, there) = (server.local_addr().unwrap(), client.local_addr().unwrap());
            let told = holder(peer, here).unwrap();
            // Wine may say 0, which is nobody's.
            assert!(told == std::process::id() || told == 0, "{listen}: {told}");
            assert_eq!((is_own(peer, here), is_own(there, here)), (told > 0, told > 0), "{listen}");
            let mut other = peer;
            other.set_port(peer.port() ^ 1);
            assert!(!is_own(other, here), "{listen}");
        }
    }
}
