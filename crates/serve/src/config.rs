use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::http::keys::ApiKeys;
use crate::http::owner::OwnProcess;
use crate::pictures::FetchPicture;

/// What a node serves over HTTP, and to which clients.
#[derive(Clone)]
pub struct ServeConfig {
    /// The address to listen on; port 0 takes a free one. Any address but a loopback one requires
    /// an API key.
    pub api: SocketAddr,
    /// The value of `Authorization: Bearer` for `/sinew/v1/...`, except for reading the status.
    pub admin_token: String,
    /// Keys that clients on other machines must send for `/v1/...`. Clients on this machine (a
    /// loopback peer address, no `Forwarded` header) need none. Without keys, only clients on this
    /// machine are admitted.
    pub api_keys: Option<ApiKeys>,
    /// Makes an API key of this name for a browser that is paired by a number, of the owner or of
    /// somebody else ([`ApiKey::is_owners`](crate::ApiKey)); its error says why it cannot.
    pub make_key: Option<MakeKey>,
    /// Distinguishes the owner's programs on this machine, which may fetch, unload and delete
    /// models, from those of other users. Without it, the admin token is required.
    pub own_process: Option<OwnProcess>,
    /// Whether clients with different keys use separate prompt caches, so that response times
    /// reveal nothing about another client's prompts; without it, as soon as there are two keys.
    pub cache_per_key: Option<bool>,
    /// Whether a program on this machine may name any model: as long as one is served, it answers
    /// under every name.
    pub any_name: bool,
    /// Whether lists of models have, for programs on this machine, those on the nodes' disks that a
    /// request would load.
    pub lists_unloaded: bool,
    /// The folder of the owner's conversations, and below it of those with an API key; without it
    /// none are kept.
    pub chats: Option<PathBuf>,
    /// Fetches pictures that requests name by address.
    pub fetch_picture: FetchPicture,
    /// Host names by which browsers may reach this node, besides `localhost` and its addresses.
    pub host_names: Vec<String>,
    /// Origins (`https://chat.example`) whose pages may call `/v1/...` from a browser.
    pub allowed_origins: Vec<String>,
    /// Called once when `POST /sinew/v1/shutdown` is accepted.
    pub on_shutdown: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Sets what the node logs from now on, by `POST /sinew/v1/log-level`; its error says why a
    /// level cannot be set.
    pub set_log_level: Option<SetLogLevel>,
    /// Free space where downloads go, for `/metrics`.
    pub disk_free_bytes: Option<DiskFreeBytes>,
    /// The API's certificate for other machines; with it they cannot use plain HTTP.
    pub tls: Option<Tls>,
    pub limits: Limits,
}

pub type MakeKey = Arc<dyn Fn(&str, bool) -> Result<String, String> + Send + Sync>;
pub type SetLogLevel = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;
pub type DiskFreeBytes = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Tls {
    /// The certificate, followed by the intermediate certificates up to one that clients trust.
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
            make_key: None,
            own_process: None,
            cache_per_key: None,
            any_name: false,
            lists_unloaded: true,
            chats: None,
            fetch_picture: FetchPicture::default(),
            host_names: Vec::new(),
            allowed_origins: Vec::new(),
            on_shutdown: None,
            set_log_level: None,
            disk_free_bytes: None,
            tls: None,
            limits: Limits::default(),
        }
    }

    /// # Errors
    /// The first setting that would make the server open or useless.
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

/// Limits on the work that clients can cause.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections; see [`Limits::for_descriptors`].
    pub connections_max: usize,
    /// Bytes of one request's header, including the request line.
    pub header_bytes_max: usize,
    /// Header lines of one request.
    pub headers_max: usize,
    /// From the start of a connection, or the end of its last request, to a complete header.
    pub header_timeout: Duration,
    /// How long a client may read nothing of its answer.
    pub write_timeout: Duration,
    /// From the end of the header to the end of the body.
    pub body_timeout: Duration,
    /// Bytes of one request's body.
    pub body_bytes_max: usize,
    /// Bytes of memory for all requests together until their answers start; requests beyond it are
    /// answered 429. Two of the largest bodies always fit.
    pub requests_memory_max: usize,
    /// Completions in progress or waiting; more are answered 429.
    pub completions_max: usize,
    /// The longest silence in an event stream, after which a comment is sent. Clients and proxies
    /// give up on silent streams after 10 s to 60 s.
    pub keep_alive: Duration,
    /// How long a model may load without progress before a waiting `serve` call is notified.
    pub load_stall: Duration,
    /// How long running requests may continue after a stop.
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

/// More connections cost memory, and no machine has that many clients.
const CONNECTIONS_MAX: usize = 2048;

impl Limits {
    /// Sets `connections_max` for a process with this limit of file descriptors: half of them are
    /// reserved for files, workers and other nodes.
    pub fn for_descriptors(self, descriptors: usize) -> Self {
        Self { connections_max: (descriptors / 2).clamp(16, CONNECTIONS_MAX), ..self }
    }
}

/// A shorter secret can be guessed: 16 characters of hexadecimal are 64 bits.
const SECRET_BYTES_MIN: usize = 16;

/// Why the HTTP API cannot start.
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
