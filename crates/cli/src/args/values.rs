//! Parsers of single values of the command line.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use cluster::Peer;

/// Default port on which nodes listen for each other.
pub const NODE_PORT: u16 = 8751;

/// A person waits for a name no longer.
const RESOLVE_MAX: Duration = Duration::from_secs(5);

/// Some of a machine's CPUs, by number.
pub type Cpus = Vec<usize>;

/// Nodes that shall have a model's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// Two, where a disk has room.
    Auto,
    Count(u8),
}

/// Parses a number of nodes, or `auto`.
pub fn copies(text: &str) -> Result<Copies, String> {
    let count = text.parse().ok().filter(|count| (1..=64).contains(count));
    match text {
        "auto" => Ok(Copies::Auto),
        _ => count.map(Copies::Count).ok_or_else(|| "expected 1 to 64, or auto".to_owned()),
    }
}

/// Parses a CPU, or a range of them as in taskset and control groups.
pub fn cpus(text: &str) -> Result<Cpus, String> {
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|cpu| *cpu < 1 << 20);
    let ends = match text.split_once('-') {
        Some((first, last)) => number(first).zip(number(last)),
        None => number(text).map(|cpu| (cpu, cpu)),
    };
    let ends = ends.filter(|(first, last)| first <= last);
    let (first, last) = ends.ok_or("expected numbers of CPUs, such as 0,1 or 0-3")?;
    Ok((first..=last).collect())
}

/// A node's address; a name is resolved now.
///
/// # Errors
/// The name has no address, or nothing that knows names answers within a few seconds.
pub fn resolve(peer: &Peer) -> Result<SocketAddr, String> {
    let (host, port) = match peer {
        Peer::Address(address) => return Ok(*address),
        Peer::Name { host, port } => (host.clone(), *port),
    };
    let (done, found) = channel();
    let asked = host.clone();
    std::thread::spawn(move || {
        let found = (asked.as_str(), port).to_socket_addrs().ok();
        // The caller has stopped waiting.
        let _ = done.send(found.and_then(|mut found| found.next()));
    });
    let found = found.recv_timeout(RESOLVE_MAX).ok().flatten();
    found.ok_or_else(|| {
        format!("no machine is known by the name {host}. Look at the name, or give its address")
    })
}

/// Parses an address or a name; the port defaults to `NODE_PORT`.
pub fn lasting_peer(text: &str) -> Result<Peer, String> {
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(Peer::Address(SocketAddr::new(ip, NODE_PORT)));
    }
    let wrong = match cluster::parse_address(text) {
        Ok(address) => return Ok(Peer::Address(address)),
        Err(wrong) => wrong,
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (text, Some(NODE_PORT)),
    };
    let Some(port) = port.filter(|_| host_name(host).is_ok()) else { return Err(wrong) };
    Ok(Peer::Name { host: host.to_owned(), port })
}

/// Longer names are cut where they are shown.
const NAME_CHARS_MAX: usize = 64;

/// Parses bytes with an optional unit: 1000-based KB, MB, GB or 1024-based KiB, MiB, GiB.
pub fn bytes(text: &str) -> Result<u64, String> {
    text.parse::<protocol::ByteSize>().map(|size| size.0)
}

/// What `--prompt-cache` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptCache {
    Off,
    Bytes(u64),
    Folder(PathBuf),
}

/// Parses a size, a folder or `off`. A folder has a slash in it.
pub fn prompt_cache(text: &str) -> Result<PromptCache, String> {
    /// Less would hold hardly a prompt.
    const BYTES_MIN: u64 = 16 << 20;
    if text == "off" {
        return Ok(PromptCache::Off);
    }
    if text.contains(std::path::is_separator) {
        return Ok(PromptCache::Folder(PathBuf::from(text)));
    }
    match bytes(text) {
        Ok(bytes) if bytes >= BYTES_MIN => Ok(PromptCache::Bytes(bytes)),
        Ok(bytes) => Err(format!("{bytes} bytes are too few: give at least 16MiB, or off")),
        Err(_) => Err("expected a size such as 20GiB, a folder such as ./prompts, or off".into()),
    }
}

/// Parses a name of visible characters.
pub fn name(text: &str) -> Result<String, String> {
    let visible = !text.trim().is_empty() && !text.chars().any(char::is_control);
    if visible && text.chars().count() <= NAME_CHARS_MAX {
        return Ok(text.to_owned());
    }
    Err(format!("expected 1 to {NAME_CHARS_MAX} visible letters"))
}

/// Parses a name as in the `Host` header, without a port.
pub fn host_name(text: &str) -> Result<String, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !text.is_empty() && text.len() <= 253 && text.bytes().all(known) {
        return Ok(text.to_owned());
    }
    Err("expected a name such as studio.local, without scheme and port".to_owned())
}

/// Parses the origin of a page, as browsers send it. Desktop programs have their own schemes. Some
/// have another host in each window: `*` matches all.
pub fn origin(text: &str) -> Result<String, String> {
    if let Some((scheme, "*")) = text.split_once("://")
        && is_of_programs(scheme)
    {
        return Ok(text.to_owned());
    }
    let parts = text.split_once("://");
    let parts =
        parts.filter(|(scheme, _)| ["http", "https"].contains(scheme) || is_of_programs(scheme));
    let host = parts.map(|(_, host)| host).map(|host| host.strip_suffix('/').unwrap_or(host));
    let (name, port) = match host.and_then(|host| host.rsplit_once(':')) {
        Some((name, port)) => (Some(name), port.parse::<u16>().is_ok()),
        None => (host, true),
    };
    if port && name.is_some_and(|name| host_name(name).is_ok()) {
        return Ok(text.to_owned());
    }
    Err("expected a scheme and a host, such as https://chat.example or http://localhost:3000, or of \
         a desktop program app://NAME or vscode-webview://*"
        .to_owned())
}

/// Schemes that belong to programs, not to web sites.
fn is_of_programs(scheme: &str) -> bool {
    ["app", "capacitor", "chrome-extension", "electron", "moz-extension", "tauri"].contains(&scheme)
        || ["vscode-webview", "vscode-file"].contains(&scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_numbers_and_ranges() {
        assert_eq!((cpus("3"), cpus("0-2")), (Ok(vec![3]), Ok(vec![0, 1, 2])));
        for bad in ["", "a", "2-1", "-1", "0-", "99999999"] {
            assert!(cpus(bad).unwrap_err().contains("such as 0,1"), "{bad}");
        }
    }

    #[test]
    fn peers_are_addresses_and_names_with_or_without_a_port() {
        let peer = |text: &str| resolve(&lasting_peer(text)?);
        let at = |text: &str| peer(text).map(|at| at.to_string());
        assert_eq!(at("10.0.0.5"), Ok("10.0.0.5:8751".to_owned()));
        assert_eq!(at("10.0.0.5:9"), Ok("10.0.0.5:9".to_owned()));
        assert_eq!(at("[fd00::1]"), Ok("[fd00::1]:8751".to_owned()));
        assert!(peer("localhost").is_ok_and(|at| at.ip().is_loopback() && at.port() == 8751));
        let later = Peer::Name { host: "no-such-name.invalid".to_owned(), port: 8751 };
        assert_eq!(lasting_peer("no-such-name.invalid"), Ok(later));
        assert!(at("no-such-name.invalid:8751").unwrap_err().contains("no-such-name.invalid"));
        assert!(at("a b").unwrap_err().contains("expected an address"));
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, expected) in [
            ("1000", Some(1000)),
            ("1.5KiB", Some(1536)),
            ("2 GB", Some(2_000_000_000)),
            ("48gib", Some(48 << 30)),
            ("", None),
            ("-1", None),
            ("0", None),
            ("5 parsecs", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn names_are_visible() {
        for good in ["studio", "Anna's Mac", "é"] {
            assert!(name(good).is_ok(), "{good:?}");
        }
        for bad in ["", " ", "a\nb", "\u{1b}[31m", &"x".repeat(65)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
        assert!(host_name("studio.local").is_ok());
        for bad in ["", "a b", "http://a", "a:80", "a/b"] {
            assert!(host_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn origins_are_what_browsers_send() {
        let sites = ["https://chat.example", "http://localhost:3000", "http://a.b:1/"];
        let programs = ["app://obsidian.md", "tauri://localhost", "vscode-webview://*"];
        for good in sites.iter().chain(&programs) {
            assert!(origin(good).is_ok(), "{good:?}");
        }
        for bad in [
            "zork",
            "",
            "http://*",
            "file://*",
            "chat.example",
            "ftp://a",
            "http://",
            "http://a:x",
            "http://a/b",
            "*",
        ] {
            assert!(origin(bad).is_err(), "{bad:?}");
        }
    }
}
