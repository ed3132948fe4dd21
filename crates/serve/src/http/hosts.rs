//! Checks the `Host` and `Origin` of a request.
//!
//! Any page can make its browser send requests here. If the page's own name resolves to this
//! machine (DNS rebinding), the browser even lets the page read the answers. `Host` then contains
//! the page's name, so only known names are accepted. Requests of other pages carry their `Origin`.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header};

/// A host from `Host` or from an origin: lower case, without port or brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub host: String,
    pub port: Option<u16>,
}

impl Authority {
    /// Parses `host`, `host:port`, `[v6]`, `[v6]:port`.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, rest) = match text.strip_prefix('[') {
            Some(v6) => v6.split_once(']')?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port.parse().ok()?),
            None if rest.is_empty() => None,
            None => return None,
        };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        (!host.is_empty() && host.bytes().all(known)).then_some(Self { host, port })
    }

    pub fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
    }
}

/// The requested host: from `Host`, and from an absolute request target. `None` if it is missing,
/// appears more than once, or the two differ.
pub(super) fn requested(headers: &HeaderMap, target: &Uri) -> Option<Authority> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = Authority::parse(hosts.next()?.to_str().ok()?)?;
    if hosts.next().is_some() {
        return None;
    }
    match target.authority() {
        Some(authority) => (Authority::parse(authority.as_str())? == host).then_some(host),
        None => Some(host),
    }
}

/// Whether the host is a name of this node. `server` is the local address of the connection, and
/// `names` are the machine's own names and those configured by its owner.
pub(super) fn is_ours(host: &Authority, server: IpAddr, names: &[String]) -> bool {
    host.is_loopback()
        || host.host.parse::<IpAddr>().is_ok_and(|ip| ip == server.to_canonical())
        || names.iter().any(|name| name.eq_ignore_ascii_case(&host.host))
}

/// The meaning of an `Origin` header for a request to `host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// No origin, or this node's own page.
    Same,
    /// Another page that may call the API: a configured one, or a page of this machine calling this
    /// machine.
    Allowed,
    Foreign,
}

/// Classifies `Origin`; `null` (a sandboxed frame, a local file) is foreign.
pub(super) fn judge_origin(
    origin: Option<&HeaderValue>,
    host: &Authority,
    allowed: &[String],
) -> Origin {
    let Some(origin) = origin else { return Origin::Same };
    let Ok(origin) = origin.to_str() else { return Origin::Foreign };
    if allowed.iter().any(|known| is_allowed(known, origin)) {
        return Origin::Allowed;
    }
    let Some((scheme, authority)) = origin.split_once("://") else { return Origin::Foreign };
    if scheme != "http" && scheme != "https" {
        return Origin::Foreign;
    }
    match Authority::parse(authority) {
        Some(authority) if authority == *host => Origin::Same,
        Some(authority) if authority.is_loopback() && host.is_loopback() => Origin::Allowed,
        _ => Origin::Foreign,
    }
}

/// Whether the node's owner allows an origin: by its name, or for desktop programs by its scheme,
/// such as `vscode-webview://*`. Such a program has a different name in each window.
fn is_allowed(known: &str, origin: &str) -> bool {
    let known = known.trim_end_matches('/');
    match known.strip_suffix("://*") {
        Some("http" | "https" | "") => false,
        Some(scheme) => {
            let found = origin.split_once("://").map(|(found, _)| found);
            found.is_some_and(|found| found.eq_ignore_ascii_case(scheme))
        }
        None => known.eq_ignore_ascii_case(origin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        let cases = [
            ("localhost", Some(("localhost", None))),
            ("LocalHost:8750", Some(("localhost", Some(8750)))),
            ("localhost.", Some(("localhost", None))),
            ("127.0.0.1:1", Some(("127.0.0.1", Some(1)))),
            ("[::1]:8750", Some(("::1", Some(8750)))),
            ("[::1]", Some(("::1", None))),
            ("", None),
            (":80", None),
            ("[::1", None),
            ("[::1]x", None),
            ("a:b", None),
            ("a:70000", None),
            ("user@localhost", None),
            ("local host", None),
        ];
        for (text, want) in cases {
            let found = Authority::parse(text);
            let found = found.as_ref().map(|found| (found.host.as_str(), found.port));
            assert_eq!(found, want, "{text:?}");
        }
    }

    #[test]
    fn only_known_names_are_ours() {
        let server: IpAddr = "192.168.1.5".parse().unwrap();
        let names = ["den.local".to_owned()];
        let cases = [
            ("localhost:1", true),
            ("127.0.0.1", true),
            ("127.8.8.8", true),
            ("[::1]:5", true),
            ("[::ffff:127.0.0.1]", true),
            ("192.168.1.5:8750", true),
            ("DEN.local", true),
            ("192.168.1.6", false),
            ("evil.com", false),
            ("localhost.evil.com", false),
            ("127.0.0.1.evil.com", false),
            ("0.0.0.0", false),
        ];
        for (text, want) in cases {
            let host = Authority::parse(text).unwrap();
            assert_eq!(is_ours(&host, server, &names), want, "{text}");
        }
    }

    #[test]
    fn origins() {
        let allowed =
            ["https://chat.example", "app://obsidian.md", "vscode-webview://*", "http://*"];
        let allowed = allowed.map(str::to_owned);
        let cases = [
            ("localhost:8750", None, Origin::Same),
            ("localhost:8750", Some("http://localhost:8750"), Origin::Same),
            ("localhost:8750", Some("http://localhost:3000"), Origin::Allowed),
            ("localhost:8750", Some("http://[::1]:3000"), Origin::Allowed),
            ("192.168.1.5:8750", Some("http://192.168.1.5:8750"), Origin::Same),
            ("192.168.1.5:8750", Some("http://localhost:8750"), Origin::Foreign),
            ("localhost:8750", Some("https://chat.example"), Origin::Allowed),
            ("localhost:8750", Some("https://chat.example.evil"), Origin::Foreign),
            ("localhost:8750", Some("https://evil.com"), Origin::Foreign),
            ("localhost:8750", Some("http://evil.com"), Origin::Foreign),
            ("localhost:8750", Some("app://obsidian.md"), Origin::Allowed),
            ("localhost:8750", Some("app://other"), Origin::Foreign),
            ("localhost:8750", Some("vscode-webview://1f2e3d"), Origin::Allowed),
            ("localhost:8750", Some("tauri://localhost"), Origin::Foreign),
            ("localhost:8750", Some("null"), Origin::Foreign),
            ("localhost:8750", Some("file://localhost"), Origin::Foreign),
            ("localhost:8750", Some("http://localhost.evil.com"), Origin::Foreign),
            ("localhost:8750", Some("http://localhost@evil.com"), Origin::Foreign),
        ];
        for (host, origin, want) in cases {
            let value = origin.map(|origin| HeaderValue::from_str(origin).unwrap());
            let host = Authority::parse(host).unwrap();
            assert_eq!(judge_origin(value.as_ref(), &host, &allowed), want, "{origin:?}");
        }
    }
}
