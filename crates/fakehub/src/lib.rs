//! A model hub and its CDN on loopback, for tests: what the real hub answers, and on demand what
//! went wrong with real ones.
//!
//! Two servers, so that what must stay with the hub (a token) is seen if it reaches the CDN. Files
//! are told by the tree, resolved with a redirect that carries their SHA-256, and sent by range
//! from signed addresses. [`Fault`] is what goes wrong; everything that was asked is kept, and the
//! bytes of files that left the CDN are counted.
//!
//! ```no_run
//! let hub = fakehub::FakeHub::start();
//! hub.add("org/repo", "model-Q4_K_M.gguf", vec![0; 1 << 20]);
//! println!("HF_ENDPOINT={}", hub.endpoint());
//! ```

mod cdn;
mod fault;
mod http;
mod routes;
mod state;

pub use fault::{Fault, Wait};
pub use state::{Gate, Place, Seen};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use state::State;

/// A running hub with its CDN. Both end with the process; what is open is cut when this is dropped.
pub struct FakeHub {
    hub: SocketAddr,
    state: Arc<State>,
}

impl FakeHub {
    /// Starts both servers on free ports of loopback.
    ///
    /// # Panics
    /// There is no free port.
    pub fn start() -> Self {
        let state = Arc::new(State::default());
        let cdn = http::serve(state.clone(), cdn::answer);
        state.lock().cdn = Some(cdn);
        let hub = http::serve(state.clone(), routes::answer);
        Self { hub, state }
    }

    /// The address to give as `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Puts a file into a repository, replacing what is there under a new commit. Files of 1 KiB
    /// and more are large ones, with a redirect and a SHA-256.
    pub fn add(&self, repo: &str, path: &str, bytes: impl Into<Vec<u8>>) {
        self.state.lock().add(repo, path, bytes.into());
    }

    /// Who may fetch a repository's files.
    pub fn gate(&self, repo: &str, gate: Gate) {
        self.state.lock().repo(repo).gate = gate;
    }

    /// Another name of what a repository has now.
    pub fn tag(&self, repo: &str, name: &str) {
        self.state.lock().repo(repo).tags.push(name.to_owned());
    }

    /// The name that a repository had before; requests for it are sent on.
    pub fn renamed(&self, old: &str, new: &str) {
        self.state.lock().renamed.insert(old.to_owned(), new.to_owned());
    }

    /// What goes wrong from now on, beside what does already.
    pub fn fail(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// Everything that was asked, in order.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().seen.clone()
    }

    /// Bytes of files that were sent.
    pub fn bytes_sent(&self) -> u64 {
        self.state.bytes_sent.load(Ordering::SeqCst)
    }

    /// Whether a request to the CDN, or to another port than the hub's, had a token with it.
    pub fn token_leaked(&self) -> bool {
        self.seen().iter().any(|seen| seen.place == Place::Cdn && seen.token.is_some())
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
    }
}

/// The SHA-256 of some bytes, as the hub writes it.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    data_encoding::HEXLOWER.encode(digest.as_ref())
}
