//! The shared-memory object of one pair of ranks: made, mapped, checked and unlinked.
//!
//! The object has a name only between its creation and the moment both ranks have mapped it: one
//! round trip. If the handshake fails there, the surviving rank removes the name. If both are
//! killed in that window, the name stays until any rank builds a mesh on this machine a minute
//! later ([`sweep`]). [`unlink_leftovers`] finds it at once by the epoch, because the name follows
//! from instance, epoch and ranks.

use std::ptr::NonNull;
#[cfg(target_os = "linux")]
use std::time::Duration;

use super::system;

/// The prefix of all names.
const PREFIX: &str = "sinew-";

/// An object that is still named after this long is abandoned: both ranks map it within a round
/// trip.
#[cfg(target_os = "linux")]
const NAMED_MAX: Duration = Duration::from_secs(60);

/// A mapping shared with one other process. Bytes may change at any time, so it hands out raw
/// pointers only.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; only `Mapping` unmaps it, and it
// lends nothing that outlives it.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` only returns addresses; their use is up to the caller's proof.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates the object, `len` zero bytes readable by this user only, and maps it.
    pub fn create(name: &ObjectName, len: usize) -> std::io::Result<Self> {
        Ok(Mapping { start: system::create(name.as_str(), len)?, len })
    }

    /// Maps the peer's object, if it belongs to this user and is `len` bytes long.
    pub fn open(name: &ObjectName, len: usize) -> std::io::Result<Self> {
        Ok(Mapping { start: system::open(name.as_str(), len)?, len })
    }

    /// The address of byte `at`, good for `len` bytes.
    pub fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "outside the mapping");
        // SAFETY: the assertion keeps the offset inside the mapping.
        unsafe { self.start.add(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of the mapping above, and every pointer from `at` is
        // used only while its owner also owns this mapping.
        unsafe { system::unmap(self.start, self.len) };
    }
}

/// The name of a pair's object. Dropping it removes the name; existing mappings stay.
pub(crate) struct ObjectName(String);

impl ObjectName {
    /// 30 bytes, of the 31 that macOS allows.
    pub fn new(instance: &[u8; 16], epoch: u64, lower: usize, higher: usize) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("sinew link 2026 shared memory name");
        hasher.update(instance).update(&epoch.to_le_bytes());
        hasher.update(&(lower as u64).to_le_bytes()).update(&(higher as u64).to_le_bytes());
        ObjectName(format!("/{PREFIX}{}", &hasher.finalize().to_hex()[..23]))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Drop for ObjectName {
    fn drop(&mut self) {
        let _ = system::unlink(&self.0);
    }
}

/// Removes old objects that killed ranks of any instance have left. Only Linux lists its objects.
pub(crate) fn sweep() {
    #[cfg(target_os = "linux")]
    sweep_in(std::path::Path::new("/dev/shm"));
}

/// Skips an entry that cannot be read or removed: it is another user's, or gone.
#[cfg(target_os = "linux")]
fn sweep_in(directory: &std::path::Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let is_ours =
        |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
    for entry in entries.flatten().filter(is_ours) {
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        if changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > NAMED_MAX)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Removes the shared-memory objects that killed ranks of this epoch may have left, and returns
/// their number. Call it only after all ranks of the epoch have ended.
pub fn unlink_leftovers(instance: &[u8; 16], epoch: u64, ranks: usize) -> usize {
    let pairs = (0..ranks).flat_map(|higher| (0..higher).map(move |lower| (lower, higher)));
    pairs
        .filter(|&(lower, higher)| {
            let name = ObjectName::new(instance, epoch, lower, higher);
            system::unlink(name.as_str()).is_ok()
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn old_leftovers_are_swept_and_nothing_else() {
        let directory = std::env::temp_dir().join(format!("sinew-sweep-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let now = std::time::SystemTime::now();
        for (name, age) in
            [("sinew-old", 2 * NAMED_MAX), ("sinew-new", NAMED_MAX / 2), ("other", 2 * NAMED_MAX)]
        {
            let file = std::fs::File::create(directory.join(name)).unwrap();
            file.set_modified(now - age).unwrap();
        }
        sweep_in(&directory);
        let left = |name| directory.join(name).exists();
        assert_eq!(["sinew-old", "sinew-new", "other"].map(left), [false, true, true]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn an_object_is_shared_until_unlinked_and_leftovers_are_found() {
        let instance = *b"shm object test!";
        let name = ObjectName::new(&instance, 3, 0, 2);
        assert!(name.as_str().len() <= 31, "{}", name.as_str());
        let ours = Mapping::create(&name, 8192).unwrap();
        let theirs = Mapping::open(&name, 8192).unwrap();
        // SAFETY: both mappings are live and 8192 bytes long, and no other thread has them.
        unsafe {
            ours.at(8191, 1).write(42);
            assert_eq!(theirs.at(8191, 1).read(), 42);
        }
        assert!(Mapping::open(&name, 16384).is_err(), "too short");
        // On Windows nothing is left over, so nothing is replaced.
        #[cfg(unix)]
        let _again = Mapping::create(&name, 8192).unwrap();
        assert_eq!(unlink_leftovers(&instance, 3, 3), 1);
        assert_eq!(unlink_leftovers(&instance, 3, 3), 0);
        drop((ours, theirs));
        assert!(Mapping::open(&name, 8192).is_err(), "unlinked");
    }
}
