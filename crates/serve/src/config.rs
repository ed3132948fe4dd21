use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::http::keys::ApiKeys;
use crate::http::owner::OwnProcess;

/// What a node serves over HTTP, to whom.
#[derive(Clone)]
pub struct ServeConfig {
    /// The address to listen on; port 0 takes a free one. Anything but a loopback address needs
    /// an API key.
    pub api: SocketAddr,
    /// What `Authorization: Bearer` must carry for `/sinew/v1/...`, except to read the status.
    pub admin_token: String,
    /// Keys that clients from other machines must show for `/v1/...`. Clients on this machine
    /// (a loopback peer address, no `Forwarded` header) need none. Without any, nobody else is let
    /// in.
    pub api_keys: Option<ApiKeys>,
    /// Tells the owner's programs on this machine, which may fetch, unload and delete models, from
    /// those of its other users. Without it, the admin token does.
    pub own_process: Option<OwnProcess>,
    /// Whether clients with different keys share nothing that is cached of their prompts, so that
    /// none can tell from timing what another one's began with.
    pub cache_per_key: bool,
    /// Names by which browsers may reach this node besides `localhost` and its addresses.
    pub host_names: Vec<String>,
    /// Origins (`https://chat.example`) whose pages may call `/v1/...` from a browser.
    pub allowed_origins: Vec<String>,
    /// Called once when `POST /sinew/v1/shutdown` is accepted.
    pub on_shutdown: Option<Arc<dyn Fn() + Send + Sync>>,
    /// What the API proves itself with to other machines; they may not speak plain HTTP then.
    pub tls: Option<Tls>,
    pub limits: Limits,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Tls {
    /// The certificate, then those between it and one that clients know.
    pub cert_pem: Vec<u8>,
    pub key_pem: Vec<u8>,
}

impl ServeConfig {
    /// Loopback only, no API key, default limits.
    pub fn new(api: SocketAddr, admin_token: impl Into<String>) -> Self {
        Self {
            api,
            admin_token: admin_token.into(),
            api_keys: None,
            own_process: None,
            cache_per_key: false,
            host_names: Vec::new(),
            allowed_origins: Vec::new(),
            on_shutdown: None,
            tls: None,
            limits: Limits::default(),
        }
    }

    /// # Errors
    /// The first thing in it that would make an open or a useless server.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        if self.admin_token.len() < SECRET_BYTES_MIN {
            return Err(StartError::ShortSecret { bytes: self.admin_token.len() });
        }
        if !self.api.ip().is_loopback() && self.api_keys.is_none() {
            return Err(StartError::OpenToNetwork { ip: self.api.ip() });
        }
        Ok(())
    }
}

/// Bounds on what clients can make a node do.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections; see [`Limits::for_descriptors`].
    pub connections_max: usize,
    /// Bytes of one request's header, request line included.
    pub header_bytes_max: usize,
    /// Header lines of one request.
    pub headers_max: usize,
    /// From a connection's start, or the end of its last request, to a whole header.
    pub header_timeout: Duration,
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
    /// From the end of the header to the end of the body.
    pub body_timeout: Duration,
    /// Bytes of one request's body.
    pub body_bytes_max: usize,
    /// Bytes of memory that all requests together may take until their answers begin; more are
    /// answered 429. Two of the largest bodies fit in any case.
    pub requests_memory_max: usize,
    /// Completions in work or waiting; more are answered 429.
    pub completions_max: usize,
    /// The longest silence in an event stream; a comment is sent then. Clients and proxies give
    /// up on silent streams after 10 s to 60 s.
    pub keep_alive: Duration,
    /// How long a model may load without progress before a waiting `serve` call is told.
    pub load_stall: Duration,
    /// How long running requests may go on after a stop.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 512,
            header_bytes_max: 64 << 10,
            headers_max: 128,
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            body_bytes_max: 32 << 20,
            requests_memory_max: 512 << 20,
            completions_max: 256,
            keep_alive: Duration::from_secs(5),
            load_stall: Duration::from_secs(300),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

/// More connections take memory, and no machine has so many clients.
const CONNECTIONS_MAX: usize = 2048;

impl Limits {
    /// As many connections as a process that may have so many file descriptors open can serve: half
    /// of them are for files, workers and other nodes.
    pub fn for_descriptors(self, descriptors: usize) -> Self {
        Self { connections_max: (descriptors / 2).clamp(16, CONNECTIONS_MAX), ..self }
    }
}

/// A shorter secret can be guessed: 16 characters of hexadecimal are 64 bits.
const SECRET_BYTES_MIN: usize = 16;

/// Why the HTTP API cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "cannot listen on {addr}: {source}. Another program may hold the port; choose another \
         with --api ADDR:PORT"
    )]
    Listen { addr: SocketAddr, source: std::io::Error },
    #[error(
        "other machines can reach {ip}, and nothing says that they may. Add --lan, with which they \
         need a key, or leave the API on 127.0.0.1"
    )]
    OpenToNetwork { ip: IpAddr },
    #[error("{why}. Check the files given with --tls-cert and --tls-key")]
    Tls { why: String },
    #[error(
        "the admin token has {bytes} characters; {SECRET_BYTES_MIN} are the least. Make a longer one"
    )]
    ShortSecret { bytes: usize },
}
