//! The listing of a repository: its commit, and each file's length and SHA-256, before a byte is
//! fetched.

use std::io::Read;

use serde::Deserialize;
use serde_json::Value;
use ureq::Body;
use ureq::http::Response;

use crate::http::{Address, encode};
use crate::name::{safe_path, shown};
use crate::pull::Call;
use crate::{HubError, RepoName};

/// A page of a tree has a thousand entries; no repository has a hundred such pages.
const PAGES_MAX: usize = 100;
/// The longest answer of the API.
const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path within the repository.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// In lower case; small files have none.
    pub sha256: Option<String>,
}

/// A repository at one commit, which never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Refs {
    #[serde(default)]
    branches: Vec<Ref>,
    #[serde(default)]
    tags: Vec<Ref>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ref {
    name: String,
    target_commit: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: Option<String>,
    sha256: Option<String>,
    size: Option<u64>,
}

impl Call<'_> {
    /// Lists a repository at the present commit of its revision (by default `main`).
    pub(crate) fn list(&self, name: &RepoName) -> Result<Listing, HubError> {
        let revision = name.revision.as_deref().unwrap_or("main");
        let base = format!("{}/api/models/{}", self.endpoint(), name.repo);
        let refs: Refs = self.json(&format!("{base}/refs"), &name.repo, "its branches")?.0;
        let all = refs.branches.iter().chain(&refs.tags);
        let found = all.into_iter().find(|one| one.name == revision);
        let commit = found.map_or(revision, |one| one.target_commit.as_str()).to_owned();
        let mut files = Vec::new();
        let mut page = Some(format!("{base}/tree/{}?recursive=true", encode(&commit)));
        for _ in 0..PAGES_MAX {
            let Some(address) = page else { break };
            let what = format!("revision {}", shown(revision));
            let (entries, next): (Vec<Entry>, _) = self.json(&address, &name.repo, &what)?;
            files.extend(entries.into_iter().filter_map(Entry::file));
            page = next;
        }
        Ok(Listing { commit, files })
    }

    /// One answer of the API, and the address of the next page.
    fn json<T: for<'de> Deserialize<'de>>(
        &self,
        address: &str,
        repo: &str,
        what: &str,
    ) -> Result<(T, Option<String>), HubError> {
        let host = self.host();
        let nonsense = |why: String| HubError::Nonsense {
            host: host.clone(),
            what: format!("the list of {repo}"),
            why,
        };
        let endpoint = || self.endpoint().to_string();
        let start =
            Address::parse(address).ok_or_else(|| HubError::Endpoint { endpoint: endpoint() })?;
        let (response, at) = self.settled(start, repo, what)?;
        if is_page(&response) {
            return Err(HubError::Page { host, what: format!("the list of {repo}") });
        }
        let next = next_page(&response, &at);
        let mut text = Vec::new();
        let reader = response.into_body().into_reader().take(ANSWER_BYTES_MAX);
        { reader }.read_to_end(&mut text).map_err(|error| nonsense(error.to_string()))?;
        let value: Value =
            serde_json::from_slice(&text).map_err(|error| nonsense(error.to_string()))?;
        let value = T::deserialize(value).map_err(|error| nonsense(error.to_string()))?;
        Ok((value, next))
    }
}

impl Entry {
    /// Leaves out paths that could lead elsewhere, as if they did not exist.
    fn file(self) -> Option<RemoteFile> {
        if self.kind != "file" {
            return None;
        }
        let path = safe_path(&self.path)?;
        let size = self.lfs.as_ref().and_then(|lfs| lfs.size).unwrap_or(self.size);
        let is_sha =
            |text: &String| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let sha256 = self.lfs.and_then(|lfs| lfs.oid.filter(is_sha).or(lfs.sha256.filter(is_sha)));
        Some(RemoteFile { path, size, sha256: sha256.map(|sha| sha.to_ascii_lowercase()) })
    }
}

pub(crate) fn is_page(response: &Response<Body>) -> bool {
    let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/html"))
}

/// `<ADDRESS>; rel="next"`. If a mirror names the real hub here, the mirror is still used.
fn next_page(response: &Response<Body>, at: &Address) -> Option<String> {
    let link = response.headers().get("link")?.to_str().ok()?;
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let address = next.split('<').nth(1)?.split('>').next()?;
    let rest = match address.split_once("://") {
        Some((_, rest)) => &rest[rest.find('/')?..],
        None => address,
    };
    Some(at.join(rest)?.url())
}
