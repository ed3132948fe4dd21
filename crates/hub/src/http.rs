//! Sends one request at a time, and decides which redirects to follow.
//!
//! Redirects are followed by hand: the first answer's headers describe the file, and a token must
//! reach only the hub itself.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use ureq::RequestBuilder;
use ureq::config::ConfigBuilder;
use ureq::http::{Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::typestate::{AgentScope, WithoutBody};

use crate::proxy::{Agents, Plain};
use crate::settings::{Settings, Token};

/// Enough for a renamed repository behind a mirror.
pub(crate) const REDIRECTS_MAX: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// A parsed address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    scheme: String,
    host: String,
    port: u16,
    /// Path and query.
    rest: String,
}

impl Address {
    /// `None` if it is no `http` or `https` address, or contains a password.
    pub fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let usual = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        let rest = uri.path_and_query().map_or("/", |rest| rest.as_str()).to_owned();
        let host = authority.host().to_ascii_lowercase();
        Some(Self { scheme, host, port: authority.port_u16().unwrap_or(usual), rest })
    }

    /// The target of a `Location`, relative to this address.
    pub fn join(&self, location: &str) -> Option<Self> {
        if location.contains("://") {
            return Self::parse(location);
        }
        if location.starts_with("//") {
            return Self::parse(&format!("{}:{location}", self.scheme));
        }
        let rest = match location.strip_prefix('/') {
            Some(_) => location.to_owned(),
            None => {
                let path = self.rest.split('?').next().unwrap_or_default();
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{folder}/{location}")
            }
        };
        Some(Self { rest, ..self.clone() })
    }

    /// Its host and port; the port is absent if it is the scheme's own.
    pub fn site(&self) -> (&str, Option<u16>) {
        let usual = if self.scheme == "https" { 443 } else { 80 };
        (&self.host, Some(self.port).filter(|port| *port != usual))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether what is sent there is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.scheme == "https"
    }

    pub fn is_origin_of(&self, other: &Self) -> bool {
        (&self.scheme, &self.host, self.port) == (&other.scheme, &other.host, other.port)
    }

    /// Scheme and host, for messages: the rest may be signed, and is then a secret.
    pub fn origin(&self) -> String {
        let (host, port) = self.site();
        let port = port.map_or(String::new(), |port| format!(":{port}"));
        format!("{}://{host}{port}", self.scheme)
    }

    pub fn url(&self) -> String {
        format!("{}{}", self.origin(), self.rest)
    }

    /// A file in the same folder, with the same query.
    pub fn beside(&self, file: &str) -> Option<Self> {
        let query =
            self.rest.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
        self.join(&format!("{}{query}", encode(file)))
    }

    /// The folders in the path.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        let path = self.rest.split('?').next().unwrap_or_default();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        folder.split('/').filter(|part| !part.is_empty())
    }

    /// The last part of the path.
    pub fn file_name(&self) -> &str {
        let path = self.rest.split('?').next().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether it is a machine of this network, or this machine.
    fn is_private(&self) -> bool {
        self.leads_to(is_private)
    }

    /// Whether one of its addresses has the property.
    fn leads_to(&self, such: fn(IpAddr) -> bool) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        if let Ok(ip) = host.parse::<IpAddr>() {
            return such(ip);
        }
        // If a name does not resolve here, the proxy resolves it.
        let Ok(mut found) = (host, self.port).to_socket_addrs() else { return false };
        found.any(|address| such(address.ip()))
    }
}

/// Addresses that are valid only on one cable or network. Clouds hand out secrets at one
/// (169.254.169.254).
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => ip.is_link_local(),
            None => ip.segments()[0] & 0xffc0 == 0xfe80,
        },
    }
}

fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            let is_shared = first == 100 && (64..128).contains(&second);
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared || first == 0
        }
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_private(ip.into()),
            None => {
                let first = ip.segments()[0];
                let is_local = first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfe80;
                ip.is_loopback() || ip.is_unspecified() || is_local
            }
        },
    }
}

/// Why there was no answer.
pub(crate) type Silence = String;

pub(crate) struct Client {
    agents: Agents,
    /// The hub; absent if the settings contain no valid one.
    pub hub: Option<Address>,
    token: Option<Token>,
}

impl Client {
    pub fn new(settings: &Settings) -> Self {
        let config = config()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(settings.silence))
            .timeout_per_read(Some(settings.silence))
            .build();
        let hub = Address::parse(&settings.endpoint);
        Self { agents: Agents::new(config), hub, token: settings.token.clone() }
    }

    /// Sends one request and follows no redirect. The token is sent only to the hub itself.
    pub fn get(
        &self,
        to: &Address,
        range: Option<(u64, u64)>,
    ) -> Result<Response<ureq::Body>, Silence> {
        let mut request = self.request(to);
        if let Some((start, end)) = range {
            request = request.header("range", format!("bytes={start}-{}", end.max(start + 1) - 1));
        }
        request.call().map_err(|error| words(&error))
    }

    /// Like [`Self::get`], with a limit from the name's resolution to the body's last byte.
    pub fn get_within(
        &self,
        to: &Address,
        time: Duration,
    ) -> Result<Response<ureq::Body>, Silence> {
        let request = self.request(to).config().timeout_global(Some(time)).build();
        request.call().map_err(|error| words(&error))
    }

    fn request(&self, to: &Address) -> RequestBuilder<WithoutBody> {
        let request = get(&self.agents, to);
        match (&self.hub, &self.token) {
            (Some(hub), Some(token)) if hub.is_origin_of(to) => {
                request.header("authorization", format!("Bearer {}", token.secret()))
            }
            _ => request,
        }
    }

    pub fn token_origin(&self) -> Option<&str> {
        self.token.as_ref().map(Token::origin)
    }
}

/// A request for an address.
pub(crate) fn get(agents: &Agents, to: &Address) -> RequestBuilder<WithoutBody> {
    let (url, origin) = (to.url(), to.origin());
    if to.is_encrypted() {
        return agents.encrypted(&url);
    }
    let site = origin.trim_start_matches("http://");
    agents.plain(&Plain { url: &url, site, rest: &to.rest })
}

/// What all requests have in common: no redirect is followed, and every status is an answer.
pub(crate) fn config() -> ConfigBuilder<AgentScope> {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .accept_encoding("identity")
        .user_agent(format!("sinew/{}", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(roots()).build())
}

/// Whether a redirect may be followed.
///
/// # Errors
/// The reason why not.
pub(crate) fn may_follow(from: &Address, to: &Address) -> Result<(), &'static str> {
    if from.scheme == "https" && to.scheme != "https" {
        return Err("it would leave encryption");
    }
    if !from.is_origin_of(to) && to.leads_to(is_link_local) {
        return Err("no host has business at a link-local address but its own");
    }
    if !from.is_origin_of(to) && to.is_private() && !from.is_private() {
        return Err("a public host has no business inside this network");
    }
    Ok(())
}

/// The machine's own certificates, to which a company may have added; a machine without any gets
/// those of browsers.
fn roots() -> RootCerts {
    const USUAL: &[&str] = &[
        "/etc/ssl/certs",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
        "/usr/local/share/certs",
    ];
    let has_any = |path: &&str| match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => std::path::Path::new(path).is_file(),
    };
    let is_told = std::env::var_os("SSL_CERT_FILE").is_some();
    if !cfg!(target_os = "linux") || is_told || USUAL.iter().any(has_any) {
        RootCerts::PlatformVerifier
    } else {
        RootCerts::WebPki
    }
}

/// The error in words, without the address, which may be signed.
pub(crate) fn words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "it does not answer".to_owned(),
        ureq::Error::HostNotFound => "its name is not known".to_owned(),
        ureq::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// A path for an address: everything but letters, digits and `-_.~/` is percent-encoded.
pub(crate) fn encode(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// A percent-decoded part of an address; unchanged if the result is not UTF-8.
pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let digits = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let hub = Address::parse("https://huggingface.co/a/b?c=d").unwrap();
        for (location, want) in [
            ("/x/y?z", "https://huggingface.co/x/y?z"),
            ("//cdn.hf.co/x", "https://cdn.hf.co/x"),
            ("https://cdn.hf.co:443/x", "https://cdn.hf.co/x"),
            ("other", "https://huggingface.co/a/other"),
        ] {
            assert_eq!(hub.join(location).unwrap().url(), want);
        }
        let same = |text: &str| hub.is_origin_of(&Address::parse(text).unwrap());
        assert!(same("https://HUGGINGFACE.co:443/else"));
        assert!(!same("http://huggingface.co/") && !same("https://huggingface.co:8443/"));
        assert_eq!(Address::parse("https://user:pw@host/x"), None);
        assert_eq!(Address::parse("file:///etc/passwd"), None);
        assert_eq!(decode(&encode("a b/[1]#é.gguf")), "a b/[1]#é.gguf");
        assert_eq!((decode("100%"), decode("%zz%2")), ("100%".to_owned(), "%zz%2".to_owned()));
        let signed = Address::parse("https://h/m/a-00001-of-00002.gguf?X-Sig=1").unwrap();
        let next = signed.beside("a-00002-of-00002.gguf").unwrap().url();
        assert_eq!(next, "https://h/m/a-00002-of-00002.gguf?X-Sig=1");
        assert_eq!(encode("a b/[1]#é.gguf"), "a%20b/%5B1%5D%23%C3%A9.gguf");
    }

    #[test]
    fn redirects_that_are_not_followed() {
        let follow = |from: &str, to: &str| {
            may_follow(&Address::parse(from).unwrap(), &Address::parse(to).unwrap())
        };
        assert!(follow("https://1.1.1.1/", "https://8.8.8.8/x").is_ok());
        assert!(follow("https://1.1.1.1/", "http://8.8.8.8/x").is_err());
        for inside in ["169.254.169.254", "127.0.0.1", "10.0.0.1", "[::1]", "[fd00::1]", "0.0.0.0"]
        {
            assert!(
                follow("https://1.1.1.1/", &format!("https://{inside}/x")).is_err(),
                "{inside}"
            );
        }
        assert!(follow("http://127.0.0.1:1/", "http://127.0.0.1:2/x").is_ok());
        for cable in ["169.254.169.254", "[fe80::1]", "[febf::1]", "[::ffff:169.254.169.254]"] {
            for mirror in ["127.0.0.1", "10.0.0.1", "[fd00::1]", "169.254.1.1", "[fe80::2]"] {
                let (from, to) = (format!("http://{mirror}/"), format!("http://{cable}/x"));
                assert!(follow(&from, &to).is_err(), "{from} {to}");
            }
            let same = format!("http://{cable}/");
            assert!(follow(&same, &format!("{same}x")).is_ok(), "the mirror itself: {same}");
        }
    }
}
