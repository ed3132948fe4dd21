//! Whether a request is the node's owner's: what it may do to models on the disk and in memory.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};

use super::Ends;
use super::guard::is_local;
use super::keys::{Shown, check_bearer};
use crate::config::ServeConfig;

/// Whether the client's end of a connection on this machine, `(client, server)`, is a process of
/// the user who runs this node. It may look at files, and says no where it cannot tell.
#[derive(Clone)]
pub struct OwnProcess(Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>);

impl OwnProcess {
    pub fn new(is_own: impl Fn(SocketAddr, SocketAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_own))
    }
}

impl fmt::Debug for OwnProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OwnProcess")
    }
}

/// Whether a request shows the admin token, or comes from a program of the owner's on this machine.
/// A browser is such a program and the page in it is not, so pages need the token.
pub(crate) async fn is_owner(config: &ServeConfig, ends: Ends, headers: &HeaderMap) -> bool {
    if check_bearer(headers, &config.admin_token) == Shown::Right {
        return true;
    }
    let is_page = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    let Some(OwnProcess(is_own)) = config.own_process.clone() else { return false };
    if is_page || !is_local(ends, headers) {
        return false;
    }
    let is_own = tokio::task::spawn_blocking(move || is_own(ends.client, ends.server));
    is_own.await.unwrap_or(false)
}
