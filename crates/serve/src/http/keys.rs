//! API keys and the admin token: compared in constant time, and taken from headers alone.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;

/// Where clients put their key: OpenAI's, Anthropic's, Azure's. All mean the same, and a key in
/// the URL is never looked at, because URLs end in logs.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "api-key"];

/// What a request shows to be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    Wrong,
    Right,
}

/// Compares every key that a request shows with every key that is accepted.
pub(crate) fn check(headers: &HeaderMap, accepted: &[String]) -> Shown {
    let named = KEY_HEADERS.iter().flat_map(|name| headers.get_all(*name));
    let named = named.map(|value| value.as_bytes());
    judge(bearers(headers).chain(named), accepted)
}

/// Like [`check`], for the admin token, which `Authorization` alone can carry.
pub(crate) fn check_bearer(headers: &HeaderMap, accepted: &str) -> Shown {
    judge(bearers(headers), std::slice::from_ref(&accepted))
}

fn bearers(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
    })
}

/// A number for the accepted key that a request shows, which tells one client from another; 0 for
/// those of this machine that show none.
pub(crate) fn client_number(headers: &HeaderMap, accepted: &[String]) -> u64 {
    let shown = |key: &&String| check(headers, std::slice::from_ref(*key)) == Shown::Right;
    accepted.iter().find(shown).map_or(0, |key| {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish().max(1)
    })
}

/// Looks at all pairs, so that the time taken says nothing about which one was close.
fn judge<'a>(shown: impl Iterator<Item = &'a [u8]>, accepted: &[impl AsRef<str>]) -> Shown {
    let mut any = false;
    let mut right = subtle::Choice::from(0);
    for key in shown {
        any = true;
        for known in accepted {
            right |= key.ct_eq(known.as_ref().as_bytes());
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
        let keys = ["first-key".to_owned(), "second-key".to_owned()];
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
        let keys = ["first-key".to_owned(), "second-key".to_owned()];
        let number = |key: &'static str| {
            let mut map = HeaderMap::new();
            map.insert("x-api-key", HeaderValue::from_static(key));
            client_number(&map, &keys)
        };
        assert_ne!(number("first-key"), number("second-key"));
        assert_eq!((number("other"), client_number(&HeaderMap::new(), &keys)), (0, 0));
        assert_ne!(number("first-key"), 0);
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
