//! One-time join codes: addresses to call, the fingerprint of the key that must answer, and a
//! secret.
//!
//! ```text
//! sinew- base32( version and count | addresses | fingerprint 16 | secret 10 | check sum 2 )
//! ```
//!
//! The check sum only distinguishes a typing error from a code that is no longer valid.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use data_encoding::{Encoding, Specification};

use crate::CodeError;
use crate::id::{FINGERPRINT_BYTES, Fingerprint};

const PREFIX: &str = "sinew-";
const VERSION: u8 = 1;
/// A code stays short enough to paste; more interfaces than this are rare.
pub(crate) const ADDRESSES_MAX: usize = 4;
/// 80 bits: at ten wrong tries a minute from each of a million addresses, guessing takes 10^11
/// years.
pub(crate) const SECRET_BYTES: usize = 10;
const SUM_BYTES: usize = 2;
/// Characters between two dashes.
const GROUP: usize = 5;

/// Douglas Crockford's base 32: no letter looks like a digit, and case does not matter.
pub(crate) static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut spec = Specification::new();
    spec.symbols.push_str("0123456789abcdefghjkmnpqrstvwxyz");
    spec.translate.from.push_str("ABCDEFGHJKMNPQRSTVWXYZoOiIlL");
    spec.translate.to.push_str("abcdefghjkmnpqrstvwxyz001111");
    spec.ignore.push_str("- \t\r\n");
    spec.encoding().expect("32 distinct symbols")
});
/// The content of a join code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinCode {
    /// Listen addresses of the inviting node; 1 to [`ADDRESSES_MAX`].
    pub addresses: Vec<SocketAddr>,
    pub fingerprint: Fingerprint,
    pub secret: [u8; SECRET_BYTES],
}

impl JoinCode {
    pub(crate) fn encode(&self) -> String {
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES_MAX)];
        let mut bytes = vec![VERSION << 4 | addresses.len() as u8];
        for address in addresses {
            match address.ip() {
                IpAddr::V4(ip) => {
                    bytes.push(4);
                    bytes.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    bytes.push(6);
                    bytes.extend(ip.octets());
                }
            }
            bytes.extend(address.port().to_be_bytes());
        }
        bytes.extend(self.fingerprint);
        bytes.extend(self.secret);
        bytes.extend(sum(&bytes));
        let text = BASE32.encode(&bytes);
        let groups: Vec<&str> = (0..text.len())
            .step_by(GROUP)
            .map(|at| &text[at..text.len().min(at + GROUP)])
            .collect();
        format!("{PREFIX}{}", groups.join("-"))
    }

    pub(crate) fn decode(text: &str) -> Result<Self, CodeError> {
        let text = text.trim();
        let prefix = text.get(..PREFIX.len()).ok_or(CodeError::Prefix)?;
        if !prefix.eq_ignore_ascii_case(PREFIX) {
            return Err(CodeError::Prefix);
        }
        let body = &text.as_bytes()[PREFIX.len()..];
        let bytes = BASE32.decode(body).map_err(|_| CodeError::Typo)?;
        let (bytes, found) = bytes.split_last_chunk::<SUM_BYTES>().ok_or(CodeError::Typo)?;
        if *found != sum(bytes) {
            return Err(CodeError::Typo);
        }
        Fields(bytes).code()
    }
}

fn sum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    let hash = blake3::hash(bytes);
    hash.as_bytes()[..SUM_BYTES].try_into().expect("BLAKE3 gives 32 bytes")
}

/// The unread bytes of a code.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn code(mut self) -> Result<JoinCode, CodeError> {
        let [head] = self.take()?;
        if head >> 4 != VERSION {
            return Err(CodeError::Version);
        }
        let count = usize::from(head & 0x0f);
        if !(1..=ADDRESSES_MAX).contains(&count) {
            return Err(CodeError::Typo);
        }
        let addresses = (0..count).map(|_| self.address()).collect::<Result<_, _>>()?;
        let fingerprint = self.take::<FINGERPRINT_BYTES>()?;
        let secret = self.take()?;
        if self.0.is_empty() {
            Ok(JoinCode { addresses, fingerprint, secret })
        } else {
            Err(CodeError::Typo)
        }
    }

    fn address(&mut self) -> Result<SocketAddr, CodeError> {
        let ip: IpAddr = match self.take()? {
            [4] => Ipv4Addr::from(self.take::<4>()?).into(),
            [6] => Ipv6Addr::from(self.take::<16>()?).into(),
            _ => return Err(CodeError::Typo),
        };
        Ok(SocketAddr::new(ip, u16::from_be_bytes(self.take()?)))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], CodeError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(CodeError::Typo)?;
        self.0 = rest;
        Ok(*bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code() -> JoinCode {
        JoinCode {
            addresses: vec!["10.1.2.3:8751".parse().unwrap(), "[fe80::1]:9".parse().unwrap()],
            fingerprint: [0xa5; FINGERPRINT_BYTES],
            secret: [0x3c; SECRET_BYTES],
        }
    }

    #[test]
    fn a_code_survives_what_people_do_to_it() {
        let text = code().encode();
        let bare = text.replace('-', "");
        let variants = [
            text.clone(),
            text.to_uppercase(),
            format!("  {text}\n"),
            format!("sinew-{}", &bare["sinew".len()..]),
            text.replace('0', "O").replace('1', "l"),
        ];
        for variant in variants {
            assert_eq!(JoinCode::decode(&variant), Ok(code()), "{variant}");
        }
    }

    #[test]
    fn every_single_typo_is_noticed() {
        let text = code().encode();
        let start = PREFIX.len();
        for (at, was) in text.char_indices().skip(start).filter(|(_, was)| *was != '-') {
            let other = if was == 'x' { "y" } else { "x" };
            let mut typo = text.clone();
            typo.replace_range(at..at + 1, other);
            assert_eq!(JoinCode::decode(&typo), Err(CodeError::Typo), "{typo}");
            let mut short = text.clone();
            short.remove(at);
            assert_eq!(JoinCode::decode(&short), Err(CodeError::Typo), "{short}");
        }
    }

    #[test]
    fn other_texts_say_what_they_are_not() {
        let mut newer = vec![0x21];
        newer.extend(sum(&newer));
        let newer = format!("sinew-{}", BASE32.encode(&newer));
        let cases = [
            ("", CodeError::Prefix),
            ("hello", CodeError::Prefix),
            ("sinéw-", CodeError::Prefix),
            ("sinew-", CodeError::Typo),
            ("sinew-!", CodeError::Typo),
            (&newer, CodeError::Version),
        ];
        for (text, expected) in cases {
            assert_eq!(JoinCode::decode(text), Err(expected), "{text:?}");
        }
    }
}
