//! A model's bytes, with each group compared with its hash before use.
//!
//! [`Checked`] reads whole groups from any source ([`Groups`]) and caches the last few, since a
//! loader reads a file mostly from its beginning to its end. [`CheckedFile`] is the loader's view
//! of a file on this machine: damaged groups are read from a peer.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use gguf::{Bytes, Directory, File, ReadError, Source, Strided};

use crate::tree::Files;
use crate::{Digest, GROUP_BYTES, PeerFile, RelayAddress, Tree};

/// Cached groups: more than one chunk of a loader covers.
const KEPT: usize = 16;

/// A source of a model's groups.
pub trait Groups: fmt::Debug + Send + Sync {
    /// The bytes of these groups, in this order, each compared with its hash.
    ///
    /// # Errors
    /// No source has the right bytes of a group.
    fn fetch(&self, tree: &Tree, wanted: &[u64]) -> io::Result<Vec<Vec<u8>>>;
}

/// All bytes of a model, its files one after the other.
#[derive(Debug)]
pub struct Checked<G> {
    tree: Tree,
    groups: G,
    kept: Mutex<VecDeque<(u64, Arc<Vec<u8>>)>>,
}

impl<G: Groups + 'static> Checked<G> {
    pub fn new(tree: Tree, groups: G) -> Arc<Self> {
        Arc::new(Self { tree, groups, kept: Mutex::default() })
    }

    /// Opens the model: `lens` are the lengths of its files. `path` is the name of the first, for
    /// errors.
    ///
    /// # Errors
    /// It is not GGUF, or its header cannot be read.
    pub fn open(self: &Arc<Self>, path: &Path, lens: &[u64]) -> Result<File, gguf::Error> {
        let mut start = 0;
        let parts = lens.iter().map(|len| {
            let part = Part { all: self.clone(), start, len: *len };
            start += len;
            Arc::new(part) as Arc<dyn Bytes>
        });
        File::over(path, &parts.collect::<Vec<_>>())
    }

    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let end = start.saturating_add(out.len() as u64);
        if end > self.tree.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // A long read keeps only a few groups in memory at a time.
        let (first, last) = (start / GROUP_BYTES, (end - 1) / GROUP_BYTES);
        for at in (first..=last).step_by(KEPT / 2) {
            let wanted: Vec<u64> = (at..=last.min(at + KEPT as u64 / 2 - 1)).collect();
            for (group, bytes) in wanted.iter().zip(self.groups(&wanted)?) {
                let group_start = group * GROUP_BYTES;
                let from = start.max(group_start);
                let to = end.min(group_start + bytes.len() as u64);
                out[(from - start) as usize..(to - start) as usize].copy_from_slice(
                    &bytes[(from - group_start) as usize..(to - group_start) as usize],
                );
            }
        }
        Ok(())
    }

    fn groups(&self, wanted: &[u64]) -> io::Result<Vec<Arc<Vec<u8>>>> {
        let kept = |group: u64| {
            let kept = self.kept();
            kept.iter().find(|(known, _)| *known == group).map(|(_, bytes)| bytes.clone())
        };
        let mut found: Vec<Option<Arc<Vec<u8>>>> = wanted.iter().map(|g| kept(*g)).collect();
        let missing: Vec<u64> =
            wanted.iter().zip(&found).filter(|(_, it)| it.is_none()).map(|(g, _)| *g).collect();
        let mut fetched = self.groups.fetch(&self.tree, &missing)?.into_iter();
        for (group, found) in wanted.iter().zip(&mut found).filter(|(_, it)| it.is_none()) {
            let bytes = Arc::new(fetched.next().ok_or(io::ErrorKind::UnexpectedEof)?);
            let mut kept = self.kept();
            if kept.len() >= KEPT {
                kept.pop_front();
            }
            kept.push_back((*group, bytes.clone()));
            *found = Some(bytes);
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Vec<u8>>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of a model's files.
#[derive(Debug)]
struct Part<G> {
    all: Arc<Checked<G>>,
    start: u64,
    len: u64,
}

impl<G: Groups + 'static> Bytes for Part<G> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        if start.saturating_add(out.len() as u64) > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.all.read(self.start + start, out)
    }
}

/// The files of a model on this machine's disk.
#[derive(Debug)]
struct Local {
    files: Files,
    path: PathBuf,
    /// Groups that match their hashes.
    sound: Mutex<BTreeSet<u64>>,
}

impl Local {
    fn are_sound(&self, groups: impl Iterator<Item = u64>) -> bool {
        let sound = self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        groups.into_iter().all(|group| sound.contains(&group))
    }
}

impl Groups for Arc<Local> {
    fn fetch(&self, tree: &Tree, wanted: &[u64]) -> io::Result<Vec<Vec<u8>>> {
        let fetch = |group: &u64| {
            let (start, len) = tree.extent(*group);
            let mut bytes = vec![0; len as usize];
            let read = self.files.read(start, &mut bytes);
            if read.is_ok() && tree.is_group(*group, &bytes) {
                self.sound.lock().unwrap_or_else(PoisonError::into_inner).insert(*group);
                return Ok(bytes);
            }
            let path = self.path.display();
            Err(io::Error::other(match (self.files.have_changed(), read) {
                (true, _) => format!("{path} was overwritten or cut short while it is in use"),
                (false, Err(error)) => format!("{path} cannot be read: {error}"),
                (false, Ok(())) => format!(
                    "{path} is damaged: MiB {} is not what it was when the file was hashed",
                    group + 1
                ),
            }))
        };
        wanted.iter().map(fetch).collect()
    }
}

/// A model on this machine, checked while it is read.
pub struct CheckedFile {
    local: Arc<Local>,
    file: File,
    /// The same file without checks.
    plain: File,
    /// The daemon's relay to peers with the model, for damaged groups.
    relay: RelayAddress,
    peer: OnceLock<PeerFile>,
}

impl CheckedFile {
    /// Opens a model with hashes in the file `tree`.
    ///
    /// # Errors
    /// It cannot be read, or is not GGUF.
    pub fn open(
        path: &Path,
        digest: Digest,
        tree: &Path,
        relay: RelayAddress,
    ) -> Result<Self, gguf::Error> {
        let io = |source| gguf::Error::Io { path: path.to_path_buf(), source };
        let files = Files::new(checkpoint::files(path).map_err(io)?);
        let hashes = match files.bytes <= GROUP_BYTES {
            true => Vec::new(),
            false => std::fs::read(tree).map_err(io)?,
        };
        let tree = Tree::from_bytes(digest, files.bytes, &hashes);
        let other = || io(io::Error::other("it is not what it was when it was hashed"));
        let tree = tree.ok_or_else(other)?;
        let lens = files.lens();
        let plain = File::over(path, &files.parts())?;
        let local = Arc::new(Local { files, path: path.to_path_buf(), sound: Mutex::default() });
        let file = Checked::new(tree, local.clone()).open(path, &lens)?;
        Ok(Self { local, file, plain, relay, peer: OnceLock::new() })
    }

    /// Reads the same bytes from a peer; `why` explains why this file cannot be used.
    fn read_from_peer(
        &self,
        why: ReadError,
        pieces: Strided,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        let peer = match self.peer.get() {
            Some(peer) => peer,
            None => match PeerFile::connect(&self.relay) {
                Ok(peer) => self.peer.get_or_init(|| peer),
                Err(error) => return Err(neither(&why, &error)),
            },
        };
        peer.read(pieces, out).map_err(|error| neither(&why, &error))
    }
}

fn neither(here: &ReadError, elsewhere: &dyn fmt::Display) -> ReadError {
    let here = match here {
        ReadError::File(error) => error.to_string(),
        other => other.to_string(),
    };
    ReadError::Changed(format!(
        "{here}. It could not be read from another node instead: {elsewhere}. Put the right file \
         there (of one that was pulled: sinew rm and sinew pull), stop the model and serve it again"
    ))
}

impl Source for CheckedFile {
    fn directory(&self) -> &Arc<Directory> {
        self.file.directory()
    }

    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        match self.file.read(pieces, out) {
            Err(why @ ReadError::File(_)) => self.read_from_peer(why, pieces, out),
            read => read,
        }
    }

    fn read_again(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        // In a single file, offsets equal those of the whole model.
        let groups = pieces.start / GROUP_BYTES..=pieces.end().unwrap_or(u64::MAX) / GROUP_BYTES;
        let is_one = self.local.files.lens().len() == 1;
        if is_one && self.local.are_sound(groups) && !self.local.files.have_changed() {
            return self.plain.read(pieces, out);
        }
        self.read(pieces, out)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};

    use super::*;
    use crate::Store;

    /// A model of 3 MiB with counting elements.
    fn write_model(path: &Path) {
        let mut writer = gguf::Writer::new();
        writer.declare("t", &[256, 3 << 10], gguf::TensorType::F32);
        let mut out = Vec::new();
        let fill = |_: &str, _, bytes, out: &mut Vec<u8>| {
            (0..bytes as u32 / 4).try_for_each(|n| io::Write::write_all(out, &n.to_le_bytes()))
        };
        writer.write(&mut out, fill).unwrap();
        fs::write(path, out).unwrap();
    }

    fn row(file: &CheckedFile, row: u64, again: bool) -> Result<u32, ReadError> {
        let start = file.directory().tensors()[0].range.start + row * 1024;
        let mut out = [0; 1024];
        let pieces = Strided { start, piece: 1024, stride: 1024, count: 1 };
        match again {
            true => file.read_again(pieces, &mut out)?,
            false => file.read(pieces, &mut out)?,
        }
        Ok(u32::from_le_bytes(out[..4].try_into().unwrap()))
    }

    fn flip(path: &Path, at: usize) {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 1;
        let modified = fs::metadata(path).unwrap().modified().unwrap();
        fs::write(path, bytes).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    }

    #[test]
    fn what_is_not_as_it_was_hashed_is_read_from_a_peer_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let path = store.models_dir().join("m.gguf");
        write_model(&path);
        let found = store.resolve("m").unwrap();
        // A peer with a complete copy, behind a relay that wants a token first.
        let whole = dir.path().join("whole.gguf");
        fs::copy(&path, &whole).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let server = crate::slices::Server::new(Arc::new(File::open(whole).unwrap()));
            let (mut stream, _) = listener.accept().unwrap();
            io::Read::read_exact(&mut stream, &mut [0; 32]).unwrap();
            let (mut request, mut answer) = ([0; crate::slices::REQUEST_BYTES], Vec::new());
            while io::Read::read_exact(&mut stream, &mut request).is_ok() {
                server.answer(&request, &mut answer);
                io::Write::write_all(&mut stream, &answer).unwrap();
            }
        });
        let tree = store.tree_path(&found.digest);
        let open = |address| {
            let relay = RelayAddress { address, token: [0; 32], arrived: Arc::default() };
            CheckedFile::open(&path, found.digest, &tree, relay).unwrap()
        };
        let file = open(relay);
        assert_eq!(row(&file, 5, false).unwrap(), 5 * 256);
        assert_eq!(row(&file, 6, true).unwrap(), 6 * 256);
        flip(&path, (1 << 20) + 100_000);
        let (here, damaged) = (open(relay), 1100);
        assert_eq!(row(&here, damaged, false).unwrap(), damaged as u32 * 256);
        assert_eq!(row(&here, damaged, true).unwrap(), damaged as u32 * 256, "and again");
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let alone = open(nobody);
        let error = row(&alone, damaged, false).unwrap_err().to_string();
        assert!(error.contains("is damaged: MiB 2") && error.contains("sinew pull"), "{error}");
        assert_eq!(row(&alone, 6, true).unwrap(), 6 * 256, "the rest is as it was");
        // The file is truncated while in use: an error, not a signal.
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let error = row(&alone, 2500, true).unwrap_err().to_string();
        assert!(error.contains("was overwritten or cut short while it is in use"), "{error}");
        let error = row(&alone, 6, true).map(|_| String::new());
        assert!(error.is_ok(), "what did not change is still there");
        // A doubted file is hashed again, and no longer known by its old digest.
        assert_eq!(store.known_digest(&path), None);
        store.doubt(&found.digest, found.bytes);
        assert_eq!(store.find(&found.digest, found.bytes), None);
    }
}
