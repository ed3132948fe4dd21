//! The names that users type for a model.
//!
//! | typed | means |
//! |---|---|
//! | `llama3.2`, `llama3.2:1b`, `qwen3:8b-q8_0` | the catalogue |
//! | `org/repo`, `org/repo:Q4_K_M`, `org/repo:FILE.gguf` | a repository of the hub |
//! | `org/repo@REVISION:QUANT` | the same at a branch, tag or commit other than `main` |
//! | `hf.co/org/repo:QUANT`, `https://huggingface.co/org/repo/blob/main/FILE.gguf` | the same |
//! | `https://host/path/FILE.gguf` | that file |
//!
//! The caller, which knows the disk, looks for paths before names.

use std::fmt;
use std::path::PathBuf;

use crate::http::decode;
use crate::{HubError, catalogue};

/// Longer ones are nonsense; the hub allows 96 characters for each half.
const NAME_CHARS_MAX: usize = 512;
/// Well-known hosts of the hub, whatever the endpoint is.
const HUB_HOSTS: &[&str] = &["hf.co", "huggingface.co", "www.huggingface.co"];

/// A model by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    Repo(RepoName),
    /// A file at any address.
    Url(String),
}

/// A repository of the hub, and the requested one of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoName {
    /// `org/repo`.
    pub repo: String,
    pub revision: Option<String>,
    pub want: Want,
}

/// The requested one of a repository's models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// The best one that fits.
    Any,
    /// A quantisation, in capitals.
    Quant(String),
    /// A file by its path.
    File(String),
}

impl Name {
    /// The path of a downloaded file below a folder of models; only for addresses.
    pub fn place(&self) -> Option<PathBuf> {
        match self {
            Self::Url(url) => crate::plan::place_of(url),
            Self::Repo(_) => None,
        }
    }

    /// # Errors
    /// It is not a valid name, or a short name that is not in the catalogue.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let wrong =
            |why: &str| HubError::Name { name: shown(text).to_string(), why: why.to_owned() };
        if text.is_empty() || text.chars().count() > NAME_CHARS_MAX {
            return Err(wrong("it must have from 1 to 512 characters"));
        }
        // Only names of files may contain spaces.
        let may_have_spaces = text.contains('/') && !text.contains("://");
        let is_wrong = |c: char| c.is_whitespace() && !(c == ' ' && may_have_spaces);
        if text.trim() != text || text.chars().any(|c| c.is_control() || is_wrong(c)) {
            return Err(wrong("it has spaces or control characters"));
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return match scheme {
                "http" | "https" => address(text, rest).ok_or_else(|| {
                    wrong("an address must lead to a .gguf file, or to a repository of the hub")
                }),
                "hf" => repo(rest.trim_start_matches('/'))
                    .map(Self::Repo)
                    .ok_or_else(|| wrong("after hf:// there must be org/repo, and perhaps :QUANT")),
                _ => Err(wrong("addresses begin with https://")),
            };
        }
        let on_hub = HUB_HOSTS.iter().find_map(|host| text.strip_prefix(host)?.strip_prefix('/'));
        if let Some(rest) = on_hub {
            return page(rest).or_else(|| repo(rest)).map(Self::Repo).ok_or_else(|| {
                wrong("after the hub's name there must be org/repo, and perhaps :QUANT")
            });
        }
        if text.contains('/') {
            let found = repo(text).map(Self::Repo);
            return found.ok_or_else(|| wrong("a repository is org/repo, and perhaps :QUANT"));
        }
        catalogue::find(text).map(Self::Repo)
    }
}

/// `org/repo`, `org/repo:QUANT`, `org/repo@revision:FILE.gguf`.
fn repo(text: &str) -> Option<RepoName> {
    let (name, tag) = text.split_once(':').map_or((text, None), |(name, tag)| (name, Some(tag)));
    let (name, revision) = match name.split_once('@') {
        Some((name, revision)) => (name, Some(revision)),
        None => (name, None),
    };
    let want = match tag {
        None | Some("latest") => Want::Any,
        Some("") => return None,
        Some(tag) if is_gguf(tag) => Want::File(safe_path(tag)?),
        Some(tag) => Want::Quant(tag.to_ascii_uppercase()),
    };
    let revision = match revision {
        Some(revision) => named_revision(revision)?,
        None => None,
    };
    Some(RepoName { repo: repo_name(name)?, revision, want })
}

/// A page of the hub: `org/repo/blob/REVISION/FILE.gguf`, or `resolve` for `blob`.
fn page(text: &str) -> Option<RepoName> {
    let text = text.split(['?', '#']).next()?.trim_end_matches('/');
    let mut parts = text.splitn(5, '/');
    let name = repo_name(&format!("{}/{}", parts.next()?, parts.next()?))?;
    let Some(kind) = parts.next() else {
        return Some(RepoName { repo: name, revision: None, want: Want::Any });
    };
    let revision = named_revision(&decode(parts.next()?))?;
    let want = match (kind, parts.next()) {
        ("tree", None) => Want::Any,
        ("blob" | "resolve", Some(file)) if is_gguf(file) => Want::File(safe_path(&decode(file))?),
        _ => return None,
    };
    Some(RepoName { repo: name, revision, want })
}

/// A valid revision; `Some(None)` for `main`, the default.
fn named_revision(text: &str) -> Option<Option<String>> {
    let revision = safe_path(text)?;
    Some((revision != "main").then_some(revision))
}

fn address(text: &str, rest: &str) -> Option<Name> {
    let (host, path) = rest.split_once('/')?;
    if HUB_HOSTS.contains(&host) {
        return page(path).or_else(|| repo(path)).map(Name::Repo);
    }
    let file = path.split(['?', '#']).next()?;
    let is_file = !host.is_empty() && !host.contains('@') && is_gguf(file);
    is_file.then(|| Name::Url(text.to_owned()))
}

fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf")
}

/// Two halves of letters, digits and `-_.`, the hub's rule.
pub(crate) fn repo_name(text: &str) -> Option<String> {
    let (owner, name) = text.split_once('/')?;
    let is_half = |half: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !half.is_empty() && !half.starts_with('.') && half.chars().all(allowed)
    };
    (is_half(owner) && is_half(name)).then(|| text.to_owned())
}

/// A path that stays below its folder, with characters that are safe in any file system.
pub(crate) fn safe_path(text: &str) -> Option<String> {
    const BYTES_MAX: usize = 1024;
    let is_name = |name: &str| {
        let harms = |c: char| c.is_control() || "\\:*?\"<>|".contains(c);
        !name.is_empty() && !name.starts_with('.') && !name.chars().any(harms)
    };
    (text.len() <= BYTES_MAX && text.split('/').all(is_name)).then(|| text.to_owned())
}

/// Untrusted text without control characters.
pub(crate) fn shown(text: &str) -> impl fmt::Display {
    const CHARS_MAX: usize = 200;
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(CHARS_MAX).map(clean).collect::<String>()
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repo(repo) => repo.fmt(f),
            Self::Url(url) => f.write_str(url),
        }
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.want {
            Want::Any => Ok(()),
            Want::Quant(tag) | Want::File(tag) => write!(f, ":{tag}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type() {
        let cases = [
            ("Qwen/Qwen3-8B-GGUF", "Qwen/Qwen3-8B-GGUF"),
            ("Qwen/Qwen3-8B-GGUF:q4_k_m", "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
            ("Qwen/Qwen3-8B-GGUF:latest", "Qwen/Qwen3-8B-GGUF"),
            ("hf.co/org/repo:Q8_0", "org/repo:Q8_0"),
            ("huggingface.co/org/repo", "org/repo"),
            ("hf://org/repo:f.gguf", "org/repo:f.gguf"),
            ("https://huggingface.co/org/repo", "org/repo"),
            ("https://hf.co/org/repo/tree/main", "org/repo"),
            ("https://huggingface.co/o/r/blob/main/sub/F-Q8_0.gguf?x=1", "o/r:sub/F-Q8_0.gguf"),
            ("https://huggingface.co/o/r/resolve/main/a%20b.gguf", "o/r:a b.gguf"),
            ("org/repo:sub/a b.gguf", "org/repo:sub/a b.gguf"),
            ("org/repo@main:Q8_0", "org/repo:Q8_0"),
            ("https://huggingface.co/o/r/resolve/abc/F.gguf", "o/r@abc:F.gguf"),
            ("http://nas:8080/m/F.gguf", "http://nas:8080/m/F.gguf"),
            ("org/repo@v1:Q8_0", "org/repo@v1:Q8_0"),
        ];
        for (typed, meant) in cases {
            assert_eq!(Name::parse(typed).unwrap().to_string(), meant, "{typed}");
        }
    }

    #[test]
    fn what_is_no_name() {
        for typed in [
            "",
            "../../etc/passwd",
            "a/../b",
            "/etc/passwd",
            "./x.gguf",
            "org/repo:",
            "org/repo:../x.gguf",
            "org/re po",
            "org/repo\0",
            "a/b/c",
            "C:\\models\\x",
            "ftp://host/x.gguf",
            "https://host/index.html",
            "https://user:password@host/x.gguf",
            "https://hf.co/org/repo/blob/main/../x.gguf",
            "file:///etc/passwd",
            &"x".repeat(5000),
        ] {
            assert!(Name::parse(typed).is_err(), "{typed}");
        }
        let text = Name::parse("a\u{1b}[31mb").unwrap_err().to_string();
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
