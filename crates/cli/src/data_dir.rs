//! A node's data directory, and the two files by which commands find the running node.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use store::{identity, private};

use crate::error::{CliError, Doing};
use crate::{api_keys, args, hints};

/// Announces a running node and its address; removed when the node ends.
const DAEMON_FILE: &str = cluster::ANNOUNCEMENT;
/// Proves to the node's API that the caller can read its data directory.
const ADMIN_TOKEN_FILE: &str = "admin.token";

/// The node refuses a symbolic link in place of one of these files: its maker could read or
/// replace the file.
const PRIVATE_FILES: [&str; 5] =
    [DAEMON_FILE, ADMIN_TOKEN_FILE, api_keys::FILE, api_keys::LOCK, LOG_FILE];
const LOG_FILE: &str = "logs/sinew.log";
/// The folder of conversations, those of the page and those of `sinew run`.
pub const CHATS: &str = "chats";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Daemon {
    pub pid: u32,
    pub api: SocketAddr,
    pub listen: SocketAddr,
    /// The directory of the node, so that a copy of this file does not count.
    pub dir: DirId,
    /// Where other machines reach the API, if they may.
    #[serde(default)]
    pub lan: Vec<String>,
    /// Whether other machines have to speak TLS.
    #[serde(default)]
    pub tls: bool,
}

/// Identifies a directory and distinguishes it from its copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirId {
    device: u64,
    inode: u64,
}

/// A node's directory.
#[derive(Debug, Clone)]
pub struct DataDir {
    path: PathBuf,
}

impl DataDir {
    /// The given directory, or the platform's default.
    ///
    /// # Errors
    /// None is given, and the platform has no default.
    pub fn find(asked: &args::DataDir) -> Result<Self, CliError> {
        if let Some(path) = &asked.data_dir {
            hints::use_directory(&path.to_string_lossy());
            return Ok(Self::at(path.clone()));
        }
        let path = set("SINEW_DATA_DIR").or_else(default_dir).ok_or(CliError::NoHome)?;
        Ok(Self { path })
    }

    /// Exactly this directory.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identifies this directory and distinguishes it from its copies.
    pub fn id(&self) -> Result<DirId, CliError> {
        let (device, inode) =
            identity(&self.path).doing(format!("cannot read {}", self.path.display()))?;
        Ok(DirId { device, inode })
    }

    /// Creates it with access only for this user.
    ///
    /// # Errors
    /// It cannot be created, belongs to another user, or has links in place of secret files.
    pub fn create(&self) -> Result<(), CliError> {
        let make = private::folder(&self.path);
        let check = || Ok(cluster::check_data_dir(&self.path, &PRIVATE_FILES)?);
        make.map_err(|error| {
            CliError::Usage(format!(
                "cannot make the data directory {}: {error}. Name another one with --data-dir DIR, \
                 or in SINEW_DATA_DIR",
                self.path.display()
            ))
        })
        .and_then(|()| check())
    }

    /// The announced node. An announcement in a copied directory does not count, and neither does
    /// that of a killed node: another user's program may have its port now.
    pub fn daemon(&self) -> Option<Daemon> {
        if !cluster::is_in_use(&self.path) {
            return None;
        }
        let file = fs::read(self.path.join(DAEMON_FILE)).ok()?;
        let daemon: Daemon = serde_json::from_slice(&file).ok()?;
        (daemon.dir == self.id().ok()?).then_some(daemon)
    }

    /// Announces this node to other commands. Written atomically.
    pub fn announce(&self, daemon: &Daemon) -> Result<(), CliError> {
        let text = serde_json::to_vec_pretty(daemon).expect("numbers and addresses are JSON");
        let path = self.path.join(DAEMON_FILE);
        let written = match replace_private(&path, &text) {
            // The old file's space is available. A reader of half a file finds no node for a
            // moment.
            Err(error) if error.kind() == ErrorKind::StorageFull && path.exists() => {
                write_private(&path, &text)
            }
            written => written,
        };
        written.doing(format!("cannot write {}", path.display()))
    }

    /// Removes the announcement.
    pub fn withdraw(&self) {
        // A file that cannot be removed is stale; readers detect that by querying the node.
        let _ = fs::remove_file(self.path.join(DAEMON_FILE));
    }

    /// The running node's admin token.
    pub fn admin_token(&self) -> Option<String> {
        Some(fs::read_to_string(self.path.join(ADMIN_TOKEN_FILE)).ok()?.trim().to_owned())
    }

    /// The admin token, made at the first start.
    pub fn make_admin_token(&self) -> Result<String, CliError> {
        let path = self.path.join(ADMIN_TOKEN_FILE);
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

/// Writes a file that only this user may read.
pub fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let mut file = private::file(&mut options).open(path)?;
    file.write_all(bytes)
}

/// Writes such a file atomically; on failure the old file stays, and nothing else.
pub fn replace_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = write_private(&new, bytes).and_then(|()| store::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

/// 32 random bytes in hexadecimal.
pub fn random_hex() -> std::io::Result<String> {
    let random = ring::rand::generate::<[u8; 32]>(&ring::rand::SystemRandom::new());
    let bytes = random.map_err(|_| std::io::Error::other("no source of randomness"))?.expose();
    Ok(data_encoding::HEXLOWER.encode(&bytes))
}

/// A directory from the environment; an empty name counts as unset.
pub fn set(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The variable with the folder that the data's default place lies in.
pub const HOME: &str = if cfg!(windows) { "LOCALAPPDATA" } else { store::HOME };

/// `None` without a home directory, as in some services: keys do not belong into the current
/// directory.
fn default_dir() -> Option<PathBuf> {
    if cfg!(target_os = "macos") {
        return Some(home()?.join("Library/Application Support/Sinew"));
    }
    if cfg!(windows) {
        return Some(home()?.join("Sinew"));
    }
    let xdg = set("XDG_DATA_HOME").filter(|path| path.is_absolute());
    Some(xdg.or_else(|| Some(home()?.join(".local/share")))?.join("sinew"))
}

/// A relative path would depend on the current directory.
fn home() -> Option<PathBuf> {
    set(HOME).filter(|path| path.is_absolute())
}

/// Holds a directory's lock, as a running node does.
#[cfg(test)]
pub fn lock(dir: &DataDir) -> fs::File {
    let lock = fs::File::create(dir.path().join("lock")).unwrap();
    lock.try_lock().unwrap();
    lock
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(unix)]
    use crate::logs;

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_nothing_beside_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("keys");
        replace_private(&path, b"one").unwrap();
        replace_private(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        // As on a full disk, the last step fails.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        replace_private(&path, b"three").unwrap_err();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    #[cfg(unix)]
    fn links_in_place_of_what_lets_people_in_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let dir = DataDir::at(home.path().join("node"));
        dir.create().unwrap();
        fs::create_dir(dir.path().join(logs::FOLDER)).unwrap();
        assert_eq!(Path::new(LOG_FILE), Path::new(logs::FOLDER).join(logs::FILE));
        for name in PRIVATE_FILES {
            std::os::unix::fs::symlink(home.path().join("x"), dir.path().join(name)).unwrap();
            let error = dir.create().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("is a link"), "{error}");
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        dir.create().unwrap();
    }

    #[test]
    fn a_copy_of_a_running_nodes_directory_is_not_where_it_runs() {
        let home = tempfile::tempdir().unwrap();
        let [first, copy] = ["first", "copy"].map(|name| DataDir::at(home.path().join(name)));
        first.create().unwrap();
        copy.create().unwrap();
        let [lock, _copys] = [&first, &copy].map(lock);
        let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let dir = first.id().unwrap();
        first
            .announce(&Daemon {
                pid: 1,
                api: nowhere,
                listen: nowhere,
                dir,
                lan: Vec::new(),
                tls: false,
            })
            .unwrap();
        fs::copy(first.path().join(DAEMON_FILE), copy.path().join(DAEMON_FILE)).unwrap();
        assert!(first.daemon().is_some());
        assert!(copy.daemon().is_none());
        // As after `kill -9`: the announcement stays, and the lock is free.
        drop(lock);
        assert!(first.daemon().is_none());
    }
}
