//! The API keys of a node: named, and kept as hashes in its data directory. The file is checked at
//! each request, so that a key is valid from its creation to its revocation.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serve::ApiKey;
use store::{Identity, identity, private};

use crate::data_dir::{random_hex, replace_private};
use crate::error::{CliError, Doing};

pub const FILE: &str = "api-keys.json";
/// Locked during changes, so that of two changes none is lost.
pub const LOCK: &str = "api-keys.lock";
/// Prefix of every key, by which people and programs recognise leaked secrets.
pub const PREFIX: &str = "sk-sinew-";
/// Each request is compared with every key; a household has a few.
const KEYS_MAX: usize = 1000;
const NAME_CHARS_MAX: usize = 64;

/// A stored key. The key itself is shown once and not stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptKey {
    pub name: String,
    /// BLAKE3 of the key, in hexadecimal.
    pub hash: String,
    pub created_unix_secs: u64,
    /// The key is that of a browser of the node's owner, which shows the owner's conversations.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_owners: bool,
}

/// The file of a data directory.
#[derive(Debug)]
pub struct KeyFile {
    dir: PathBuf,
    /// The content at the last read.
    read: Mutex<(Option<Stamp>, Arc<[ApiKey]>)>,
}

/// Identifies a version of the file, which every change replaces.
type Stamp = (Identity, SystemTime, u64);

fn stamp(path: &Path) -> std::io::Result<Stamp> {
    let file = fs::metadata(path)?;
    Ok((identity(path)?, file.modified()?, file.len()))
}

impl KeyFile {
    pub fn new(data_dir: &Path) -> Self {
        Self { dir: data_dir.to_path_buf(), read: Mutex::new((None, Arc::default())) }
    }

    /// The valid keys. An unreadable file accepts no key.
    pub fn now(&self) -> Arc<[ApiKey]> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.dir.join(FILE)).ok();
        if read.0 != stamp {
            let keys = self.list().unwrap_or_else(|error| {
                tracing::error!(%error, "the API keys cannot be read, so none is accepted");
                Vec::new()
            });
            *read = (stamp, keys.iter().filter_map(KeptKey::accepted).collect());
        }
        Arc::clone(&read.1)
    }

    /// All keys, oldest first.
    ///
    /// # Errors
    /// The file is unreadable or damaged.
    pub fn list(&self) -> Result<Vec<KeptKey>, CliError> {
        let path = self.dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).doing(format!("cannot read {}", path.display())),
        };
        serde_json::from_slice(&text).map_err(|error| {
            let path = path.display();
            CliError::Refused(format!("{path} is damaged: {error}. Restore it, or delete it"))
        })
    }

    /// Makes a key and returns it. It is not stored, so it cannot be shown again.
    ///
    /// # Errors
    /// The name is taken or invalid, or the file cannot be written.
    pub fn create(&self, name: &str) -> Result<String, CliError> {
        self.create_for(name, false)
    }

    /// The same, for a browser of the node's owner or of somebody else.
    ///
    /// # Errors
    /// As there.
    pub fn create_for(&self, name: &str, is_owners: bool) -> Result<String, CliError> {
        let visible = |c: char| !c.is_control() && !c.is_whitespace();
        if !(1..=NAME_CHARS_MAX).contains(&name.chars().count()) || !name.chars().all(visible) {
            let text = format!("{name:?} is no name: give 1 to {NAME_CHARS_MAX} visible letters");
            return Err(CliError::Usage(text));
        }
        let key = random_hex().doing("the system gives no random numbers")?;
        let key = format!("{PREFIX}{key}");
        self.change(|keys| {
            if keys.iter().any(|kept| kept.name == name) {
                let text = format!(
                    "there is a key {name} already. Choose another name, or revoke that one first \
                     with: sinew keys revoke {name}"
                );
                return Err(CliError::Refused(text));
            }
            if keys.len() >= KEYS_MAX {
                let text = format!("there are {KEYS_MAX} keys, the most there can be. Revoke one");
                return Err(CliError::Refused(text));
            }
            let hash = HEXLOWER.encode(&ApiKey::new(name, &key).hash);
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let created_unix_secs = now.map_or(0, |now| now.as_secs());
            let name = name.to_owned();
            keys.push(KeptKey { name, hash, created_unix_secs, is_owners });
            Ok(())
        })?;
        Ok(key)
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// There is no key of that name, or the file cannot be written.
    pub fn revoke(&self, name: &str) -> Result<(), CliError> {
        self.change(|keys| {
            let before = keys.len();
            keys.retain(|kept| kept.name != name);
            if keys.len() < before {
                return Ok(());
            }
            let text = format!("there is no key {name}. List them with: sinew keys list");
            Err(CliError::Refused(text))
        })
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Vec<KeptKey>) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let lock = private::file(&mut options)
            .open(self.dir.join(LOCK))
            .and_then(|file| file.lock().map(|()| file));
        let _lock = lock.doing("cannot lock the API keys")?;
        let mut keys = self.list()?;
        change(&mut keys)?;
        let text = serde_json::to_vec_pretty(&keys).expect("names and numbers are JSON");
        let path = self.dir.join(FILE);
        replace_private(&path, &text).doing(format!("cannot write {}", path.display()))
    }
}

impl KeptKey {
    /// The key for comparison with requests; `None` if its hash is malformed.
    fn accepted(&self) -> Option<ApiKey> {
        let hash = HEXLOWER.decode(self.hash.as_bytes()).ok()?.try_into().ok()?;
        Some(ApiKey { name: self.name.clone(), hash, is_owners: self.is_owners })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_from_its_making_to_its_revocation() {
        let dir = tempfile::tempdir().unwrap();
        // One is the node's, the other a command's.
        let (node, command) = (KeyFile::new(dir.path()), KeyFile::new(dir.path()));
        assert!(node.now().is_empty());
        let key = command.create("laptop").unwrap();
        assert_eq!(*node.now(), [ApiKey::new("laptop", &key)]);
        let other = command.create("phone").unwrap();
        assert_ne!(key, other);
        assert_eq!(node.now().len(), 2);
        assert!(command.create("laptop").unwrap_err().to_string().contains("already"));
        command.revoke("laptop").unwrap();
        assert_eq!(*node.now(), [ApiKey::new("phone", &other)]);
        assert!(command.revoke("laptop").unwrap_err().to_string().contains("no key laptop"));
        for name in ["", "a b", "x\u{1b}[2J", &"x".repeat(65)] {
            assert!(matches!(command.create(name), Err(CliError::Usage(_))), "{name:?}");
        }
    }

    #[test]
    fn the_file_has_no_key_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keys = KeyFile::new(dir.path());
        let key = keys.create("laptop").unwrap();
        let path = dir.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("laptop") && !text.contains(&key[PREFIX.len()..]), "{text}");
        for file in [FILE, LOCK] {
            let found = fs::metadata(dir.path().join(file)).unwrap();
            assert!(!private::is_open_to_others(&found), "{file}");
        }
    }

    #[test]
    fn a_damaged_file_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let keys = KeyFile::new(dir.path());
        keys.create("laptop").unwrap();
        assert_eq!(keys.now().len(), 1);
        for text in ["", "[{", "[{\"name\": \"x\", \"hash\": \"zz\", \"created_unix_secs\": 0}]"] {
            fs::write(dir.path().join(FILE), text).unwrap();
            assert!(keys.now().is_empty(), "{text:?}");
        }
    }
}
