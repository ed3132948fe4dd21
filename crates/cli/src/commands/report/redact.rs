//! Takes out of a text what a stranger must not read: secrets, addresses, the user's folders.
//!
//! By value, what this machine knows to be secret; by form, what looks like a key. A lost word does
//! no harm, a key that stays does.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// What stands in the place of a secret.
const SECRET: &str = "<secret>";
const ADDRESS: &str = "<address>";

/// Shorter values occur in ordinary words.
const SECRET_CHARS_MIN: usize = 6;
/// Ids, hashes and keys are longer; of those only the beginning stays.
const LONG_CHARS_MIN: usize = 32;
const SHOWN_CHARS: usize = 8;

/// Beginnings of keys: of this program, of the hub and of other services.
const KEYS: &[&str] = &["sk-", "hf_", "ghp_", "github_pat_", "xoxb-", "sinew-"];

pub struct Redactor {
    secrets: Vec<String>,
    /// Folders and names, and what to write for them; the longest first.
    places: Vec<(String, &'static str)>,
}

impl Redactor {
    pub fn new(secrets: Vec<String>, places: Vec<(String, &'static str)>) -> Self {
        let long = |text: &String| text.chars().count() >= SECRET_CHARS_MIN;
        let mut secrets: Vec<String> = secrets.into_iter().filter(long).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self { secrets, places: places.into_iter().filter(|(text, _)| text.len() > 1).collect() }
    }

    /// The text without them, line by line.
    pub fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret.as_str(), SECRET);
        }
        let mut text = text.lines().map(line).collect::<Vec<_>>().join("\n");
        for (place, shown) in &self.places {
            text = text.replace(place.as_str(), shown);
        }
        text
    }
}

fn line(text: &str) -> String {
    let mut out = String::new();
    let mut before = String::new();
    let is_end = |c: char| c.is_whitespace() || "\"'`()<>{},;|".contains(c);
    for part in text.split_inclusive(is_end) {
        let word = part.trim_end_matches(is_end);
        let after_bearer = matches!(before.to_ascii_lowercase().as_str(), "bearer" | "basic");
        match after_bearer && !word.is_empty() {
            true => out.push_str(SECRET),
            false => out.push_str(&clean_word(word)),
        }
        out.push_str(&part[word.len()..]);
        if !word.is_empty() {
            word.trim_end_matches(':').clone_into(&mut before);
        }
    }
    out
}

fn clean_word(word: &str) -> String {
    if let Some((scheme, rest)) = word.split_once("://") {
        return format!("{scheme}://{}", url(rest));
    }
    // `key=value`, as in settings and logs.
    if let Some((name, value)) = word.split_once('=') {
        let lower = name.to_ascii_lowercase();
        let is_secret =
            ["token", "key", "secret", "password", "code"].iter().any(|part| lower.ends_with(part));
        let value = if is_secret { SECRET.to_owned() } else { clean_word(value) };
        return format!("{name}={value}");
    }
    let bare = word.trim_start_matches('[').trim_end_matches(['.', ':', ']']);
    if KEYS.iter().any(|key| bare.starts_with(key) && bare.len() >= key.len() + 8) {
        return SECRET.to_owned();
    }
    if let Some(shown) = address(word).or_else(|| address(bare)) {
        return shown;
    }
    long(word)
}

/// An address on the Web: without names, keys and queries; its host if that is no public number.
fn url(rest: &str) -> String {
    let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = address(host).unwrap_or_else(|| host.to_owned());
    let path = path.map(|path| {
        let plain = path.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<String> = plain.split('/').map(long).collect();
        format!("/{}", parts.join("/"))
    });
    format!("{host}{}", path.unwrap_or_default())
}

/// What to show for an address of a machine, with its port if it has one; `None` if it is none.
fn address(text: &str) -> Option<String> {
    let (ip, port) = match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        (Ok(address), _) => (address.ip(), format!(":{}", address.port())),
        (_, Ok(ip)) => (ip, String::new()),
        _ => return None,
    };
    Some(if is_private(ip) { text.to_owned() } else { format!("{ADDRESS}{port}") })
}

/// Whether an address says nothing of its owner: of this machine, or of any home network.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            let is_shared = a == 100 && (64..128).contains(&b);
            ip.is_private()
                || ip.is_loopback()
                || ip.is_link_local()
                || ip.is_unspecified()
                || is_shared
        }
        IpAddr::V6(ip) => {
            let mapped = ip.to_ipv4_mapped().map(IpAddr::V4);
            // The lower half of an own address may be made of the card's number.
            ip == Ipv6Addr::LOCALHOST || ip.is_unspecified() || mapped.is_some_and(is_private)
        }
    }
}

/// Long runs of letters and numbers, as keys and hashes are, keep their beginning.
fn long(word: &str) -> String {
    let is_run = |c: char| c.is_ascii_alphanumeric() || "_-+=".contains(c);
    let mut out = String::new();
    for part in word.split_inclusive(|c| !is_run(c)) {
        let run = part.trim_end_matches(|c| !is_run(c));
        let has = |what: fn(&char) -> bool| run.chars().any(|c| what(&c));
        let is_key = run.len() >= LONG_CHARS_MIN
            && has(char::is_ascii_digit)
            && has(char::is_ascii_alphabetic);
        match is_key {
            true => out.extend([&run[..SHOWN_CHARS], "..."]),
            false => out.push_str(run),
        }
        out.push_str(&part[run.len()..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_addresses_and_folders_go() {
        let redactor = Redactor::new(
            vec!["open sesame".to_owned(), "abc".to_owned()],
            vec![("/home/ada".to_owned(), "~"), ("ada".to_owned(), "<user>")],
        );
        let key = "f".repeat(20) + &"0".repeat(20);
        for (text, clean) in [
            ("the word is open sesame.", "the word is <secret>."),
            ("abc stays: it is too short", "abc stays: it is too short"),
            ("/home/ada/models/x.gguf of ada", "~/models/x.gguf of <user>"),
            ("Authorization: Bearer some-thing", "Authorization: Bearer <secret>"),
            ("HF_TOKEN=hf_x api_key=\"y\"", "HF_TOKEN=<secret> api_key=<secret>\"y\""),
            ("key sk-sinew-0123456789abcdef ends", "key <secret> ends"),
            (
                "from 203.0.113.9:8751 to 192.168.1.4:8751",
                "from <address>:8751 to 192.168.1.4:8751",
            ),
            ("[2001:db8::1]:8751 and 127.0.0.1", "<address>:8751 and 127.0.0.1"),
            ("fe80::1ff:fe23:4567:890a", "<address>"),
            ("http://ada:pw@example.org/a?sig=1#x", "http://example.org/a"),
            ("http://203.0.113.9:8750/", "http://<address>:8750/"),
            (
                "a long-word-without-any-number-in-it-stays",
                "a long-word-without-any-number-in-it-stays",
            ),
        ] {
            assert_eq!(redactor.clean(text), clean, "{text}");
        }
        assert_eq!(redactor.clean(&format!("node {key} left")), "node ffffffff... left");
    }
}
