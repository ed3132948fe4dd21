//! A node's data directory, and the two files by which commands find the running node.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{CliError, Doing};

/// Says that a node runs and where; removed when it ends.
const DAEMON_FILE: &str = "daemon.json";
/// What proves to the node's API that the caller may read its data directory.
const ADMIN_TOKEN_FILE: &str = "admin.token";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Daemon {
    pub pid: u32,
    pub api: SocketAddr,
    pub listen: SocketAddr,
}

#[derive(Debug, Clone)]
pub struct DataDir(PathBuf);

impl DataDir {
    /// The directory that was asked for, or this platform's place for such data.
    pub fn new(asked: Option<PathBuf>) -> Self {
        let from_env = || std::env::var_os("SINEW_DATA_DIR").map(PathBuf::from);
        Self(asked.or_else(from_env).unwrap_or_else(default_dir))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it, for this user's eyes only.
    pub fn create(&self) -> Result<(), CliError> {
        let make = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        make.doing(format!("cannot make {}", self.0.display()))
    }

    /// The node that says it runs here.
    pub fn daemon(&self) -> Option<Daemon> {
        serde_json::from_slice(&fs::read(self.0.join(DAEMON_FILE)).ok()?).ok()
    }

    /// Tells other commands where this node is. Written in one step, so that nobody reads half.
    pub fn announce(&self, daemon: &Daemon) -> Result<(), CliError> {
        let text = serde_json::to_vec_pretty(daemon).expect("numbers and addresses are JSON");
        let temporary = self.0.join("daemon.json.new");
        let write = write_private(&temporary, &text);
        let write = write.and_then(|()| fs::rename(&temporary, self.0.join(DAEMON_FILE)));
        write.doing("cannot announce the node")
    }

    /// Takes the announcement back.
    pub fn withdraw(&self) {
        // A file that cannot be removed is stale, and readers find out by asking the node.
        let _ = fs::remove_file(self.0.join(DAEMON_FILE));
    }

    /// The running node's admin token.
    pub fn admin_token(&self) -> Option<String> {
        Some(fs::read_to_string(self.0.join(ADMIN_TOKEN_FILE)).ok()?.trim().to_owned())
    }

    /// The admin token, made at the first start.
    pub fn make_admin_token(&self) -> Result<String, CliError> {
        let path = self.0.join(ADMIN_TOKEN_FILE);
        if let Ok(text) = fs::read_to_string(&path)
            && text.trim().len() >= 32
        {
            return Ok(text.trim().to_owned());
        }
        let secret = random_hex().doing("the system gives no random numbers")?;
        write_private(&path, secret.as_bytes())
            .doing(format!("cannot write {}", path.display()))?;
        Ok(secret)
    }
}

/// Writes a file that this user alone may read.
pub fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

/// 32 random bytes in hexadecimal.
pub fn random_hex() -> std::io::Result<String> {
    let random = ring::rand::generate::<[u8; 32]>(&ring::rand::SystemRandom::new());
    let bytes = random.map_err(|_| std::io::Error::other("no source of randomness"))?.expose();
    Ok(data_encoding::HEXLOWER.encode(&bytes))
}

fn default_dir() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(|| ".".into());
    if cfg!(target_os = "macos") {
        return home.join("Library/Application Support/Sinew");
    }
    let xdg = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    xdg.unwrap_or_else(|| home.join(".local/share")).join("sinew")
}
