//! Detects another machine with this node's identity, as in clones of one disk image. Both announce
//! the same id. A call to the other machine proves that it has the key too.

use std::net::SocketAddr;
use std::time::Duration;

use tracing::warn;

use crate::Error;
use crate::context::Context;
use crate::edge::Depth;

/// Any machine can announce this node's id, and each such address is called.
const CALL_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Twin {
    called: Option<Duration>,
    /// The address that has answered with this node's key.
    at: Option<SocketAddr>,
}

impl Twin {
    fn call(&mut self, ctx: &mut Context, address: SocketAddr) {
        let now = ctx.now();
        if self.called.is_none_or(|called| now >= called + CALL_EVERY) {
            self.called = Some(now);
            ctx.outside.measure_way(ctx.me, address, Depth::Look);
        }
    }

    /// A machine announces this node's id at these addresses.
    pub(crate) fn sighted(&mut self, ctx: &mut Context, addresses: &[SocketAddr]) {
        let mine = ctx.outside.addresses();
        let is_mine = |address: &SocketAddr| mine.iter().any(|own| own.ip() == address.ip());
        if let Some(other) = addresses.iter().find(|address| !is_mine(address)) {
            self.call(ctx, *other);
        }
    }

    /// Calls a known twin again.
    pub(crate) fn look(&mut self, ctx: &mut Context) {
        if let Some(at) = self.at {
            self.call(ctx, at);
        }
    }

    /// Records whether another process answered with this node's key.
    pub(crate) fn answered(&mut self, ctx: &mut Context, address: SocketAddr, is_there: bool) {
        let at = is_there.then_some(address);
        if self.at != at {
            self.at = at;
            ctx.changed();
            if let Some(notice) = self.notice(ctx) {
                warn!("{notice}");
            }
        }
    }

    pub(crate) fn notice(&self, ctx: &Context) -> Option<String> {
        let data_dir = ctx.config.data_dir.clone();
        self.at.map(|address| Error::Twin { address, data_dir }.to_string())
    }
}
