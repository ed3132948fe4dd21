//! The key pair that identifies a node, and its data directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use store::private;

use crate::{Error, NodeId, Result};

const KEY_FILE: &str = "identity.key";
const LOCK_FILE: &str = "lock";
/// Announces a running daemon to commands. It counts while the daemon holds the lock.
pub const ANNOUNCEMENT: &str = "daemon.json";
/// A command holds the lock for a moment when it looks whether a daemon runs.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Files that are valid only with the key that wrote them. With a new key beside them, the node
/// would take its former key for another member, and that member's models for its own.
const KEYS_FILES: [&str; 4] =
    ["members.json", "members.previous", "desired.json", "desired.previous"];

/// This node's Ed25519 key pair. The public half is its [`NodeId`].
pub(crate) struct Identity {
    id: NodeId,
    /// PKCS#8 (RFC 8410), as written by `ring`.
    pkcs8: Vec<u8>,
    pair: Ed25519KeyPair,
}

impl Identity {
    /// Reads the key from the data directory, or generates one on the first start.
    ///
    /// # Errors
    /// The key is damaged, or it is missing while files that depend on it exist.
    pub(crate) fn load_or_create(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(KEY_FILE);
        let io = |source| Error::DataDir { path: path.clone(), source };
        let pkcs8 = match fs::read(&path) {
            Ok(pkcs8) => pkcs8,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let is_there = |name: &&&str| data_dir.join(name).symlink_metadata().is_ok();
                if let Some(beside) = KEYS_FILES.iter().find(is_there) {
                    return Err(Error::KeyGone { path, beside });
                }
                let pkcs8 = generate();
                write_atomic(&path, &pkcs8).map_err(io)?;
                pkcs8
            }
            Err(error) => return Err(io(error)),
        };
        private::restrict_file(&path).map_err(io)?;
        let pair = Ed25519KeyPair::from_pkcs8(&pkcs8)
            .map_err(|error| Error::Damaged { path: path.clone(), why: error.to_string() })?;
        let id = NodeId(pair.public_key().as_ref().try_into().expect("Ed25519 keys have 32 bytes"));
        Ok(Self { id, pkcs8, pair })
    }

    /// Signs bytes with this node's key. Ed25519 is deterministic: equal bytes give equal
    /// signatures.
    pub(crate) fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.pair.sign(bytes).as_ref().to_vec()
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// A key for one purpose, which `context` names, that only this node can make.
    pub(crate) fn key_for(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.pkcs8)
    }

    pub(crate) fn private_key(&self) -> PrivatePkcs8KeyDer<'_> {
        PrivatePkcs8KeyDer::from(self.pkcs8.as_slice())
    }
}

/// Whether the directory contains a node's key.
pub(crate) fn is_in(data_dir: &Path) -> bool {
    data_dir.join(KEY_FILE).exists()
}

/// The id of the node with this directory. Generates a key if there is none. No daemon may run
/// there.
///
/// # Errors
/// The directory is unusable, or a daemon runs there.
pub fn id_in(data_dir: &Path) -> Result<NodeId> {
    let _lock = open_data_dir(data_dir)?;
    Ok(Identity::load_or_create(data_dir)?.id())
}

/// Refuses a directory of another user, who could replace its content, and symbolic links in place
/// of `files`: the author of such a link reads or chooses the target. The directory itself may be a
/// link.
///
/// # Errors
/// The directory is refused or unreadable; the error names the command that helps.
pub fn check_data_dir(data_dir: &Path, files: &[&str]) -> Result<()> {
    let io = |source| Error::DataDir { path: data_dir.to_path_buf(), source };
    let found = fs::metadata(data_dir).map_err(io)?;
    if let Some((owner, user)) =
        owner_and_user(&found).filter(|&(owner, user)| !is_trusted(owner, user))
    {
        return Err(Error::ForeignDir { path: data_dir.to_path_buf(), owner, user });
    }
    for path in files.iter().map(|file| data_dir.join(file)) {
        if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            return Err(Error::LinkedFile { path });
        }
    }
    Ok(())
}

#[cfg(unix)]
fn owner_and_user(found: &fs::Metadata) -> Option<(u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    Some((found.uid(), rustix::process::geteuid().as_raw()))
}

/// Users have no numbers on Windows; the user's folders belong to the user.
#[cfg(windows)]
fn owner_and_user(_: &fs::Metadata) -> Option<(u32, u32)> {
    None
}

/// As in ssh, root is trusted: root can change everything anyway.
fn is_trusted(owner: u32, user: u32) -> bool {
    owner == user || owner == 0
}

/// Creates the directory if needed, makes it private to this user, and locks it against a second
/// daemon. The returned file holds the lock.
pub(crate) fn open_data_dir(data_dir: &Path) -> Result<File> {
    let io = |source| Error::DataDir { path: data_dir.to_path_buf(), source };
    fs::create_dir_all(data_dir).map_err(io)?;
    check_data_dir(data_dir, &[LOCK_FILE, KEY_FILE])?;
    check_data_dir(data_dir, &KEYS_FILES)?;
    // Other local users must not read the key or change the members.
    private::restrict_folder(data_dir).map_err(io)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let lock = private::file(&mut options).open(data_dir.join(LOCK_FILE)).map_err(io)?;
    match (0..LOCK_TRIES).try_for_each(|_| try_lock(&lock)) {
        ControlFlow::Break(Ok(())) => {}
        ControlFlow::Break(Err(error)) => return Err(io(error)),
        ControlFlow::Continue(()) => {
            return Err(Error::DataDirInUse { path: data_dir.to_path_buf() });
        }
    }
    // A killed daemon leaves it behind, and another program may have its port now.
    match fs::remove_file(data_dir.join(ANNOUNCEMENT)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(error)),
        _ => Ok(lock),
    }
}

/// Tries once; goes on after a pause while another process holds the lock.
fn try_lock(lock: &File) -> ControlFlow<std::io::Result<()>> {
    match lock.try_lock() {
        Ok(()) => ControlFlow::Break(Ok(())),
        Err(TryLockError::Error(error)) => ControlFlow::Break(Err(error)),
        Err(TryLockError::WouldBlock) => {
            std::thread::sleep(LOCK_PAUSE);
            ControlFlow::Continue(())
        }
    }
}

/// Whether a daemon runs with this directory. The system frees the lock of a killed one.
pub fn is_in_use(data_dir: &Path) -> bool {
    let lock = File::open(data_dir.join(LOCK_FILE));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Writes a file atomically: a crash leaves the old content or the new one.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_new(&partial, bytes).and_then(|()| store::rename(&partial, path));
    written.inspect_err(|_| drop(fs::remove_file(&partial)))?;
    sync_folder_of(path)
}

/// A rename is durable only after a sync of the directory.
#[cfg(unix)]
fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Windows opens no directories as files, and writes a rename to its journal.
#[cfg(windows)]
fn sync_folder_of(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = private::file(OpenOptions::new().write(true).create_new(true)).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn generate() -> Vec<u8> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    pkcs8.expect("the system's random numbers work").as_ref().to_vec()
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    ring::rand::SecureRandom::fill(&SystemRandom::new(), &mut bytes)
        .expect("the system's random numbers work");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::is_signed_by;

    #[cfg(unix)]
    fn mode(path: &Path) -> u32 {
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions()) & 0o777
    }

    #[test]
    fn a_key_is_made_once() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("node");
        let lock = open_data_dir(&dir).unwrap();
        let first = Identity::load_or_create(&dir).unwrap().id();
        assert_eq!(Identity::load_or_create(&dir).unwrap().id(), first);
        drop(lock);
    }

    #[test]
    #[cfg(unix)]
    fn a_key_that_others_may_read_is_made_private() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("node");
        let _lock = open_data_dir(&dir).unwrap();
        Identity::load_or_create(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&dir.join(KEY_FILE)), 0o600);
        let open = fs::Permissions::from_mode(0o644);
        fs::set_permissions(dir.join(KEY_FILE), open).unwrap();
        Identity::load_or_create(&dir).unwrap();
        assert_eq!(mode(&dir.join(KEY_FILE)), 0o600);
    }

    #[test]
    fn a_signature_is_of_one_key_and_one_text() {
        let home = tempfile::tempdir().unwrap();
        let (here, there) = (home.path().join("a"), home.path().join("b"));
        for dir in [&here, &there] {
            fs::create_dir(dir).unwrap();
        }
        let identity = Identity::load_or_create(&here).unwrap();
        let other = Identity::load_or_create(&there).unwrap();
        let signature = identity.sign(b"text");
        assert!(is_signed_by(identity.id(), b"text", &signature));
        assert!(!is_signed_by(identity.id(), b"another", &signature));
        assert!(!is_signed_by(other.id(), b"text", &signature));
        assert!(!is_signed_by(identity.id(), b"text", &[]));
    }

    #[test]
    #[cfg(unix)]
    fn a_directory_of_another_user_is_refused() {
        for (owner, user, trusted) in [(7, 7, true), (0, 7, true), (7, 8, false), (7, 0, false)] {
            assert_eq!(is_trusted(owner, user), trusted, "{owner} {user}");
        }
        if !rustix::process::geteuid().is_root() {
            return println!("not tested: only root can give a directory away");
        }
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(home.path(), Some(4242), None).unwrap();
        let error = open_data_dir(home.path()).unwrap_err().to_string();
        assert!(error.contains("user 4242") && error.contains("chown -R 0 /"), "{error}");
        assert!(!home.path().join(LOCK_FILE).exists(), "nothing is made there");
    }

    #[test]
    #[cfg(unix)]
    fn links_in_place_of_key_files_are_refused_and_other_links_are_not() {
        use std::os::unix::fs::symlink;
        let home = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (home.path().join("node"), home.path().join("elsewhere"));
        fs::create_dir(&dir).unwrap();
        for name in KEYS_FILES.into_iter().chain([KEY_FILE, LOCK_FILE]) {
            symlink(&elsewhere, dir.join(name)).unwrap();
            let error = open_data_dir(&dir).unwrap_err().to_string();
            assert!(error.contains(&format!("rm {}", dir.join(name).display())), "{error}");
            fs::remove_file(dir.join(name)).unwrap();
        }
        assert!(!elsewhere.exists(), "nothing is made behind them");
        let linked = home.path().join("linked");
        symlink(&dir, &linked).unwrap();
        symlink(home.path(), dir.join("models")).unwrap();
        open_data_dir(&linked).unwrap();
    }

    #[test]
    fn a_second_daemon_is_kept_out() {
        let home = tempfile::tempdir().unwrap();
        let lock = open_data_dir(home.path()).unwrap();
        // What this one announces stays; what a killed one announced does not.
        let announcement = home.path().join(ANNOUNCEMENT);
        fs::write(&announcement, b"{}").unwrap();
        assert!(matches!(open_data_dir(home.path()), Err(Error::DataDirInUse { .. })));
        assert!(announcement.exists() && is_in_use(home.path()));
        drop(lock);
        assert!(!is_in_use(home.path()));
        let _lock = open_data_dir(home.path()).unwrap();
        assert!(!announcement.exists());
    }

    #[test]
    fn a_lost_key_is_replaced_only_where_nothing_belongs_to_it() {
        let home = tempfile::tempdir().unwrap();
        let id = Identity::load_or_create(home.path()).unwrap().id();
        let key = home.path().join(KEY_FILE);
        let kept = fs::read(&key).unwrap();
        fs::remove_file(&key).unwrap();
        for name in KEYS_FILES {
            fs::write(home.path().join(name), b"{}").unwrap();
            let error = Identity::load_or_create(home.path()).err().unwrap().to_string();
            assert!(error.contains(name) && error.contains("/members.* "), "{error}");
            assert!(!key.exists(), "no key is made");
            fs::write(&key, &kept).unwrap();
            assert_eq!(Identity::load_or_create(home.path()).unwrap().id(), id, "it is put back");
            fs::remove_file(&key).unwrap();
            fs::remove_file(home.path().join(name)).unwrap();
        }
        // The remedy for a cloned directory: rm identity.key members.* desired.*
        assert_ne!(Identity::load_or_create(home.path()).unwrap().id(), id);
    }

    #[test]
    fn a_damaged_key_is_refused() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(KEY_FILE), b"no key").unwrap();
        assert!(matches!(Identity::load_or_create(home.path()), Err(Error::Damaged { .. })));
    }
}
