//! A model hub and its CDN on loopback, for tests: the real hub's answers, and on demand the faults
//! of real ones.
//!
//! Two servers, so that a token that leaks from the hub to the CDN is seen. The tree lists files,
//! `resolve` redirects with their SHA-256, and the CDN sends ranges from signed addresses.
//! [`Fault`] selects a fault; all requests are recorded, and the bytes of files that left the CDN
//! are counted.
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

/// A running hub with its CDN. Both end with the process; open connections are cut on drop.
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

    /// The value for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Puts a file into a repository, in place of any old one, under a new commit. Files from 1 KiB
    /// are large ones, with a redirect and a SHA-256.
    pub fn add(&self, repo: &str, path: &str, bytes: impl Into<Vec<u8>>) {
        self.state.lock().add(repo, path, bytes.into());
    }

    /// Sets the access rule of a repository's files.
    pub fn gate(&self, repo: &str, gate: Gate) {
        self.state.lock().repo(repo).gate = gate;
    }

    /// Adds a tag for a repository's present commit.
    pub fn tag(&self, repo: &str, name: &str) {
        self.state.lock().repo(repo).tags.push(name.to_owned());
    }

    /// Renames a repository; requests for the old name are redirected.
    pub fn renamed(&self, old: &str, new: &str) {
        self.state.lock().renamed.insert(old.to_owned(), new.to_owned());
    }

    /// Activates a fault, in addition to the active ones.
    pub fn fail(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// All requests, in order.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().seen.clone()
    }

    /// Sent bytes of files.
    pub fn bytes_sent(&self) -> u64 {
        self.state.bytes_sent.load(Ordering::SeqCst)
    }

    /// Whether a request to the CDN, or to another port than the hub's, carried a token.
    pub fn token_leaked(&self) -> bool {
        self.seen().iter().any(|seen| seen.place == Place::Cdn && seen.token.is_some())
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
    }
}

/// The SHA-256 of bytes, in the hub's format.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    data_encoding::HEXLOWER.encode(digest.as_ref())
}
