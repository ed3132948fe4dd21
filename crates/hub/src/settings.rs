//! Hub settings from the environment, under the names that other programs use.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ENDPOINT: &str = "https://huggingface.co";

/// The connection settings of a hub.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Scheme, host and perhaps port and path, without a trailing slash.
    pub endpoint: String,
    pub token: Option<Token>,
    /// Why downloads are forbidden, if they are.
    pub offline: Option<&'static str>,
    /// Connections to a file's server at a time.
    pub connections: usize,
    /// Bytes of one request.
    pub piece_bytes: u64,
    /// A connection that is silent for this long is given up.
    pub silence: Duration,
    /// The pause before the first retry; each further one is twice as long.
    pub pause: Duration,
    /// The most failures in a row without a byte in between.
    pub tries: u32,
}

/// A secret of the hub, and its origin. Its text is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: String,
    from: String,
}

impl Token {
    /// # Errors
    /// The text is not valid in a header.
    pub fn new(text: &str, from: impl Into<String>) -> Result<Self, String> {
        let (secret, from) = (text.trim(), from.into());
        if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{from} holds no token"));
        }
        Ok(Self { secret: secret.to_owned(), from })
    }

    /// For the hub, and for who takes it out of a text.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Its origin, such as `HF_TOKEN`.
    pub fn origin(&self) -> &str {
        &self.from
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(from {})", self.from)
    }
}

impl Default for Settings {
    /// The hub itself, without a token.
    fn default() -> Self {
        Self::read(&|_| None)
    }
}

impl Settings {
    /// Settings from this process's environment.
    pub fn from_env() -> Self {
        Self::read(&|name| std::env::var(name).ok())
    }

    /// Settings from any source of variables.
    pub fn read(var: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| var(name).filter(|value| !value.trim().is_empty());
        let endpoint = set("MODEL_ENDPOINT").or_else(|| set("HF_ENDPOINT"));
        let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
        let is_on = |name: &str| {
            let value = set(name).unwrap_or_default().to_ascii_uppercase();
            ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
        };
        let offline = if is_on("HF_HUB_OFFLINE") {
            Some("HF_HUB_OFFLINE is set")
        } else if is_on("TRANSFORMERS_OFFLINE") {
            Some("TRANSFORMERS_OFFLINE is set")
        } else {
            None
        };
        Self {
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            token: token(&set),
            offline,
            connections: 4,
            piece_bytes: 32 << 20,
            silence: Duration::from_secs(30),
            pause: Duration::from_millis(500),
            tries: 6,
        }
    }
}

/// The token from the first of the usual places that has one.
fn token(set: &dyn Fn(&str) -> Option<String>) -> Option<Token> {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(text) = set(name) {
            return Token::new(&text, name).ok();
        }
    }
    let path = match set("HF_TOKEN_PATH") {
        Some(path) => PathBuf::from(path),
        None => hf_home(set)?.join("token"),
    };
    let text = std::fs::read_to_string(&path).ok()?;
    Token::new(&text, shown(&path)).ok()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn hf_home(set: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    if let Some(home) = set("HF_HOME") {
        return Some(home.into());
    }
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(set(store::HOME)?).join(".cache")));
    Some(cache?.join("huggingface"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Settings {
        let var = |name: &str| {
            let found = vars.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::read(&var)
    }

    #[test]
    fn endpoints_and_offline() {
        assert_eq!(read(&[]).endpoint, ENDPOINT);
        let mirror = read(&[("HF_ENDPOINT", "https://hf-mirror.com/"), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!((mirror.endpoint.as_str(), mirror.offline), ("https://hf-mirror.com", None));
        for value in ["1", "on", "Yes", "TRUE"] {
            assert_eq!(
                read(&[("HF_HUB_OFFLINE", value)]).offline,
                Some("HF_HUB_OFFLINE is set"),
                "{value}"
            );
        }
        assert!(read(&[("TRANSFORMERS_OFFLINE", "1")]).offline.is_some());
    }

    #[test]
    fn a_token_is_found_in_the_usual_places_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        std::fs::write(dir.path().join("token"), "hf_home\n").unwrap();
        std::fs::write(dir.path().join("other"), "hf_other").unwrap();
        let other = dir.path().join("other");
        let other = other.to_str().unwrap();
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[("HF_TOKEN", "hf_a"), ("HUGGING_FACE_HUB_TOKEN", "hf_b")], "hf_a"),
            (&[("HUGGING_FACE_HUB_TOKEN", " hf_b "), ("HF_HOME", home)], "hf_b"),
            (&[("HF_TOKEN_PATH", other), ("HF_HOME", home)], "hf_other"),
            (&[("HF_HOME", home), ("HF_TOKEN", "")], "hf_home"),
        ];
        for (vars, want) in cases {
            let settings = read(vars);
            assert_eq!(settings.token.as_ref().unwrap().secret(), *want);
            assert!(!format!("{settings:?}").contains(want));
        }
        assert_eq!(read(&[(store::HOME, home)]).token, None);
        assert_eq!(read(&[("HF_TOKEN", "two words\nand a line")]).token, None);
    }
}
