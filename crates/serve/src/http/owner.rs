//! Whether a request comes from the node's owner. It determines what the request may do to models
//! on disk and in memory.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use cluster::on_thread;

use super::Ends;
use super::error::ApiError;
use super::guard::is_local;
use super::keys::{Shown, check_bearer};
use crate::config::ServeConfig;

/// Whether the client's end of a connection on this machine, `(client, server)`, belongs to a
/// process of the user that runs this node. It may read files, and returns false if it cannot
/// determine the process.
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

/// The evidence that a request comes from the owner.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Claim {
    Token,
    /// It comes from a program on this machine, which may be the owner's.
    Program(Ends),
    Nothing,
}

impl Claim {
    /// A browser is its user's program, but the page in it is not: pages need the token.
    pub fn of(config: &ServeConfig, ends: Ends, headers: &HeaderMap) -> Self {
        let is_page =
            headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
        if check_bearer(headers, &config.admin_token) == Shown::Right {
            Self::Token
        } else if is_local(ends, headers) && !is_page {
            Self::Program(ends)
        } else {
            Self::Nothing
        }
    }

    /// For what a page of this node may do without the token: the guard refuses those of others.
    pub fn of_page(config: &ServeConfig, ends: Ends, headers: &HeaderMap) -> Self {
        match Self::of(config, ends, headers) {
            Self::Nothing if is_local(ends, headers) => Self::Program(ends),
            claim => claim,
        }
    }

    pub async fn is_owners(self, config: &ServeConfig) -> bool {
        match (self, config.own_process.clone()) {
            (Self::Token, _) => true,
            (Self::Program(ends), Some(OwnProcess(is_own))) => {
                let look = move || is_own(ends.client, ends.server);
                on_thread(look).await.unwrap_or(false)
            }
            (Self::Program(_) | Self::Nothing, _) => false,
        }
    }
}

/// 403: reserved to the owner.
pub(crate) fn not_the_owners(what: &str) -> ApiError {
    let message = format!(
        "{what} by the node's owner only: from a program of the user who runs it, on its own \
         machine and not in a browser, or with the admin token as \"Authorization: Bearer TOKEN\""
    );
    ApiError::forbidden("not_the_owner", message)
}
