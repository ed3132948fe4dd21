//! API keys and the admin token: compared in constant time, and read only from headers.

use std::fmt;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;

/// The headers in which clients send their key: OpenAI's, Anthropic's, Azure's. They are
/// equivalent. A key in the URL is ignored, because URLs end up in logs.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "api-key"];

/// A key for clients on other machines. Only its hash is stored; the key itself stays with its
/// holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    pub name: String,
    /// BLAKE3 of the key. A key has 256 random bits, so a slower hash is not needed.
    pub hash: [u8; 32],
    /// The holder is the node's owner, and has the owner's conversations.
    pub is_owners: bool,
}

impl ApiKey {
    pub fn new(name: impl Into<String>, key: &str) -> Self {
        Self { name: name.into(), hash: hash(key.as_bytes()), is_owners: false }
    }

    /// A number for the key's holder. It is never 0, which stands for clients on this machine
    /// without a key.
    pub(crate) fn client_number(&self) -> u64 {
        let first = self.hash.first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(first).max(1)
    }
}

/// The currently accepted keys. They are read at every request that needs one, so a revoked key is
/// refused immediately.
#[derive(Clone)]
pub struct ApiKeys(Arc<dyn Fn() -> Arc<[ApiKey]> + Send + Sync>);

impl ApiKeys {
    /// Calls `now` for each request; it must be fast.
    pub fn live(now: impl Fn() -> Arc<[ApiKey]> + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// A fixed set of keys.
    pub fn fixed(keys: &[&str]) -> Self {
        let keys: Arc<[ApiKey]> = keys.iter().map(|key| ApiKey::new("", key)).collect();
        Self::live(move || Arc::clone(&keys))
    }

    pub fn now(&self) -> Arc<[ApiKey]> {
        (self.0)()
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKeys")
    }
}

/// The credentials of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    Wrong,
    Right,
}

/// Compares every key of a request with every accepted key.
pub(crate) fn check(headers: &HeaderMap, accepted: &[ApiKey]) -> Shown {
    let shown = api_keys(headers).map(hash);
    judge(shown, accepted.iter().map(|key| &key.hash[..]))
}

/// Like [`check`], for the admin token, which only `Authorization` can carry.
pub(crate) fn check_bearer(headers: &HeaderMap, accepted: &str) -> Shown {
    judge(bearers(headers), std::iter::once(accepted.as_bytes()))
}

/// The accepted key of a request.
pub(crate) fn accepted_key(headers: &HeaderMap, accepted: &Option<ApiKeys>) -> Option<ApiKey> {
    let accepted = accepted.as_ref().filter(|_| api_keys(headers).next().is_some())?.now();
    let is_shown = |key: &&ApiKey| check(headers, std::slice::from_ref(*key)) == Shown::Right;
    accepted.iter().find(is_shown).cloned()
}

fn hash(key: &[u8]) -> [u8; 32] {
    *blake3::hash(key).as_bytes()
}

fn api_keys(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let named = KEY_HEADERS.iter().flat_map(|name| headers.get_all(*name));
    bearers(headers).chain(named.map(|value| value.as_bytes()))
}

fn bearers(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
    })
}

/// Compares all pairs, so that the time reveals nothing about near matches.
fn judge<'a>(
    shown: impl Iterator<Item = impl AsRef<[u8]>>,
    accepted: impl Iterator<Item = &'a [u8]> + Clone,
) -> Shown {
    let mut any = false;
    let mut right = subtle::Choice::from(0);
    for key in shown {
        any = true;
        for known in accepted.clone() {
            right |= key.as_ref().ct_eq(known);
        }
    }
    match (bool::from(right), any) {
        (true, _) => Shown::Right,
        (false, true) => Shown::Wrong,
        (false, false) => Shown::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn every_header_has_the_same_say() {
        let keys = ApiKeys::fixed(&["first-key", "second-key"]).now();
        let cases: &[(&[(&str, &str)], Shown)] = &[
            (&[], Shown::Nothing),
            (&[("authorization", "Bearer first-key")], Shown::Right),
            (&[("authorization", "bearer second-key")], Shown::Right),
            (&[("x-api-key", "second-key")], Shown::Right),
            (&[("api-key", "first-key")], Shown::Right),
            (&[("authorization", "Bearer no"), ("x-api-key", "first-key")], Shown::Right),
            (&[("authorization", "Bearer first-ke")], Shown::Wrong),
            (&[("authorization", "Bearer ")], Shown::Wrong),
            (&[("authorization", "Basic first-key")], Shown::Nothing),
            (&[("authorization", "first-key")], Shown::Nothing),
            (&[("x-api-key", "")], Shown::Wrong),
        ];
        for (headers, want) in cases {
            let mut map = HeaderMap::new();
            for (name, value) in *headers {
                map.insert(*name, HeaderValue::from_static(value));
            }
            assert_eq!(check(&map, &keys), *want, "{headers:?}");
        }
    }

    #[test]
    fn clients_are_told_apart_by_their_keys() {
        let keys = Some(ApiKeys::fixed(&["first-key", "second-key"]));
        let number = |key: &'static str| {
            let mut map = HeaderMap::new();
            map.insert("x-api-key", HeaderValue::from_static(key));
            accepted_key(&map, &keys).map(|key| key.client_number())
        };
        assert_ne!(number("first-key"), number("second-key"));
        assert_eq!((number("other"), accepted_key(&HeaderMap::new(), &keys)), (None, None));
        assert_ne!(number("first-key"), Some(0));
    }

    #[test]
    fn nothing_matches_when_no_key_is_set() {
        let mut map = HeaderMap::new();
        map.insert("x-api-key", HeaderValue::from_static(""));
        assert_eq!(check(&map, &[]), Shown::Wrong);
    }

    #[test]
    fn the_admin_token_is_a_bearer() {
        let mut map = HeaderMap::new();
        map.insert("x-api-key", HeaderValue::from_static("token"));
        assert_eq!(check_bearer(&map, "token"), Shown::Nothing);
        map.insert("authorization", HeaderValue::from_static("Bearer token"));
        assert_eq!(check_bearer(&map, "token"), Shown::Right);
    }
}
