//! Finds the user of the program at the other end of a connection on this machine.
//!
//! Linux lists every TCP socket with its user in `/proc/net/tcp`. On macOS `lsof` lists the sockets
//! of the caller's own programs, and Windows names each connection's process.

use std::net::SocketAddr;

/// Whether the client's end of a connection belongs to the user of this process, or to root, who
/// can read the admin token anyway. False if the user is unknown.
pub fn is_own(client: SocketAddr, server: SocketAddr) -> bool {
    platform::is_own(client, server)
}

#[cfg(unix)]
mod platform {
    use super::*;

    pub fn is_own(client: SocketAddr, server: SocketAddr) -> bool {
        let me = rustix::process::geteuid().as_raw();
        if cfg!(target_os = "linux") {
            linux::uid(client, server).is_some_and(|uid| uid == me || uid == 0)
        } else if cfg!(target_os = "macos") {
            macos::has_end(client, server, me)
        } else {
            false
        }
    }
}

#[cfg(windows)]
use win32::process as platform;

#[cfg(unix)]
mod linux {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    /// `TCP_ESTABLISHED`. Closed sockets are in another state, and are
    /// listed with root as their user.
    const ESTABLISHED: &str = "01";
    /// The number of all users without a mapping in this container.
    const NOBODY: u32 = 65_534;

    pub fn uid(client: SocketAddr, server: SocketAddr) -> Option<u32> {
        let wanted = (canonical(client), canonical(server));
        let files = ["/proc/net/tcp", "/proc/net/tcp6"];
        let lines = files.iter().filter_map(|file| File::open(file).ok());
        let lines = lines.flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
        let mut ends = lines.filter_map(|line| read(&line));
        ends.find(|(ends, _)| *ends == wanted).map(|(_, uid)| uid).filter(|uid| *uid != NOBODY)
    }

    /// A line's two ends and user: `sl local remote state queues timer retransmits uid ...`.
    pub(super) fn read(line: &str) -> Option<((SocketAddr, SocketAddr), u32)> {
        let fields: Vec<&str> = line.split_ascii_whitespace().take(8).collect();
        let &[_, local, remote, ESTABLISHED, _, _, _, uid] = fields.as_slice() else { return None };
        Some(((address(local)?, address(remote)?), uid.parse().ok()?))
    }

    /// `0100007F:1F90` for 127.0.0.1:8080: words of 32 bits in native order.
    fn address(text: &str) -> Option<SocketAddr> {
        let (ip, port) = text.split_once(':')?;
        let words =
            (0..ip.len() / 8).map(|at| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok());
        let bytes: Vec<u8> =
            words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
        let ip: IpAddr = match bytes.len() {
            4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
            _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        };
        Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
    }

    fn canonical(addr: SocketAddr) -> SocketAddr {
        SocketAddr::new(addr.ip().to_canonical(), addr.port())
    }
}

#[cfg(unix)]
mod macos {
    use std::net::SocketAddr;
    use std::process::{Command, Stdio};

    pub fn has_end(client: SocketAddr, server: SocketAddr, uid: u32) -> bool {
        let (uid, port) = (uid.to_string(), format!("-iTCP:{}", client.port()));
        // All of: this user's, this port, connected. Numbers instead of names; a line for each end.
        let listed = Command::new("/usr/sbin/lsof")
            .args(["-a", "-nP", "-w", "-u", &uid, &port, "-sTCP:ESTABLISHED", "-Fn"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        listed
            .is_ok_and(|listed| is_listed(&String::from_utf8_lossy(&listed.stdout), client, server))
    }

    /// Lines `n127.0.0.1:50000->127.0.0.1:8080`.
    pub(super) fn is_listed(listed: &str, client: SocketAddr, server: SocketAddr) -> bool {
        let wanted = format!("n{client}->{server}");
        listed.lines().any(|line| line == wanted)
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn an_own_connection_is_told_from_none() {
        for (listen, call) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            // A container may have no IPv6.
            let Ok(listener) = TcpListener::bind(listen) else { continue };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((call, port)).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let (here, there) = (server.local_addr().unwrap(), client.local_addr().unwrap());
            assert!(is_own(peer, here) && is_own(there, here), "{listen}");
            let mut other = peer;
            other.set_port(peer.port() ^ 1);
            assert!(!is_own(other, here), "{listen}");
            drop(client);
            assert!(!is_own(peer, here), "nobody holds that end any more");
        }
    }

    #[test]
    fn lines_are_read_as_the_systems_write_them() {
        let line = "   1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  \
                    1000        0 12345 1 0000000000000000 20 4 30 10 -1";
        let (client, server) =
            ("127.0.0.1:50000".parse().unwrap(), "127.0.0.1:8080".parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(linux::read(line), Some(((client, server), 1000)));
            let mapped = line.replace("0100007F", "0000000000000000FFFF00000100007F");
            assert_eq!(linux::read(&mapped), Some(((client, server), 1000)));
        }
        assert_eq!(linux::read(&line.replace(" 01 ", " 06 ")), None, "TIME_WAIT is nobody's");
        for broken in ["", "  sl  local_address rem_address   st", "1: 01:1 02:2 01 0 0 0 1000"] {
            assert_eq!(linux::read(broken), None);
        }
        let listed = "p501\nf7\nn127.0.0.1:50000->127.0.0.1:8080\n";
        assert!(macos::is_listed(listed, client, server));
        assert!(!macos::is_listed(listed, server, client));
    }
}
