//! Gets small files from hosts that an operator lists, and from no others: clients choose the
//! addresses, which must lead nowhere else in this machine's network.

use std::fmt;
use std::io::Read;
use std::str::FromStr;
use std::time::{Duration, Instant};

use ureq::http::Uri;

use crate::http::{Address, config, get, words};
use crate::proxy::Agents;

/// A picture behind a short address, which leads to a site and from there to its store.
const REDIRECTS_MAX: usize = 3;
/// A name in the DNS has at most 253 letters; a message shows no more.
const HOST_SHOWN: usize = 253;

/// A host that may be asked: by its exact name, at one port or at the usual ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    name: String,
    port: Option<u16>,
}

impl FromStr for Host {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str =
            "expected a host, such as pictures.example, or HOST:PORT, without scheme";
        let uri = format!("http://{text}/").parse::<Uri>().map_err(|_| WRONG)?;
        let whole = uri.authority().filter(|authority| authority.as_str() == text);
        let whole = whole.filter(|authority| !authority.as_str().contains('@')).ok_or(WRONG)?;
        let (name, port) = (whole.host(), whole.port_u16());
        // What stands after the host is a colon and a port that is a number.
        let rest = port.map_or(0, |_| 1 + whole.port().map_or(0, |port| port.as_str().len()));
        if name.is_empty() || name.len() + rest != text.len() || name.contains('*') {
            return Err(WRONG);
        }
        Ok(Self { name: name.to_ascii_lowercase(), port })
    }
}

impl Host {
    fn is_at(&self, address: &Address) -> bool {
        let (name, port) = address.site();
        self.name == name && self.port.map_or(port.is_none(), |own| own == address.port())
    }
}

/// Why a file was not fetched, as the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("it is no address of http or https that can be read")]
    NoAddress,
    #[error("its address holds a user or a password, and none is sent")]
    Credentials,
    #[error("{host} is no host to fetch from; sinew up --picture-hosts {host} makes it one")]
    NotListed { host: String },
    #[error(
        "{from} redirects to {to}, which is no host to fetch from; sinew up --picture-hosts {to} \
         makes it one"
    )]
    RedirectNotListed { from: String, to: String },
    #[error("{from} redirects where nothing is fetched: {why}")]
    Redirect { from: String, why: &'static str },
    #[error("{from} redirects once more, and {REDIRECTS_MAX} redirects are the most")]
    Redirects { from: String },
    #[error("{host} answered {status}, not 200")]
    Status { host: String, status: u16 },
    #[error("{host} announces {bytes} bytes, and {most} are the most")]
    Announced { host: String, bytes: u64, most: usize },
    #[error("{host} sends over {most} bytes, which are the most")]
    TooLarge { host: String, most: usize },
    #[error("{host} did not send it within {:.1} s", .time.as_secs_f32())]
    Slow { host: String, time: Duration },
    #[error("{host} cannot be reached: {why}")]
    Unreachable { host: String, why: String },
}

/// Gets files from listed hosts.
pub struct Fetcher {
    agents: Agents,
    hosts: Vec<Host>,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// No connection is kept for the next file: hosts differ, and one that ends a connection
    /// without a word would fail a redirect to itself.
    pub fn new(hosts: Vec<Host>) -> Self {
        Self { agents: Agents::new(config().max_idle_connections(0).build()), hosts }
    }

    /// The file at an address, of at most `most` bytes; the name's look-up, redirects and the file
    /// take at most `time`.
    ///
    /// # Errors
    /// An address that is not to be asked, any status but 200, a limit.
    pub fn get(&self, address: &str, most: usize, time: Duration) -> Result<Vec<u8>, FetchError> {
        let deadline = Instant::now() + time;
        let mut at = read(address)?;
        if !self.lists(&at) {
            return Err(FetchError::NotListed { host: shown(&at) });
        }
        for _ in 0..=REDIRECTS_MAX {
            let host = shown(&at);
            let failed = |error: &ureq::Error| match error {
                ureq::Error::Timeout(_) => FetchError::Slow { host: host.clone(), time },
                error => FetchError::Unreachable { host: host.clone(), why: words(error) },
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FetchError::Slow { host, time });
            }
            let request = get(&self.agents, &at).config().timeout_global(Some(left)).build();
            let response = request.call().map_err(|error| failed(&error))?;
            match response.status().as_u16() {
                200 => {}
                301 | 302 | 303 | 307 | 308 => {
                    let to = response.headers().get("location").and_then(|to| to.to_str().ok());
                    at = self.redirected(&at, to)?;
                    continue;
                }
                status => return Err(FetchError::Status { host, status }),
            }
            let announced = response.body().content_length();
            if let Some(bytes) = announced.filter(|bytes| *bytes > most as u64) {
                return Err(FetchError::Announced { host, bytes, most });
            }
            let mut file = Vec::new();
            let mut body = response.into_body().into_reader().take(most as u64 + 1);
            body.read_to_end(&mut file).map_err(|error| failed(&error.into()))?;
            if file.len() > most {
                return Err(FetchError::TooLarge { host, most });
            }
            return Ok(file);
        }
        Err(FetchError::Redirects { from: shown(&at) })
    }

    fn lists(&self, address: &Address) -> bool {
        self.hosts.iter().any(|host| host.is_at(address))
    }

    fn redirected(&self, at: &Address, to: Option<&str>) -> Result<Address, FetchError> {
        let from = shown(at);
        let Some(to) = to.and_then(|to| at.join(to)) else {
            return Err(FetchError::Redirect { from, why: "it names no address of http or https" });
        };
        if at.is_encrypted() && !to.is_encrypted() {
            return Err(FetchError::Redirect { from, why: "it would leave encryption" });
        }
        if !self.lists(&to) {
            return Err(FetchError::RedirectNotListed { from, to: shown(&to) });
        }
        Ok(to)
    }
}

fn read(address: &str) -> Result<Address, FetchError> {
    let address = address.trim();
    let uri = address.parse::<Uri>().map_err(|_| FetchError::NoAddress)?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(FetchError::Credentials);
    }
    Address::parse(address).ok_or(FetchError::NoAddress)
}

/// Its host as an operator lists it: the rest may be signed, and is then a secret.
fn shown(address: &Address) -> String {
    let (host, port) = address.site();
    let host: String = host.chars().take(HOST_SHOWN).collect();
    port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Answers each request with what `answer` makes of its head; then the connection ends, of
    /// which the head says nothing.
    fn serve(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let _ = stream.write_all(&answer(&head.join("\n")));
            }
        });
        address
    }

    fn reply(status: u16, header: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n{header}\r\n{body}")
            .into_bytes()
    }

    fn fetcher(hosts: &[String]) -> Fetcher {
        Fetcher::new(hosts.iter().map(|host| host.parse().unwrap()).collect())
    }

    #[test]
    fn hosts_are_listed_by_exact_names_and_ports() {
        let cases = [
            ("a.example", "https://a.example/b?c", true),
            ("a.example", "http://A.Example:80/", true),
            ("A.example", "https://a.example:443", true),
            ("a.example", "https://a.example:8443/", false),
            ("a.example", "http://a.example:443/", false),
            ("a.example", "https://b.a.example/", false),
            ("a.example", "https://a.example./", false),
            ("a.example:8080", "http://a.example:8080/", true),
            ("a.example:8080", "http://a.example/", false),
            ("a.example:443", "http://a.example:443/", true),
            ("a.example:443", "https://a.example/", true),
            ("127.0.0.1:80", "http://127.0.0.1/", true),
            ("127.0.0.1", "http://127.1/", false),
            ("[::1]:9", "http://[::1]:9/", true),
        ];
        for (host, address, want) in cases {
            let host: Host = host.parse().unwrap();
            assert_eq!(host.is_at(&read(address).unwrap()), want, "{host:?} {address}");
        }
        let wrong =
            ["", "a b", "https://a", "a/b", "u@a", "a:", "a:x", "a:99999", "*.a", "a?", "::1"];
        for wrong in wrong {
            assert!(wrong.parse::<Host>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_listed_hosts_are_asked_and_nothing_secret_is_sent() {
        let at = serve(|head| reply(200, "set-cookie: a=b\r\n", head));
        let fetcher = fetcher(&[at.to_string()]);
        let get = |address: &str| fetcher.get(address, 1000, LONG);
        for _ in 0..2 {
            let head = String::from_utf8(get(&format!("http://{at}/b.png?c=d")).unwrap()).unwrap();
            let head = head.to_ascii_lowercase();
            assert!(head.starts_with("get /b.png?c=d http/1.1"), "{head}");
            assert!(!head.contains("cookie") && !head.contains("authorization"), "{head}");
        }
        let credentials = get(&format!("http://user:secret@{at}/b.png"));
        assert_eq!(credentials, Err(FetchError::Credentials));
        assert_eq!(get("file:///etc/hosts"), Err(FetchError::NoAddress));
        let elsewhere = format!("http://localhost:{}/", at.port());
        let host = format!("localhost:{}", at.port());
        let error = get(&elsewhere).unwrap_err();
        assert_eq!(error, FetchError::NotListed { host: host.clone() });
        assert!(error.to_string().contains(&format!("--picture-hosts {host}")), "{error}");
    }

    #[test]
    fn redirects_lead_to_listed_hosts_only_and_not_forever() {
        let at = serve(|head| {
            let path = head.split(' ').nth(1).unwrap_or_default();
            match path.strip_prefix("/go/").and_then(|left| left.parse::<u8>().ok()) {
                Some(0) => reply(200, "", "here"),
                Some(left) => reply(302, &format!("location: /go/{}\r\n", left - 1), ""),
                None => reply(307, &format!("location: {}\r\n", &path[1..]), ""),
            }
        });
        let fetcher = fetcher(&[at.to_string()]);
        let get = |path: &str| fetcher.get(&format!("http://{at}/{path}"), 1000, LONG);
        assert_eq!(get("go/3").unwrap(), b"here");
        let from = at.to_string();
        assert_eq!(get("go/4"), Err(FetchError::Redirects { from: from.clone() }));
        let to = "10.0.0.1".to_owned();
        let error = get("http://10.0.0.1/a").unwrap_err();
        assert_eq!(error, FetchError::RedirectNotListed { from, to });
        for away in ["file:///etc/hosts", "http://u:p@10.0.0.1/"] {
            assert!(matches!(get(away), Err(FetchError::Redirect { .. })), "{away}");
        }
        let secure = Address::parse("https://a.example/").unwrap();
        let error = fetcher.redirected(&secure, Some("http://a.example/")).unwrap_err();
        assert!(error.to_string().contains("leave encryption"), "{error}");
    }

    #[test]
    fn bytes_time_and_status_have_limits() {
        let at = serve(|head| match head.split(' ').nth(1) {
            Some("/long") => reply(200, "", &"x".repeat(11)),
            Some("/unknown") => {
                [&b"HTTP/1.1 200 x\r\nconnection: close\r\n\r\n"[..], &[0; 11]].concat()
            }
            Some("/cut") => b"HTTP/1.1 200 x\r\ncontent-length: 9\r\n\r\nabc".to_vec(),
            _ => reply(404, "", "none"),
        });
        let (host, most) = (at.to_string(), 10);
        let fetcher = fetcher(&[host.clone(), "sinew.invalid".to_owned()]);
        let get = |path: &str| fetcher.get(&format!("http://{at}/{path}"), most, LONG).unwrap_err();
        assert_eq!(get("long"), FetchError::Announced { host: host.clone(), bytes: 11, most });
        assert_eq!(get("unknown"), FetchError::TooLarge { host: host.clone(), most });
        assert_eq!(get("none"), FetchError::Status { host: host.clone(), status: 404 });
        assert!(matches!(get("cut"), FetchError::Unreachable { .. }));
        let error = fetcher.get("http://sinew.invalid/", most, LONG).unwrap_err();
        assert!(matches!(&error, FetchError::Unreachable { .. }), "{error}");
        // One that never answers, and one that never ends.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let kept = TcpListener::bind("127.0.0.1:0").unwrap();
        let begun = kept.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = kept.accept().unwrap();
            let _ = stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 9\r\n\r\nabc");
            std::thread::park();
        });
        for at in [silent.local_addr().unwrap(), begun] {
            let time = Duration::from_millis(200);
            let fetcher = Fetcher::new(vec![at.to_string().parse().unwrap()]);
            let error = fetcher.get(&format!("http://{at}/"), most, time).unwrap_err();
            assert_eq!(error, FetchError::Slow { host: at.to_string(), time });
            assert!(error.to_string().contains("within 0.2 s"), "{error}");
        }
    }
}
