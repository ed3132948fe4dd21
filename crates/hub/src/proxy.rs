//! Requests for plain addresses go through a proxy as RFC 9112, section 3.2.2, has it: the request
//! names the whole address. ureq would open a tunnel with `CONNECT`, which proxies allow to port
//! 443 alone.

use data_encoding::BASE64;
use ureq::config::Config;
use ureq::typestate::WithoutBody;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};
use ureq::{Agent, Error, Proxy, ProxyProtocol, RequestBuilder};

/// The variables of a proxy for plain addresses, and of the hosts that are asked directly.
const PROXY: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Sends requests as the environment's proxies ask for.
pub(crate) struct Agents {
    usual: Agent,
    /// Writes whole addresses.
    whole: Agent,
    plain: Option<Proxy>,
}

/// The parts of a plain address.
pub(crate) struct Plain<'a> {
    pub url: &'a str,
    /// Host and port.
    pub site: &'a str,
    /// Path and query.
    pub rest: &'a str,
}

impl Agents {
    pub fn new(config: Config) -> Self {
        Self::within(config, &|name| std::env::var(name).ok())
    }

    /// With other variables than the environment's.
    fn within(config: Config, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let whole = Agent::with_parts(config.clone(), Whole, DefaultResolver::default());
        Self { usual: config.into(), whole, plain: plain_proxy(variable) }
    }

    pub fn encrypted(&self, url: &str) -> RequestBuilder<WithoutBody> {
        self.usual.get(url)
    }

    pub fn plain(&self, to: &Plain<'_>) -> RequestBuilder<WithoutBody> {
        let asked = to.url.parse().ok().zip(self.plain.as_ref());
        let proxy = asked.filter(|(url, proxy)| !proxy.is_no_proxy(url)).map(|(_, proxy)| proxy);
        let scheme = match proxy.map(Proxy::protocol) {
            Some(ProxyProtocol::Http) => "http",
            Some(ProxyProtocol::Https) => "https",
            // SOCKS carries any connection.
            _ => return self.usual.get(to.url).config().proxy(proxy.cloned()).build(),
        };
        let (host, port) = proxy.map_or(("", 0), |proxy| (proxy.host(), proxy.port()));
        let request = self.whole.get(format!("{scheme}://{host}:{port}{}", to.rest));
        let request = request.header("host", to.site).config().proxy(None).build();
        match proxy.and_then(login) {
            Some(login) => request.header("proxy-authorization", login),
            None => request,
        }
    }
}

fn plain_proxy(variable: &dyn Fn(&str) -> Option<String>) -> Option<Proxy> {
    let set = |names: &[&str]| {
        let mut values = names.iter().filter_map(|name| variable(name));
        values.find(|value| !value.is_empty())
    };
    let proxy = Proxy::new(&set(&PROXY)?).ok()?;
    let mut built = Proxy::builder(proxy.protocol()).host(proxy.host()).port(proxy.port());
    if let Some(user) = proxy.username() {
        built = built.username(user).password(proxy.password().unwrap_or_default());
    }
    for host in set(&NO_PROXY).iter().flat_map(|hosts| hosts.split(',')) {
        built = built.no_proxy(host.trim());
    }
    built.build().ok()
}

fn login(proxy: &Proxy) -> Option<String> {
    let (user, password) = (proxy.username()?, proxy.password().unwrap_or_default());
    Some(format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes())))
}

/// Makes connections whose requests name the whole address.
#[derive(Debug)]
struct Whole;

impl Connector for Whole {
    type Out = Naming;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<Naming>, Error> {
        Ok(DefaultConnector::new().connect(details, chained)?.map(Naming))
    }
}

/// A connection to a proxy.
#[derive(Debug)]
struct Naming(Box<dyn Transport>);

impl Transport for Naming {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    /// All requests are without a body, so all output is heads.
    fn transmit_output(&mut self, amount: usize, limit: NextTimeout) -> Result<(), Error> {
        let output = self.0.buffers().output();
        let Some(head) = whole(&output[..amount]) else {
            return self.0.transmit_output(amount, limit);
        };
        let room = output.get_mut(..head.len());
        room.ok_or_else(|| std::io::Error::other("the address is too long"))?
            .copy_from_slice(&head);
        self.0.transmit_output(head.len(), limit)
    }

    fn await_input(&mut self, limit: NextTimeout) -> Result<bool, Error> {
        self.0.await_input(limit)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }

    fn is_tls(&self) -> bool {
        self.0.is_tls()
    }
}

/// The head of a request with the whole address in its first line.
fn whole(head: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(head).ok()?;
    let rest = text.strip_prefix("GET /")?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, host) = fields.find(|(name, _)| name.eq_ignore_ascii_case("host"))?;
    Some(format!("GET http://{}/{rest}", host.trim()).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const TO: Plain<'_> =
        Plain { url: "http://mirror.lan/a/b?c=d", site: "mirror.lan", rest: "/a/b?c=d" };

    /// A proxy that answers some requests on one connection; returns their heads.
    fn proxy(requests: usize) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heads = Vec::new();
            for _ in 0..requests {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.extend(byte);
                }
                heads.push(String::from_utf8(head).unwrap());
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").unwrap();
            }
            heads
        });
        (address, heads)
    }

    fn agents(variables: &[(&str, &str)]) -> Agents {
        let found = |name: &str| {
            let one = variables.iter().find(|(known, _)| *known == name);
            one.map(|(_, value)| (*value).to_owned())
        };
        Agents::within(Config::default(), &found)
    }

    #[test]
    fn a_plain_address_is_asked_of_a_proxy_as_a_whole() {
        let (address, heads) = proxy(2);
        let agents = agents(&[("http_proxy", &format!("http://user:pa%40ss@{address}"))]);
        for _ in 0..2 {
            let mut answer = agents.plain(&TO).call().unwrap();
            assert_eq!(answer.body_mut().read_to_string().unwrap(), "hi");
        }
        for head in heads.join().unwrap() {
            assert!(head.starts_with("GET http://mirror.lan/a/b?c=d HTTP/1.1\r\n"), "{head}");
            let (lower, login) = (head.to_ascii_lowercase(), BASE64.encode(b"user:pa@ss"));
            assert_eq!(lower.matches("\r\nhost: mirror.lan\r\n").count(), 1, "{head}");
            assert!(head.contains(&format!("proxy-authorization: Basic {login}")), "{head}");
        }
    }

    #[test]
    fn proxies_for_https_alone_and_hosts_without_one_are_asked_directly() {
        let nobody = "http://127.0.0.1:1";
        let ask = |variables: &[(&str, &str)]| {
            let (mirror, _) = proxy(1);
            let url = format!("http://{mirror}/x");
            agents(variables).plain(&Plain { url: &url, site: &mirror, rest: "/x" }).call()
        };
        assert_eq!(ask(&[("HTTPS_PROXY", nobody)]).unwrap().status(), 200);
        let skipped = [("http_proxy", nobody), ("no_proxy", "a.lan, 127.0.0.1")];
        assert_eq!(ask(&skipped).unwrap().status(), 200);
        assert!(ask(&[("HTTP_PROXY", nobody)]).is_err());
    }
}
