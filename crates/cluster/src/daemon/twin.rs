//! Another machine with this node's identity, as clones of one image have it. Their announcements
//! carry one id; that the other one has the key too, a call to it proves.

use std::net::SocketAddr;
use std::time::Duration;

use tracing::warn;

use super::Daemon;
use crate::Error;
use crate::ways::Depth;

/// Anybody can announce this node's id, and each such address is called.
const CALL_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Twin {
    called: Option<Duration>,
    /// Where it has answered with this node's key.
    at: Option<SocketAddr>,
}

impl Daemon {
    /// Somebody announces this node's id.
    pub(super) fn sighted_myself(&mut self, addresses: &[SocketAddr]) {
        let mine = self.outside.addresses();
        let is_mine = |address: &SocketAddr| mine.iter().any(|own| own.ip() == address.ip());
        if let Some(other) = addresses.iter().find(|address| !is_mine(address)) {
            self.call_twin(*other);
        }
    }

    /// Looks whether the other one is still there.
    pub(super) fn look_at_twin(&mut self) {
        if let Some(at) = self.twin.at {
            self.call_twin(at);
        }
    }

    fn call_twin(&mut self, address: SocketAddr) {
        let now = self.now();
        if self.twin.called.is_none_or(|called| now >= called + CALL_EVERY) {
            self.twin.called = Some(now);
            self.outside.measure_way(self.me, address, Depth::Look);
        }
    }

    /// Another process has answered with this node's key, or nobody has.
    pub(super) fn twin_answered(&mut self, address: SocketAddr, is_there: bool) {
        let at = is_there.then_some(address);
        if self.twin.at != at {
            (self.twin.at, self.dirty) = (at, true);
            if let Some(notice) = self.twin_notice() {
                warn!("{notice}");
            }
        }
    }

    pub(super) fn twin_notice(&self) -> Option<String> {
        let data_dir = self.config.data_dir.clone();
        self.twin.at.map(|address| Error::Twin { address, data_dir }.to_string())
    }
}
