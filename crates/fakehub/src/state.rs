//! The hub's content, and the recorded requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fault::Fault;
use crate::sha256;

/// A file of this size and more is kept outside of git, and sent by the CDN.
pub(crate) const LARGE_BYTES: usize = 1 << 10;

/// The access rule of a repository's files. The list is public, except for a private repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Gate {
    #[default]
    Open,
    /// Clients with this token; without a token 401, with another token 403.
    Token(String),
    /// The repository is hidden from clients without this token.
    Private(String),
}

/// The server of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Hub,
    Cdn,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub place: Place,
    /// The path with its query.
    pub path: String,
    pub range: Option<String>,
    /// The token in `Authorization: Bearer`.
    pub token: Option<String>,
}

#[derive(Default)]
pub(crate) struct State {
    inner: Mutex<Inner>,
    pub bytes_sent: AtomicU64,
    pub ended: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub cdn: Option<SocketAddr>,
    repos: BTreeMap<String, Repo>,
    pub renamed: BTreeMap<String, String>,
    pub faults: Vec<Fault>,
    pub seen: Vec<Seen>,
    /// The number of uses of each signed address.
    pub uses: BTreeMap<String, u32>,
    /// The number of signatures issued.
    pub signed: u32,
    pub cdn_requests: u32,
}

#[derive(Default)]
pub(crate) struct Repo {
    pub gate: Gate,
    pub files: BTreeMap<String, Arc<Vec<u8>>>,
    /// Tags of the commit of `main`.
    pub tags: Vec<String>,
    changes: u32,
}

impl State {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    pub fn repos(&self) -> impl Iterator<Item = (&String, &Repo)> {
        self.repos.iter()
    }

    pub fn repo(&mut self, name: &str) -> &mut Repo {
        self.repos.entry(name.to_owned()).or_default()
    }

    pub fn find(&self, name: &str) -> Option<&Repo> {
        self.repos.get(name)
    }

    pub fn add(&mut self, repo: &str, path: &str, bytes: Vec<u8>) {
        let repo = self.repo(repo);
        repo.changes += 1;
        repo.files.insert(path.to_owned(), Arc::new(bytes));
    }

    /// Uses up one of a fault's times, if it is active.
    pub fn strike(&mut self, is_it: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let at = self.faults.iter().position(is_it)?;
        let fault = self.faults[at].clone();
        let times = match &mut self.faults[at] {
            Fault::Cut { times, .. }
            | Fault::TooMany { times, .. }
            | Fault::Unavailable { times }
            | Fault::Silent { times, .. } => times,
            _ => return Some(fault),
        };
        *times = times.saturating_sub(1);
        if *times == 0 {
            self.faults.remove(at);
        }
        Some(fault)
    }

    pub fn has(&self, is_it: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(is_it)
    }
}

impl Repo {
    /// The commit of `main`: 40 hexadecimal digits that differ with every change.
    pub fn commit(&self) -> String {
        sha256(&self.changes.to_le_bytes())[..40].to_owned()
    }
}
